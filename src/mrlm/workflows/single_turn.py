"""One turn: every agent that has an observation answers once, and the episode is over."""

import asyncio
from dataclasses import dataclass

from mrlm.core.types import Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.workflow import Workflow, WorkflowSpec


@dataclass
class SingleTurn(Workflow):
    """A workflow of one joint step: every agent with an observation answers once."""

    spec = WorkflowSpec(one_step=True, speaks_once=True)

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        result = await env.reset()
        speakers = list(result.observations)
        messages = await asyncio.gather(
            *(agents[name].act(result.observations[name].messages) for name in speakers)
        )
        await env.finish(dict(zip(speakers, messages, strict=True)))


PLUGIN = SingleTurn
