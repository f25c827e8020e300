"""The `Engine` protocol for samplers of token ids, and the batcher that joins the concurrent
requests of agents into one call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from mrlm.core.errors import EngineError
from mrlm.core.sync_async import BackgroundJobs
from mrlm.core.timing import span
from mrlm.core.types import Completion, Message, SamplingParams

Key = tuple[int | str, ...]
"""(run seed, step, episode, agent, turn): the source of randomness, so that no result depends on
batch order."""


@dataclass(slots=True)
class Request:
    """A request for one completion.

    Args:
        policy: name of the policy.
        prompt_ids: the prompt.
        sampling: sampling parameters.
        seed: 64-bit seed of this request.
        key: canonical position; a batch is sorted by it.
        messages: the conversation behind `prompt_ids`; the only prompt of a policy behind an API.
    """

    policy: str
    prompt_ids: list[int]
    sampling: SamplingParams
    seed: int
    key: Key = ()
    messages: Sequence[Message] = ()


class Engine(Protocol):
    """Samples for one or more policies of one base model."""

    max_context: int
    """Limit of prompt and completion tokens together."""

    @property
    def tokenizer(self) -> object:
        """The tokenizer of its base model, which its policies share."""
        ...

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order."""
        ...

    async def load_weights(self, policy: str, weights: object, version: int) -> None:
        """Load new weights of a policy; completions carry `version` from now on."""
        ...

    def tolerance(self, policy: str) -> float | None:
        """Tolerance, in nats per token, of its log-probs against the learner's due to rounding;
        `None` for an engine without weights. `mrlm.training.weight_proof` uses it."""
        ...


@runtime_checkable
class LocalEngine(Engine, Protocol):
    """An engine in the learner's process, which compares weights with the learner's."""

    def holds(self, policy: str, weights: object) -> bool:
        """Whether it samples with these weights, bit by bit; `False` if only samples can tell."""
        ...


@runtime_checkable
class ComputingEngine(Engine, Protocol):
    """An engine in this process: on a slow processor a call may take hours, so that the limit
    `engine.timeout` holds for the time without progress."""

    @property
    def progress(self) -> int:
        """A number that grows with every forward pass."""
        ...


@runtime_checkable
class SelfTimedEngine(Engine, Protocol):
    """An engine that limits the time of its calls itself."""

    limits_time: Literal[True]


