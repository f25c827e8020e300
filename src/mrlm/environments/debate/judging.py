"""The interface of judges, which map a debate to a verdict, simple judges, and the rewards of
debaters."""

from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mrlm.core.errors import ConfigError
from mrlm.core.types import Reward
from mrlm.environments.debate.topics import SIDES, Side, Topic
from mrlm.environments.shared.rows import SharedByCopies

Winner = Literal["pro", "con", "draw"]
Pay = Literal["graded", "winner", "truth"]
Share = Literal["own", "side", "team"]


@dataclass(frozen=True, slots=True)
class Speech:
    """A debater's speech and its time step: speeches of one step were given concurrently."""

    debater: str
    moment: int
    text: str


@dataclass(frozen=True, slots=True)
class DebateRecord:
    """The record of a debate.

    Args:
        sides: debater -> its side.
        speeches: speeches in the order in which they were given.
        rounds: maximum number of speeches of every debater.
    """

    topic: Topic
    sides: Mapping[str, Side]
    speeches: Sequence[Speech]
    rounds: int

    def of(self, side: str) -> list[str]:
        """The debaters of a side."""
        return [debater for debater, spoken_for in self.sides.items() if spoken_for == side]


@dataclass(frozen=True, slots=True)
class DebateVerdict:
    """A judge's verdict on a debate.

    Args:
        winner: the better side; `None`: the judge's answer could not be parsed, and the debate is
            void.
        scores: debater -> its score, 0 to 1.
        parts: debater -> components of its score by name.
    """

    winner: Winner | None
    scores: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Judge(SharedByCopies):
    """A judge of debates. Judges are stateless, so that all copies of an environment share one.

    A judge may be played by agents: `by_agent` names the agents of the environment that are queried
    after the debate, and `decide` receives their verdicts in `heard`.
    """

    @property
    def by_agent(self) -> Mapping[str, Any]:
        """Agent -> the judge that it plays."""
        return {}

    def decide(
        self, debate: DebateRecord, agent_verdicts: Mapping[str, DebateVerdict]
    ) -> DebateVerdict | Awaitable[DebateVerdict]:
        """The verdict, or a coroutine of it."""
        raise NotImplementedError


def scored(
    debate: DebateRecord,
    scores: Mapping[str, float],
    parts: Mapping[str, Mapping[str, float]] | None = None,
    margin: float = 0.0,
) -> DebateVerdict:
    """The verdict from the debaters' scores: the side with the higher mean wins if it leads by more
    than `margin`. A side without debaters has 0."""
    means = {}
    for side in SIDES:
        ours = debate.of(side)
        means[side] = sum(scores[debater] for debater in ours) / max(1, len(ours))
    return DebateVerdict(leader(means["pro"] - means["con"], margin), dict(scores), parts or {})


def leader(lead: float, margin: float = 0.0) -> Winner:
    """The better side, by the lead of PRO."""
    return "draw" if abs(lead) <= margin + 1e-9 else "pro" if lead > 0 else "con"


class TruthJudge(Judge):
    """A judge by the known answer alone: a debater scores 1 if its last speech states it, else 0.
    The quality of its arguments does not matter."""

    def decide(
        self, debate: DebateRecord, agent_verdicts: Mapping[str, DebateVerdict]
    ) -> DebateVerdict:
        """The verdict by the debaters' last speeches. Raises `ConfigError`: the topic has no known
        answer."""
        if not debate.topic.known:
            raise ConfigError(
                f"topic {debate.topic.claim!r} has no known truth; judge=truth and reward=truth "
                "need topics with a truth or an answer"
            )
        last = {speech.debater: speech.text for speech in debate.speeches}
        right = {name: float(debate.topic.says(last.get(name, ""))) for name in debate.sides}
        return scored(debate, right)


