"""Several answers to one question, and the one that most of them agree on counts."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam

CONFIDENCE = re.compile(
    r"\bconfidence\s{0,3}[:=]?\s{0,3}(\d{1,3}(?:\.\d{1,6})?|\.\d{1,6})(\s?%)?", re.IGNORECASE
)


@dataclass
class MajorityVote(ConferringTeam):
    """Every agent answers the world's question `samples` times, all at once, and the first of the
    answers with the most votes is the team's (self-consistency, arXiv 2203.11171). Of equals, the
    one that was given first. Answers are the same vote if they are the same text, whatever its case
    and spaces; an empty one is no vote. Where there is no vote at all, the first answer counts.

    Args:
        samples: answers of each agent.
        pattern: a regular expression that finds the vote in an answer: the last match counts, of it
            the first group if there is one. An answer without a match is no vote.
        weighted: a vote weighs what its answer states as `Confidence: 0.8` (or 80%; above 1 is 1,
            and 0 where none is stated) instead of 1. The statement is no part of the vote, nor of
            what the world is given.
        ask: what everybody is told after the question; nothing if empty.
    """

    samples: int = 1
    pattern: str | None = None
    weighted: bool = False
    ask: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least("samples", 1)
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise ConfigError(
                f"{self.title}: pattern={self.pattern!r} is no regular expression ({error})"
            ) from error

    def completions(self, agents: int, turns: int) -> int:
        return turns * agents * self.samples

    def sequences(self, agents: int, turns: int) -> int:
        """Into how many sequences these fall, at most: an answer that did not win is not gone on
        from."""
        return turns * agents * self.samples

    async def answer(self, talk: Conference) -> Message:
        for name in talk.names:
            talk.show(name, self.ask)
        said = await asyncio.gather(
            *(talk.agents[name].act(talk.seen[name]) for name in talk.names * self.samples)
        )
        return said[self.elected([message.content for message in said])]

    def action(self, message: Message) -> Message:
        """What the world is given: the answer without the confidence."""
        if not self.weighted:
            return message
        return Message(self._stripped(message.content), message.role, agent=message.agent)

    def elected(self, answers: Sequence[str]) -> int:
        """Which of the answers wins the vote."""
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
