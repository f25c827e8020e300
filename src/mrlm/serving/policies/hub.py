"""The policies of a server behind all its protocols: requests of all clients are batched together,
weights change while no request is being sampled, and error messages reveal no details of this
machine.

It depends neither on protocols nor on torch; engines and weights are passed in.
"""

import asyncio
import concurrent.futures
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mrlm.core.chat import Chat
from mrlm.core.errors import MRLMError
from mrlm.core.log import log
from mrlm.core.owners import role_of
from mrlm.core.sync_async import Background
from mrlm.core.types import Completion
from mrlm.core.weight_lock import WeightLock
from mrlm.play.engine import Batcher, Engine, ExternalCalls, Request
from mrlm.serving.policies.admission import Refusal

T = TypeVar("T")
RETRY_AFTER = 1.0
"""Seconds after which a client may retry when the server is at capacity."""


class Holder(Protocol):
    """The interface to the weights of one policy, which engines load as `policy`."""

    policy: Any

    @property
    def size(self) -> int: ...

    def fingerprint(self) -> tuple[float, ...]:
        """Numbers that change when the weights do."""
        ...

    def take_file(self, file: Path) -> None:
        """Load weights from one safetensors file: all of them, or none and an error."""

    def take_folder(self, folder: Path) -> None:
        """Load weights from a Hugging Face folder of a model or an adapter."""

    def score(self, ids: Sequence[int], most: int) -> list[list[tuple[int, float, int]]]:
        """For every token but the first the (id, log-prob, rank) of it and of the `most` likeliest,
        given the tokens before."""
        ...

    def tokenizer_files(self) -> dict[str, bytes]:
        """The files that `save_pretrained` writes for its tokenizer, by name."""
        ...


@dataclass(slots=True)
class ServedPolicy:
    """A policy that a server offers.

    Args:
        engine: samples for it, under the same name.
        holder: has its weights.
        model: the model's name or folder, for display.
        max_context: limit of prompt and completion tokens together.
        parent: the policy that is the base of this adapter.
        version: version of its weights.
        seen: the last version with a computed fingerprint, and that fingerprint.
        system_prompt: of chats without one, for an agent that was trained with it.
    """

    name: str
    engine: Engine
    chat: Chat
    holder: Holder
    model: str
    max_context: int
    parent: str | None = None
    version: int = 0
    seen: tuple[int, tuple[float, ...]] | None = None
    system_prompt: str | None = None

    def fingerprint(self) -> tuple[float, ...]:
        """Numbers that change when the weights do. Reads all weights, once for each version."""
        if self.seen is None or self.seen[0] != self.version:
            self.seen = (self.version, self.holder.fingerprint())
        return self.seen[1]


