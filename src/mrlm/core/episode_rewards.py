"""The accounts of an episode: how rewards are spread over its joint steps, and whether they add up.
It reads episodes and makes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrlm.core.errors import EpisodeError

if TYPE_CHECKING:
    from mrlm.core.types import Episode, Turn


def team_rewards(turns: Sequence[Turn], reward: float | None = None) -> list[float]:
    """The team's reward of every joint step up to the last one that turns were taken in.

    Args:
        turns: those of all agents.
        reward: the team's reward of the whole episode, which counts in the last step. `None`: in
            every step the mean of what the agents that act in it get there.
    """
    steps = [0.0] * (max((turn.step for turn in turns), default=0) + 1)
    if reward is not None:
        steps[-1] = reward
        return steps
    by_step: dict[int, dict[str, float]] = {}
    for turn in turns:
        own = by_step.setdefault(turn.step, {})
        own[turn.agent] = own.get(turn.agent, 0.0) + turn.reward
    for step, own in by_step.items():
        steps[step] = sum(own.values()) / len(own)
    return steps


def settle(episode: Episode) -> None:
    """Give every joint step in which an agent acted a reward, 0 where it was not completed, and
    check that the accounts add up; turns of agents whose reward is missing become context.

    Raises:
        EpisodeError: rewards that do not add up, or turns out of order.
    """
    last = max((turn.step for turn in episode.turns), default=-1)
    if not episode.step_rewards and episode.reward:
        episode.step_rewards = [0.0] * max(last, 0) + [episode.reward]
    paid = episode.step_rewards
    paid += [0.0] * (last + 1 - len(paid))
    where = f"episode {episode.id!r} of task {episode.task.id!r}"
    total = sum(paid)
    if not abs(total - episode.reward) <= 1e-6 * (1 + sum(map(abs, paid))):
        raise EpisodeError(
            f"{where}: step_rewards sum to {total:g}, but reward is {episode.reward:g}; "
            "give one finite reward per joint step, and their sum as the reward"
        )
    for agent, rollout in episode.rollouts.items():
        steps = [turn.step for turn in rollout.turns]
        if steps != sorted(steps) or (steps and steps[0] < 0):
            raise EpisodeError(
                f"{where}: the turns of agent {agent!r} are of the joint steps {steps}; "
                "Turn.step counts joint steps from 0 and must not decrease"
            )
        for turn in rollout.turns if agent in episode.missing else ():
            turn.trained = False
