"""A team's episodes as users pass them: recorded, one rollout per agent, or one transcript."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.credit.user_rollouts import Play, PlayReader, RolloutReader, Sources
from mrlm.learn.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class TeamReader(PlayReader):
    """Reads episodes for the policies of a team, by agent; `trained` are the agents that learn."""

    policies: Mapping[str, Policy]
    trained: Collection[str]

    unit = "episode"

    def episode(self, play: Play, index: int, task: str, sources: Sources) -> Episode:
        known = play.rollouts if isinstance(play, Episode) else {}
        rollouts: dict[str, Rollout] = {}
        for agent, part in self._parts(play, index).items():
            turns = self._turns(agent, part, shared=isinstance(play, Rollout))
            sources.append((part, turns))
            rollout, policy = known.get(agent, Rollout()), self.policies[agent].name
            rollouts[agent] = replace(rollout, agent=agent, policy=policy, turns=turns)
        if isinstance(play, Episode):
            return replace(play, rollouts=rollouts, step_rewards=list(play.step_rewards))
        return Episode.recorded(str(index), Task(task), rollouts)

    def _parts(self, played: Play, index: int) -> dict[str, Rollout]:
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
        """The turns of an agent; `shared`: the rollout is a transcript of several agents."""
        policy = self.policies[agent]
        trained = {id(turn): turn.trained for turn in rollout.turns}
        named = rollout if shared else replace(rollout, agent=agent)
        turns = RolloutReader(policy.name, policy.chat, None).turns(named)
        found = [turn for turn in turns if turn.agent == agent or not shared]
        for turn in found:
            turn.agent = agent
            turn.trained = agent in self.trained and trained.get(id(turn), True)
        return found
