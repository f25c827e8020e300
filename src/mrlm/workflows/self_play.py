"""Turns in a world of several seats whose players change places from task to task."""

from __future__ import annotations

from dataclasses import dataclass

from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.play.agent import Agents
from mrlm.play.world import EpisodeRunner
from mrlm.workflows.turns import Turns


@dataclass
class SelfPlay(Turns):
    """Like `turns`, for games. Give all agents one policy, and it plays against itself; give one of
    them a frozen policy (`trainable: false`), and it is the other's opponent. Agents move on by one
    seat from task to task, so that nobody always has the first move; the episodes of one task are
    played with the same seats. An agent is paid what the world pays the seat it sits on.

    Args:
        rotate: whether seats change; if not, each agent has the seat of its name.
    """

    rotate: bool = True

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        seats = env.environment.agents
        if len(seats) < 2:
            raise ConfigError(
                f"workflow self_play plays worlds with several seats, and environment "
                f"{env.episode.environment!r} has one; use the workflow turns"
            )
        moved = task.seed % len(seats) if self.rotate else 0
        env.seat([*seats[moved:], *seats[:moved]])
        await super().__call__(task, agents, env)


PLUGIN = SelfPlay
