"""One session on one server: the calls of an episode, each executed once however often sent."""

import asyncio
import contextlib
import secrets
import time
from typing import Any

import grpc

from mrlm.core.errors import ConfigError, EpisodeError, RewardError
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.calling import Broken, Pauses, SessionLost, Unreachable
from mrlm.serving.client.link import Link

GOODBYE = 2.0
"""Seconds allowed for the closing call; if it is lost, the lease ends the session."""
ABSENT = 10.0
"""Seconds of broken connections only, at least, after which the server is taken for gone."""
LONGEST_WAIT = 10.0
"""Longest pause, in seconds, before a server without capacity is tried again."""


class ClientSession:
    """A remote environment and the stream of its calls. It lives in the loop of all channels.
    `title` is its name in messages; an unanswered call is repeated after `patience` seconds."""

    def __init__(self, link: Link, title: str, patience: float) -> None:
        self.link: Link = link
        self.id: str = ""
        self.lost: bool = False
        self._title = title
        self._patience = patience
        self._seq = 0
        self._unsure = False  # whether the last call was abandoned
        self._lock = asyncio.Lock()
        self._stream: Any = None

    @property
    def where(self) -> str:
        return f"environment {self._title!r} on {self.link.address}"

    async def open(self, call: pb.Open, until: float, attempts: int) -> None:
        """Open the session; the server opens one however often the request is sent: `attempts`
        times at most, before `until` (`time.monotonic`). Raises `Broken`: the server has no
        capacity, or refuses permanently; `Unreachable`: no answer arrived; `ConfigError`: it does
        not offer that environment."""
        call.key = secrets.token_hex(16)
        reply = await self._exchange(pb.Request(open=call), until, attempts, at_start=True)
        self._opened(reply.opened)

    def _opened(self, opened: pb.Opened) -> None:
        self.id = opened.session
        self.link.lease = opened.lease_seconds or self.link.lease
        self.link.epoch = opened.epoch or self.link.epoch
        self.link.hold(self)

    async def call(
        self, kind: str, what: Any, until: float, attempts: int | None = None
    ) -> pb.Reply:
        """Make one call, of a kind and with a message of `Request`. It is sent `attempts` times at
        most (`None`: unlimited), before `until` (`time.monotonic`). Raises `EpisodeError`: the
        environment failed, the session is lost, or no answer arrived; and `RewardError` or
        `ConfigError` as a local environment would."""
        async with self._lock:
            self._seq += 1
            self._unsure = True
            request = pb.Request(session=self.id, seq=self._seq, **{kind: what})
            try:
                reply = await self._exchange(request, until, attempts)
            except ConfigError:  # refused without execution, so the number is still free
                self._seq, self._unsure = self._seq - 1, False
                raise
            self._unsure = False
            return reply

    async def fork(self, until: float) -> "ClientSession":
        """A second session that continues from the current state of this one."""
        reply = await self.call("fork", pb.Fork(key=secrets.token_hex(16)), until)
        twin = ClientSession(self.link, self._title, self._patience)
        twin._opened(reply.opened)
        return twin

    async def close(self) -> None:
        """Close the session with one call; if that is lost, its lease ends it."""
        with contextlib.suppress(EpisodeError, ConfigError, RewardError, Broken):
            if self.id and not self.lost:
                await self._goodbye()
        await self.abandon()

    async def _goodbye(self) -> None:
        until, unsure = time.monotonic() + GOODBYE, self._unsure
        try:
            await self.call("close", pb.Close(), until, attempts=1)
        except SessionLost:
            if not unsure:
                raise
            self.lost, self._seq = False, self._seq - 2  # the abandoned call never arrived
            await self.call("close", pb.Close(), until, attempts=1)

    async def abandon(self) -> None:
        """Drop the session without a closing call."""
        self.lost = True
        self._hang_up()
        await self.link.release(self)

    # -- one call with its retries -----------------------------------------------------------------

    async def _exchange(
        self, request: pb.Request, until: float, attempts: int | None, at_start: bool = False
    ) -> pb.Reply:
        pauses, sent, problem, gone = Pauses(), 0, "", None
        while True:
            if self.lost:
                raise SessionLost(f"{self.where}: the server lost the session")
            left = until - time.monotonic()
            if left <= 0 or sent == attempts:
                raise Unreachable(f"{self.where}: no answer ({problem or 'the time is over'})")
            sent, began, seconds = sent + 1, time.monotonic(), min(left, self._patience)
            try:
                reply = await asyncio.wait_for(self._once(request), seconds)
            except TimeoutError:
                self._hang_up()
                self.link.silent(began, self._patience)
                gone = None
                problem = f"none within {seconds:.3g} s"
                continue  # that pause was long enough
            except Broken as error:
                self._hang_up()
                if at_start and (error.busy or error.final(self.link.address)):
                    raise
                self._judge(error)
                problem, pause = str(error), error.retry_after or pauses.take()
                gone = gone or began
                if began - gone > max(self._patience, ABSENT):  # not even a slow server is there
                    until = began
            else:
                if not reply.HasField("failure"):
                    return reply
                failure = reply.failure
                if failure.kind != pb.Failure.BUSY:
                    raise self._error(failure)
                if at_start:
                    raise Broken(grpc.StatusCode.RESOURCE_EXHAUSTED, failure.message, failure)
                problem = f"busy: {failure.message}"
                pause = min(failure.retry_after, LONGEST_WAIT) or pauses.take()
            await asyncio.sleep(max(min(pause, until - time.monotonic()), 0))

    async def _once(self, request: pb.Request) -> pb.Reply:
        """Send a request and wait for its answer; other messages on the stream are outdated."""
        try:
            if self._stream is None:
                self._stream = self.link.stub.Play(metadata=self.link.access.metadata())
            stream = self._stream
            await stream.write(request)
            while True:
                reply = await stream.read()
                if reply is grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
                    raise Broken(await stream.code(), await stream.details() or "the stream ended")
                self.link.heard_at = time.monotonic()
                if reply.seq == request.seq:
                    return reply
        except grpc.aio.AioRpcError as error:
            raise Broken.of(error) from None
        except asyncio.InvalidStateError as error:  # the stream had ended before
            raise Broken(grpc.StatusCode.UNAVAILABLE, str(error)) from None

    def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def _judge(self, error: Broken) -> None:
        """Raise the error that a refusal means, unless a retry may succeed."""
        reason = error.final(self.link.address)
        if reason:
            raise ConfigError(reason)
        if error.too_large:
            raise EpisodeError(f"{self.where}: a message is too large: {error.details}")
        if error.failure is not None and not error.busy:
            raise self._error(error.failure)

    def _error(self, failure: pb.Failure) -> Exception:
        """The exception that a local environment would have raised."""
        text = f"{self.where}: {failure.message}"
        if failure.kind in (pb.Failure.LOST, pb.Failure.GAP):
            self.lost = True
            return SessionLost(text)
        if failure.kind == pb.Failure.BAD:
            return ConfigError(text)
        return RewardError(text) if failure.kind == pb.Failure.REWARD else EpisodeError(text)