class MajorityJudge(Judge):
    """A panel of judges: the side with most votes wins, an equal number of votes is a draw; scores
    are means over the judges. Void verdicts do not count; if all are void, so is the panel's.

    Raises:
        ConfigError: the panel is empty, or two judges use the same agent.
    """

    def __init__(self, judges: Sequence[Judge]) -> None:
        if not judges or not all(isinstance(judge, Judge) for judge in judges):
            raise ConfigError(f"judge: a panel needs a list of judges, not {judges!r}")
        self.judges: tuple[Judge, ...] = tuple(judges)
        names = Counter(agent for judge in judges for agent in judge.by_agent)
        twice = [agent for agent, times in names.items() if times > 1]
        if twice:
            raise ConfigError(
                f"judge: two judges of the panel use the agent {twice[0]!r}; give each an agent of "
                "its own (they may share a policy)"
            )

    @property
    def by_agent(self) -> Mapping[str, Any]:
        """The judging agents of all judges."""
        return {agent: judge for member in self.judges for agent, judge in member.by_agent.items()}

    async def decide(
        self, debate: DebateRecord, agent_verdicts: Mapping[str, DebateVerdict]
    ) -> DebateVerdict:
        verdicts = []
        for judge in self.judges:
            verdict = judge.decide(debate, agent_verdicts)
            verdicts.append(verdict if isinstance(verdict, DebateVerdict) else await verdict)
        valid = [verdict for verdict in verdicts if verdict.winner is not None]
        if not valid:
            return DebateVerdict(None)
        votes = Counter(verdict.winner for verdict in valid)
        draw = votes["draw"] >= max(votes["pro"], votes["con"])
        winner = "draw" if draw else leader(votes["pro"] - votes["con"])
        scores = {
            debater: sum(verdict.scores[debater] for verdict in valid) / len(valid)
            for debater in debate.sides
        }
        return DebateVerdict(winner, scores, _means([verdict.parts for verdict in valid]))


def _means(judge_parts: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The mean of every part, over the judges that have it."""
    part_values: dict[str, dict[str, list[float]]] = {}
    for parts in judge_parts:
        for debater, named in parts.items():
            for name, value in named.items():
                part_values.setdefault(debater, {}).setdefault(name, []).append(value)
    return {
        debater: {name: sum(values) / len(values) for name, values in named.items()}
        for debater, named in part_values.items()
    }


def pay(debate: DebateRecord, verdict: DebateVerdict, kind: Pay, share: Share) -> dict[str, Reward]:
    """Debater -> its reward.

    The components are `score` (the judge's) with its parts, `won` (1, 0.5 for a draw, 0), `void`
    (1 if the judge gave no verdict), and if the truth is known `correct` (the debater states it)
    and `verdict_correct` (the winning side agrees with it).
    """
    values = _values(debate, verdict, kind)
    if share != "own":
        values = _shared(debate, values, share)
    truth = TruthJudge().decide(debate, {}).scores if debate.topic.known else {}
    rewards = {}
    for debater, side in debate.sides.items():
        won = 0.5 if verdict.winner == "draw" else float(verdict.winner == side)
        components = {"won": won, "void": float(verdict.winner is None)}
        if debater in verdict.scores:
            components["score"] = verdict.scores[debater]
        components |= verdict.parts.get(debater, {})
        if truth:
            components["correct"] = truth[debater]
            components["verdict_correct"] = _agrees(debate, verdict)
        rewards[debater] = Reward(values[debater], components)
    return rewards


def _values(debate: DebateRecord, verdict: DebateVerdict, kind: Pay) -> dict[str, float]:
    """Debater -> its reward before sharing; 0 for all in a void debate, except with `truth`, which
    needs no judge."""
    if kind == "truth":
        return dict(TruthJudge().decide(debate, {}).scores)
    if verdict.winner is None:
        return dict.fromkeys(debate.sides, 0.0)
    if kind == "graded":
        return dict(verdict.scores)
    if verdict.winner == "draw":
        return dict.fromkeys(debate.sides, 0.0)
    half = len(debate.sides) / 2
    return {
        debater: (1.0 if side == verdict.winner else -1.0) * half / len(debate.of(side))
        for debater, side in debate.sides.items()
    }


def _shared(debate: DebateRecord, values: dict[str, float], share: Share) -> dict[str, float]:
    groups = [list(values)] if share == "team" else [debate.of(side) for side in SIDES]
    return {
        debater: sum(values[member] for member in group) / len(group)
        for group in groups
        for debater in group
    }


def _agrees(debate: DebateRecord, verdict: DebateVerdict) -> float:
    """1.0 if the winning side is right: PRO of a true claim, CON of a false one; for a question, a
    side whose debaters all state the answer in their last speeches."""
    if verdict.winner is None or verdict.winner == "draw":
        return 0.0
    if debate.topic.truth is not None:
        return float((verdict.winner == "pro") == debate.topic.truth)
    right = TruthJudge().decide(debate, {}).scores
    return min(right[debater] for debater in debate.of(verdict.winner))
