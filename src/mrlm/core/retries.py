"""Calls to servers that are repeated after transient failures."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from mrlm.core.errors import EngineError

T = TypeVar("T")

_JITTER = random.Random()  # not a generator that a run is reproduced with


class Passing(Exception):
    """A transient failure of a call; `wait`: seconds requested by the server."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


@dataclass(slots=True)
class Retries:
    """Repeats calls after `first_wait` seconds, twice as many each time, times a random factor from
    .5 to 1; or after as many as the server requests.

    Args:
        most: how often a call is repeated.
        first_wait: seconds before the first repetition.
        longest_wait: most seconds between two attempts, whatever the server requests.
        count: calls that were repeated so far.
    """

    most: int
    first_wait: float = 0.5
    longest_wait: float = 120.0
    count: int = 0

    async def run(self, job: Callable[[], Awaitable[T]], title: str) -> T:
        """The result of a job; it is repeated when it raises `Passing`. Raises `EngineError`: it
        never succeeded; `title` names the server."""
        failure = ""
        for attempt in range(self.most + 1):
            try:
                return await job()
            except Passing as problem:
                failure, wait = str(problem), problem.wait
            if attempt < self.most:
                self.count += 1
                if wait is None:
                    wait = self.first_wait * 2**attempt * _JITTER.uniform(0.5, 1.0)
                await asyncio.sleep(min(wait, self.longest_wait))
        raise EngineError(f"{title}: no answer after {self.most + 1} tries: {failure}")


def one_line(text: object, most: int = 300) -> str:
    """Text from elsewhere as one short line."""
    clean = "".join(c if c.isprintable() else " " for c in str(text)[:1000])
    return " ".join(clean.split())[:most]


def retry_after(header: str | None) -> float | None:
    """The seconds to wait that the header `Retry-After` states: a number, or a date; `None` if it
    is missing or invalid."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
