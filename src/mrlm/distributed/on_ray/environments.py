"""Environments in workers: the environment of an episode is a proxy whose resets and steps run in a
worker. The episodes of a lost worker are played again."""

import copy
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from mrlm.core.environment import Environment
from mrlm.core.errors import EpisodeError, WorkerLost
from mrlm.core.log import log
from mrlm.core.stepping import is_async, is_pending
from mrlm.core.sync_async import in_thread
from mrlm.core.types import Message, StepResult, Task
from mrlm.distributed.on_ray.actor_calls import WorkerSlot
from mrlm.distributed.on_ray.weight_transfer import opened
from mrlm.distributed.on_ray.workers import find_modules
from mrlm.play.sources.task_sampler import EnvironmentSpec

Makers = dict[str, Callable[[], Environment]]
"""Name of an environment -> factory of an instance for an episode."""
Described = tuple[tuple[str, ...], int | None]
"""Description of an environment: its agents, and its limit of steps."""


class EnvironmentWorker:
    """Holds the environments of many episodes, which run concurrently. `paths` is the module search
    path of the driver; `boxes` has the pickled factory of each environment by name."""

    def __init__(self, paths: Sequence[str], boxes: Mapping[str, bytes]) -> None:
        log.setLevel(logging.WARNING)
        find_modules(paths)
        self.makers: Makers = {name: opened(box) for name, box in boxes.items()}
        self.environments: dict[int, Environment] = {}

    async def ready(self) -> int:
        return os.getpid()

    async def open(self, number: int, name: str) -> Described:
        env = self.environments[number] = self.makers[name]()
        return tuple(env.agents), env.max_turns

    async def twin(self, number: int, other: int) -> None:
        """Copy an environment in its current state, under another number."""
        self.environments[other] = copy.deepcopy(self.environments[number])

    async def call(self, number: int, what: str, *arguments: Any) -> tuple[Any, Described]:
        """Call a method of an environment: in a thread, unless it is a coroutine or fast."""
        if number not in self.environments:
            raise EpisodeError("the worker that held the environment was lost")
        env = self.environments[number]
        method = getattr(env, what)
        if is_async(method) or not env.blocking:
            answer = method(*arguments)
        else:
            answer = await in_thread(lambda: method(*arguments))
        answer = await answer if is_pending(answer) else answer
        return answer, (tuple(env.agents), env.max_turns)

    async def close(self, number: int) -> None:
        env = self.environments.pop(number, None)
        if env is not None:
            await in_thread(env.close)


class EnvironmentPool:
    """The workers that hold environments."""

    def __init__(self, posts: Sequence[WorkerSlot]) -> None:
        self.posts: list[WorkerSlot] = list(posts)
        self.numbers: itertools.count[int] = itertools.count()

    def spread(self, spec: EnvironmentSpec) -> EnvironmentSpec:
        """The spec of a run with its episodes played in workers, and again if one is lost."""
        make = partial(RayEnvironment, self, spec.name, spec.template)
        return replace(spec, make=make, retries=max(1, spec.retries))

    def post(self, number: int) -> WorkerSlot:
        return self.posts[number % len(self.posts)]

    async def ask(self, number: int, method: str, *arguments: Any) -> Any:
        """Call the worker of an environment. Raises `EpisodeError`: the worker was lost."""
        with self._replacing(number) as post:
            return await post.ask(method, number, *arguments)

    def ask_now(self, number: int, method: str, *arguments: Any) -> Any:
        with self._replacing(number) as post:
            return post.ask_now(method, number, *arguments)

    @contextmanager
    def _replacing(self, number: int) -> Iterator[WorkerSlot]:
        """The worker of an environment, replaced (by the first that notices) if it is lost."""
        post = self.post(number)
        handle = post.handle
        try:
            yield post
        except WorkerLost as lost:
            if post.handle is handle:
                log.warning("%s; another is started", lost)
                post.restart(wait=False)
            raise EpisodeError(f"{lost}, and the environment of the episode with it") from lost


class RayEnvironment(Environment):
    """The environment of an episode, in a worker of the pool. `template` is an instance for
    properties that do not depend on an episode."""

    blocking = False

    def __init__(self, pool: EnvironmentPool, name: str, template: Environment) -> None:
        self.pool = pool
        self.name: str = name
        self.agents: tuple[str, ...] = tuple(template.agents)
        self.max_turns: int | None = template.max_turns
        self.number: int = next(pool.numbers)
        self._open = False

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return await self._call("reset", task, seed)

    async def step(self, actions: dict[str, Message]) -> StepResult:
        return await self._call("step", actions)

    async def state(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return await self._call("state")

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        answer, _ = self.pool.ask_now(self.number, "call", "expert", agent, messages)
        return answer

    async def _call(self, what: str, *arguments: Any) -> Any:
        if not self._open:
            self._open = True
            await self.pool.ask(self.number, "open", self.name)
        reply = await self.pool.ask(self.number, "call", what, *arguments)
        answer, (self.agents, self.max_turns) = reply
        return answer

    def __deepcopy__(self, memo: Mapping[int, Any]) -> "RayEnvironment":
        twin = RayEnvironment(self.pool, self.name, self)
        while self.pool.post(twin.number) is not self.pool.post(self.number):  # it is copied there
            twin.number = next(self.pool.numbers)
        if self._open:
            twin._open = True
            self.pool.ask_now(self.number, "twin", twin.number)
        return twin

    def close(self) -> None:
        if self._open:
            self._open = False
            try:
                self.pool.post(self.number).send("close", self.number)
            except WorkerLost:
                log.debug("environment %d was lost with its worker", self.number)
