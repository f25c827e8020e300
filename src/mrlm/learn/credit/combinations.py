"""Credit where every combination of the agents' answers was executed."""

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from mrlm.core.episodes import Group
from mrlm.core.types import Rollout
from mrlm.learn.credit.baselines import Comparison, Statistic
from mrlm.learn.credit.explain import against
from mrlm.learn.credit.groups import members, trained_turns


def credit_combinations(
    group: Group, per_agent: bool, by: Literal["mean", "sum"], statistic: Statistic
) -> None:
    """Writes the advantages of the trained answers of a group: the return of an answer against
    those of the agent's others.

    Args:
        group, per_agent, by: as of `answer_returns`.
        statistic: of the returns, the baseline.
    """
    for rollouts, returns in answer_returns(group, per_agent, by):
        places = np.arange(len(returns))
        advantages = Comparison([], returns, places, returns, places).advantages(statistic)
        for rollout, value, advantage in zip(rollouts, returns, advantages, strict=True):
            turns = trained_turns(rollout)
            for turn in turns:
                turn.returns, turn.advantages = float(value), float(advantage)
            against(turns, value, returns, advantage, "answers in the grid")


def answer_returns(
    group: Group, per_agent: bool, by: Literal["mean", "sum"]
) -> Iterator[tuple[list[Rollout], np.ndarray]]:
    """For every agent the rollouts that have its trained answers, and the return (G,) of each over
    the joint actions that contain it. Failed ones are left out of a mean; a sum is scaled to the
    full number.

    Args:
        group: the combinations of one task.
        per_agent: the agent's own rewards count, rather than the team's.
        by: how the rewards of the joint actions become a return.
    """
    rewards: dict[tuple[str, int], list[float]] = {}
    for episode in group.valid:
        for agent, number in episode.answers.items():
            reward = episode.rollouts[agent].reward if per_agent else episode.reward
            if math.isfinite(reward):
                rewards.setdefault((agent, number), []).append(reward)
    for agent, entries in members(group).items():
        rows = [rewards[agent, episode.answers[agent]] for episode, _ in entries]
        times = max(map(len, rows)) if by == "sum" else 1
        yield [rollout for _, rollout in entries], times * np.array([sum(r) / len(r) for r in rows])
