"""Episodes of a team as a user brings them: recorded, a rollout per agent, or one transcript."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.types import Episode, Group, Rollout, Task, Turn
from mrlm.learn.handmade import Reader, opening_of
from mrlm.learn.policy import Policy

Played = Episode | Mapping[str, Rollout] | Rollout
"""An episode of a team: as it was recorded, agent -> its rollout, or one transcript in which every
MODEL message names its agent."""
TeamReward = float | Mapping[str, float]
"""Of an episode: a number that every agent gets, or agent -> its own."""


@dataclass(frozen=True, slots=True)
class TeamReader:
    """Reads episodes for the policies of a team.

    Args:
        policies: agent -> its policy.
        trained: agents that are trained.
    """

    policies: Mapping[str, Policy]
    trained: Collection[str]

    def groups(
        self,
        episodes: Sequence[Played],
        rewards: Sequence[TeamReward] | None,
        group_by: Callable[[Any], Any] | None,
    ) -> tuple[list[Group], list[tuple[Rollout, list[Turn]]]]:
        """Groups of episodes, and every rollout that a user gave with the turns read from it.

        Raises:
            ConfigError: rewards of the wrong number or not finite, or agents that are not part of
                the team.
        """
        if rewards is not None and len(rewards) != len(episodes):
            raise ConfigError(
                f"{len(episodes)} episodes but {len(rewards)} rewards; give one per episode"
            )
        by_key: dict[Any, list[Episode]] = {}
        sources: list[tuple[Rollout, list[Turn]]] = []
        for index, played in enumerate(episodes):
            parts = self._parts(played, index)
            shared = isinstance(played, Rollout)
            turns = {agent: self._turns(agent, each, shared) for agent, each in parts.items()}
            sources += [(parts[agent], found) for agent, found in turns.items()]
            team = None if rewards is None else pay(turns, rewards[index], index)
            key = group_by(played) if group_by else _key_of(played)
            episode = _episode(index, str(key), played, turns, team, self.policies)
            by_key.setdefault(key, []).append(episode)
        groups = [Group(members, str(key)) for key, members in by_key.items()]
        return groups, sources

    def _parts(self, played: Played, index: int) -> dict[str, Rollout]:
        """Agent -> the rollout that its turns are read from."""
        if isinstance(played, Rollout):
            spoke = [message.agent for message in played.messages if message.role == "assistant"]
            if None in spoke:
                raise ConfigError(
                    f"episode {index}: a transcript of a team needs the agent of every MODEL "
                    "message: Message(text, MessageType.MODEL, agent=name)"
                )
            parts = {str(agent): played for agent in dict.fromkeys(spoke)}
        else:
            parts = dict(played.rollouts if isinstance(played, Episode) else played)
        unknown = [agent for agent in parts if agent not in self.policies]
        if unknown:
            raise ConfigError(
                f"episode {index}: agent {unknown[0]!r} is not in the team "
                f"({', '.join(self.policies)}); give its model to TeamLearner, and trained=[...] "
                "where it is not to be trained"
            )
        return parts

    def _turns(self, agent: str, rollout: Rollout, shared: bool) -> list[Turn]:
        """The turns of an agent; `shared`: the rollout is a transcript of several agents, whose
        joint steps are the MODEL messages in order."""
        policy = self.policies[agent]
        trained = {id(turn): turn.trained for turn in rollout.turns}
        named = rollout if shared else replace(rollout, agent=agent)
        turns = Reader(policy.name, policy.chat, None).turns(named)
        found = [turn for turn in turns if turn.agent == agent or not shared]
        for turn in found:
            turn.agent = agent
            turn.trained = agent in self.trained and trained.get(id(turn), True)
        return found


def pay(turns: Mapping[str, Sequence[Turn]], reward: TeamReward, index: int) -> float:
    """Give agents the reward of an episode with their last turns; returns the team's.

    Args:
        turns: agent -> its turns.
        reward: a number for every agent, or agent -> its own; the team's is their mean.
        index: of the episode, for messages.

    Raises:
        ConfigError: it is not finite, or names an agent without a turn.
    """
    own = dict(reward) if isinstance(reward, Mapping) else dict.fromkeys(turns, reward)
    for agent in own:
        if agent not in turns:
            raise ConfigError(f"reward {index} names agent {agent!r}, which has no turn there")
    for agent, found in turns.items():
        amount = float(own.get(agent, 0.0))
        if not math.isfinite(amount):
            raise ConfigError(
                f"reward {index} of agent {agent!r} is {amount}; rewards must be finite numbers"
            )
        for turn in found:
            turn.reward = 0.0
        if found:
            found[-1].reward = amount
    return float(sum(own.values())) / len(own) if own else 0.0


def _episode(
    index: int,
    key: str,
    played: Played,
    turns: Mapping[str, list[Turn]],
    team: float | None,
    policies: Mapping[str, Policy],
) -> Episode:
    """The episode that is learned from: what a user gave, with the turns that were read."""
    known = played.rollouts if isinstance(played, Episode) else {}
    rollouts = {
        agent: replace(
            known.get(agent, Rollout()), agent=agent, policy=policies[agent].name, turns=found
        )
        for agent, found in turns.items()
    }
    if isinstance(played, Episode):
        if team is None:
            return replace(played, rollouts=rollouts)
        steps = [0.0] * (max(len(played.step_rewards), 1) - 1)
        return replace(played, rollouts=rollouts, reward=team, step_rewards=[*steps, team])
    paid: dict[int, dict[str, float]] = {}
    for agent, found in turns.items():
        for turn in found:
            step = paid.setdefault(turn.step, {})
            step[agent] = step.get(agent, 0.0) + turn.reward
    steps = [0.0] * (max(paid, default=0) + 1)
    if team is not None:
        steps[-1] = team
    else:
        for step, own in paid.items():
            steps[step] = sum(own.values()) / len(own)
    return Episode(str(index), Task(key), rollouts, sum(steps), steps, "done")


def _key_of(played: Played) -> Any:
    """What episodes must share to be compared."""
    if isinstance(played, Episode):
        return played.task.id
    if isinstance(played, Rollout):
        return opening_of(played)
    return tuple((agent, opening_of(rollout)) for agent, rollout in played.items())
