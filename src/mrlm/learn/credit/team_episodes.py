"""A team's episodes as users pass them: recorded, one rollout per agent, or one transcript."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.credit.user_rollouts import (
    Play,
    RolloutReader,
    Sources,
    TeamReward,
    booked,
    check_rewards,
    check_usable,
    grouped,
    opening_of,
)
from mrlm.learn.policy.policy import Policy

Played = Play
"""An episode of a team: a recorded one, agent -> its rollout, or one transcript in which every
MODEL message names its agent."""


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
    ) -> tuple[list[Group], Sources]:
        """Groups of episodes, and every given rollout with the turns read from it.

        Raises:
            ConfigError: wrong number of rewards, no usable reward, or agents outside the team.
        """
        check_rewards(rewards, len(episodes), "episode")
        by_key: dict[Any, list[Episode]] = {}
        made: list[Episode] = []
        sources: Sources = []
        for index, played in enumerate(episodes):
            parts = self._parts(played, index)
            shared = isinstance(played, Rollout)
            turns = {agent: self._turns(agent, each, shared) for agent, each in parts.items()}
            sources += [(parts[agent], found) for agent, found in turns.items()]
            key = group_by(played) if group_by else opening_of(played)
            episode = _episode(index, str(key), played, turns, self.policies)
            made.append(episode if rewards is None else booked(episode, rewards[index]))
            by_key.setdefault(key, []).append(made[-1])
        check_usable(made, rewards)
        return [grouped(members) for members in by_key.values()], sources

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
                "if it is not to be trained"
            )
        return parts

    def _turns(self, agent: str, rollout: Rollout, shared: bool) -> list[Turn]:
        """The turns of an agent; `shared`: the rollout is a transcript of several agents, whose
        joint steps are the MODEL messages in order."""
        policy = self.policies[agent]
        trained = {id(turn): turn.trained for turn in rollout.turns}
        named = rollout if shared else replace(rollout, agent=agent)
        turns = RolloutReader(policy.name, policy.chat, None).turns(named)
        found = [turn for turn in turns if turn.agent == agent or not shared]
        for turn in found:
            turn.agent = agent
            turn.trained = agent in self.trained and trained.get(id(turn), True)
        return found


def _episode(
    index: int,
    key: str,
    played: Played,
    turns: Mapping[str, list[Turn]],
    policies: Mapping[str, Policy],
) -> Episode:
    """The training episode: the given one with the turns that were read."""
    known = played.rollouts if isinstance(played, Episode) else {}
    rollouts = {
        agent: replace(
            known.get(agent, Rollout()), agent=agent, policy=policies[agent].name, turns=found
        )
        for agent, found in turns.items()
    }
    if isinstance(played, Episode):
        return replace(played, rollouts=rollouts, step_rewards=list(played.step_rewards))
    return Episode.recorded(str(index), Task(key), rollouts)