@dataclass(eq=False, repr=False)
class PolicyHub:
    """Dispatches requests to the policies of a server. Its engines run on an event loop in a thread
    of its own, so that every protocol may call it, from a thread or from another loop.

    Args:
        timeout: seconds one call of an engine may take.
        max_waiting: requests that wait or are being answered at the same time; more are refused.
        add_adapter: loads an adapter from a folder: `add_adapter(name, folder)` returns every
            policy that is affected, including the new one; `None` if adapters cannot be added.
        takes_weights: clients may upload weights, add adapters and put the server to sleep.
        weights_from: the folder from whose subfolders clients may load weights; `None` if from
            nowhere.
    """

    policies: InitVar[Sequence[ServedPolicy]]
    timeout: float = 600.0
    max_waiting: int = 1024
    add_adapter: Callable[[str, Path], Sequence[ServedPolicy]] | None = None
    takes_weights: bool = False
    weights_from: Path | None = None

    def __post_init__(self, policies: Sequence[ServedPolicy]) -> None:
        self.served: dict[str, ServedPolicy] = {policy.name: policy for policy in policies}
        if self.weights_from is not None:
            self.weights_from = self.weights_from.resolve()
        self.epoch: str = secrets.token_hex(8)
        """Random identifier of this start: with a different one, uploaded weights are lost."""
        self.asleep: bool = False
        self.waiting: int = 0
        """Requests that are being read, waiting or answered."""
        self.answered: int = 0
        self.tokens: int = 0
        """Tokens sampled so far."""
        self._counting = threading.Lock()
        self._reader = ThreadPoolExecutor(1, "mrlm-reader")  # tokenizers are not thread-safe
        self._weight_lock = WeightLock()
        self._engines: dict[str, Engine] = {name: e.engine for name, e in self.served.items()}
        self._batcher = Batcher(self._engines, self.timeout, ExternalCalls())
        self._engine_loop = Background("mrlm-policies")

    def close(self) -> None:
        """Stop; pending requests get an error."""
        if not self._engine_loop.closed:
            self._engine_loop.close()
            self._reader.shutdown(wait=False, cancel_futures=True)

    # -- calls of the protocols --------------------------------------------------------------------

    def find(self, name: str) -> ServedPolicy:
        """The policy of a name. Raises `Refusal`: the policy does not exist."""
        policy = self.served.get(name) or self.served.get(role_of(name))
        if policy is None:
            text = f"policy {name[:100]!r} does not exist on this server; it has "
            raise Refusal("unknown", text + ", ".join(sorted(self.served)))
        return policy

    @contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Reserve capacity for a number of requests as long as the block lasts, before any of them
        is read. Raises `Refusal`: they exceed the total (`bad`) or the free capacity (`busy`)."""
        if count > self.max_waiting:
            text = (
                f"{count} completions are requested at once and this server answers at most "
                f"{self.max_waiting}; send fewer prompts, or a smaller n"
            )
            raise Refusal("bad", text)
        if self.asleep:
            raise Refusal("asleep", "this server sleeps; wake it first")
        with self._counting:
            if self.waiting + count > self.max_waiting:
                raise Refusal("busy", f"{self.waiting} requests are waiting; send it again later")
            self.waiting += count
        try:
            yield
        finally:
            with self._counting:
                self.waiting -= count

    async def read(self, job: Callable[[], T]) -> T:
        """Run a job that parses, tokenises or writes, and return its result: the jobs of all
        protocols run one after the other in a thread of their own, so that no event loop blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, job)

    async def sample(
        self, count: int, read: Callable[[], list[Request]]
    ) -> tuple[list[Request], list[Completion]]:
        """The requests that a job reads, once there is `room` for them, and their completions."""
        with self.room(count):
            sent = await self.read(read)
            return sent, await asyncio.wrap_future(self.ask(sent))

    def ask(self, requests: Sequence[Request]) -> concurrent.futures.Future[list[Completion]]:
        """One completion for each request, in order, for a caller that has reserved `room` for
        them. They are batched with all other pending requests; each has random numbers of its own,
        so batching does not change the results. Raises `Refusal`, also through the future."""
        return self._submit(self._ask(list(requests)))

    def update(
        self,
        name: str,
        version: int | None = None,
        file: Path | None = None,
        folder: Path | None = None,
    ) -> concurrent.futures.Future[int]:
        """Load the weights of a file or folder into a policy while no request is being sampled;
        returns the new version (by default one more than before). Raises `Refusal`: through the
        future: the weights do not fit, and nothing has changed."""
        self.require_trainer()
        return self._submit(self._update(self.find(name), version, file, folder))

    def load_adapter(self, name: str, folder: Path) -> concurrent.futures.Future[int]:
        """Load the adapter of a folder under a name, new or replacing the adapter of that name."""
        self.require_trainer()
        current = self.served.get(name)
        if current is not None and current.parent is None:
            raise Refusal("bad", f"{name!r} is a whole model, not an adapter")
        if current is not None:
            return self.update(name, folder=folder)
        if self.add_adapter is None:
            raise Refusal("forbidden", "this server takes no new adapters")
        return self._submit(self._add(name, folder))

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter."""
        self.require_trainer()
        if self.find(name).parent is None:
            raise Refusal("bad", f"{name!r} is a whole model, not an adapter")
        del self.served[name], self._engines[name]

    def sleep(self) -> concurrent.futures.Future[None]:
        """Answer no requests until woken, and free the prefix caches."""
        self.require_trainer()
        return self._submit(self._sleep())

    def wake(self) -> None:
        self.require_trainer()
        self.asleep = False

    def require_trainer(self) -> None:
        """Check that clients may change policies. Raises `Refusal`: they may not."""
        if not self.takes_weights:
            raise Refusal(
                "forbidden",
                "the policies of this server cannot be changed; start it with --take-weights",
            )

    def readable(self, path: str) -> Path:
        """A folder named by a client. Raises `Refusal`: it may not be read, or does not exist."""
        if self.weights_from is None:
            raise Refusal(
                "forbidden",
                "this server reads no weights from its disk; start it with --weights-from FOLDER",
            )
        folder = Path(path).resolve()
        if not folder.is_relative_to(self.weights_from):
            raise Refusal("forbidden", "the folder is not below the one of --weights-from")
        if not folder.is_dir():
            raise Refusal("bad", "the folder does not exist on the machine of this server")
        return folder

    # -- on the loop of the engines ----------------------------------------------------------------

    def _submit(self, job: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._engine_loop.closed:
            job.close()
            raise Refusal("failed", "this server is closing")
        return self._engine_loop.start(_guarded(job))

    def _check(self, requests: Sequence[Request]) -> None:
        """Refuse requests that cannot be answered; a prompt of several requests is checked once."""
        checked_ids: set[int] = set()
        for request in requests:
            served, ids = self.find(request.policy), request.prompt_ids
            room = served.max_context - len(ids)
            if request.sampling.max_new_tokens > room:
                raise Refusal(
                    "long",
                    f"the maximum context length is {served.max_context} tokens; the prompt has "
                    f"{len(ids)} and {request.sampling.max_new_tokens} more are requested",
                )
            if id(ids) in checked_ids:
                continue
            checked_ids.add(id(ids))
            if not ids:
                raise Refusal("bad", "the prompt has no tokens")
            size = len(served.chat.tokenizer)
            if min(ids) < 0 or max(ids) >= size:
                raise Refusal("bad", f"the prompt has token ids outside 0 to {size - 1}")

    async def _ask(self, requests: list[Request]) -> list[Completion]:
        await self.read(lambda: self._check(requests))
        try:
            async with asyncio.timeout(self.timeout), self._weight_lock.passing():
                if self.asleep:
                    raise Refusal("asleep", "this server sleeps; wake it first")
                versions = {item.policy: self.served[item.policy].version for item in requests}
                jobs = [asyncio.ensure_future(self._batcher.generate(item)) for item in requests]
                try:
                    completions = await asyncio.gather(*jobs)
                finally:
                    for job in jobs:
                        job.cancel()
        except TimeoutError:
            raise Refusal("slow", f"no answer within {self.timeout:g} s") from None
        for request, item in zip(requests, completions, strict=True):
            item.policy_version = versions[request.policy]
        self.answered += len(completions)
        self.tokens += sum(len(item.token_ids) for item in completions)
        return completions

    async def _update(
        self, served: ServedPolicy, version: int | None, file: Path | None, folder: Path | None
    ) -> int:
        async with self._weight_lock.alone():
            try:
                if file is not None:
                    await asyncio.to_thread(served.holder.take_file, file)
                elif folder is not None:
                    await asyncio.to_thread(served.holder.take_folder, folder)
            except MRLMError as error:
                log.warning("new weights of policy %r were refused: %s", served.name, error)
                raise Refusal(
                    "bad", f"the weights do not fit policy {served.name!r}; it keeps its own"
                ) from error
            served.version = served.version + 1 if version is None else version
            await served.engine.load_weights(served.name, served.holder.policy, served.version)
        return served.version

    async def _add(self, name: str, folder: Path) -> int:
        assert self.add_adapter is not None
        async with self._weight_lock.alone():
            try:
                changed = await asyncio.to_thread(self.add_adapter, name, folder)
            except MRLMError as error:
                log.warning("adapter %r was refused: %s", name, error)
                raise Refusal("bad", "the folder holds no adapter that fits a policy") from error
            for policy in changed:
                if policy.name in self.served:
                    policy.version = self.served[policy.name].version
                self.served[policy.name] = policy
                self._engines[policy.name] = policy.engine
        return self.served[name].version

    async def _sleep(self) -> None:
        async with self._weight_lock.alone():
            self.asleep = True
            for policy in self.served.values():
                await policy.engine.load_weights(policy.name, policy.holder.policy, policy.version)


async def score(
    hub: PolicyHub, served: ServedPolicy, ids: Sequence[int], most: int
) -> list[list[tuple[int, float, int]]]:
    """`Holder.score` of a prompt that was read, while no request is being sampled."""

    async def job() -> list[list[tuple[int, float, int]]]:
        async with hub._weight_lock.alone():
            return await asyncio.to_thread(served.holder.score, ids, most)

    return await asyncio.wrap_future(hub._submit(job()))


async def _guarded(job: Coroutine[Any, Any, T]) -> T:
    """Await a job; details of unexpected errors stay in the log."""
    try:
        return await job
    except (Refusal, asyncio.CancelledError):
        raise
    except Exception as error:
        log.error("a request failed: %s", error, exc_info=not isinstance(error, MRLMError))
        raise Refusal("failed", "the server failed to answer; its log says why") from error
