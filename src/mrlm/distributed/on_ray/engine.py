"""An engine that is a group of workers. Which of them answers a request follows from the request's
place in the run, and what it answers from its seed."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core.errors import WorkerLost
from mrlm.core.types import Completion
from mrlm.distributed.on_ray.actor_calls import Post
from mrlm.distributed.on_ray.proxies import Sending
from mrlm.play.engine import Key, Request

log: logging.Logger = logging.getLogger("mrlm")

EPISODE = 5
"""The first parts of a key, which name an episode: (seed, split, world, task, number)."""


class RayEngine:
    """Samples for all policies that live in workers. It is one engine, so that everybody hears an
    answer in the order of the requests, whichever worker is quicker.

    Args:
        groups: policy -> the workers that sample for it.
        tokenizer: that of the first policy.
        max_context: tokens that prompt and completion may have together.
    """

    def __init__(self, groups: Mapping[str, EngineGroup], tokenizer: Any, max_context: int) -> None:
        self.groups: dict[str, EngineGroup] = dict(groups)
        self.tokenizer: Any = tokenizer
        self.max_context: int = max_context
        self._tolerances: dict[str, float | None] = {}

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order; the groups work side by side."""
        return await self._answers(requests)

    async def _answers(
        self, requests: Sequence[Request], worker: int | None = None
    ) -> list[Completion]:
        """The same; with a number, all that a group is asked goes to that worker of it."""
        places: dict[EngineGroup, list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault(self.groups[request.policy], []).append(place)
        found: dict[int, Completion] = {}

        async def at(group: EngineGroup, chosen: list[int]) -> None:
            said = await group.generate([requests[place] for place in chosen], worker)
            found.update(zip(chosen, said, strict=True))

        await asyncio.gather(*(at(group, chosen) for group, chosen in places.items()))
        return [found[place] for place in range(len(requests))]

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        """Let every worker of a policy take its weights."""
        await self.groups[policy].load_weights(policy, weights, version)

    async def everywhere(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """What every worker answers; a group of fewer workers than another answers again."""
        named = {request.policy for request in requests}
        copies = max(len(self.groups[name].posts) for name in named)
        jobs = (self._answers(requests, number) for number in range(copies))
        return list(await asyncio.gather(*jobs))

    def tolerance(self, policy: str) -> float | None:
        """That of the engine in the workers."""
        if policy not in self._tolerances:
            found = self.groups[policy].posts[0].ask_now("tolerance", policy)
            self._tolerances[policy] = found
        return self._tolerances[policy]

    def forget(self) -> None:
        """Begin anew: what was given and asked before is not repeated."""
        for group in self.groups.values():
            group.forget()


class EngineGroup:
    """The workers that sample for the policies of one base.

    A worker that samples and does nothing else is replaced at once when it is lost: the new one
    gets the weights of now, hears once more what the lost one was asked since it had them, so that
    what it remembers of prompts is the same, and goes on. One that trains as well is a loss for the
    run.

    Args:
        posts: the workers.
        trains: whether a worker (then there is one) trains the policies as well.
    """

    def __init__(self, posts: Sequence[Post], trains: bool) -> None:
        self.posts: list[Post] = list(posts)
        self.trains: bool = trains
        self._given: dict[str, tuple[Any, int]] = {}
        self._asked: list[list[list[Request]]] = [[] for _ in posts]

    async def generate(
        self, requests: Sequence[Request], worker: int | None = None
    ) -> list[Completion]:
        """One completion per request, in order, by whichever worker its key says, or by one."""
        shares: list[list[int]] = [[] for _ in self.posts]
        for index, request in enumerate(requests):
            place = place_of(request.key, len(shares)) if worker is None else worker % len(shares)
            shares[place].append(index)
        jobs = [
            (number, indices, self._sample(number, [requests[index] for index in indices]))
            for number, indices in enumerate(shares)
            if indices
        ]
        found: dict[int, Completion] = {}
        for (_, indices, _), said in zip(
            jobs, await asyncio.gather(*(job for _, _, job in jobs)), strict=True
        ):
            found.update(zip(indices, said, strict=True))
        return [found[index] for index in range(len(requests))]

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        """Let every worker take the weights of a policy; they go through the object store once."""
        for asked in self._asked:
            asked.clear()
        if self.trains:
            await self.posts[0].ask("share", policy, version)
            return
        assert isinstance(weights, Sending)
        self._given[policy] = await weights.begin(), version
        await asyncio.gather(*(self._give(number, policy) for number in range(len(self.posts))))

    def forget(self) -> None:
        """Begin anew: what was given and asked before is not repeated."""
        self._given.clear()
        for asked in self._asked:
            asked.clear()

    async def _give(self, number: int, policy: str) -> None:
        reference, version = self._given[policy]
        try:
            await self.posts[number].ask("take", policy, reference, version)
        except WorkerLost as lost:
            await self._replace(number, lost)

    async def _sample(self, number: int, requests: list[Request]) -> list[Completion]:
        while True:
            try:
                said = await self.posts[number].ask("generate", requests)
            except WorkerLost as lost:
                if self.trains:
                    raise
                await self._replace(number, lost)
                continue
            self._asked[number].append(requests)
            return said

    async def _replace(self, number: int, lost: WorkerLost) -> None:
        """Let another worker take the place of one that was lost, and be as that one was.

        Raises:
            WorkerLost: the weights are gone too.
        """
        post = self.posts[number]
        log.warning("%s; another takes its place", lost)
        post.restart()
        for policy, (reference, version) in self._given.items():
            await post.ask("take", policy, reference, version)
        for requests in self._asked[number]:
            await post.ask("generate", requests)


def place_of(key: Key, workers: int) -> int:
    """Which of some workers answers: all turns of an episode one of them, those of a group's
    episodes all in turn."""
    *_, task, number = (0, 0, *key[:EPISODE])
    if isinstance(task, int) and isinstance(number, int):
        return (task + number) % workers
    return zlib.crc32(repr(key[:EPISODE]).encode()) % workers
