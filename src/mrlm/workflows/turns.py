"""Many turns in any world: whoever has an observation speaks, until the world is done.

Joint steps are capped by `max_turns`; an episode that reaches the cap ends as truncated."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.world import World


@dataclass
class Turns:
    """The default workflow. Each agent keeps its own conversation; agents that have an observation
    speak at once. An observation with `info["new_conversation"]` begins a new one.

    Args:
        max_turns: joint steps until the episode is cut short; `None`: the world's own limit.
    """

    max_turns: int | None = None

    async def __call__(self, task: Task, agents: Agents, env: World) -> None:
        limit = self.max_turns or env.environment.max_turns or 64
        seen: dict[str, list[Message]] = {name: [] for name in agents}
        result = await env.reset()
        while not result.done and env.num_steps < limit:
            speakers = [
                name for name, observation in result.observations.items() if not observation.done
            ]
            for name in speakers:
                if result.observations[name].info.get("new_conversation"):
                    seen[name] = []
                seen[name].extend(result.observations[name].messages)
            messages = await asyncio.gather(*(agents[name].act(seen[name]) for name in speakers))
            for name, message in zip(speakers, messages, strict=True):
                seen[name].append(message)
            result = await env.step(dict(zip(speakers, messages, strict=True)))
        env.end(truncated=not result.done)


PLUGIN = Turns
