"""Many turns, with several answers tried from every state: a tree of episodes.

The first answers are the siblings of the group (`group_size`); after every joint step each of them,
or the best of them alone, goes on `branches` times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.play.agent import Agents
from mrlm.play.external_transition import Dialogue
from mrlm.play.world import EpisodeRunner
from mrlm.workflows._between import Between, Seen, hear


@dataclass(slots=True)
class TreeState:
    """A world of the tree, and what its agents were shown and answered on the way to it."""

    world: EpisodeRunner
    seen: Seen
    dialogue: Dialogue | None

    def forked(self, world: EpisodeRunner) -> TreeState:
        """The same state in a copy of the world."""
        seen = {name: list(messages) for name, messages in self.seen.items()}
        return TreeState(world, seen, self.dialogue and self.dialogue.fork())


@dataclass
class Tree(Between):
    """Like `turns`, but every joint step is followed by `branches` different next ones (the turn
    trees of arXiv 2508.04652). Each turn is sampled once and learned from once. An evaluation goes
    one way.

    With `select="all"` every answer goes on, and the number of episodes grows as `branches **
    (turns - 1)`. With `select="best"` the answers to one state are scored by what the team is paid
    for the step, the best one's world goes on (the first of equals), and its siblings end there
    (arXiv 2510.11062, section 4.1): the number of episodes grows as `branches * turns`. An answer
    that failed ends its own branch only; what led to it is learned from in the other branches.

    Args:
        branches: tries from every state after the first.
        select: which answers are followed up: `all`, or the `best` to each state.
        max_leaves: most episodes that may grow from one task.

    The other settings are those of `Between`.

    Raises:
        ConfigError: a tree would have more leaves than `max_leaves`, or a setting is out of range.
    """

    branches: int = 2
    select: Literal["all", "best"] = "all"
    max_leaves: int = 1024

    forks = True
    opens = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.branches < 2:
            raise ConfigError(
                f"workflow tree: branches={self.branches}, and a tree needs at least 2; "
                "the workflow turns plays one"
            )
        if self.select not in ("all", "best"):
            raise ConfigError(
                f"workflow tree: select={self.select!r} is not known; use 'all' or 'best'"
            )

    @property
    def prunes(self) -> bool:
        """Whether some answers are not followed up while their siblings are."""
        return self.select == "best"

    def check_leaves(self, count: int, why: str) -> None:
        """Refuse a tree of `count` episodes if that is too many."""
        if count > self.max_leaves:
            raise ConfigError(
                f"workflow tree: {why} gives {count} episodes of one task, more than "
                f"max_leaves={self.max_leaves}; set fewer branches or max_turns, select='best', or "
                "a higher max_leaves"
            )

    def check_size(self, group_size: int, turns: int) -> None:
        """Refuse a tree that is known to be too large before anything is played."""
        if self.termination_threshold is None:
            more = self.branches - 1
            grown = group_size + more * (turns - 1)
            leaves = grown if self.prunes else group_size * self.branches ** (turns - 1)
            self.check_leaves(
                leaves, f"group_size={group_size}, branches={self.branches} and {turns} turns"
            )

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        await env.reset()
        first = TreeState(env, {name: [] for name in agents}, self.dialogue(env))
        await self._grow(task, env, [first.forked(world) for world in env.open()])
        env.hand_over()

    async def _grow(self, task: Task, root: EpisodeRunner, states: Sequence[TreeState]) -> None:
        """Answers to one state, each in a world of its own, and everything that follows."""
        taken = await asyncio.gather(*map(self._tried, states))
        scored = [state.world for state, stepped in zip(states, taken, strict=True) if stepped]
        going = [state for state in states if state.world.episode.status == "running"]
        if root.forking:
            followed = self._followed(scored)
            for state in going:
                if not followed:
                    state.world.end()
                elif state.world not in followed:
                    state.world.prune()
            going = [state for state in going if state.world in followed]
        more = (self.branches - 1) * len(going) if root.forking else 0
        self.check_leaves(len(root.family) + more, f"branches={self.branches}")
        await asyncio.gather(*(self._branch(task, root, state) for state in going))

    async def _branch(self, task: Task, root: EpisodeRunner, state: TreeState) -> None:
        """The next joint step of a world, `branches` times; every branch begins with the prompts
        that the user's function writes here, once."""
        await self.following(task, state.world, state.dialogue)
        await self._grow(task, root, [*map(state.forked, state.world.fork(self.branches))])

    def _followed(self, scored: list[EpisodeRunner]) -> list[EpisodeRunner]:
        """Those of the answers to one state that are followed up, where they go on at all."""
        rewards = [world.episode.step_rewards[-1] for world in scored]
        limit = self.termination_threshold
        if not scored or (limit is not None and sum(rewards) / len(rewards) > limit):
            return []
        return [scored[rewards.index(max(rewards))]] if self.prunes else scored

    async def _tried(self, state: TreeState) -> bool:
        """One joint step, and whether it was taken; whatever goes wrong in it ends this branch."""
        try:
            await self._step(state)
        except ConfigError:
            raise
        except Exception as error:
            state.world.fail(error)
            return False
        return True

    async def _step(self, state: TreeState) -> None:
        env, seen = state.world, state.seen
        observations = env.result.observations
        speakers = [name for name, each in observations.items() if not each.done]
        for name in speakers:
            hear(seen[name], observations[name])
            if state.dialogue is not None:
                state.dialogue.show(name, observations[name].messages)
        said = await asyncio.gather(*(env.agents[name].act(seen[name]) for name in speakers))
        actions = dict(zip(speakers, said, strict=True))
        self.answered(seen, state.dialogue, actions)
        result = await env.step(actions)
        if result.done or result.truncated or env.num_steps >= self.limit(env):
            env.end(truncated=not result.done)


PLUGIN = Tree
