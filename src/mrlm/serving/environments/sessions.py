"""The sessions of a server: numbering and deduplication of calls, admission and leases. It handles
raw bytes; the environments live in the workers."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.environments.ipc import NOBODY, End, Op
from mrlm.serving.environments.worker_pool import LostError, WorkerPool, WorkerProcess
from mrlm.serving.protocol.prometheus import Metrics
from mrlm.serving.protocol.replies import SerializedReply, as_answer, excess, failed, refused

log: logging.Logger = logging.getLogger("mrlm")
MOST_KEY = 200
RETRY_AFTER = 0.5
"""Seconds after which a client may retry when the server is at capacity."""


@dataclass(slots=True)
class ServerSession:
    """An environment instance on a worker, as seen by clients.

    Args:
        id: 16 bytes, in hexadecimal digits for clients.
        worker: the process of the instance.
        seq: number of the last answered call.
        key: the client's own key that opened it.
        expires: `time.monotonic()` after which it may be swept.
        answer: answer to the last call.
        running: number and job of the current call.
        over: whether the instance is closed; the last answer can still be repeated.
    """

    id: bytes
    worker: WorkerProcess
    seq: int
    key: str
    expires: float
    answer: SerializedReply | None = None
    running: tuple[int, asyncio.Task[SerializedReply]] | None = None
    over: bool = False


@dataclass(slots=True)
class PendingSession:
    """A session that is being opened under a key: a repeated request gets the same session.

    Args:
        world: a digest of the request.
        job: the job that opens it.
    """

    world: bytes
    job: asyncio.Task[pb.Reply]


@dataclass(slots=True)
class SessionRules:
    """The limits of a server.

    Args:
        epoch: identifier of this start of the server.
        max_sessions: most open sessions.
        max_calls: most concurrent calls.
        lease: seconds a session lives without a call.
    """

    epoch: str
    max_sessions: int
    max_calls: int
    lease: float
    draining: bool = field(default=False)


class Sessions:
    """All sessions.

    Calls are numbered consecutively; the first number follows that of `Open`, and is 1 after a
    `Fork`. The same number gets the same answer, also while the call is still running. A refused
    call (`BAD`, `BUSY`, `GAP`) was not answered, and its number is still free.
    """

    def __init__(self, pool: WorkerPool, rules: SessionRules, metrics: Metrics) -> None:
        self.rules = rules
        self.calls: int = 0
        self._pool, self._metrics = pool, metrics
        self._found: dict[bytes, ServerSession] = {}
        self._keys: dict[str, PendingSession] = {}
        self._live = 0
        self._jobs: set[asyncio.Task[Any]] = set()

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
            worker = self._pool.pick()
            end, body = await worker.ask(op, NOBODY, data)
        except LostError:
            return self._busy(none, "no worker is ready")
        finally:
            self.calls -= 1
        if end == End.HUNG:
            self._pool.retire(worker)
        return SerializedReply(body, None if end == End.DONE else pb.Failure.FromString(body))

    def _count(self, kind: str, answer: SerializedReply, started: float) -> None:
        failure = answer.failure
        result = "ok" if failure is None else pb.Failure.Kind.Name(failure.kind).lower()
        self._metrics.called(kind, result, time.perf_counter() - started)

    def renew(self, names: list[str]) -> list[str]:
        """Renew the leases of sessions; returns those that no longer exist."""
        lost = []
        for name in names:
            session = self._session(name)
            if session is None or session.over:
                lost.append(name)
            else:
                self._touch(session)
        return lost

    def lost(self, ids: set[bytes]) -> None:
        """Drop the sessions of a worker that ended."""
        for each in ids:
            session = self._found.get(each)
            if session is not None:
                self._forget(session)

    async def sweep(self) -> None:
        """Free the sessions whose leases have expired, in an endless loop."""
        pause = min(self.rules.lease / 4, 5.0)
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
                        self._metrics.expired()
                        self._run(self._closed(session))
                    self._forget(session)

    # -- opening -----------------------------------------------------------------------------------

    async def _opened(self, request: pb.Request) -> SerializedReply:
        opened = request.open
        if len(opened.key) > MOST_KEY:
            return refused(request, pb.Failure.BAD, f"a key has {MOST_KEY} characters at most")
        world = hashlib.sha256(opened.SerializeToString(deterministic=True)).digest()
        known = self._keys.get(opened.key) if opened.key else None
        if known is not None:
            if known.world != world:
                text = f"the key {opened.key[:60]!r} belongs to a session of another environment"
                return refused(request, pb.Failure.BAD, text)
            return as_answer(await asyncio.shield(known.job), request.seq)
        refusal = self._no_room(request)
        if refusal is not None:
            return refusal
        if self.rules.draining:
            return self._busy(request, "the server is shutting down and opens no sessions")
        job = asyncio.ensure_future(self._open(request))
        if opened.key:
            self._keys[opened.key] = PendingSession(world, job)
        self._run(job)
        return as_answer(await asyncio.shield(job), request.seq)

    async def _open(self, request: pb.Request) -> pb.Reply:
        """Create an instance; a key whose request failed may be used again."""
        self.calls += 1
        self._live += 1
        name = secrets.token_bytes(16)
        try:
            worker = self._pool.pick()
            worker.sessions.add(name)
            end, body = await worker.ask(Op.OPEN, name, request.open.SerializeToString())
            failure = None if end == End.DONE else pb.Failure.FromString(body)
        except LostError:
            failure, end, worker = self._full("no worker is ready"), End.REFUSED, None
        finally:
            self.calls -= 1
        if worker is not None and failure is None:
            self._found[name] = ServerSession(
                name, worker, request.seq, request.open.key, time.monotonic() + self.rules.lease
            )
            return self._reply_opened(name)
        self._live -= 1
        self._keys.pop(request.open.key, None)
        if worker is not None:
            self._pool.release(worker, name)
            if end == End.HUNG:
                self._pool.retire(worker)
        return pb.Reply(failure=failure)

    async def _fork(
        self, session: ServerSession, request: pb.Request
    ) -> tuple[End, SerializedReply]:
        """Open a copy of a session in its current state; the same key gets the same copy."""
        key, world = request.fork.key, session.id
        if len(key) > MOST_KEY:
            text = f"a key has {MOST_KEY} characters at most"
            return End.REFUSED, refused(request, pb.Failure.BAD, text)
        known = self._keys.get(key) if key else None
        if known is not None and known.world != world:
            text = f"the key {key[:60]!r} belongs to another session"
            return End.REFUSED, refused(request, pb.Failure.BAD, text)
        if known is None:
            known = PendingSession(world, asyncio.ensure_future(self._twin(session, key)))
            self._run(known.job)
            if key:
                self._keys[key] = known
        try:
            reply = await known.job
        except LostError:
            self._keys.pop(key, None)
            raise
        answer = as_answer(reply, request.seq, request.session)
        if answer.failure is None:
            return End.DONE, answer
        self._keys.pop(key, None)
        hung = answer.failure.kind == pb.Failure.SLOW
        return End.HUNG if hung else End.OVER, answer

    async def _twin(self, session: ServerSession, key: str) -> pb.Reply:
        name, worker = secrets.token_bytes(16), session.worker
        self._live += 1
        worker.sessions.add(name)
        try:
            end, body = await worker.ask(Op.FORK, session.id, name)
        except LostError:
            self._live -= 1
            raise
        if end != End.DONE:
            self._live -= 1
            self._pool.release(worker, name)
            return pb.Reply(failure=pb.Failure.FromString(body))
        expires = time.monotonic() + self.rules.lease
        self._found[name] = ServerSession(name, worker, 0, key, expires)
        return self._reply_opened(name)

    def _reply_opened(self, name: bytes) -> pb.Reply:
        opened = pb.Opened(
            session=name.hex(), lease_seconds=self.rules.lease, epoch=self.rules.epoch
        )
        return pb.Reply(session=name.hex(), opened=opened)

    # -- calls -------------------------------------------------------------------------------------

    async def _called(self, request: pb.Request, kind: str, data: bytes) -> SerializedReply:
        session = self._session(request.session)
        if session is None:
            return refused(request, pb.Failure.LOST, "the session does not exist (any more)")
        self._touch(session)
        while session.running is not None and session.running[0] != request.seq:
            await asyncio.wait({session.running[1]})
        if session.running is None:
            if session.answer is not None and request.seq == session.seq:
                return session.answer
            refusal = self._out_of_turn(session, request)
            refusal = refusal or self._no_room(request, opens=kind == "fork")
            if refusal is not None:
                return refusal
            job = asyncio.ensure_future(self._perform(session, request, kind, data))
            session.running = (request.seq, job)
            self._run(job)
        return await asyncio.shield(session.running[1])

    def _out_of_turn(self, session: ServerSession, request: pb.Request) -> SerializedReply | None:
        """Why a call's number is not the next one."""
        if session.over:
            return refused(request, pb.Failure.LOST, "the session is over")
        if request.seq == session.seq + 1:
            return None
        text = f"call {request.seq} does not follow call {session.seq}, the last one answered"
        return refused(request, pb.Failure.GAP, text)

    async def _perform(
        self, session: ServerSession, request: pb.Request, kind: str, data: bytes
    ) -> SerializedReply:
        """Execute a call, once."""
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
            self._touch(session)
        if end != End.REFUSED:
            session.seq, session.answer = request.seq, answer
        if end in (End.OVER, End.HUNG):
            session.over = True
            self._live -= 1
            self._pool.release(session.worker, session.id)
            if end == End.HUNG:
                self._pool.retire(session.worker)
        return answer

    # -- capacity and time
    # -----------------------------------------------------------------------------

    def _no_room(self, request: pb.Request, opens: bool = True) -> SerializedReply | None:
        if self.calls >= self.rules.max_calls:
            return self._busy(request, f"{self.rules.max_calls} calls are under way already")
        if opens and self._live >= self.rules.max_sessions:
            return self._busy(request, f"{self.rules.max_sessions} sessions are open already")
        return None

    def _busy(self, request: pb.Request, text: str) -> SerializedReply:
        failure = self._full(text)
        reply = pb.Reply(session=request.session, seq=request.seq, failure=failure)
        return SerializedReply(reply.SerializeToString(), failure)

    def _full(self, text: str) -> pb.Failure:
        return pb.Failure(kind=pb.Failure.BUSY, message=text, retry_after=RETRY_AFTER)

    def _session(self, name: str) -> ServerSession | None:
        try:
            return self._found.get(bytes.fromhex(name))
        except ValueError:
            return None

    def _touch(self, session: ServerSession) -> None:
        session.expires = time.monotonic() + self.rules.lease

    def _forget(self, session: ServerSession) -> None:
        if self._found.pop(session.id, None) is None:
            return
        self._keys.pop(session.key, None)
        if not session.over:
            session.over = True
            self._live -= 1

    async def _closed(self, session: ServerSession) -> None:
        """Close the instance of a session that is no longer needed."""
        try:
            await session.worker.ask(Op.CLOSE, session.id, b"")
        except LostError:
            return
        self._pool.release(session.worker, session.id)

    def _run(self, work: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
        """Keep a reference to a job until it is done."""
        job = asyncio.ensure_future(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
