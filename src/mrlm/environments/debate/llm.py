"""A language model as judge. It is queried twice, with the sides in either order, so that a
position bias decides no debate."""

import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import Literal, get_args

from mrlm.core.errors import ConfigError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.types import Message, Role
from mrlm.environments.debate.judging import DebateRecord, DebateVerdict, Judge, leader
from mrlm.environments.debate.topics import SIDES, Side
from mrlm.environments.shared import text_judge
from mrlm.environments.shared.rows import one_of, whole_number

Mode = Literal["winner", "scores"]

ASKED = {
    "winner": "Which speaker argued better? Answer with one line: Winner: A, Winner: B or Winner: "
    "tie",
    "scores": "How well did each speaker argue, from 0 to 10? Answer with two lines: A: <score> "
    "and B: <score>",
}
_WINNER = re.compile(
    r"[\W_]*(?:the\s)?(?:(?:final|overall)\s)?(?:winner|verdict|answer|better(?:\sspeaker)?)"
    r"(?:\sis)?[\W_]*(?:speaker\s?)?(a|b|tie|draw)[\W_]*"
    r"|[\W_]*(?:speaker\s?)?(a|b)\s(?:wins|won|argued better|is better)[\W_]*"
    r"|[\s*_]*\[\[(a|b|c)\]\][\s*_.]*|[\s*_]*(a|b|tie|draw)[\s*_.]*",
    re.I,
)
_SCORE = re.compile(
    rf"[\s*_|-]*(?:speaker\s)?([ab])[\s*_]*[:=|][\s*_]*(?:\[\[)?{text_judge.NUMBER}{text_judge.OUT_OF}(?:\]\])?[\s*_.|]*",
    re.I,
)

Ballot = Mapping[Side, float]
"""side -> its score from 0 to 1."""


class LLMJudge(Judge):
    """A language model as judge: an agent of the run (trained or frozen), or a callable.

    It reads the whole debate, one side after the other, with a bar before every line of a speech,
    so that no speech can imitate a heading or a verdict; and then again in the other order, as a
    new conversation. Each time it names the better side or scores both. A side wins if both answers
    agree; otherwise it is a draw (with `mode="scores"`, scores are added). A query whose answer
    cannot be parsed is repeated up to `retries` times; after that the debate is void.

    Args:
        agent: name of the judging agent; an `LLMEnvironment` here is `ask`.
        ask: `ask(messages) -> text or Message`, possibly a coroutine function, or an
            `LLMEnvironment`, instead of an agent.
        mode: `winner` or `scores`.
        swap: query in both orders; else PRO is always first.
        retries: repetitions of a query whose answer cannot be parsed.
        instruction: text before the debate.

    Raises:
        ConfigError: neither or both of `agent` and `ask` are given.
    """

    def __init__(
        self,
        agent: str | LLMEnvironment | None = None,
        ask: text_judge.Ask | None = None,
        *,
        mode: Mode = "winner",
        swap: bool = True,
        retries: int = 1,
        instruction: str = "You judge a debate by its arguments alone, not by your own opinion.",
    ) -> None:
        if isinstance(agent, LLMEnvironment):  # the one positional argument is often the judge
            agent, ask = None, agent if ask is None else ask
        if (agent is None) == (ask is None):
            raise ConfigError("an LLM judge needs either agent (the judging agent) or ask")
        one_of("mode", mode, get_args(Mode))
        whole_number(0, retries=retries)
        self.agent = agent
        self.mode: Mode = mode
        self.swap = swap
        self.retries = retries
        self.instruction = instruction
        self._ask = ask

    @property
    def by_agent(self) -> "Mapping[str, LLMJudge]":
        """The judging agent, if there is one."""
        return {} if self.agent is None else {self.agent: self}

    @property
    def most_questions(self) -> int:
        """Maximum number of the judge's messages per verdict."""
        return (1 + self.swap) * (1 + self.retries)

    def decide(
        self, debate: DebateRecord, agent_verdicts: Mapping[str, DebateVerdict]
    ) -> DebateVerdict | Awaitable[DebateVerdict]:
        return self._asked(debate) if self.agent is None else agent_verdicts[self.agent]

    async def _asked(self, debate: DebateRecord) -> DebateVerdict:
        hearing, conversation = Hearing(self, debate), list[Message]()
        while not hearing.over:
            conversation = [*([] if hearing.opens else conversation), hearing.question()]
            answer = await text_judge.answer_of(self._ask, conversation)
            conversation.append(Message(answer, Role.ASSISTANT))
            hearing.answer(answer)
        return hearing.verdict()

    def read(self, text: str, order: Sequence[Side]) -> Ballot | None:
        """The scores in an answer, with A the first side of `order`: the last verdict counts;
        `None` if it has none, or a score that is not from 0 to 10."""
        if self.mode == "winner":
            for line in text_judge.reply_lines(text):
                if match := _WINNER.fullmatch(line):
                    name = next(part for part in match.groups() if part is not None).lower()
                    better = {"a": (1.0, 0.0), "b": (0.0, 1.0)}.get(name, (0.5, 0.5))
                    return dict(zip(order, better, strict=True))
            return None
        scores: dict[str, float | None] = {}
        for line in text_judge.reply_lines(text):
            if (match := _SCORE.fullmatch(line)) and match[1].lower() not in scores:
                scores[match[1].lower()] = text_judge.score_of(match[2])
        first, second = scores.get("a"), scores.get("b")
        if first is None or second is None:
            return None
        return dict(zip(order, (first, second), strict=True))

    def shown(self, debate: DebateRecord, order: Sequence[Side]) -> str:
        """The prompt of the judge, with the first side of `order` as speaker A."""
        blocks = []
        for label, side in zip("AB", order, strict=True):
            stands = "for" if side == "pro" else "against"
            own = (speech for speech in debate.speeches if debate.sides[speech.debater] == side)
            speeches = [
                f"{n}.\n{text_judge.quoted(speech.text)}" for n, speech in enumerate(own, 1)
            ]
            blocks.append("\n".join([f"Speaker {label}, {stands} it, said:", *speeches]))
        topic = f"The debate was about:\n{text_judge.quoted(debate.topic.claim)}"
        return "\n\n".join([self.instruction, topic, *blocks, ASKED[self.mode]])


