"""Rewards seen in another light while credit is given, and put back afterwards: metrics and records
keep what the world paid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Literal

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import TrainingError
from mrlm.learn.credit.tree_returns import forked

Shaping = Literal["none", "quality", "margin"]
"""`quality`: `r + a (Q r - (1 - Q) (1 - r))`. `margin`: `r + a (r - Q)`. `Q` is the mean reward of
all turns of the episode's earlier joint steps: what the team had reached before."""


@contextmanager
def shaped(
    groups: Sequence[Group], shaping: Shaping, coef: float, outcome_coef: float
) -> Iterator[None]:
    """Within the context turns and episodes are paid shaped rewards.

    Turns of the first joint step have nothing before them and keep their reward. The team's reward
    of a joint step changes by the mean change of its turns.

    Args:
        groups: played episodes.
        shaping: the shape.
        coef: `a` above.
        outcome_coef: share of the last step's mean reward that is added to every turn before it.

    Raises:
        TrainingError: outcomes for episodes that were forked, where an answer has several.
    """
    if shaping == "none" and not outcome_coef:
        yield
        return
    if outcome_coef and any(forked(group.episodes) for group in groups):
        raise TrainingError(
            f"outcome_coef={outcome_coef} pays an answer for the end of its episode, and where the "
            "workflow tries several answers from one state it has several ends; set it to 0"
        )
    before = [
        (episode, episode.reward, episode.step_rewards, [(t, t.reward) for t in episode.turns])
        for group in groups
        for episode in group
    ]
    changed = [_changed(episode, shaping, coef, outcome_coef) for episode, *_ in before]
    for (episode, reward, paid, turns), found in zip(before, changed, strict=True):
        steps: dict[int, list[float]] = {}
        for (turn, old), new in zip(turns, found, strict=True):
            turn.reward = new
            steps.setdefault(turn.step, []).append(new - old)
        shifts = {step: fmean(each) for step, each in steps.items()}
        if paid:
            episode.step_rewards = [x + shifts.get(step, 0.0) for step, x in enumerate(paid)]
        episode.reward = reward + sum(shifts.values())
    try:
        yield
    finally:
        for episode, reward, paid, turns in before:
            episode.reward, episode.step_rewards = reward, paid
            for turn, old in turns:
                turn.reward = old


def _changed(episode: Episode, shaping: Shaping, coef: float, outcome_coef: float) -> list[float]:
    """The shaped reward of each turn of an episode."""
    turns = list(episode.turns)
    last = max((turn.step for turn in turns), default=0)
    outcome = [turn.reward for turn in turns if turn.step == last]
    found = []
    for turn in turns:
        value = turn.reward
        earlier = [other.reward for other in turns if other.step < turn.step]
        if earlier and shaping != "none":
            value += coef * _shape(shaping, turn.reward, fmean(earlier))
        if turn.step < last:
            value += outcome_coef * fmean(outcome)
        found.append(value)
    return found


def _shape(shaping: Shaping, reward: float, reached: float) -> float:
    if shaping == "margin":
        return reward - reached
    return reached * reward - (1 - reached) * (1 - reward)
