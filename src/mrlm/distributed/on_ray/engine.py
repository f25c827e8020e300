"""An engine that consists of groups of workers. The worker of a request is a function of the
request's key, and the completion a function of its seed."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from mrlm.core.errors import WorkerLost
from mrlm.core.log import log
from mrlm.core.types import Completion
from mrlm.distributed.on_ray.actor_calls import WorkerSlot
from mrlm.distributed.on_ray.proxies import WeightTransfer
from mrlm.play.engine import Key, Request

T = TypeVar("T")
EPISODE = 5
"""The first parts of a key, which identify an episode: (seed, split, environment, task, number)."""


@dataclass(eq=False, repr=False)
class RayEngine:
    """Samples for all policies in workers. It is one engine, so that results are returned in the
    order of the requests, independent of the speed of workers.

    Args:
        groups: policy -> the workers that sample for it.
        tokenizer: that of the first policy.
    """

    groups: "Mapping[str, EngineGroup]"
    tokenizer: Any
    max_context: int
    limits_time: ClassVar[Literal[True]] = True
    """Each worker limits the time in which its own engine makes no progress."""
    _tolerances: dict[str, float | None] = field(default_factory=dict, init=False)

    async def generate(
        self, requests: Sequence[Request], worker: int | None = None
    ) -> list[Completion]:
        """One completion per request, in order; the groups run in parallel. With `worker`, each
        group sends all of its requests to the worker of that index."""
        groups = [self.groups[request.policy] for request in requests]
        return await _divided(requests, groups, lambda group, part: group.generate(part, worker))

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        await self.groups[policy].load_weights(policy, weights, version)

    async def everywhere(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """The completions of every worker; a smaller group than another repeats its workers."""
        named = {request.policy for request in requests}
        copies = max(len(self.groups[name].posts) for name in named)
        jobs = (self.generate(requests, number) for number in range(copies))
        return list(await asyncio.gather(*jobs))

    def tolerance(self, policy: str) -> float | None:
        if policy not in self._tolerances:
            self._tolerances[policy] = self.groups[policy].posts[0].ask_now("tolerance", policy)
        return self._tolerances[policy]

    def forget(self) -> None:
        """Forget recorded weights and requests, so that they are not replayed."""
        for group in self.groups.values():
            group.forget()


class EngineGroup:
    """The workers that sample for the policies of one base.

    A lost worker that only samples is replaced at once: the new one gets the current weights
    and replays the requests since they were loaded, so that its prefix cache is the same. A lost
    worker that also `trains` the policies (a single one then) ends the run. `timeout`: seconds that
    one call may take in a worker, as `complete` counts them.
    """

    def __init__(self, posts: Sequence[WorkerSlot], trains: bool, timeout: float) -> None:
        self.posts: list[WorkerSlot] = list(posts)
        self.trains: bool = trains
        self.timeout: float = timeout
        self._given: dict[str, tuple[Any, int]] = {}
        self._asked: list[list[list[Request]]] = [[] for _ in posts]

    async def generate(
        self, requests: Sequence[Request], worker: int | None = None
    ) -> list[Completion]:
        """One completion per request, in order, from the worker of its key, or a given one."""
        count = len(self.posts)
        numbers = [place_of(request.key, count) for request in requests]
        numbers = numbers if worker is None else [worker % count] * len(requests)
        return await _divided(requests, numbers, self._sample)

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        """Load the weights of a policy in every worker; they are put into the object store once."""
        self._asked = [[] for _ in self.posts]
        if self.trains:
            await self.posts[0].ask("take", policy, None, version)
            return
        assert isinstance(weights, WeightTransfer)
        self._given[policy] = await weights.begin(), version
        await asyncio.gather(*(self._give(number, policy) for number in range(len(self.posts))))

    def forget(self) -> None:
        self._given.clear()
        self._asked = [[] for _ in self.posts]

    async def _give(self, number: int, policy: str) -> None:
        reference, version = self._given[policy]
        try:
            await self.posts[number].ask("take", policy, reference, version)
        except WorkerLost as lost:
            await self._replace(number, lost)

    async def _sample(self, number: int, requests: list[Request]) -> list[Completion]:
        while True:
            try:
                completions = await self.posts[number].ask("generate", requests, self.timeout)
            except WorkerLost as lost:
                if self.trains:
                    raise
                await self._replace(number, lost)
                continue
            self._asked[number].append(requests)
            return completions

    async def _replace(self, number: int, lost: WorkerLost) -> None:
        """Replace a lost worker, and restore its state, unless the weights are lost too."""
        post = self.posts[number]
        log.warning("%s; another is started", lost)
        post.restart()
        for policy, (reference, version) in self._given.items():
            await post.ask("take", policy, reference, version)
        for requests in self._asked[number]:
            await post.ask("generate", requests, self.timeout)


async def _divided(
    requests: Sequence[Request],
    whose: Sequence[T],
    generate: Callable[[T, list[Request]], Awaitable[Sequence[Completion]]],
) -> list[Completion]:
    """One completion per request, in order; those of equal `whose` are generated together."""
    places: dict[T, list[int]] = {}
    for index, owner in enumerate(whose):
        places.setdefault(owner, []).append(index)
    by_index: dict[int, Completion] = {}

    async def at(owner: T, chosen: list[int]) -> None:
        completions = await generate(owner, [requests[index] for index in chosen])
        by_index.update(zip(chosen, completions, strict=True))

    await asyncio.gather(*(at(owner, chosen) for owner, chosen in places.items()))
    return [by_index[index] for index in range(len(requests))]


def place_of(key: Key, workers: int) -> int:
    """The index of the worker for a request: all turns of an episode go to the same one, the
    episodes of a group to all in turn."""
    *_, task, number = (0, 0, *key[:EPISODE])
    if isinstance(task, int) and isinstance(number, int):
        return (task + number) % workers
    return zlib.crc32(repr(key[:EPISODE]).encode()) % workers