class Hearing:
    """The queries of one judge about one debate, and its answers."""

    def __init__(self, judge: LLMJudge, debate: DebateRecord) -> None:
        self._judge, self._debate = judge, debate
        self._orders: list[tuple[Side, Side]] = [SIDES, (SIDES[1], SIDES[0])][: 1 + judge.swap]
        self._ballots: list[Ballot] = []
        self._tries = 0
        self._void = False

    @property
    def over(self) -> bool:
        """Whether all queries are answered, or the verdict is void."""
        return self._void or len(self._ballots) == len(self._orders)

    @property
    def opens(self) -> bool:
        """Whether the next query starts a new conversation."""
        return self._tries == 0

    @property
    def order(self) -> tuple[Side, Side]:
        """The sides shown as speakers A and B in the current query."""
        return self._orders[len(self._ballots)]

    def question(self) -> Message:
        """The next query."""
        if self._tries:
            return Message(text_judge.UNREAD + ASKED[self._judge.mode])
        return Message(self._judge.shown(self._debate, self.order))

    def answer(self, text: str) -> bool:
        """Record the judge's answer; returns whether it could be parsed."""
        ballot = self._judge.read(text, self.order)
        if ballot is None:
            self._tries += 1
            self._void = self._tries > self._judge.retries
            return False
        self._ballots.append(ballot)
        self._tries = 0
        return True

    def verdict(self) -> DebateVerdict:
        """The verdict from all answers; void if one of them could not be parsed."""
        if self._void or not self._ballots:
            return DebateVerdict(None)
        total = {side: sum(ballot[side] for ballot in self._ballots) for side in SIDES}
        winner = leader(total["pro"] - total["con"])
        leads = [ballot["pro"] - ballot["con"] for ballot in self._ballots]
        if self._judge.mode == "winner" and min(leads) <= 0 <= max(leads):
            winner = "draw"
        sides, count = self._debate.sides, len(self._ballots)
        scores = {debater: total[side] / count for debater, side in sides.items()}
        return DebateVerdict(winner, scores)
