"""One session on one server: the calls of an episode, one after the other, each of which happens
once however often it has to be sent."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import Any

import grpc

from mrlm.core.errors import ConfigError, EpisodeError, RewardError
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.calling import Broken, Pauses, SessionLost, Unreachable
from mrlm.serving.client.pool import Link

GOODBYE = 2.0
"""Seconds in which a server has to hear that a session is over; else its lease ends it."""
ABSENT = 10.0
"""Seconds of nothing but broken connections, at least, after which nobody is waited for."""
LONGEST_WAIT = 10.0
"""Seconds to wait for a server that has no room, before it is asked again."""


class ClientSession:
    """A world on a server, and the stream on which it is talked to. Lives in the loop of all
    channels.

    Args:
        link: the server.
        title: how messages call the world.
        patience: seconds until a call that has no answer is sent again.
    """

    def __init__(self, link: Link, title: str, patience: float) -> None:
        self.link: Link = link
        self.id: str = ""
        self.lost: bool = False
        self._title = title
        self._patience = patience
        self._seq = 0
        self._unsure = False  # whether the last call was given up
        self._lock = asyncio.Lock()
        self._stream: Any = None

    @property
    def where(self) -> str:
        """What an error begins with."""
        return f"environment {self._title!r} on {self.link.address}"

    async def open(self, world: pb.World, with_state: bool, until: float, attempts: int) -> None:
        """Open it; however often that is sent, the server opens one.

        Args:
            world: what is played.
            with_state: whether every result says the state too.
            until: when to give up (`time.monotonic`).
            attempts: times that it is sent at most.

        Raises:
            Broken: the server has no room, or refuses for good.
            Unreachable: no answer came.
            ConfigError: it does not have that world.
        """
        call = pb.Open(world=world, key=secrets.token_hex(16), with_state=with_state)
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
        """One call.

        Args:
            kind: its name in `Request`.
            what: the call itself.
            until: when to give up (`time.monotonic`).
            attempts: times that it is sent at most; as often as there is time for if `None`.

        Raises:
            EpisodeError: the world failed, or the session is lost, or no answer came.
            RewardError, ConfigError: as the world in this process would raise them.
        """
        async with self._lock:
            self._seq += 1
            self._unsure = True
            request = pb.Request(session=self.id, seq=self._seq, **{kind: what})
            try:
                reply = await self._exchange(request, until, attempts)
            except ConfigError:  # refused: nothing was done, and the number is still free
                self._seq, self._unsure = self._seq - 1, False
                raise
            self._unsure = False
            return reply

    async def fork(self, until: float) -> ClientSession:
        """A second session that goes on from where this one is now."""
        reply = await self.call("fork", pb.Fork(key=secrets.token_hex(16)), until)
        twin = ClientSession(self.link, self._title, self._patience)
        twin._opened(reply.opened)
        return twin

    async def close(self) -> None:
        """Say that it is over, once; if the server does not hear it, its lease ends it."""
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
            self.lost, self._seq = False, self._seq - 2  # the call that was given up never arrived
            await self.call("close", pb.Close(), until, attempts=1)

    async def abandon(self) -> None:
        """Let go of it without a word."""
        self.lost = True
        self._hang_up()
        await self.link.release(self)

    # -- one call, as often as it takes ------------------------------------------------------------

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
                continue  # that was long enough a pause
            except Broken as error:
                self._hang_up()
                if at_start and (error.busy or error.final(self.link.address)):
                    raise
                self._judge(error)
                problem, pause = str(error), error.retry_after or pauses.take()
                gone = gone or began
                if began - gone > max(
                    self._patience, ABSENT
                ):  # there is nobody, not even one that is slow
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
        """Send a request and wait for its answer; whatever else arrives is old.

        Raises:
            Broken: the stream ended.
        """
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
        """Raise what a refusal means, unless it may pass."""
        reason = error.final(self.link.address)
        if reason:
            raise ConfigError(reason)
        if error.too_large:
            raise EpisodeError(f"{self.where}: a message is too large: {error.details}")
        if error.failure is not None and not error.busy:
            raise self._error(error.failure)

    def _error(self, failure: pb.Failure) -> Exception:
        """What a world in this process would have raised."""
        text = f"{self.where}: {failure.message}"
        if failure.kind in (pb.Failure.LOST, pb.Failure.GAP):
            self.lost = True
            return SessionLost(text)
        if failure.kind == pb.Failure.BAD:
            return ConfigError(text)
        return RewardError(text) if failure.kind == pb.Failure.REWARD else EpisodeError(text)
