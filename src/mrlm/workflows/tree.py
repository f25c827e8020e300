"""Many turns, with several answers sampled from every state: a tree of episodes."""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mrlm.core.errors import ENDS_RUN, ConfigError
from mrlm.core.types import Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.external_transition import Dialogue
from mrlm.play.workflow import WorkflowSpec
from mrlm.workflows.turns import Seen, Turns


@dataclass(slots=True)
class TreeState:
    """A node of the tree: an environment and the agents' conversations on the path to it."""

    env: EpisodeRunner
    seen: Seen
    dialogue: Dialogue | None

    def forked(self, env: EpisodeRunner) -> "TreeState":
        """The same state in a copy of the environment."""
        seen = {name: list(messages) for name, messages in self.seen.items()}
        return TreeState(env, seen, copy.deepcopy(self.dialogue))


@dataclass
class Tree(Turns):
    """The `turns` workflow with `branches` different continuations of every joint step (the turn
    trees of arXiv 2508.04652); the first answers are the siblings of the group (`group_size`). Each
    turn is sampled once and trained on once. An evaluation plays a single path.

    With `select="all"` every answer is continued, and the number of episodes grows as `branches **
    (turns - 1)`. With `select="best"` the answers to one state are ranked by the team's reward for
    the step, only the best one is continued (the first of equals), and its siblings end there
    (arXiv 2510.11062, section 4.1): the number of episodes grows as `branches * turns`. An answer
    that raises an error ends only its own branch; the turns before it are trained on in the other
    branches.

    Args:
        branches: continuations of every state after the first.
        select: answers that are continued: `all`, or the `best` to each state.
        max_leaves: maximum number of episodes of one task.

    The other settings are those of `turns`.

    Raises:
        ConfigError: a tree would have more leaves than `max_leaves`, or a setting is out of range.
    """

    branches: int = 2
    select: Literal["all", "best"] = "all"
    max_leaves: int = 1024

    spec = WorkflowSpec(branches=2, opens=True, speaks_once=True, transitions=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.branches < 2:
            raise ConfigError(
                f"workflow tree: branches={self.branches} must be at least 2; for a single path "
                "use the workflow turns"
            )
        self.spec = replace(self.spec, branches=self.branches, prunes=self.select == "best")

    def check_leaves(self, count: int, why: str) -> None:
        """Raise `ConfigError` if `count` episodes are too many."""
        if count > self.max_leaves:
            raise ConfigError(
                f"workflow tree: {why} gives {count} episodes of one task, more than "
                f"max_leaves={self.max_leaves}; set fewer branches or max_turns, select='best', or "
                "a higher max_leaves"
            )

    def check_size(self, group_size: int, turns: int) -> None:
        if self.termination_threshold is None:
            pruned = group_size + (self.branches - 1) * (turns - 1)
            leaves = pruned if self.spec.prunes else group_size * self.branches ** (turns - 1)
            self.check_leaves(
                leaves, f"group_size={group_size}, branches={self.branches} and {turns} turns"
            )

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        await env.reset()
        first = TreeState(env, {name: [] for name in agents}, self.dialogue(env))
        await self._grow(task, env, [first.forked(child) for child in env.open()])
        env.hand_over()

    async def _grow(self, task: Task, root: EpisodeRunner, states: Sequence[TreeState]) -> None:
        """Play the answers to one state, each in its own environment, and their subtrees."""
        taken = await asyncio.gather(*map(self._tried, states))
        scored = [state.env for state, stepped in zip(states, taken, strict=True) if stepped]
        going = [state for state in states if state.env.episode.status == "running"]
        if root.forking:
            followed = self._followed(scored)
            for state in going:
                if not followed:
                    state.env.end()
                elif state.env not in followed:
                    state.env.episode.pruned = True
                    state.env.end(truncated=True)
            going = [state for state in going if state.env in followed]
        more = (self.branches - 1) * len(going) if root.forking else 0
        self.check_leaves(len(root.family) + more, f"branches={self.branches}")
        await asyncio.gather(*(self._branch(task, root, state) for state in going))

    async def _branch(self, task: Task, root: EpisodeRunner, state: TreeState) -> None:
        """Play the next joint step `branches` times; all branches start from the same prompts, for
        which the user's function is called once."""
        await self.following(task, state.env, state.dialogue)
        await self._grow(task, root, [*map(state.forked, state.env.fork(self.branches))])

    def _followed(self, scored: list[EpisodeRunner]) -> list[EpisodeRunner]:
        """Environments of the answers to one state that are continued; empty if none is."""
        rewards = [runner.episode.step_rewards[-1] for runner in scored]
        limit = self.termination_threshold
        if not scored or (limit is not None and sum(rewards) / len(rewards) > limit):
            return []
        return [scored[rewards.index(max(rewards))]] if self.spec.prunes else scored

    async def _tried(self, state: TreeState) -> bool:
        """Play one joint step; returns whether it succeeded. An error ends this branch."""
        env = state.env
        try:
            result = await self.joint_step(env, env.agents, state.seen, state.dialogue)
            if result.done or result.truncated or env.num_steps >= self.limit(env):
                env.end(truncated=not result.done)
        except ENDS_RUN:
            raise
        except Exception as error:
            env.fail(error)
            return False
        return True


PLUGIN = Tree
