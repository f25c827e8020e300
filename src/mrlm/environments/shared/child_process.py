"""A child process with a protocol of JSON lines, for libraries that may hang, leak memory or keep
global state: it is killed at the deadline and restarted. Thread-safe."""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from mrlm.core.errors import EpisodeError
from mrlm.environments.shared.rows import SharedByCopies

STARTUP = 120.0
"""Time limit for loading the child's libraries, in seconds."""
KEPT_VARIABLES = (
    *("PATH", "PYTHONHOME", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR"),
)


class TooLate(EpisodeError):
    """The child did not answer in time."""


class ChildEnded(EpisodeError):
    """The child ended without an answer."""


class ChildProcess(SharedByCopies):
    """A child process, started at the first request.

    Args:
        module: module whose `serve()` the child runs; `serve` calls `answering`.
        title: its name in errors.
        hint: end of the error if it cannot be started.
    """

    def __init__(self, module: str, title: str, hint: str = "") -> None:
        self.module: str = module
        self.title: str = title
        self.hint: str = hint
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        atexit.register(self.close)

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request; returns the child's answer.

        Raises:
            TooLate: no answer within `seconds`; the child is killed.
            ChildEnded: it ended without an answer.
            EpisodeError: it failed, or cannot be started.
        """
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            except OSError as error:
                self._end()
                raise ChildEnded(f"{self.title} has ended") from error
            reply = self._line(process, seconds)
        if "error" in reply:
            raise EpisodeError(f"{self.title}: {reply['error']}")
        return reply

    def close(self) -> None:
        """Kill the child. The next question starts a new one."""
        if os.getpid() == self._owner:  # a forked child must not kill its parent's
            with self._lock:
                self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if os.getpid() != self._owner:
            self._process, self._owner = None, os.getpid()
        if self._process is None or self._process.poll() is not None:
            self._end()
            variables = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
            variables |= {
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "PYTHONHASHSEED": "0",  # the order of sets affects random samples
                "OMP_NUM_THREADS": "1",
            }
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {self.module} import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=variables,
            )
            try:
                self._line(self._process, STARTUP)
            except EpisodeError as error:
                raise EpisodeError(
                    f"{self.title} could not be started with {sys.executable}{self.hint}"
                ) from error
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        late = threading.Event()

        def strike() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, strike)
        timer.daemon = True
        timer.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        timer.cancel()
        timer.join()  # afterwards it is certain whether the timer has fired
        if late.is_set():
            self._end()
            raise TooLate(f"{self.title} took longer than {seconds:g} s")
        if not line.endswith(b"\n"):
            self._end()
            raise ChildEnded(f"{self.title} ended without an answer")
        return json.loads(line)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent data has no reader any more
                    pipe.close()


def answering(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests in the child until the input ends. Only replies go to standard output."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    replies.write("{}\n")
    replies.flush()
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except (Exception, RecursionError, MemoryError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
