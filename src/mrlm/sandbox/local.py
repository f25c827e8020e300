"""A sandbox on this machine: reusable workers, one program per core at a time, and sessions."""

import asyncio
import atexit
import copy
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from mrlm.core.operating_system import processors
from mrlm.sandbox.base import FramedSession, tried_twice
from mrlm.sandbox.tiers import Tier
from mrlm.sandbox.types import (
    Limits,
    Sandbox,
    SandboxError,
    SandboxResult,
    SessionEnded,
    Status,
    unfit,
)
from mrlm.sandbox.workers import RunningProgram, SandboxWorker, run

T = TypeVar("T")
NEVER = threading.Event()


class LocalSandbox(Sandbox["LocalSession"]):
    """A sandbox that runs programs in processes of this machine.

    Args:
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
        super().__init__(limits)
        self.tier = tier
        self.name: str = tier.name
        self.reuse = reuse
        self.workers: int = workers or processors()
        self._free: list[SandboxWorker] = []
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(self.workers, "mrlm-sandbox")
        self._owner = os.getpid()
        self._closed = False
        atexit.register(_close_of, weakref.ref(self))

    @property
    def closed(self) -> bool:
        """Whether it is closed in this process."""
        return self._closed or self._owner != os.getpid()

    def with_limits(self, limits: Limits) -> "LocalSandbox":
        other = copy.copy(self)
        other.limits = limits
        return other

    def run_now(
        self,
        program: str,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        """`run` for blocking callers."""
        if refused := unfit(program, stdin, files or {}):
            return SandboxResult("refused", reason=refused)
        return tried_twice(lambda: self._once(program, stdin, files or {}, limits or self.limits))

    def _once(
        self, program: str, stdin: str, files: Mapping[str, bytes], limits: Limits
    ) -> SandboxResult:
        worker = self.take()
        try:
            result = run(worker, program.encode(), stdin.encode(), files, limits)
        except BaseException:
            worker.close()
            raise
        self.give_back(worker)
        return result

    async def _run(
        self, program: str, stdin: str, files: Mapping[str, bytes], limits: Limits
    ) -> SandboxResult:
        return await self.in_turn(
            lambda: tried_twice(lambda: self._once(program, stdin, files, limits))
        )

    async def _session(
        self, program: str, files: Mapping[str, bytes], limits: Limits
    ) -> "LocalSession":
        return await self.in_turn(lambda: LocalSession(self, program.encode(), files, limits))

    async def in_turn(self, work: Callable[[], T]) -> T:
        """Run a blocking job when a core is free."""
        if self._owner != os.getpid():
            raise SandboxError("a sandbox cannot be used in a fork of the process that opened it")
        return await asyncio.wrap_future(self._threads.submit(work))

    def take(self) -> SandboxWorker:
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


def _close_of(reference: weakref.ref[LocalSandbox]) -> None:
    sandbox = reference()
    if sandbox is not None and sandbox._owner == os.getpid():
        sandbox.close()


class LocalSession(FramedSession):
    """A program that answers requests, in a worker of its own."""

    def __init__(
        self, sandbox: LocalSandbox, program: bytes, files: Mapping[str, bytes], limits: Limits
    ) -> None:
        super().__init__()
        self._sandbox = sandbox
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
        self._begin(limits.wall, NEVER)

    async def ask(self, request: Any, wall: float) -> Any:
        return await self._sandbox.in_turn(lambda: self._asked(request, wall, NEVER))

    def _exchange(self, data: bytes, wall: float, stop: threading.Event) -> None:
        end = time.monotonic() + wall
        view, poll = memoryview(data), select.poll()
        while (missing := self._missing()) > 0:
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
                    part = self._pipe.recv(missing)
                    if not part:
                        raise SessionEnded("killed", "its process ended")
                    self._read += part
                elif self._worker.control.fileno() in events:
                    raise SessionEnded("killed", "its process ended")
            except OSError as error:
                raise SessionEnded("killed", "its process ended") from error

    def _end(self, cause: Status) -> None:
        """Kill the program; the worker can be used again."""
        self._open = False
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
        with self._lock, suppress(SandboxError, SessionEnded):  # it is gone in any case
            self._end("killed")

    def __del__(self) -> None:
        if self.__dict__.get("_running") is not None:
            self.close_now()
