"""Worlds of fixed work: prompts of a given length, a cheap reward that hardly ever ties."""

from __future__ import annotations

import asyncio
import copy
import functools
import random
import zlib
from collections.abc import Sequence
from typing import Any

from benchmarks.models import words_of
from mrlm import (
    Environment,
    Message,
    Observation,
    Reward,
    StepResult,
    Task,
    Workflow,
    WorkflowSpec,
)


def reward_of(text: str) -> float:
    """A number in [0, 1) that any other text gets with probability 1e-6: siblings differ, so that
    no sample drops out of the loss."""
    return zlib.crc32(text.encode()) % 999_983 / 999_983


class FixedWorld(Environment):
    """Every agent reads a prompt of `read` tokens, answers, and so on for `turns` joint steps. All
    agents are paid the same.

    Each agent's prompt is different, as the role in a real prompt makes it; and later ones differ
    with what was said before.

    Args:
        shape: whose vocabulary the words are of.
        agents: names.
        read: tokens of the first prompt.
        turns: joint steps.
        later: tokens of every further message; `read` if not given.
    """

    blocking = False

    def __init__(
        self,
        shape: str,
        agents: Sequence[str],
        read: int,
        turns: int = 1,
        later: int | None = None,
    ) -> None:
        self.shape, self.read, self.later = shape, read, read if later is None else later
        self.agents = tuple(agents)
        self.name = "fixed"
        self.max_turns = turns
        self._seed, self._step, self._said = 0, 0, ""

    def spawn(self) -> FixedWorld:
        return copy.copy(self)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._seed, self._step, self._said = task.seed if task else seed or 0, 0, ""
        return StepResult(self._shown())

    def step(self, actions: dict[str, Message]) -> StepResult:
        self._step += 1
        self._said = "".join(actions[agent].content for agent in self.agents)
        rewards = {agent: Reward(reward_of(self._said)) for agent in self.agents}
        if self._step == self.max_turns:
            return StepResult(rewards=rewards, done=True)
        return StepResult(self._shown(), rewards)

    def _shown(self) -> dict[str, Observation]:
        length = self.later if self._step else self.read
        return {
            agent: Observation(
                [Message(prompt_text(self.shape, length, self._seed, agent, self._said))]
            )
            for agent in self.agents
        }


@functools.lru_cache(4096)
def prompt_text(shape: str, length: int, seed: int, agent: str, said: str = "") -> str:
    """The prompt of `length` tokens that an agent reads: another one for every seed and agent, and
    for what all agents said last."""
    return words_of(random.Random(f"{seed}/{agent}/{said}"), shape, length)


class LongTail(FixedWorld):
    """One agent whose answers have lengths that were fixed before; played with `answer_at_length`.

    Args:
        shape: whose vocabulary the words are of.
        read: tokens of the prompt.
        lengths: tokens of each task's answer.
    """

    def __init__(self, shape: str, read: int, lengths: Sequence[int]) -> None:
        super().__init__(shape, ("agent_0",), read)
        self.lengths = tuple(lengths)

    def num_tasks(self, split: Any = "train") -> int | None:
        return len(self.lengths)

    def task(self, seed: int, split: Any = "train") -> Task:
        return Task(f"{split}-{seed}", seed=seed, info={"length": self.lengths[seed]})


async def answer_at_length(task: Task, agents: Any, env: Any) -> None:
    """A workflow: the agent answers once, in as many tokens as the task says."""
    result = await env.reset()
    (name,) = result.observations
    shown = result.observations[name].messages
    said = await agents[name].act(shown, max_new_tokens=task.info["length"])
    await env.finish({name: said})


async def answer_afresh(task: Task, agents: Any, env: Any) -> None:
    """A workflow of several turns in which agents read the newest message only."""
    await env.reset()
    while not env.result.done:
        await _joint_step(env)


class AnswerTree(Workflow):
    """The same as a tree: every joint answer is gone on from `branches` times."""

    def __init__(self, branches: int) -> None:
        self.branches = branches
        self.spec = WorkflowSpec(branches=branches)

    async def __call__(self, task: Task, agents: Any, env: Any) -> None:
        await env.reset()
        await self._grow(env)

    async def _grow(self, env: Any) -> None:
        await _joint_step(env)
        if env.result.done:
            env.end()
        else:
            await asyncio.gather(*map(self._grow, env.fork(self.branches)))


async def _joint_step(env: Any) -> None:
    """Everybody who has an observation answers it, and nothing else."""
    shown = env.result.observations
    names = list(shown)
    said = await asyncio.gather(*(env.agents[name].act(shown[name].messages) for name in names))
    await env.step(dict(zip(names, said, strict=True)))
