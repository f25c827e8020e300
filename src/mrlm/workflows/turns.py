"""Many turns in any environment: agents with an observation act until the environment is done."""

from __future__ import annotations

from dataclasses import dataclass

from mrlm.core.types import Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.workflows._between import Between, Seen


@dataclass
class Turns(Between):
    """The default workflow. Each agent has its own conversation; all agents that have an
    observation act concurrently. An observation with `info["new_conversation"]` starts a new
    conversation. The settings are those of `Between`.
    """

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        limit, dialogue = self.limit(env), self.dialogue(env)
        seen: Seen = {name: [] for name in agents}
        result = await env.reset()
        enough = self.termination_threshold if env.forking else None
        solved = False
        while not (result.done or result.truncated or solved) and env.num_steps < limit:
            result = await self.joint_step(env, agents, seen, dialogue)
            solved = enough is not None and env.episode.step_rewards[-1] > enough
            if not (result.done or result.truncated or solved) and env.num_steps < limit:
                await self.following(task, env, dialogue)
        env.end(truncated=not (result.done or solved))


PLUGIN = Turns
