"""Generator, verifier, refiner: agents in sequence, each sampled several times on its context."""

import asyncio
from dataclasses import dataclass, replace

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.workflow import Workflow, WorkflowSpec
from mrlm.workflows._team import check_single_agent


@dataclass
class Malt(Workflow):
    """A search tree of generators, verifiers and refiners (arXiv 2412.01928), or of any agents in
    their order: the first agent is sampled `group_size` times, and every further agent `branches`
    times on each of the contexts before it. The number of episodes grows as `branches ** (agents -
    1)`. In an evaluation every agent is sampled once. Requires a single-agent environment, which
    scores the last agent's message; every agent receives the team's reward.

    Args:
        branches: completions of every agent after the first, per context.
    """

    branches: int = 2

    spec = WorkflowSpec(branches=2, single_agent=True, turns=3)

    def __post_init__(self) -> None:
        if self.branches < 2:
            raise ConfigError(f"workflow malt: branches={self.branches} must be at least 2")
        self.spec = replace(self.spec, branches=self.branches)

    def completions(self, agents: int, turns: int) -> int:
        """Number of model calls in the tree that grows from one completion of the first agent."""
        return sum(self.branches**depth for depth in range(agents))

    sequences = completions  # no agent continues its own text

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        check_single_agent(env, "workflow malt")
        await self._grow(env, (await env.reset()).messages, list(agents))

    async def _grow(self, env: EpisodeRunner, seen: list[Message], order: list[str]) -> None:
        """Sample the first agent of `order`, then the subtree of the later agents."""
        name, *later = order
        message = await env.agents[name].act(seen)
        if not later:
            await env.finish({name: message}, share="team")
            return
        copies = env.fork(self.branches)
        await asyncio.gather(*(self._grow(branch, [*seen, message], later) for branch in copies))


PLUGIN = Malt
