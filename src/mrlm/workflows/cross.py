"""One turn in which every agent gives several answers, and the world says what each combination of
them is worth."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.world import EpisodeRunner


@dataclass
class Cross:
    """Each of N agents gives K answers (`group_size`) to what the world shows it, and all `K ** N`
    joint actions are played, each in a copy of the world: K N model calls for `K ** N` rewards. An
    evaluation plays one joint action.

    What comes of a combination is an episode of its own. Its turns are learned from in the episodes
    that combine the k-th answer of everybody, and are context in all others. A combination that
    fails is an episode that failed; where it is one of the first kind, those answers are not
    learned from.
    """

    opens = True
    crosses = True

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        result = await env.reset()
        speakers = list(result.observations)
        worlds = env.open()
        places = list(itertools.product(range(len(worlds)), speakers))
        said = await asyncio.gather(
            *(worlds[k].agents[name].act(result.observations[name].messages) for k, name in places)
        )
        answers = dict(zip(places, said, strict=True))
        jobs = []
        for joint in itertools.product(range(len(worlds)), repeat=len(speakers)):
            chosen = dict(zip(speakers, joint, strict=True))
            if len(set(joint)) == 1:
                world = worlds[joint[0]]
            else:
                world = env.joined({name: worlds[k] for name, k in chosen.items()}, joint)
            world.episode.answers = chosen
            jobs.append(self._finish(world, {n: answers[k, n] for n, k in chosen.items()}))
        await asyncio.gather(*jobs)

    async def _finish(self, world: EpisodeRunner, actions: Mapping[str, Message]) -> None:
        """Play a joint action; whatever goes wrong ends its own episode only."""
        try:
            await world.finish(actions)
        except ConfigError:
            raise
        except Exception as error:
            world.fail(error)


PLUGIN = Cross
