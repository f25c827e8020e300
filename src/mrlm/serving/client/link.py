"""The client side of one environment server: channel, availability, and sessions kept alive."""

import asyncio
import time
import weakref
from typing import Any

import grpc

from mrlm.core.errors import MRLMError
from mrlm.core.log import log
from mrlm.core.sync_async import BackgroundJobs, run_async
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.calling import Access, Broken, Pauses, ServerAddress
from mrlm.serving.protocol.channels import service_stub

PROBING = 5.0
"""Seconds in which a server that was set aside has to report that it is healthy."""
WAITING = 0.2
"""Seconds between two checks for a free server."""
ATTEMPT_PAUSE = 0.2
"""Seconds between two status requests."""
LEAST = 5.0
"""Seconds allowed for one status request, however short the wait."""


class Link:
    """A connection to one server. It lives in the loop of all channels."""

    def __init__(self, address: ServerAddress, access: Access) -> None:
        self.address: ServerAddress = address
        self.access: Access = access
        self.sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        """Sessions (`ClientSession`) that are still referenced here: one that is garbage-collected
        without `close` ends with its lease."""
        self.lease: float = 60.0
        self.epoch: str = ""
        self.refused: str = ""
        """Why the server is permanently unusable; empty if it is usable."""
        self.problem: str = ""
        """Why the server is set aside; empty if it is not."""
        self.free_at: float = 0.0
        """When the next session may be requested (`time.monotonic`)."""
        self.turn: int = 0
        self.retired: bool = False
        self.heard_at: float = 0.0
        """When the server last sent a message on any session (`time.monotonic`)."""
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._old = BackgroundJobs()
        self._probe: asyncio.Task[None] | None = None
        self._pauses = Pauses()
        self._probe_at = 0.0
        self._beat: asyncio.Task[None] | None = None

    @property
    def stub(self) -> Any:
        if self._stub is None:
            self._channel = self.access.channel(self.address)
            self._stub = service_stub(self._channel, "Environments")
        return self._stub

    async def ask(self, name: str, request: Any, seconds: float) -> Any:
        """Make one unary call and return its answer. Raises `Broken`: the call failed."""
        try:
            method = getattr(self.stub, name)
            return await method(request, timeout=seconds, metadata=self.access.metadata())
        except grpc.aio.AioRpcError as error:
            raise Broken.of(error) from None

    def silent(self, since: float, patience: float) -> None:
        """Report that a session got no answer. If no other session has received a message since
        then, the connection may be half-open: new calls use a new one."""
        if self.heard_at >= since or self._channel is None:
            return
        old, self._channel, self._stub = self._channel, None, None
        self.heard_at = time.monotonic()  # no message on the new one yet

        async def ended() -> None:
            await asyncio.sleep(2 * patience)  # by then every call on it has ended
            await old.close()

        self._old.start(ended())

    @property
    def ready(self) -> bool:
        """Whether a new session may be opened now."""
        return not (self.refused or self.problem) and time.monotonic() >= self.free_at

    # -- setting aside and probing --

    def failed(self, problem: str) -> None:
        """Set the server aside until it reports that it is healthy."""
        if not self.problem:
            log.info("environment server %s is set aside: %s", self.address, problem)
        self.problem = problem or "it did not answer"

    def refuses(self, reason: str) -> None:
        if not self.refused:
            log.warning("environment server %s is not used: %s", self.address, reason)
        self.refused = reason

    def judge(self, error: Broken) -> None:
        """Set the server aside after a failed call, for as long as its kind demands."""
        reason = error.final(self.address)
        if reason:
            self.refuses(reason)
        elif error.busy:
            self.busy(error.retry_after)
        else:
            self.failed(str(error))

    def busy(self, seconds: float) -> None:
        """Open no session on this server for a while."""
        self.free_at = time.monotonic() + max(seconds, WAITING)

    def look(self) -> None:
        """Probe in the background whether the server is healthy again, if a probe is due."""
        due = self.problem and not self.refused and time.monotonic() >= self._probe_at
        if due and (self._probe is None or self._probe.done()):
            self._probe = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            info = await self.ask("Info", pb.InfoRequest(), PROBING)
        except Broken as error:
            self.judge(error)
        else:
            self.problem = "it takes no new sessions" if info.draining else ""
            self.epoch = info.epoch
        if self.problem:
            self._probe_at = time.monotonic() + self._pauses.take()
        else:
            log.info("environment server %s is back", self.address)
            self._pauses, self._probe_at = Pauses(), 0.0

    # -- sessions --

    def hold(self, session: Any) -> None:
        """Register a session whose lease is to be renewed."""
        self.sessions.add(session)
        if self._beat is None or self._beat.done():
            self._beat = asyncio.get_running_loop().create_task(self._renew())

    async def release(self, session: Any) -> None:
        self.sessions.discard(session)
        if not self.sessions and self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if self.retired and not self.sessions:
            await self.close()

    async def _renew(self) -> None:
        while self.sessions:
            await asyncio.sleep(self.lease / 3)
            named = {session.id: session for session in self.sessions}
            if not named:
                break
            try:
                seconds = min(PROBING, self.lease / 3)
                reply = await self.ask("Renew", pb.RenewRequest(sessions=named), seconds)
            except Broken as error:  # the next call of the session will report it
                log.debug("environment server %s: %s", self.address, error)
                continue
            for name in reply.lost:
                if name in named:
                    named[name].lost = True

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
        if self._channel is not None:
            channel, self._channel, self._stub = self._channel, None, None
            await channel.close()


def server_info(address: ServerAddress, wait: float, access: Access) -> pb.InfoReply:
    """Ask a server for its environments, policies and load, for at most `wait` seconds. Raises
    `MRLMError`: it does not answer, or rejects the credentials; `ConfigError`: the token would be
    sent unencrypted."""
    return run_async(_info(Link(address, access), wait))


async def _info(link: Link, wait: float) -> pb.InfoReply:
    deadline = time.monotonic() + wait
    try:
        while True:
            try:
                return await link.ask(
                    "Info", pb.InfoRequest(), max(deadline - time.monotonic(), LEAST)
                )
            except Broken as error:
                final = error.final(link.address)
                if final is not None:
                    raise MRLMError(final) from None
                if time.monotonic() + ATTEMPT_PAUSE > deadline:
                    hint = "" if link.access.tls_ca else "; if it speaks TLS, give --tls-ca"
                    raise MRLMError(
                        f"no server answers at {link.address} within {wait:g} s ({error}){hint}"
                    ) from None
            await asyncio.sleep(ATTEMPT_PAUSE)
    finally:
        await link.close()
