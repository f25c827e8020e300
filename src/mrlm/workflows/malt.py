"""Question, verdict, revision: agents in a row, each with several tries at what the ones before it
said.

The first agent answers the world's question, the next ones read everything said so far, and the
last one's message is what the world judges."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.world import EpisodeRunner
from mrlm.workflows._team import check_seat


@dataclass
class Malt:
    """A search tree of generators, verifiers and refiners (arXiv 2412.01928), or of any agents in
    their order: the first has `group_size` tries, and every further one `branches` at each of what
    stands before it. The number of episodes grows as `branches ** (agents - 1)`. In an evaluation
    everybody has one. The team's reward goes to every agent. It plays worlds with one seat.

    Args:
        branches: tries of every agent after the first.
    """

    branches: int = 2

    forks = True
    turns = 3

    def __post_init__(self) -> None:
        if self.branches < 2:
            raise ConfigError(
                f"workflow malt: branches={self.branches}, and a tree needs at least 2"
            )

    def completions(self, agents: int, turns: int) -> int:
        """How often models are asked in what grows from one try of the first agent."""
        return sum(self.branches**depth for depth in range(agents))

    def sequences(self, agents: int, turns: int) -> int:
        """Into how many sequences these fall: nobody goes on from words of its own."""
        return self.completions(agents, turns)

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        check_seat(env, "workflow malt")
        result = await env.reset()
        (observation,) = result.observations.values()
        await self._grow(env, list(observation.messages), list(agents))

    async def _grow(self, env: EpisodeRunner, seen: list[Message], order: list[str]) -> None:
        """What the first of `order` says, and everything that follows from it."""
        name, *later = order
        message = await env.agents[name].act(seen)
        if not later:
            await env.finish({name: message}, share="team")
            return
        worlds = env.fork(self.branches)
        await asyncio.gather(*(self._grow(each, [*seen, message], later) for each in worlds))


PLUGIN = Malt
