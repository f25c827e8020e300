"""The base of engines with HTTP servers: requests with deadlines and retries, and synchronisation
of the server's weights with the learner's. Independent of the server's protocol."""

import asyncio
import itertools
import math
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mrlm.core.errors import ConfigError, EngineError
from mrlm.core.retries import Passing, Retries, one_line
from mrlm.core.types import JSON, Completion
from mrlm.core.weight_lock import WeightLock
from mrlm.engines.shared.calls import LoopClients, Missing, cut, judged, secret
from mrlm.engines.shared.policies import PolicyEngine
from mrlm.learn.policy.lora import BASE
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

try:
    import httpx2 as httpx
except ImportError as error:
    raise ConfigError(
        'engines with servers (vllm, sglang) need the package httpx2: pip install "mrlm[llm]"'
    ) from error

FIRST_WAIT = 0.5
"""Seconds before a call is repeated for the first time."""


@dataclass(eq=False, repr=False)
class ServerEngine(PolicyEngine, ABC):
    """Samples through servers that hold copies of the weights. A policy is either a whole model,
    one per server, or a LoRA adapter, which servers know by the policy's name.

    A server receives a policy's weights before its first request, after every update, and again
    after it was unreachable, because it may have been restarted. Weights are exchanged through a
    folder that the server reads.

    Args:
        policies: name -> policy of the learner.
        base_url: the server of all policies, `http://host:port`.
        servers: policy -> server, if they have separate ones.
        api_key_env: the environment variable with the servers' key.
        sync_folder: folder of weights, with the same path on the servers; by default a new one.
        sleep: put servers to sleep while no request is pending.
        timeout: seconds that one call may take.
        max_retries: how often a call is repeated.
        max_concurrent: most pending calls.

    Raises:
        ConfigError: servers and policies do not fit, or the key is not set.
    """

    kind: ClassVar[str] = ""
    """Name of the server software in messages."""
    wakes_twice: ClassVar[bool] = True
    """Whether waking a server that is awake is harmless."""
    route: ClassVar[str] = ""
    """The route of completions."""
    no_route: ClassVar[str] = ""
    """The fix if a route does not exist."""

    policies: Mapping[str, Policy]
    base_url: InitVar[str | None] = None
    servers: InitVar[Mapping[str, str] | None] = None
    api_key_env: InitVar[str | None] = None
    sync_folder: str | None = None
    sleep: bool = False
    timeout: float = 600.0
    max_retries: int = 4
    max_concurrent: int = 256

    def __post_init__(
        self, base_url: str | None, servers: Mapping[str, str] | None, api_key_env: str | None
    ) -> None:
        super().__init__(self.policies)
        self.retries: Retries = Retries(self.max_retries, FIRST_WAIT)
        self.pushes: int = 0
        """Times that weights were sent to a server so far."""
        self.url_of: dict[str, str] = self._urls(base_url, servers or {})
        self.asleep: set[str] = set()
        self._key = secret(api_key_env)
        self._made: tempfile.TemporaryDirectory[str] | None = None
        self._placed: dict[str, Path] = {}
        self._numbers = itertools.count(1)
        self._down: dict[str, tuple[float, EngineError]] = {}
        self._weight_lock = WeightLock()
        self._clients = LoopClients(self._client, httpx.AsyncClient.aclose)

    def _urls(self, base_url: str | None, servers: Mapping[str, str]) -> dict[str, str]:
        strange = [name for name in servers if name not in self.policies]
        if strange:
            raise ConfigError(
                f"engine.servers.{strange[0]}: this run has no policy with weights of that name; "
                f"its policies: {', '.join(self.policies)}"
            )
        urls: dict[str, str] = {}
        whole: dict[str, str] = {}
        for name, policy in self.policies.items():
            url = servers.get(name, base_url)
            if url is None:
                raise ConfigError(
                    f"engine.name={self.kind!r} requires a server for policy {name!r}; "
                    f"set engine.base_url or engine.servers.{name}"
                )
            if not url.startswith(("http://", "https://")):
                key = f"servers.{name}" if name in servers else "base_url"
                raise ConfigError(
                    f"engine.{key}={url!r} is not the address of a server; write http://host:port"
                )
            urls[name] = url = url.rstrip("/").removesuffix("/v1")
            if policy.adapter is None and whole.setdefault(url, name) != name:
                raise ConfigError(
                    f"policies {whole[url]!r} and {name!r} are whole models, and the server at "
                    f"{url} holds only one; give them LoRA adapters, or separate servers with "
                    "engine.servers"
                )
        return urls

    # -- the engine's interface --------------------------------------------------------------------

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order; the first that fails is raised."""
        return list(await asyncio.gather(*map(self.one, requests)))

    async def one(self, request: Request) -> Completion:
        """The completion of one request. Raises `EngineError`: no completion, after all retries;
        `EndpointError`: the server refuses permanently."""
        name, since = request.policy, time.monotonic()

        async def sampled() -> Completion:
            try:
                await self._prepare(client, name, since)
                async with self._weight_lock.passing():
                    if name not in self._placed or self.url_of[name] in self.asleep:
                        raise Passing("its weights were just changed", 0.0)
                    return await self._sampled(client, request)
            except Missing:
                self._placed.pop(name, None)
                raise

        async with self._clients.here() as client:
            return await self.retries.run(sampled, self._title(name))

    async def load_weights(self, policy: str, weights: Policy, version: int) -> None:
        """Send the learner's weights of a policy to its server. Raises `EngineError`: the server
        did not load them, after all retries."""
        await super().load_weights(policy, weights, version)
        async with self._clients.here() as client, self._weight_lock.alone():
            await self._place(client, policy)

    async def rest(self) -> None:
        """Put the servers to sleep until the next request, if `sleep` is set."""
        if not self.sleep:
            return
        async with self._clients.here() as client, self._weight_lock.alone():
            for url in sorted(set(self.url_of.values()) - self.asleep):
                await self.retries.run(partial(self._doze, client, url), self.kind)
                self.asleep.add(url)

    # -- the protocol of a server ------------------------------------------------------------------

    @abstractmethod
    def _body(self, request: Request) -> JSON:
        """A request in the server's format."""

    @abstractmethod
    def _read(self, answer: Any) -> tuple[list[int], list[float], str]:
        """Token ids, log-probs and finish reason of an answer; raises any of `KeyError`,
        `TypeError`, `IndexError` and `ValueError` if it is malformed. Raises `Passing`: the server
        aborted the request."""

    @abstractmethod
    async def _push(self, client: httpx.AsyncClient, name: str, folder: Path) -> None:
        """Make the server, which is awake, load a policy's weights."""

    @abstractmethod
    async def _doze(self, client: httpx.AsyncClient, url: str) -> None:
        """Put a server to sleep."""

    @abstractmethod
    async def _wake(self, client: httpx.AsyncClient, url: str, part: str) -> None:
        """Wake the `weights` or the `kv_cache` of a server."""

    # -- weights -----------------------------------------------------------------------------------

    async def _prepare(self, client: httpx.AsyncClient, name: str, since: float) -> None:
        """Make sure that a policy's server is awake and has its weights. If that has already failed
        after `since`, it is not tried again for every waiting request."""
        url = self.url_of[name]
        if name in self._placed and url not in self.asleep:
            return
        async with self._weight_lock.alone():
            failed, error = self._down.get(url, (-math.inf, None))
            if error is not None and failed > since:
                raise error
            try:
                if name not in self._placed:
                    await self._place(client, name)
                elif url in self.asleep:
                    await self._rouse(client, url)
            except EngineError as error:
                self._down[url] = (time.monotonic(), error)
                raise

    async def _rouse(self, client: httpx.AsyncClient, url: str) -> None:
        """Wake a server that still has its weights."""
        for part in ("weights", "kv_cache"):
            await self.retries.run(partial(self._wake, client, url, part), self.kind)
        self.asleep.discard(url)

    async def _place(self, client: httpx.AsyncClient, name: str) -> None:
        """Send the current weights of a policy to its server. The caller holds the lock."""
        policy, url = self.policies[name], self.url_of[name]
        if policy.adapter == BASE:
            self._placed[name] = Path()  # a frozen model, which the server has
            return
        folder = self._shared() / name.replace("/", "_") / str(next(self._numbers))
        await asyncio.to_thread(policy.save, folder, heads=False)
        self._placed.pop(name, None)

        async def push() -> None:
            if url in self.asleep:
                await self._wake(client, url, "weights")
            await self._push(client, name, folder)
            if url in self.asleep:
                await self._wake(client, url, "kv_cache")
                self.asleep.discard(url)

        await self.retries.run(push, self.kind)
        self._placed[name] = folder
        self.pushes += 1
        for old in set(folder.parent.iterdir()) - {folder}:
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)

    def _shared(self) -> Path:
        """A private folder of this engine that the server can read."""
        if self._made is None:
            try:
                if self.sync_folder is not None:
                    Path(self.sync_folder).mkdir(parents=True, exist_ok=True)
                self._made = tempfile.TemporaryDirectory(prefix="mrlm-sync-", dir=self.sync_folder)
                os.chmod(self._made.name, 0o755)
            except OSError as error:
                raise ConfigError(
                    f"engine.sync_folder={self.sync_folder!r} cannot be written: {error.strerror}"
                ) from error
        return Path(self._made.name).absolute()

    # -- one call ----------------------------------------------------------------------------------

    def _title(self, name: str) -> str:
        return f"policy {name!r} ({self.kind} at {self.url_of[name]})"

    async def _sampled(self, client: httpx.AsyncClient, request: Request) -> Completion:
        name = request.policy
        answer = await self._post(client, self.url_of[name], self.route, self._body(request))
        try:
            ids, logprobs, reason = self._read(answer)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise EngineError(
                f"{self._title(name)}: its answer has no token ids with log-probs ({error!r}); is "
                f"it a {self.kind} server of a version that returns them?"
            ) from error
        if not ids or len(ids) != len(logprobs):
            raise EngineError(
                f"{self._title(name)}: {len(ids)} tokens came with {len(logprobs)} log-probs"
            )
        text = cut(self.policies[name].chat.decode(ids), request.sampling.stop)
        finish = "length" if reason == "length" else "stop"
        return Completion(ids, logprobs, text, finish, self.versions[name])

    async def _post(
        self,
        client: httpx.AsyncClient,
        url: str,
        route: str,
        body: JSON | None = None,
        method: str = "POST",
    ) -> Any:
        """The server's answer to one attempt. Raises `Passing`: a transient failure; `Missing`: the
        server does not know the policy; `EngineError` or `EndpointError`: the server refuses."""
        try:
            reply = await client.request(method, url + route, json=body)
        except httpx.TimeoutException:
            raise Passing(f"no answer from {url} within {self.timeout:g} s") from None
        except httpx.HTTPError as error:
            for name, where in self.url_of.items():
                if where == url:
                    self._placed.pop(name, None)  # it may have been restarted without them
            if not self.wakes_twice:
                self.asleep.discard(url)
            reason = one_line(error) or type(error).__name__
            raise Passing(f"no connection to {url}: {reason}") from None
        if reply.is_success:
            try:
                return reply.json()
            except ValueError:
                return reply.text
        raise judged(self.kind, url + route, reply, self.no_route)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            timeout=httpx.Timeout(self.timeout, connect=min(30.0, self.timeout), pool=None),
            limits=httpx.Limits(max_connections=self.max_concurrent),
            headers={} if self._key is None else {"authorization": f"Bearer {self._key}"},
            trust_env=False,
        )
