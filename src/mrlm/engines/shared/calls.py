"""Common parts of calls to servers: usage counts, rate limits, and the meaning of refusals."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from mrlm.core.errors import ConfigError, EndpointError, EngineError

LONGEST_WAIT = 120.0
"""Most seconds between two attempts, whatever the server requests."""
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
        found = counts if isinstance(counts, Mapping) else {}
        read, written = (found.get(f"{kind}_tokens") for kind in ("prompt", "completion"))
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


class Passing(Exception):
    """A transient failure of a call; `wait`: seconds requested by the server."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class Missing(Exception):
    """The server does not know the policy (any more)."""


def judged(kind: str, where: str, reply: Any, fix: str) -> Exception:
    """The exception that a refusal means, from a server that samples for a trained policy.

    Args:
        kind: name of the server software.
        where: the URL of the call.
        reply: the response, with `status_code`, `headers` and `text`.
        fix: what to do if the route does not exist.
    """
    said = shown(reply.text)
    text = f"{where} answers {reply.status_code}: {said}"
    if reply.status_code in (401, 403):
        return EndpointError(f"{text}; check engine.api_key_env and what the server allows")
    if reply.status_code == 404:
        unknown = any(sign in said for sign in UNKNOWN)
        return Missing(text) if unknown else EndpointError(f"{text}; {fix}")
    if reply.status_code == 400 and "not loaded" in said:
        return Missing(text)
    if reply.status_code in PASSING or reply.status_code >= 500:
        return Passing(text, retry_after(reply.headers))
    if any(sign in said.lower() for sign in TOO_LONG):
        return EngineError(f"{text}; start the {kind} server with a longer context")
    return EngineError(text)


def signed(seed: int) -> int:
    """A 64-bit seed in the signed range of servers: from -2^63 to 2^63 - 1."""
    seed %= 1 << 64
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def cut(text: str, stop: Sequence[str]) -> str:
    """A text up to the first of its stop strings."""
    found = [text.find(each) for each in stop if each in text]
    return text[: min(found)] if found else text


def secret(variable: str | None) -> str | None:
    """Read the key from the environment variable that `engine.api_key_env` names.

    Raises:
        ConfigError: it is not set.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"engine.api_key_env: the environment variable {variable} is not set; export "
            f"{variable}=<the key of the server>"
        )
    return key


def shown(what: object) -> str:
    """Text from elsewhere as one short line."""
    text = str(what)[:1000]
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server requests to wait: a number, or a date."""
    asked = headers.get("retry-after")
    if asked is None:
        return None
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(asked)
    except (ValueError, OverflowError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
