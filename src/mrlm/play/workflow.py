"""What a workflow is: plain async Python over named agents and a world. It says who speaks and who
sees what; it knows no model and no algorithm."""

from __future__ import annotations

from typing import Any, Protocol

from mrlm.core.errors import EpisodeError
from mrlm.core.types import Task
from mrlm.play.agent import Agents
from mrlm.play.world import EpisodeRunner


class Workflow(Protocol):
    """`async def my_workflow(task, agents, env)`: let agents act and the world answer, until
    `env.finish(...)` or the world is done. Whatever agents await at the same time is sampled in one
    batch. The return value is not used: the episode is what the world recorded."""

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> Any: ...


def silent(workflow: Workflow, env: EpisodeRunner) -> EpisodeError:
    """What an episode fails with in which no agent spoke."""
    name = getattr(workflow, "__name__", type(workflow).__name__)
    if env.result.done:
        return EpisodeError(
            f"environment {env.episode.environment!r} is done after its reset, so no agent could "
            "speak; its first StepResult (or Observation) must have done=False"
        )
    return EpisodeError(
        f"workflow {name!r} ended and no agent had spoken, so there is nothing to train on; "
        "write `message = await agents.NAME.act(messages)` for at least one agent of "
        f"{', '.join(env.agents)}"
    )
