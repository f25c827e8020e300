"""Returns of an agent's turns: from the rewards of its team, or from its own."""

from __future__ import annotations

from collections.abc import Sequence

from mrlm.core.episodes import Episode
from mrlm.core.types import Rollout, Turn
from mrlm.learn.credit.groups import Member, discounted, trained_turns
from mrlm.learn.credit.tree_returns import node_returns


def turn_returns(
    episode: Episode, rollout: Rollout, turns: Sequence[Turn], gamma: float, per_agent: bool
) -> list[float]:
    """`sum_{k >= t} gamma^(k - t) R_k` over joint steps, for each of some turns of a rollout.

    Args:
        episode: the episode.
        rollout: an agent's part of it.
        turns: some of its turns.
        gamma: discount from one joint step to the next.
        per_agent: the agent's own rewards count, rather than the team's.
    """
    if per_agent:
        steps = [turn.step for turn in rollout.turns]
        values = discounted([turn.reward for turn in rollout.turns], gamma, steps)
        by_turn = {id(turn): value for turn, value in zip(rollout.turns, values, strict=True)}
        return [by_turn[id(turn)] for turn in turns]
    team = discounted(episode.step_rewards, gamma)
    return [team[turn.step] for turn in turns]


def tree_returns(rollouts: Sequence[Member], gamma: float, per_agent: bool) -> list[list[float]]:
    """The returns of the trained turns of each rollout, where episodes were forked
    (`node_returns`); arguments as of `turn_returns`."""
    paths = [episode.path for episode, _ in rollouts]
    returns = node_returns(paths, [_step_rewards(*member, per_agent) for member in rollouts], gamma)
    return [
        [returns[episode.path[: turn.step + 1]] for turn in trained_turns(rollout)]
        for episode, rollout in rollouts
    ]


def _step_rewards(episode: Episode, rollout: Rollout, per_agent: bool) -> list[float]:
    """Rewards of the joint steps, the team's or the agent's own."""
    if not per_agent:
        return list(episode.step_rewards)
    rewards = [0.0] * len(episode.step_rewards)
    for turn in rollout.turns:
        rewards[turn.step] += turn.reward
    return rewards
