"""Environment servers for tests: in this process, and as processes of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mrlm.serving.client.calling import _heard
from mrlm.serving.server import Server, Settings

T = TypeVar("T")


class Here:
    """A server in this process, with a loop and a thread of its own.

    Args:
        **settings: of the server; workers are one where nothing else is said.
    """

    def __init__(self, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_heard)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.server = Server(Settings(**{"workers": 1, **settings}))
        self.do(self.server.start())

    def do(self, job: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(job, self.loop).result(60)

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def sessions(self) -> int:
        """Open now."""
        return len(self.server.sessions)

    def close(self) -> None:
        self.do(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


@contextmanager
def here(**settings: Any) -> Iterator[Here]:
    """A server in this process for a while."""
    made = Here(**settings)
    try:
        yield made
    finally:
        made.close()
