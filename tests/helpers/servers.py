"""Environment servers for tests: in this process, and as processes of their own."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mrlm.serving.client.calling import _heard
from mrlm.serving.environments.server import EnvironmentServer, Settings
from places import IMPORTS

T = TypeVar("T")


class InProcess:
    """A server in this process, with a loop and a thread of its own.

    Args:
        **settings: of the server; workers are one where nothing else is said.
    """

    def __init__(self, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_heard)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.server = EnvironmentServer(Settings(**{"workers": 1, **settings}))
        self.do(self.server.start())

    def do(self, job: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(job, self.loop).result()

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
        self._thread.join()


@contextmanager
def here(**settings: Any) -> Iterator[InProcess]:
    """A server in this process for a while."""
    made = InProcess(**settings)
    try:
        yield made
    finally:
        made.close()


class Process:
    """A server as a process of its own: `mrlm serve`, one worker.

    Args:
        *environments: what it serves.
        port: 0 takes a free one; `port` says which.
        **options: further options of the command, such as `lease`.
    """

    def __init__(self, *environments: str, port: int = 0, **options: Any) -> None:
        words = ["-m", "mrlm", "serve", "--environments", ",".join(environments)]
        words += ["--workers", "1", "--port", str(port)]
        words += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        path = os.pathsep.join([IMPORTS, *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = re.search(r"serving on \S+:(\d+)", said)
        assert found, said
        self.port = int(found[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as a machine that loses its power would."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
