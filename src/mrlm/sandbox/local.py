"""A sandbox on this machine: reusable workers, as many concurrent programs as there are cores, and
sessions."""

from __future__ import annotations

import asyncio
import atexit
import copy
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from mrlm.sandbox.tiers import Tier
from mrlm.sandbox.types import (
    AnswerError,
    Limits,
    SandboxError,
    SandboxResult,
    SessionEnded,
    Status,
)
from mrlm.sandbox.workers import RunningProgram, SandboxWorker, run

T = TypeVar("T")
MOST_ANSWER = 1 << 20
"""Most bytes of an answer."""
MOST_PROGRAM = 1 << 20
"""Most bytes of a program."""


class LocalSandbox:
    """A sandbox that runs programs in processes of this machine.

    Args:
        tier: the isolation.
        limits: default limits of programs.
        workers: most concurrent programs; by default, the number of cores. Others wait, and their
            time begins when they start.
        reuse: keep workers between runs. Otherwise, every run starts a new one.
    """

    def __init__(
        self,
        tier: Tier,
        limits: Limits | None = None,
        workers: int | None = None,
        reuse: bool = True,
    ) -> None:
        self.tier = tier
        self.name: str = tier.name
        self.limits: Limits = limits or Limits()
        self.reuse = reuse
        self.workers: int = workers or len(os.sched_getaffinity(0))
        self._free: list[SandboxWorker] = []
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(self.workers, "mrlm-sandbox")
        self._owner = os.getpid()
        self._closed = False
        self._sessions: weakref.WeakSet[LocalSession] = weakref.WeakSet()
        atexit.register(_close_of, weakref.ref(self))

    def __deepcopy__(self, memo: object) -> LocalSandbox:
        return self  # environments are copied for every episode; the copies share their sandbox

    @property
    def closed(self) -> bool:
        """Whether it is closed in this process."""
        return self._closed or self._owner != os.getpid()

    def with_limits(self, limits: Limits) -> LocalSandbox:
        """The same workers with other limits."""
        other = copy.copy(self)
        other.limits = limits
        return other

    async def run(
        self,
        program: str,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        return await self.in_turn(
            lambda: self.run_now(program, stdin, files or {}, limits or self.limits)
        )

    def run_now(
        self,
        program: str,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        """`run` for blocking callers."""
        refused = unfit(program, stdin, files or {})
        if refused:
            return SandboxResult("refused", reason=refused)
        reason = ""
        for _ in range(2):
            try:
                worker = self.take()
            except SandboxError as error:
                reason = str(error)
                continue
            try:
                result = run(
                    worker, program.encode(), stdin.encode(), files or {}, limits or self.limits
                )
            except SandboxError as error:
                worker.close()
                reason = str(error)
                continue
            except BaseException:
                worker.close()
                raise
            self.give_back(worker)
            return result
        return SandboxResult("infra_error", reason=reason)

    async def session(
        self, program: str, files: Mapping[str, bytes] | None = None, limits: Limits | None = None
    ) -> LocalSession:
        refused = unfit(program, "", files or {})
        if refused:
            raise SessionEnded("refused", refused)
        limits = limits or self.limits
        made = await self.in_turn(lambda: LocalSession(self, program.encode(), files or {}, limits))
        self._sessions.add(made)
        return made

    async def in_turn(self, work: Callable[[], T]) -> T:
        """Run a blocking job when a core is free."""
        if self._owner != os.getpid():
            raise SandboxError("a sandbox cannot be used in a fork of the process that opened it")
        return await asyncio.wrap_future(self._threads.submit(work))

    def take(self) -> SandboxWorker:
        """An idle worker.

        Raises:
            SandboxError: none can be started.
        """
        while True:
            with self._lock:
                worker = self._free.pop() if self._free else None
            if worker is None:
                return SandboxWorker(self.tier, self.reuse)
            if not worker.spent:
                return worker
            worker.close()

    def give_back(self, worker: SandboxWorker) -> None:
        """Keep a worker for the next program, or close it."""
        with self._lock:
            if self.reuse and not worker.spent and len(self._free) < self.workers * 2:
                self._free.append(worker)
                return
        worker.close()

    def close(self) -> None:
        self._closed = True
        for session in list(self._sessions):
            session.close_now()
        self._threads.shutdown(wait=True)
        with self._lock:
            free, self._free = self._free, []
        for worker in free:
            worker.close()


def _close_of(kept: weakref.ref[LocalSandbox]) -> None:
    sandbox = kept()
    if sandbox is not None and sandbox._owner == os.getpid():
        sandbox.close()


def unfit(program: str, stdin: str, files: Mapping[str, bytes]) -> str:
    """The reason why a program cannot be run at all; empty if it can."""
    for name, text in (("program", program), ("standard input", stdin)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return f"the {name} is not valid Unicode: {error.reason} at {error.start}"
    if "\0" in program:
        return "the program has a NUL character in it"
    if len(program) > MOST_PROGRAM:
        return f"the program is longer than {MOST_PROGRAM} characters"
    for path in files:
        parts = PurePosixPath(path).parts
        if not parts or ".." in parts or path.startswith("/") or "\0" in path or len(path) > 200:
            return f"{path!r} is not a path inside the working folder"
    return ""


class LocalSession:
    """A program that answers requests, in a worker of its own."""

    def __init__(
        self, sandbox: LocalSandbox, program: bytes, files: Mapping[str, bytes], limits: Limits
    ) -> None:
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._running: RunningProgram | None = None
        self._worker: SandboxWorker = sandbox.take()
        self._pipe, theirs = socket.socketpair()
        self._pipe.setblocking(False)
        try:
            limits = replace(limits, cpu=limits.cpu or 10 * limits.wall)
            self._running = self._worker.begin(
                program, files, limits, theirs.fileno(), theirs.fileno()
            )
        except BaseException:
            self._pipe.close()
            self._worker.close()
            raise
        finally:
            theirs.close()
        try:
            self._asked(None, limits.wall)
        except AnswerError as error:
            self._ended("error")
            raise SessionEnded("error", str(error)) from error

    async def ask(self, request: Any, wall: float) -> Any:
        return await self._sandbox.in_turn(lambda: self._asked(request, wall))

    def _asked(self, request: Any, wall: float) -> Any:
        with self._lock:
            if self._running is None:
                raise SessionEnded("killed", "the session is closed")
            number = secrets.token_hex(8)
            data = json.dumps({"id": number, "request": request}).encode()
            try:
                reply = self._answer(struct.pack("<I", len(data)) + data, wall)
                if type(reply) is not dict or reply.get("id") != number:
                    raise SessionEnded("error", "its answer is malformed")
            except SessionEnded as error:
                self._ended(error.status)
                raise
            if "answer" not in reply:
                said = reply.get("failed")
                said = said[:1000] if isinstance(said, str) else "it failed"
                raise AnswerError(said.encode("utf-8", "replace").decode())
            return reply["answer"]

    def _answer(self, data: bytes, wall: float) -> Any:
        """Send a frame and read one."""
        end = time.monotonic() + wall
        view, read, size = memoryview(data), bytearray(), 4
        poll = select.poll()
        while len(read) < size:
            left = end - time.monotonic()
            poll.register(self._pipe, select.POLLIN | (select.POLLOUT if view else 0))
            poll.register(self._worker.control, select.POLLIN)
            events = dict(poll.poll(left * 1000 + 1)) if left > 0 else {}
            if not events:
                raise SessionEnded("timeout", f"no answer within {wall:g} s")
            happened = events.get(self._pipe.fileno(), 0)
            try:
                if happened & select.POLLOUT and view:
                    view = view[self._pipe.send(view) :]
                if happened & (select.POLLIN | select.POLLHUP):
                    part = self._pipe.recv(size - len(read))
                    if not part:
                        raise SessionEnded("killed", "its process ended")
                    read += part
                elif self._worker.control.fileno() in events:
                    raise SessionEnded("killed", "its process ended")
            except OSError as error:
                raise SessionEnded("killed", "its process ended") from error
            if size == 4 and len(read) == 4:
                size += struct.unpack("<I", read)[0]
                if size > MOST_ANSWER:
                    raise SessionEnded("output_limit", f"its answer has {size} bytes")
        try:
            return json.loads(bytes(read[4:]))
        except (ValueError, RecursionError) as error:
            raise SessionEnded("error", "its answer is malformed") from error

    def _ended(self, cause: Status) -> None:
        """Kill the program; the worker can be used again."""
        running, self._running = self._running, None
        if running is None:
            return
        self._pipe.close()
        try:
            end = self._worker.end(cause)
            self._worker.release(running)
        except SandboxError:
            self._worker.close()
            raise
        if end.failed:
            self._worker.close()
            raise SandboxError(f"a program could not be started: {end.failed}")
        self._sandbox.give_back(self._worker)
        if end.refused:
            raise SessionEnded("refused", end.refused)

    def close_now(self) -> None:
        """`close` for blocking callers."""
        with self._lock, suppress(SandboxError, SessionEnded):  # it is gone in any case
            self._ended("killed")

    async def close(self) -> None:
        await asyncio.to_thread(self.close_now)

    def __del__(self) -> None:
        if self.__dict__.get("_running") is not None:
            self.close_now()
