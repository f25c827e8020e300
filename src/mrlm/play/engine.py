"""What samples: the `Engine` protocol, and the batcher that turns whatever agents await at the same
time into one call.

It knows nothing of agents, chat templates or learning; it moves token ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from mrlm.core.errors import EngineError
from mrlm.core.timing import span
from mrlm.core.types import Completion, Message, SamplingParams

Key = tuple[int | str, ...]
"""(run seed, step, episode, agent, turn): what randomness is drawn from, so that nothing depends on
batch order."""


@dataclass(slots=True)
class Request:
    """One call of a policy.

    Args:
        policy: whose weights.
        prompt_ids: what it reads.
        sampling: how it draws.
        seed: 64-bit seed of this request alone.
        key: canonical position; a batch is sorted by it.
        messages: the conversation that `prompt_ids` are the rendering of; all there is for a policy
            behind an API.
    """

    policy: str
    prompt_ids: list[int]
    sampling: SamplingParams
    seed: int
    key: Key = ()
    messages: Sequence[Message] = ()


class Engine(Protocol):
    """Samples for one or more policies of one base model."""

    tokenizer: Any
    max_context: int
    """How many tokens prompt and completion may have together."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order."""
        ...

    async def load_weights(self, policy: str, weights: Any, version: int) -> None:
        """Take new weights of a policy; completions carry `version` from now on."""
        ...

    def tolerance(self, policy: str) -> float | None:
        """How far its log-probs may be from those of the learner for rounding alone, in nats, for
        any token; `None` for an engine that has no weights. What a run does with it
        is in `mrlm.training.weight_proof`."""
        ...


