"""Reward shaping during credit assignment only: metrics and records keep the rewards."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Literal

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import TrainingError
from mrlm.learn.credit.returns import forked

Shaping = Literal["none", "quality", "margin"]
"""`quality`: `r + a (Q r - (1 - Q) (1 - r))`. `margin`: `r + a (r - Q)`. `Q` is the mean reward of
all turns in earlier joint steps of the episode."""


@contextmanager
def shaped(
    groups: Sequence[Group], shaping: Shaping, coef: float, outcome_coef: float
) -> Iterator[None]:
    """Applies shaped rewards to turns and episodes inside the context.

    Turns of the first joint step keep their reward. The team reward of a joint step changes by the
    mean change of its turns. `coef` is `a` above, `outcome_coef` the share of the last step's mean
    reward that is added to every turn before it.

    Raises:
        TrainingError: `outcome_coef` with forked episodes, in which an answer has several outcomes.
    """
    if shaping == "none" and not outcome_coef:
        yield
        return
    if outcome_coef and any(forked(group.episodes) for group in groups):
        raise TrainingError(
            f"outcome_coef={outcome_coef} rewards an answer by the outcome of its episode, but in "
            "a workflow that forks episodes an answer has several outcomes; set it to 0"
        )
    before = [
        (episode, episode.reward, episode.step_rewards, [(t, t.reward) for t in episode.turns])
        for group in groups
        for episode in group
    ]
    changed = [_changed(episode, shaping, coef, outcome_coef) for episode, *_ in before]
    for (episode, reward, rewards, turns), shaped_rewards in zip(before, changed, strict=True):
        steps: dict[int, list[float]] = {}
        for (turn, old), new in zip(turns, shaped_rewards, strict=True):
            turn.reward = new
            steps.setdefault(turn.step, []).append(new - old)
        shifts = {step: fmean(changes) for step, changes in steps.items()}
        if rewards:
            episode.step_rewards = [x + shifts.get(step, 0.0) for step, x in enumerate(rewards)]
        episode.reward = reward + sum(shifts.values())
    try:
        yield
    finally:
        for episode, reward, rewards, turns in before:
            episode.reward, episode.step_rewards = reward, rewards
            for turn, old in turns:
                turn.reward = old


def _changed(episode: Episode, shaping: Shaping, coef: float, outcome_coef: float) -> list[float]:
    """Shaped rewards of the turns of an episode."""
    turns = list(episode.turns)
    last = max((turn.step for turn in turns), default=0)
    outcome = [turn.reward for turn in turns if turn.step == last]
    rewards = []
    for turn in turns:
        value = turn.reward
        earlier = [other.reward for other in turns if other.step < turn.step]
        if earlier and shaping != "none":
            value += coef * _shape(shaping, turn.reward, fmean(earlier))
        if turn.step < last:
            value += outcome_coef * fmean(outcome)
        rewards.append(value)
    return rewards


def _shape(shaping: Shaping, reward: float, reached: float) -> float:
    if shaping == "margin":
        return reward - reached
    return reached * reward - (1 - reached) * (1 - reward)
