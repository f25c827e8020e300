"""The sessions of a server: numbering and deduplication of calls, admission and leases."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from mrlm.core.sync_async import BackgroundJobs
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.environments.ipc import NOBODY, End, Op
from mrlm.serving.environments.worker_pool import LostError, WorkerPool, WorkerProcess
from mrlm.serving.protocol.prometheus import Metrics
from mrlm.serving.protocol.replies import SerializedReply, as_answer, excess, failed, refused

MOST_KEY = 200
RETRY_AFTER = 0.5
"""Seconds after which a client may retry when the server is at capacity."""


@dataclass(slots=True)
class ServerSession:
    """An environment instance on a worker, as seen by clients: `seq` is the number of the last
    answered call, `key` the client's own that opened it. It may be swept after `expires`
    (`time.monotonic`); when it is `over`, the last answer can still be repeated."""

    id: bytes
    seq: int
    key: str
    worker: WorkerProcess
    expires: float = 0.0
    answer: SerializedReply | None = None
    running: tuple[int, asyncio.Task[SerializedReply]] | None = None
    """Number and job of the current call."""
    over: bool = False

    def renew(self, lease: float) -> None:
        self.expires = time.monotonic() + lease


@dataclass(slots=True)
class PendingSession:
    """A session that a job is opening under a key: a repeated request gets the same session. Its
    `origin` is a digest of the request, or the session that is copied."""

    origin: bytes
    job: asyncio.Task[tuple[End, pb.Reply]]


@dataclass(eq=False, repr=False)
class Sessions:
    """All sessions of this start of the server, `epoch`, each with a lease in seconds without a
    call.

    Calls are numbered consecutively; the first number follows that of `Open`, and is 1 after a
    `Fork`. The same number gets the same answer, also while the call is still running. A refused
    call (`BAD`, `BUSY`, `GAP`) was not answered, and its number is still free.
    """

    pool: WorkerPool
    metrics: Metrics
    epoch: str
    max_sessions: int
    max_calls: int
    lease: float

    def __post_init__(self) -> None:
        self.draining = False
        self.calls: int = 0
        self._found: dict[bytes, ServerSession] = {}
        self._keys: dict[str, PendingSession] = {}
        self._live = 0
        self._jobs = BackgroundJobs()

    def __len__(self) -> int:
        return self._live

    async def answer(self, data: bytes) -> SerializedReply:
        """Answer a `Request`. Never raises: an error becomes a `Failure`."""
        started = time.perf_counter()
        try:
            request = pb.Request.FromString(data)
        except DecodeError:
            request = pb.Request()
        kind = request.WhichOneof("call") or "none"
        if kind == "none":
            answer = refused(request, pb.Failure.BAD, "not a request of this protocol")
        elif (text := excess(request)) is not None:
            answer = refused(request, pb.Failure.BAD, text)
        elif kind == "open":
            answer = await self._opened(request)
        else:
            answer = await self._called(request, kind, data)
        self._count(kind, answer, started)
        return answer

    async def asked(self, op: Op, data: bytes) -> SerializedReply:
        """Answer a call about an environment that belongs to no session."""
        started = time.perf_counter()
        answer = await self._asked(op, data)
        self._count(op.name.lower(), answer, started)
        return answer

    async def _asked(self, op: Op, data: bytes) -> SerializedReply:
        none = pb.Request()
        refusal = self._no_room(none, opens=False)
        if refusal is not None:
            return refusal
        self.calls += 1
        try:
            worker = self.pool.pick()
            end, body = await worker.ask(op, NOBODY, data)
        except LostError:
            return _busy(none, "no worker is ready")
        finally:
            self.calls -= 1
        if end == End.HUNG:
            self.pool.retire(worker)
        return SerializedReply(body, None if end == End.DONE else pb.Failure.FromString(body))

    def _count(self, kind: str, answer: SerializedReply, started: float) -> None:
        failure = answer.failure
        result = "ok" if failure is None else pb.Failure.Kind.Name(failure.kind).lower()
        self.metrics.called(kind, result, time.perf_counter() - started)

    def renew(self, names: list[str]) -> list[str]:
        """Renew the leases of sessions; returns those that no longer exist."""
        lost = []
        for name in names:
            session = self._session(name)
            if session is None or session.over:
                lost.append(name)
            else:
                session.renew(self.lease)
        return lost

    def lost(self, ids: set[bytes]) -> None:
        for session_id in ids & self._found.keys():
            self._forget(self._found[session_id])

    async def sweep(self) -> None:
        """Free the sessions whose leases have expired, in an endless loop."""
        pause = min(self.lease / 4, 5.0)
        while True:
            before = time.monotonic()
            await asyncio.sleep(pause)
            late = time.monotonic() - before - pause
            now = time.monotonic()
            for session in list(self._found.values()):
                if late > 1.0:  # this process was suspended: no client could renew
                    session.expires += late
                if session.expires < now and session.running is None:
                    if not session.over:
                        self.metrics.count("leases_expired")
                        self._jobs.start(_close(self.pool, session))
                    self._forget(session)

    # -- opening -----------------------------------------------------------------------------------

    async def _opened(self, request: pb.Request) -> SerializedReply:
        """Open a session; a key whose request failed may be used again."""
        opened = request.open
        origin = hashlib.sha256(opened.SerializeToString(deterministic=True)).digest()
        pending = self._known(opened.key, origin, "a session of another environment")
        if isinstance(pending, str):
            return refused(request, pb.Failure.BAD, pending)
        if pending is None:
            refusal = self._no_room(request)
            if refusal is not None:
                return refusal
            if self.draining:
                return _busy(request, "the server is shutting down and opens no sessions")
            pending = self._begin(self._open(request), opened.key, origin)
        _, reply = await asyncio.shield(pending.job)
        return as_answer(reply, request.seq)

    async def _open(self, request: pb.Request) -> tuple[End, pb.Reply]:
        self.calls += 1
        name, key = secrets.token_bytes(16), request.open.key
        body = request.open.SerializeToString()
        try:
            session = ServerSession(name, request.seq, key, self.pool.pick())
            end, reply = await self._create(session, Op.OPEN, name, body)
            if end == End.HUNG:
                self.pool.retire(session.worker)
        except LostError:
            refusal = _busy(request, "no worker is ready").failure
            end, reply = End.REFUSED, pb.Reply(failure=refusal)
        finally:
            self.calls -= 1
        if end != End.DONE:
            self._keys.pop(key, None)
        return end, reply

    async def _fork(
        self, session: ServerSession, request: pb.Request
    ) -> tuple[End, SerializedReply]:
        """Open a copy of a session in its current state; the same key gets the same copy."""
        key = request.fork.key
        pending = self._known(key, session.id, "another session")
        if isinstance(pending, str):
            return End.REFUSED, refused(request, pb.Failure.BAD, pending)
        if pending is None:
            twin = ServerSession(secrets.token_bytes(16), 0, key, session.worker)
            job = self._create(twin, Op.FORK, session.id, twin.id)
            pending = self._begin(job, key, session.id)
        try:
            end, reply = await pending.job
        except LostError:
            self._keys.pop(key, None)
            raise
        if end != End.DONE:
            self._keys.pop(key, None)
            end = End.HUNG if reply.failure.kind == pb.Failure.SLOW else End.OVER
        return end, as_answer(reply, request.seq, request.session)

    def _known(self, key: str, origin: bytes, whose: str) -> PendingSession | str | None:
        """The session that a request with this key has opened; or what is wrong with the key."""
        if len(key) > MOST_KEY:
            return f"a key has {MOST_KEY} characters at most"
        pending = self._keys.get(key) if key else None
        if pending is not None and pending.origin != origin:
            return f"the key {key[:60]!r} belongs to {whose}"
        return pending

    def _begin(
        self, job: Coroutine[Any, Any, tuple[End, pb.Reply]], key: str, origin: bytes
    ) -> PendingSession:
        begun = PendingSession(origin, self._jobs.start(job))
        if key:
            self._keys[key] = begun
        return begun

    async def _create(
        self, session: ServerSession, op: Op, whose: bytes, body: bytes
    ) -> tuple[End, pb.Reply]:
        """Let a worker create the instance of a session. Raises `LostError`: it ended first."""
        self._live += 1
        session.worker.sessions.add(session.id)
        try:
            end, body = await session.worker.ask(op, whose, body)
        except LostError:
            self._live -= 1
            raise
        if end != End.DONE:
            self._live -= 1
            self.pool.release(session.worker, session.id)
            return end, pb.Reply(failure=pb.Failure.FromString(body))
        session.renew(self.lease)
        self._found[session.id] = session
        name = session.id.hex()
        opened = pb.Opened(session=name, lease_seconds=self.lease, epoch=self.epoch)
        return end, pb.Reply(session=name, opened=opened)

    # -- calls -------------------------------------------------------------------------------------

    async def _called(self, request: pb.Request, kind: str, data: bytes) -> SerializedReply:
        session = self._session(request.session)
        if session is None:
            return refused(request, pb.Failure.LOST, "the session does not exist (any more)")
        session.renew(self.lease)
        while session.running is not None and session.running[0] != request.seq:
            await asyncio.wait({session.running[1]})
        if session.running is None:
            if session.answer is not None and request.seq == session.seq:
                return session.answer
            if session.over:
                return refused(request, pb.Failure.LOST, "the session is over")
            if request.seq != session.seq + 1:
                last = f"call {session.seq}, the last one answered"
                text = f"call {request.seq} does not follow {last}"
                return refused(request, pb.Failure.GAP, text)
            refusal = self._no_room(request, opens=kind == "fork")
            if refusal is not None:
                return refusal
            job = self._jobs.start(self._perform(session, request, kind, data))
            session.running = (request.seq, job)
        return await asyncio.shield(session.running[1])

    async def _perform(
        self, session: ServerSession, request: pb.Request, kind: str, data: bytes
    ) -> SerializedReply:
        self.calls += 1
        try:
            if kind == "fork":
                end, answer = await self._fork(session, request)
            elif kind == "close":
                await session.worker.ask(Op.CLOSE, session.id, b"")
                reply = pb.Reply(session=request.session, seq=request.seq, closed=pb.Closed())
                end, answer = End.OVER, SerializedReply(reply.SerializeToString())
            else:
                end, body = await session.worker.ask(Op.CALL, session.id, data)
                answer = SerializedReply(body) if end == End.DONE else failed(request, body)
        except LostError:
            text = "the process that held the session is gone"
            return refused(request, pb.Failure.LOST, text)
        finally:
            self.calls -= 1
            session.running = None
            session.renew(self.lease)
        if end != End.REFUSED:
            session.seq, session.answer = request.seq, answer
        if end in (End.OVER, End.HUNG):
            session.over = True
            self._live -= 1
            self.pool.release(session.worker, session.id)
            if end == End.HUNG:
                self.pool.retire(session.worker)
        return answer

    # -- capacity and time -------------------------------------------------------------------------

    def _no_room(self, request: pb.Request, opens: bool = True) -> SerializedReply | None:
        if self.calls >= self.max_calls:
            return _busy(request, f"{self.max_calls} calls are under way already")
        if opens and self._live >= self.max_sessions:
            return _busy(request, f"{self.max_sessions} sessions are open already")
        return None

    def _session(self, name: str) -> ServerSession | None:
        try:
            return self._found.get(bytes.fromhex(name))
        except ValueError:
            return None

    def _forget(self, session: ServerSession) -> None:
        if self._found.pop(session.id, None) is None:
            return
        self._keys.pop(session.key, None)
        if not session.over:
            session.over = True
            self._live -= 1


async def _close(pool: WorkerPool, session: ServerSession) -> None:
    try:
        await session.worker.ask(Op.CLOSE, session.id, b"")
    except LostError:
        return
    pool.release(session.worker, session.id)


def _busy(request: pb.Request, text: str) -> SerializedReply:
    return refused(request, pb.Failure.BUSY, text, RETRY_AFTER)
