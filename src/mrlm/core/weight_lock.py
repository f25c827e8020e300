"""Who may go on together, and who must be alone: speakers share their weights, and whoever changes
the weights waits until nobody speaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Many pass at the same time; one at a time is alone, and goes before those who came later.
    Event loops of several threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._alone = False
        self._wanting = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Together with others."""
        while (turn := self._pass()) is not None:
            await turn
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
            self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """When everybody has left, and nobody else until this ends."""
        with self._lock:
            self._wanting += 1
        try:
            while (turn := self._shut()) is not None:
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

    def _pass(self) -> asyncio.Future[None] | None:
        """Go in, or what to wait for."""
        with self._lock:
            if self._alone or self._wanting:
                return self._turn()
            self._inside += 1
            return None

    def _shut(self) -> asyncio.Future[None] | None:
        """Close the gate behind oneself, or what to wait for."""
        with self._lock:
            if self._alone or self._inside:
                return self._turn()
            self._alone = True
            return None

    def _turn(self) -> asyncio.Future[None]:
        """Done when something has changed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((loop, future))
        return future

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