@runtime_checkable
class Copies(Engine, Protocol):
    """Has the weights of a policy several times over; which of them answers follows from the
    request."""

    async def everywhere(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """For every copy, one completion per request, in order."""
        ...


@runtime_checkable
class Eager(Engine, Protocol):
    """Its server makes batches by itself, of whatever is under way: every request goes out as soon
    as it is made, and one that fails leaves the others alone. It has retries of its own."""

    async def one(self, request: Request) -> Completion:
        """The completion of one request.

        Raises:
            EngineError: there is none.
        """
        ...


@runtime_checkable
class Rests(Protocol):
    """Has memory that others can use while nobody speaks."""

    async def rest(self) -> None:
        """Let go of it. The next request takes it back."""
        ...


@runtime_checkable
class RemoteEngine(Engine, Protocol):
    """Speaks for one policy whose weights are elsewhere: it reads messages and says text. It has
    deadlines and retries of its own, and one request that fails leaves the others alone."""

    async def answer(self, request: Request) -> Completion:
        """What it says to one request; its `token_ids` are empty.

        Raises:
            EngineError: it did not answer.
            EndpointError: it never will.
        """
        ...

    def take_usage(self) -> dict[str, float]:
        """What was asked, read, written and paid since the last call of this, by name."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(slots=True)
class Pulse:
    """Counts calls of the outside world that are under way (`busy`): a batch waits for them, so
    that what is batched together depends on the episodes alone and never on timing."""

    busy: int = 0
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Around a call of the outside world."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def calmer(self) -> None:
        """Return when one of the calls under way has ended."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


class Answers(Protocol):
    """Keeps what engines answer, and may know an answer already."""

    def recall(self, request: Request) -> Completion | None:
        """What was answered to this request before, if that is to be said again."""
        ...

    def note(self, request: Request, completion: Completion, round: int) -> None:
        """Keep the answer of an engine, given in this round of calls."""
        ...


class Batcher:
    """Collects requests until nobody can add another, then calls each engine once.

    Whatever agents await at the same time, over all episodes, groups, agents and policies, goes out
    as one batch per engine.

    Args:
        engines: policy -> engine; several policies may share one.
        timeout: seconds one engine call may take.
        pulse: what else is under way.
    """

    QUIET_TICKS = 3
    """Turns of the event loop without a new request after which everybody is taken to be
    waiting."""
    SETTLED_TICKS = 16
    """Turns of the event loop after which whoever goes on has come to the next call, or to an
    end."""

    def __init__(self, engines: Mapping[str, Engine], timeout: float, pulse: Pulse) -> None:
        self.engines = engines
        self.timeout = timeout
        self.pulse = pulse
        self.tokens: int = 0
        """Tokens sampled so far."""
        self.calls: int = 0
        """Engine calls so far."""
        self.rounds: int = 0
        """Times so far that everybody who waited was served: what play is counted in."""
        self.gate: Callable[[], Awaitable[None]] | None = None
        """Awaited before every round, when everybody waits and nothing else is under way."""
        self.answers: Answers | None = None
        """Where answers are kept, if they are."""
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._pump: asyncio.Task[None] | None = None
        self._lingering: set[asyncio.Task[None]] = set()

    async def generate(self, request: Request) -> Completion:
        """Wait for the completion of one request.

        A policy behind an API is asked at once, as a part of the outside world: what is sampled
        here waits for it, so that batches depend on the episodes alone.

        Raises:
            EngineError: the engine failed or took longer than the deadline.
        """
        known = None if self.answers is None else self.answers.recall(request)
        if known is not None:
            lingering = asyncio.create_task(self._linger())
            self._lingering.add(lingering)
            lingering.add_done_callback(self._lingering.discard)
            return known
        completion = await self._asked(request)
        if self.answers is not None:
            self.answers.note(request, completion, self.rounds)
        return completion

    async def _linger(self) -> None:
        """Whoever was given a known answer goes on at once, and has not come to the next request
        yet: nobody is taken to be waiting meanwhile."""
        async with self.pulse.working():
            for _ in range(self.SETTLED_TICKS):
                await asyncio.sleep(0)

    async def settled(self) -> None:
        """Return when nothing is under way and nothing can have been for a while."""
        quiet = 0
        while quiet < self.SETTLED_TICKS:
            if self.pulse.busy:
                await self.pulse.calmer()
                quiet = 0
            await asyncio.sleep(0)
            quiet += 1

    async def _asked(self, request: Request) -> Completion:
        engine = self.engines[request.policy]
        if isinstance(engine, RemoteEngine):
            async with self.pulse.working():
                with span("sampling", request.policy):
                    return await engine.answer(request)
        if isinstance(engine, Eager):
            return await self._at_once(engine, request)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        return await future

    async def _at_once(self, engine: Eager, request: Request) -> Completion:
        self.calls += 1
        try:
            async with self.pulse.working(), asyncio.timeout(self.timeout):
                with span("sampling", request.policy):
                    completion = await engine.one(request)
        except TimeoutError:
            raise EngineError(_too_slow(request.policy, self.timeout)) from None
        self.tokens += len(completion.token_ids)
        return completion

    async def _run(self) -> None:
        try:
            await self._serve()
        except BaseException as error:  # nobody may wait for a pump that has stopped
            waiting, self._waiting = self._waiting, []
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            raise

    async def _serve(self) -> None:
        while self._waiting:
            await self._quiet()
            if self.gate is not None:
                await self.gate()
                await self._quiet()  # others may have begun meanwhile, or ended
            waiting = [entry for entry in self._waiting if not entry[1].cancelled()]
            batch = sorted(waiting, key=lambda entry: entry[0].key)
            self._waiting = []
            self.rounds += bool(batch)
            by_engine: dict[int, list[tuple[Request, asyncio.Future[Completion]]]] = {}
            for entry in batch:
                by_engine.setdefault(id(self.engines[entry[0].policy]), []).append(entry)
            await asyncio.gather(*(self._call(entries) for entries in by_engine.values()))

    async def _quiet(self) -> None:
        """Return when nothing is under way and no request has come for some turns of the loop."""
        seen, quiet = -1, 0
        while quiet < self.QUIET_TICKS:
            if self.pulse.busy:
                await self.pulse.calmer()
                quiet = 0
            await asyncio.sleep(0)
            quiet = quiet + 1 if seen == len(self._waiting) else 0
            seen = len(self._waiting)

    async def _call(self, entries: list[tuple[Request, asyncio.Future[Completion]]]) -> None:
        requests = [request for request, _ in entries]
        engine = self.engines[requests[0].policy]
        self.calls += 1
        try:
            with span("sampling", "+".join(sorted({request.policy for request in requests}))):
                completions = await asyncio.wait_for(engine.generate(requests), self.timeout)
        except TimeoutError:
            failure: Exception = EngineError(_too_slow(requests[0].policy, self.timeout))
        except Exception as error:  # every waiting episode hears of it
            failure = (
                error
                if isinstance(error, EngineError)
                else EngineError(f"the engine of policy {requests[0].policy!r} failed: {error!r}")
            )
            failure.__cause__ = error
        else:
            self.tokens += sum(len(completion.token_ids) for completion in completions)
            for (_, future), completion in zip(entries, completions, strict=True):
                if not future.cancelled():
                    future.set_result(completion)
            return
        for _, future in entries:
            if not future.cancelled():
                future.set_exception(failure)


def _too_slow(policy: str, timeout: float) -> str:
    return f"the engine of policy {policy!r} took longer than engine.timeout={timeout:g} s"
