"""Common parts of calls to servers: usage counts, rate limits, and the meaning of refusals."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mrlm.core.errors import ConfigError, EndpointError, EngineError
from mrlm.core.retries import Passing, one_line, retry_after
from mrlm.core.sampling import FIELDS, SamplingParams

PASSING = {408, 409, 425, 429}
"""Status codes after which a retry may succeed, besides all from 500 on."""
FINAL = {401, 402, 403, 404, 405, 410}
"""Status codes that every other request would get too."""
FINAL_CODES = {"insufficient_quota", "model_not_found", "invalid_model", "invalid_api_key"}
UNKNOWN = ("does not exist", "no policy", "cannot be found")
"""Phrases of servers for an unknown model."""
TOO_LONG = ("context_length_exceeded", "maximum context length", "context window")


@dataclass(slots=True)
class TokenUsage:
    """The usage of a server so far.

    Args:
        requests: calls that were sent, retries included.
        retries: calls that were repeated.
        failures: requests that were given up.
        prompt_tokens: prompt tokens read by the server.
        completion_tokens: tokens sampled by it.
        unmetered: answers without token counts.
    """

    requests: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0

    def add(self, counts: object) -> tuple[int, int] | None:
        """Add the token counts of an answer, in the server's format; `None` if it has none."""
        fields = counts if isinstance(counts, Mapping) else {}
        read, written = (fields.get(f"{kind}_tokens") for kind in ("prompt", "completion"))
        if not (isinstance(read, int) and isinstance(written, int) and min(read, written) >= 0):
            self.unmetered += 1
            return None
        self.prompt_tokens += read
        self.completion_tokens += written
        return read, written


class RequestPace:
    """A rate limiter: calls are evenly spaced, and all of them wait when the server requests it."""

    def __init__(self, per_minute: float | None) -> None:
        self.gap: float = 60 / per_minute if per_minute else 0.0
        self.free: float = 0.0

    async def turn(self) -> None:
        """Wait for the slot of this call."""
        now = time.monotonic()
        at = max(now, self.free)
        self.free = at + self.gap
        if at > now:
            await asyncio.sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Delay all calls for a while."""
        self.free = max(self.free, time.monotonic() + seconds)


class Missing(Passing):
    """The server does not know the policy (any more)."""


C = TypeVar("C")


class LoopClients(Generic[C]):
    """A client for each event loop, opened by the first pending call there and closed by the last,
    so that connections never outlive their loop."""

    def __init__(self, make: Callable[[], C], close: Callable[[C], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._clients: dict[int, C] = {}
        self._users: Counter[int] = Counter()

    @asynccontextmanager
    async def here(self) -> AsyncIterator[C]:
        """The client of the running event loop."""
        loop = id(asyncio.get_running_loop())
        if loop not in self._clients:
            self._clients[loop] = self._make()
        self._users[loop] += 1
        try:
            yield self._clients[loop]
        finally:
            self._users[loop] -= 1
            if not self._users[loop]:
                await self._close(self._clients.pop(loop))


def judged(kind: str, where: str, reply: Any, fix: str) -> Exception:
    """The exception that a refusal means, from a server that samples for a trained policy. `kind`
    is the server software, `where` the URL, and `fix` what to do if the route does not exist."""
    message = one_line(reply.text)
    text = f"{where} answers {reply.status_code}: {message}"
    if reply.status_code in (401, 403):
        return EndpointError(f"{text}; check engine.api_key_env and what the server allows")
    if reply.status_code == 404:
        unknown = any(sign in message for sign in UNKNOWN)
        return Missing(text) if unknown else EndpointError(f"{text}; {fix}")
    if reply.status_code == 400 and "not loaded" in message:
        return Missing(text)
    if reply.status_code in PASSING or reply.status_code >= 500:
        return Passing(text, retry_after(reply.headers.get("retry-after")))
    if any(sign in message.lower() for sign in TOO_LONG):
        return EngineError(f"{text}; start the {kind} server with a longer context")
    return EngineError(text)


def finished(reason: object) -> str:
    """The finish reason of a completion. Raises `Passing`: the server aborted it."""
    if reason not in ("stop", "length"):
        raise Passing(f"the server ended a completion with {reason!r}")
    return str(reason)


def body_of(sampling: SamplingParams, door: str) -> dict[str, Any]:
    """The sampling parameters in a body of OpenAI's protocol, but for the length, whose name
    depends on the server. Raises `ConfigError`: one that it does not have is set."""
    names = [name for name, entry in FIELDS.items() if entry.body != "no"]
    values = sampling.carried([*names, "max_new_tokens"], door)
    return {name: values[name] for name in names} | {"stop": list(sampling.stop)}


def sampling_fields(sampling: SamplingParams, door: str, every_token: int) -> dict[str, Any]:
    """Every sampling parameter but length and seed: a server may have model-specific defaults
    for missing ones. `every_token` is the server's `top_k` for no limit."""
    return body_of(sampling, door) | {
        "top_k": sampling.top_k or every_token,
        "repetition_penalty": 1.0,
        "skip_special_tokens": False,
    }


def signed(seed: int) -> int:
    """A 64-bit seed in the signed range of servers: from -2^63 to 2^63 - 1."""
    seed %= 1 << 64
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def cut(text: str, stop: Sequence[str]) -> str:
    """A text up to the first of its stop strings."""
    positions = [text.find(mark) for mark in stop if mark in text]
    return text[: min(positions)] if positions else text


def secret(variable: str | None, section: str = "engine") -> str | None:
    """Read a key from the environment variable that `api_key_env` of a section names. Raises
    `ConfigError`: it is not set."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"{section}.api_key_env: the environment variable {variable} is not set; export "
            f"{variable}=<the key of the server>"
        )
    return key
