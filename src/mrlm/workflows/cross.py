"""One turn in which every agent gives several answers, and each combination of them is rewarded."""

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from mrlm.core.errors import ENDS_RUN
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.workflow import Workflow, WorkflowSpec


@dataclass
class Cross(Workflow):
    """A workflow in which each of N agents gives K answers (`group_size`) to its observation, and
    all `K ** N` joint actions are played, each in a copy of the environment: K N model calls for
    `K ** N` rewards. An evaluation plays one joint action.

    Each combination is an episode of its own. Turns are trained on in the K episodes that combine
    the k-th answers of all agents, and are context in all others. A combination that raises an
    error is a failed episode; if it is one of those K, its answers are not trained on.
    """

    spec = WorkflowSpec(opens=True, combines=True, one_step=True, speaks_once=True)

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        result = await env.reset()
        speakers = list(result.observations)
        copies = env.open()
        places = list(itertools.product(range(len(copies)), speakers))
        messages = await asyncio.gather(
            *(copies[k].agents[name].act(result.observations[name].messages) for k, name in places)
        )
        answers = dict(zip(places, messages, strict=True))
        jobs = []
        for joint in itertools.product(range(len(copies)), repeat=len(speakers)):
            chosen = dict(zip(speakers, joint, strict=True))
            if len(set(joint)) == 1:
                copy = copies[joint[0]]
            else:
                copy = env.joined({name: copies[k] for name, k in chosen.items()}, joint)
            copy.episode.answers = chosen
            jobs.append(self._finish(copy, {n: answers[k, n] for n, k in chosen.items()}))
        await asyncio.gather(*jobs)

    async def _finish(self, copy: EpisodeRunner, actions: Mapping[str, Message]) -> None:
        """Play one joint action; an error ends only its own episode."""
        try:
            await copy.finish(actions)
        except ENDS_RUN:
            raise
        except Exception as error:
            copy.fail(error)


PLUGIN = Cross
