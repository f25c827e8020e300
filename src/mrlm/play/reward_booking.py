"""Booking of the rewards of joint steps: on the turns of agents, in the metrics of an episode, and
as the reward of the team."""

import math
from collections.abc import Mapping
from typing import Literal

from mrlm.core.environment import validated_reward
from mrlm.core.episodes import Episode
from mrlm.core.types import Reward
from mrlm.play.agent import Agents

Share = Literal["own", "team"] | Mapping[str, float]


def book(episode: Episode, agents: Agents, rewards: Mapping[str, Reward], share: Share) -> None:
    """Book the rewards of a joint step.

    Args:
        agents: the agents that play.
        rewards: agent -> its reward.
        share: as for `EpisodeRunner.finish`.

    Raises:
        RewardError: a reward is not a finite number.
    """
    if not rewards and share == "own":
        episode.step_rewards.append(0.0)
        return
    all_rewards = {agent: _validated(reward, episode, agent) for agent, reward in rewards.items()}
    known_rewards = {agent: reward for agent, reward in all_rewards.items() if reward.known}
    if len(known_rewards) < len(all_rewards):
        unknown = all_rewards.keys() - known_rewards.keys()
        if not known_rewards:  # no reward of the step is known
            episode.missing |= {*agents, *unknown}
        elif share == "own":
            episode.missing |= unknown
    amounts = {agent: reward.value for agent, reward in known_rewards.items()}
    if share != "own":
        total = sum(amounts.values())
        weights = dict.fromkeys(episode.rollouts, 1.0) if share == "team" else share
        amounts = {agent: total * weight for agent, weight in weights.items()}
    last = {name: part.turns[-1] for name, part in episode.rollouts.items() if part.turns}
    for agent, amount in amounts.items():
        if agent in last:
            last[agent].reward += amount
        else:
            episode.metrics = summed(episode.metrics, {f"{agent}/unspoken_reward": amount})
    named: dict[str, float] = {}
    for agent, reward in known_rewards.items():
        if agent in last and reward.components:
            last[agent].components = summed(last[agent].components, reward.components)
        named |= {f"{agent}/{name}": value for name, value in reward.components.items()}
    if named:
        episode.metrics = summed(episode.metrics, named)
    team = sum(amounts.values()) / len(amounts) if amounts else 0.0
    episode.step_rewards.append(team)
    episode.reward += team


def _validated(reward: object, episode: Episode, agent: str) -> Reward:
    """A checked reward; the text of an error is not made for one that is right."""
    if type(reward) is Reward and type(reward.value) is float and math.isfinite(reward.value):
        return reward
    where = f"environment {episode.environment!r}, task {episode.task.id!r}, agent {agent!r}"
    return validated_reward(reward, where)


def summed(numbers: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """The sums of two tables of numbers."""
    total = dict(numbers)
    for name, value in more.items():
        total[name] = total.get(name, 0.0) + float(value)
    return total
