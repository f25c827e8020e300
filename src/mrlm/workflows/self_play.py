"""Turns in a multi-agent environment whose agents exchange roles from task to task."""

from dataclasses import dataclass

from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.workflows.turns import Turns


@dataclass
class SelfPlay(Turns):
    """The `turns` workflow for games. If all agents share one policy, it plays against itself; an
    agent with a frozen policy (`trainable: false`) is a fixed opponent. Roles rotate by one from
    task to task, so that no agent always has the first move; the episodes of one task have the same
    assignment of roles. An agent receives the reward of the role it plays.

    Args:
        rotate: rotate the roles; if false, each agent has the role of its name.
    """

    rotate: bool = True

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        roles = env.environment.agents
        if len(roles) < 2:
            raise ConfigError(
                "workflow self_play requires a multi-agent environment, and environment "
                f"{env.episode.environment!r} has one agent; use the workflow turns"
            )
        shift = task.seed % len(roles) if self.rotate else 0
        env.assign_roles([*roles[shift:], *roles[:shift]])
        await super().__call__(task, agents, env)


PLUGIN = SelfPlay
