"""Several answers to one question, and the one that most of them agree on counts."""

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam

CONFIDENCE = re.compile(
    r"\bconfidence\s{0,3}[:=]?\s{0,3}(\d{1,3}(?:\.\d{1,6})?|\.\d{1,6})(\s?%)?", re.IGNORECASE
)


@dataclass
class MajorityVote(ConferringTeam):
    """A workflow in which every agent answers the environment's question `samples` times, all at
    once, and the first answer with the most votes is the team's (self-consistency, arXiv
    2203.11171). Ties go to the earliest answer. Answers count as the same vote if their texts are
    equal up to case and whitespace; an empty answer does not vote. Without any vote, the first
    answer is used.

    Args:
        samples: answers of each agent.
        pattern: a regular expression that finds the vote in an answer: its last match, of which the
            first group if it has groups. An answer without a match does not vote.
        weighted: weigh each vote by the `Confidence: 0.8` (or 80%; capped at 1, and 0 if missing)
            of its answer instead of by 1. The statement is removed from the vote and from the
            answer that the environment receives.
        ask: text shown to all agents after the question; nothing if empty.
    """

    samples: int = 1
    pattern: str | None = None
    weighted: bool = False
    ask: str = ""

    lowest: ClassVar[tuple[tuple[str, float], ...]] = (("samples", 1),)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise ConfigError(
                f"{self.title}: pattern={self.pattern!r} is not a regular expression ({error})"
            ) from error

    def completions(self, agents: int, turns: int) -> int:
        return turns * agents * self.samples

    sequences = completions  # an answer that did not win is not continued

    async def answer(self, talk: Conference) -> Message:
        for name in talk.names:
            talk.show(name, self.ask)
        answers = await asyncio.gather(
            *(talk.agents[name].act(talk.seen[name]) for name in talk.names * self.samples)
        )
        return answers[self.elected([message.content for message in answers])]

    def action(self, message: Message) -> Message:
        """The answer without its confidence statement."""
        if not self.weighted:
            return message
        return Message(self._stripped(message.content), message.role, agent=message.agent)

    def elected(self, answers: Sequence[str]) -> int:
        """Index of the answer that wins the vote."""
        weights: dict[str, list[float]] = {}
        votes = [self._vote(answer) for answer in answers]
        for vote, answer in zip(votes, answers, strict=True):
            if vote:
                weights.setdefault(vote, []).append(self._weight(answer))
        if not weights:
            return 0
        return votes.index(max(weights, key=lambda vote: math.fsum(weights[vote])))

    def _vote(self, answer: str) -> str:
        text = self._stripped(answer) if self.weighted else answer
        if self.pattern is not None:
            *_, last = [None, *re.finditer(self.pattern, text)]
            text = "" if last is None else last[last.re.groups and 1] or ""
        return " ".join(text.split()).casefold()

    def _weight(self, answer: str) -> float:
        stated = CONFIDENCE.findall(answer)
        if not (self.weighted and stated):
            return float(not self.weighted)
        number, percent = stated[-1]
        return min(1.0, float(number) / (100 if percent else 1))

    def _stripped(self, answer: str) -> str:
        return CONFIDENCE.sub("", answer).strip()


PLUGIN = MajorityVote
