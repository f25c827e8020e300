"""Rewards of debaters for a verdict."""

from __future__ import annotations

from typing import Literal

from mrlm.core.types import Reward
from mrlm.environments.debate.judging import DebateRecord, DebateVerdict, TruthJudge
from mrlm.environments.debate.topics import SIDES

Pay = Literal["graded", "winner", "truth"]
Share = Literal["own", "side", "team"]


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
        debater: sum(values[each] for each in group) / len(group)
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
