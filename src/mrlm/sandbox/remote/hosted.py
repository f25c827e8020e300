"""The server side of a remote sandbox: limits of concurrency, deduplication of requests, and leases
of sessions. Independent of HTTP and sockets."""

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from mrlm.sandbox.remote import wire
from mrlm.sandbox.types import (
    AnswerError,
    Limits,
    Sandbox,
    SandboxError,
    SandboxResult,
    Session,
    SessionEnded,
)

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")

SLACK = 60.0
"""Seconds beyond its limit after which the sandbox of a run or request has failed."""
KEPT = 300.0
"""Seconds for which a result is kept for a client that has not received it."""
KEPT_BYTES = 256 << 20
"""Most bytes of results that are kept."""
REMEMBERED = 1800.0
"""Seconds for which the id of a request is remembered after its result is dropped."""


_GONE: Future[bytes] = Future()
_GONE.set_result(b"")


class SandboxRefusal(Exception):
    """A request that is refused, with the HTTP status, the reason for the client, and the seconds
    after which it may be tried again."""

    def __init__(self, code: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.code: int = code
        self.reason: str = reason
        self.retry_after: int | None = retry_after


@dataclass(slots=True)
class Done:
    """A request that was started. Requests with the same id must have the same digest."""

    digest: bytes
    reply: Future[bytes] = field(default_factory=Future)
    """Its result; `b""` when it is no longer kept."""
    finished: float | None = None
    """`time.monotonic()`; `None` while it runs."""


@dataclass(slots=True)
class Held:
    """A session, the number of its last request, the answer, and when that was (`used`)."""

    session: Session
    lock: threading.Lock = field(default_factory=threading.Lock)
    number: int = 0
    digest: bytes = b""
    reply: bytes = b""
    used: float = field(default_factory=time.monotonic)
    closed: bool = False


@dataclass(eq=False, repr=False)
class Hosted:
    """The sandbox of a server. It may be called from any thread.

    Args:
        max_runs: most concurrent programs and requests to sessions, counted together.
        max_sessions: most open sessions.
        lease: seconds without a request after which a session is closed.
        max_wall: most seconds that one run or request may have.
        queue: seconds a request waits for a free slot before it is refused.
    """

    sandbox: Sandbox[Any]
    max_runs: int = 4
    max_sessions: int = 64
    lease: float = 900.0
    max_wall: float = 600.0
    queue: float = 1.0

    def __post_init__(self) -> None:
        self.epoch: str = secrets.token_hex(8)
        self.draining = False
        self._turns = threading.Semaphore(self.max_runs)
        self._lock = threading.Lock()
        self._done: dict[str, Done] = {}
        self._sessions: dict[str, Held] = {}
        self._opening = self._busy = 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="mrlm-hosted").start()

    # -- requests of clients -----------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        with self._lock:
            return {
                "sandbox": self.sandbox.name,
                "draining": self.draining,
                "epoch": self.epoch,
                "running": self._busy,
                "max_runs": self.max_runs,
                "sessions": len(self._sessions),
                "max_sessions": self.max_sessions,
                "lease": self.lease,
            }

    def run(self, data: bytes) -> bytes:
        """Run a program once, however often the request arrives."""
        message = wire.read(data)
        program, stdin = (wire.field(message, name, str) for name in ("program", "stdin"))
        files, limits = wire.files_in(message), self._bounded(wire.limits_in(message))

        def work() -> bytes:
            with self._turn():
                wall = (limits or Limits(wall=self.max_wall)).wall
                try:
                    result = self._awaited(self.sandbox.run(program, stdin, files, limits), wall)
                except (SandboxError, SessionEnded) as error:
                    result = SandboxResult("infra_error", reason=str(error))
            return wire.written(asdict(result))

        return self._once("run " + wire.identity(message), data, work)

    def open(self, data: bytes) -> bytes:
        """Open a session under the client's name for it, once."""
        message = wire.read(data)
        program, name = wire.field(message, "program", str), wire.identity(message)
        files, limits = wire.files_in(message), self._bounded(wire.limits_in(message))

        def work() -> bytes:
            with self._lock:
                if len(self._sessions) + self._opening >= self.max_sessions:
                    raise SandboxRefusal(429, f"{self.max_sessions} sessions are open already", 1)
                self._opening += 1
            try:
                with self._turn():
                    wall = (limits or Limits(wall=self.max_wall)).wall
                    session = self._awaited(self.sandbox.session(program, files, limits), wall)
                with self._lock:
                    self._sessions[name] = Held(session)
                return wire.written({"opened": name, "lease": self.lease})
            except (SessionEnded, SandboxError) as error:
                return _ended(error)
            finally:
                with self._lock:
                    self._opening -= 1

        return self._once("open " + name, data, work)

    def ask(self, data: bytes) -> bytes:
        """Send a request to a session. A repeated number gets the same answer; a number other than
        the next one is refused."""
        message = wire.read(data)
        wall, number = wire.seconds(message, "wall"), wire.field(message, "number", int)
        self._bounded(Limits(wall=wall))
        held = self._held(wire.identity(message, "session"))
        digest = hashlib.sha256(data).digest()
        with held.lock:
            if number == held.number and digest == held.digest:
                return held.reply
            if number != held.number + 1:
                raise SandboxRefusal(409, f"request {number} came after request {held.number}")
            if held.closed:
                raise SandboxRefusal(404, "the session is closed")
            if self.draining:
                raise SandboxRefusal(503, "the server is shutting down", 1)
            with self._turn():
                held.reply = self._answer(held, message.get("request"), wall)
            held.number, held.digest, held.used = number, digest, time.monotonic()
            return held.reply

    def close(self, data: bytes) -> bytes:
        """Close a session; does nothing if it does not exist."""
        with self._lock:
            held = self._sessions.pop(wire.identity(wire.read(data), "session"), None)
        if held is not None:
            self._shut(held)
        return wire.written({"closed": held is not None})

    # -- periodic work and shutdown ----------------------------------------------------------------

    def sweep(self) -> None:
        """Close sessions with expired leases, and drop results that were not fetched."""
        now = time.monotonic()
        with self._lock:
            idle = [
                name
                for name, held in self._sessions.items()
                if not held.lock.locked() and now - held.used > self.lease
            ]
            gone = [self._sessions.pop(name) for name in idle]
            self._forget(now)
        for held in gone:
            self._shut(held)

    def drain(self, seconds: float) -> bool:
        """Start nothing new, and wait for running requests; whether all of them finished."""
        self.draining: bool = True
        end = time.monotonic() + seconds
        while self._busy and time.monotonic() < end:
            time.sleep(0.02)
        with self._lock:
            left, self._sessions = list(self._sessions.values()), {}
        for held in left:
            if not held.lock.locked():
                self._shut(held)
        return not self._busy

    def shut_down(self) -> None:
        """Kill all running programs."""
        self.sandbox.close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    # -- internals ---------------------------------------------------------------------------------

    def _once(self, key: str, data: bytes, work: Callable[[], bytes]) -> bytes:
        digest = hashlib.sha256(data).digest()
        with self._lock:
            entry = self._done.get(key)
            if entry is None:
                if self.draining:
                    raise SandboxRefusal(503, "the server is shutting down", 1)
                mine = self._done[key] = Done(digest)
        if entry is not None:
            if entry.digest != digest:
                raise SandboxRefusal(409, "another request had the same id")
            reply = entry.reply.result()
            if not reply:
                raise SandboxRefusal(410, "the result of this request is no longer kept")
            return reply
        try:
            reply = work()
        except BaseException as error:
            with self._lock:
                del self._done[key]  # it was not executed: it may be sent again
            mine.reply.set_exception(error)
            raise
        mine.finished = time.monotonic()
        mine.reply.set_result(reply)
        return reply

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._turns.acquire(timeout=self.queue):
            raise SandboxRefusal(429, f"{self.max_runs} programs run already", 1)
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
            self._turns.release()

    def _awaited(self, job: Coroutine[Any, Any, T], wall: float) -> T:
        future = asyncio.run_coroutine_threadsafe(job, self._loop)
        try:
            return future.result(wall + SLACK)
        except TimeoutError:
            future.cancel()
            raise SandboxError(f"the sandbox did not answer within {wall + SLACK:g} s") from None

    def _answer(self, held: Held, request: Any, wall: float) -> bytes:
        try:
            answer = self._awaited(held.session.ask(request, wall), wall)
            return wire.written({"answer": answer})
        except AnswerError as error:
            return wire.written({"failed": str(error)})
        except wire.WireError as error:  # the session's answer, so the program's fault
            held.closed = True
            self._close(held)
            return _ended(SessionEnded("error", str(error)))
        except (SessionEnded, SandboxError) as error:
            held.closed = True
            return _ended(error)

    def _held(self, name: str) -> Held:
        with self._lock:
            held = self._sessions.get(name)
        if held is None:
            raise SandboxRefusal(
                404,
                f"the session does not exist; one is closed {self.lease:g} s after its last use",
            )
        return held

    def _shut(self, held: Held) -> None:
        with held.lock:
            held.closed = True
            self._close(held)

    def _close(self, held: Held) -> None:
        try:
            self._awaited(held.session.close(), 0)
        except SandboxError as error:
            log.warning("a session was not closed cleanly: %s", error)

    def _bounded(self, limits: Limits | None) -> Limits | None:
        if limits is not None and limits.wall > self.max_wall:
            raise SandboxRefusal(
                400,
                f"{limits.wall:g} s are more than this server allows a program; start it with "
                f"--max-wall {limits.wall:g}",
            )
        return limits

    def _forget(self, now: float) -> None:
        total = 0
        for key, done in reversed(list(self._done.items())):
            if done.finished is None:
                continue
            total += len(done.reply.result())
            if now - done.finished > REMEMBERED:
                del self._done[key]
            elif now - done.finished > KEPT or total > KEPT_BYTES:
                done.reply = _GONE


def _ended(error: SessionEnded | SandboxError) -> bytes:
    if isinstance(error, SandboxError):
        return wire.written({"broken": str(error)})
    return wire.written({"ended": error.status, "reason": error.reason})
