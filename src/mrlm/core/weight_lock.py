"""A readers-writer lock on weights: sampling shares the weights, and an update waits until no
sampling is in progress."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class WeightLock:
    """A readers-writer lock with any number of readers or one writer, which has precedence over
    later readers. Event loops of several threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._alone = False
        self._wanting = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Hold the lock as a reader."""
        while (turn := self._enter(alone=False)) is not None:
            await turn
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
            self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold the lock as the writer, exclusively."""
        with self._lock:
            self._wanting += 1
        try:
            while (turn := self._enter(alone=True)) is not None:
                await turn
        finally:
            with self._lock:
                self._wanting -= 1
            self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._alone = False
            self._wake()

    def _enter(self, alone: bool) -> asyncio.Future[None] | None:
        """Acquire the lock, or return a future that is done when its state has changed."""
        with self._lock:
            if self._alone or (self._inside if alone else self._wanting):
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                self._waiting.append((loop, future))
                return future
            if alone:
                self._alone = True
            else:
                self._inside += 1
            return None

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