@runtime_checkable
class ReplicatedEngine(Engine, Protocol):
    """An engine with several copies of a policy's weights; the request determines which copy
    answers."""

    async def everywhere(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """For every copy, one completion per request, in order."""
        ...


@runtime_checkable
class ConcurrentEngine(Engine, Protocol):
    """An engine whose server batches concurrent requests itself: every request is sent at once, and
    a failure affects no other request. It retries by itself."""

    async def one(self, request: Request) -> Completion:
        """The completion of one request. Raises `EngineError`: no completion."""
        ...


@runtime_checkable
class SleepingEngine(Protocol):
    """An engine that can release memory between batches."""

    async def rest(self) -> None:
        """Release the memory. The next request acquires it again."""
        ...


async def rest(engines: Mapping[str, Engine]) -> None:
    """Let engines release memory that learning can use, until the next request."""
    for engine in {id(item): item for item in engines.values()}.values():
        if isinstance(engine, SleepingEngine):
            await engine.rest()


@runtime_checkable
class RemoteEngine(Engine, Protocol):
    """The engine of one policy with remote weights: it exchanges messages and text. It has
    deadlines and retries of its own, and a failure affects no other request."""

    async def answer(self, request: Request) -> Completion:
        """The completion of one request; its `token_ids` are empty.

        Raises:
            EngineError: no answer.
            EndpointError: no request will ever be answered.
        """
        ...

    def take_usage(self) -> dict[str, float]:
        """Counts of requests and tokens, and their cost, since the previous call, by name."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(slots=True)
class ExternalCalls:
    """Counts external calls in progress (`busy`): a batch waits for them, so that its content
    depends only on the episodes and never on timing."""

    busy: int = 0
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """A context for an external call."""
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
        """Wait until one of the calls in progress has ended."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


class Answers(Protocol):
    """A log of completions, which can also replay them."""

    def recall(self, request: Request) -> Completion | None:
        """The recorded completion of this request, if it is to be replayed."""
        ...

    def note(self, request: Request, completion: Completion, round: int) -> None:
        """Record the completion of an engine and its round of calls."""
        ...


async def complete(engine: Engine, requests: Sequence[Request], timeout: float) -> list[Completion]:
    """The completions of one call of an engine, in order.

    Args:
        timeout: seconds that the call may take, or that a `ComputingEngine` may make no progress;
            a `SelfTimedEngine` has a limit of its own.

    Raises:
        EngineError: the engine took too long.
    """
    if isinstance(engine, SelfTimedEngine):
        return await engine.generate(requests)
    call = asyncio.ensure_future(engine.generate(requests))
    local = engine if isinstance(engine, ComputingEngine) else None
    try:
        while not call.done():
            before = local and local.progress
            await asyncio.wait({call}, timeout=timeout)
            if not call.done() and (local is None or local.progress == before):
                raise EngineError(_too_slow(requests[0].policy, timeout, local is not None))
        return call.result()
    finally:
        call.cancel()


class _Kind:
    """An engine, and the same as `RemoteEngine` or `ConcurrentEngine` if it is one: comparing it
    with these protocols takes longer than many a request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.remote = engine if isinstance(engine, RemoteEngine) else None
        self.concurrent = engine if isinstance(engine, ConcurrentEngine) else None


class Batcher:
    """Collects requests until no further one can arrive, then calls each engine once.

    The concurrent requests of all episodes, groups, agents and policies form one batch per engine.

    Args:
        engines: policy -> engine; several policies may share one.
        timeout: seconds one engine call may take, as `complete` counts them.
        pulse: the external calls in progress.
    """

    QUIET_TICKS = 3
    """Iterations of the event loop without a new request after which all agents are taken to be
    waiting."""
    SETTLED_TICKS = 16
    """Iterations of the event loop until a resumed agent has reached its next call, or end."""

    def __init__(self, engines: Mapping[str, Engine], timeout: float, pulse: ExternalCalls) -> None:
        self.engines = engines
        self.timeout = timeout
        self.pulse = pulse
        self.tokens: int = 0
        """Tokens sampled so far."""
        self.calls: int = 0
        """Engine calls so far."""
        self.rounds: int = 0
        """Rounds so far in which all waiting requests were served: the time unit of play."""
        self.gate: Callable[[], Awaitable[None]] | None = None
        """Awaited before every round, when all agents wait and no external call is in progress."""
        self.answers: Answers | None = None
        """The log of completions, if they are recorded."""
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._pump: asyncio.Task[None] | None = None
        self._lingering = BackgroundJobs()
        self._kinds: dict[str, _Kind] = {}

    def generate(self, request: Request) -> Awaitable[Completion]:
        """The completion of one request, to be awaited at once.

        A policy behind an API is called at once, as an external call: batches wait for it, so that
        they depend only on the episodes.

        Raises:
            EngineError: the engine failed or took longer than the deadline.
        """
        return self._asked(request) if self.answers is None else self._logged(self.answers, request)

    async def _logged(self, answers: Answers, request: Request) -> Completion:
        """The recorded completion of a request, or a new one that is recorded."""
        entry = answers.recall(request)
        if entry is not None:
            self._lingering.start(self.linger())
            return entry
        completion = await self._asked(request)
        answers.note(request, completion, self.rounds)
        return completion

    async def linger(self) -> None:
        """Hold back batches until agents that receive a recorded completion now have reached their
        next request."""
        async with self.pulse.working():
            for _ in range(self.SETTLED_TICKS):
                await asyncio.sleep(0)

    async def settled(self) -> None:
        """Wait until no call is in progress and none can have been for a while."""
        await self._calm(self.SETTLED_TICKS, lambda: 0, seen=0)

    def _asked(self, request: Request) -> Awaitable[Completion]:
        engine = self.engines[request.policy]
        kind = self._kinds.get(request.policy)
        if kind is None or kind.engine is not engine:
            kind = self._kinds[request.policy] = _Kind(engine)
        if kind.remote is not None:
            return self._remote(kind.remote, request)
        if kind.concurrent is not None:
            return self._at_once(kind.concurrent, request)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        # asking for the running loop is a system call
        future: asyncio.Future[Completion] = self._pump.get_loop().create_future()
        self._waiting.append((request, future))
        return future

    async def _remote(self, engine: RemoteEngine, request: Request) -> Completion:
        async with self.pulse.working():
            with span("sampling", request.policy):
                return await engine.answer(request)

    async def _at_once(self, engine: ConcurrentEngine, request: Request) -> Completion:
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
        except BaseException as error:  # no request may wait for a loop that has stopped
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
                await self._quiet()  # others may have started meanwhile, or ended
            waiting = [entry for entry in self._waiting if not entry[1].cancelled()]
            batch = sorted(waiting, key=lambda entry: entry[0].key)
            self._waiting = []
            self.rounds += bool(batch)
            by_engine: dict[int, list[tuple[Request, asyncio.Future[Completion]]]] = {}
            for entry in batch:
                by_engine.setdefault(id(self.engines[entry[0].policy]), []).append(entry)
            await asyncio.gather(*(self._call(entries) for entries in by_engine.values()))

    async def _quiet(self) -> None:
        """Wait until no call is in progress and no request has arrived for some iterations."""
        await self._calm(self.QUIET_TICKS, lambda: len(self._waiting), seen=-1)

    async def _calm(self, ticks: int, count: Callable[[], int], seen: int) -> None:
        """Wait for so many iterations of the event loop without a call or a change of `count`."""
        quiet = 0
        while quiet < ticks:
            if self.pulse.busy:
                await self.pulse.calmer()
                quiet = 0
            await asyncio.sleep(0)
            quiet = quiet + 1 if seen == count() else 0
            seen = count()

    async def _call(self, entries: list[tuple[Request, asyncio.Future[Completion]]]) -> None:
        requests = [request for request, _ in entries]
        engine = self.engines[requests[0].policy]
        self.calls += 1
        try:
            with span("sampling", "+".join(sorted({request.policy for request in requests}))):
                completions = await complete(engine, requests, self.timeout)
        except EngineError as error:  # every waiting episode gets the error
            failure: Exception = error
        except Exception as error:
            text = f"the engine of policy {requests[0].policy!r} failed: {error!r}"
            failure = EngineError(text)
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


def _too_slow(policy: str, timeout: float, computing: bool = False) -> str:
    what = "made no progress for" if computing else "took longer than"
    return f"the engine of policy {policy!r} {what} engine.timeout={timeout:g} s"
