"""Many turns, with several answers tried from every state: a tree of episodes.

The first answers are the siblings of the group (`group_size`); after every joint step each of them
goes on `branches` times."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.world import World

Seen = dict[str, list[Message]]


@dataclass
class Tree:
    """Like `turns`, but every joint step is followed by `branches` different next ones (the turn
    trees of arXiv 2508.04652). The number of episodes grows as `branches ** (turns - 1)`; each turn
    is sampled once and learned from once.

    Args:
        max_turns: joint steps until an episode is cut short; `None`: the world's own limit.
        branches: tries from every state after the first.
    """

    max_turns: int | None = None
    branches: int = 2

    forks = True

    def __post_init__(self) -> None:
        if self.branches < 2:
            raise ConfigError(
                f"workflow tree: branches={self.branches}, and a tree needs at least 2; "
                "the workflow turns plays one"
            )

    async def __call__(self, task: Task, agents: Agents, env: World) -> None:
        await env.reset()
        await self._grow(env, {name: [] for name in agents})

    async def _grow(self, env: World, seen: Seen) -> None:
        """One joint step, and everything that follows from it."""
        limit = self.max_turns or env.environment.max_turns or 64
        observations = env.result.observations
        speakers = [name for name, each in observations.items() if not each.done]
        for name in speakers:
            seen[name].extend(observations[name].messages)
        said = await asyncio.gather(*(env.agents[name].act(seen[name]) for name in speakers))
        for name, message in zip(speakers, said, strict=True):
            seen[name].append(message)
        result = await env.step(dict(zip(speakers, said, strict=True)))
        if result.done or env.num_steps >= limit:
            env.end(truncated=not result.done)
            return
        copies = [
            (world, {name: list(messages) for name, messages in seen.items()})
            for world in env.fork(self.branches)
        ]
        await asyncio.gather(*(self._grow(world, known) for world, known in copies))


PLUGIN = Tree
