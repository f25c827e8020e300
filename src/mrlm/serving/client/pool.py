"""The servers that worlds are played on: who is asked next, who is set aside, who comes and goes
while a run goes on. Which server played an episode changes nothing in it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving import mrlm_pb2_grpc
from mrlm.serving.client.calling import (
    Access,
    Broken,
    Pauses,
    ServerAddress,
    Unreachable,
    access_of,
    address_of,
    start,
)

log: logging.Logger = logging.getLogger("mrlm")

PROBING = 5.0
"""Seconds in which a server that was set aside has to say that it is well."""
READING = 1.0
"""Seconds between two looks at the file of servers."""
WAITING = 0.2
"""Seconds between two looks at who is free."""


class LiveSession(Protocol):
    """A session on a server, as far as keeping it alive needs to know it."""

    id: str
    lost: bool


class Link:
    """One server, as this process sees it. Lives in the loop of all channels.

    Args:
        address: of the server.
        access: who asks it.
    """

    def __init__(self, address: ServerAddress, access: Access) -> None:
        self.address: ServerAddress = address
        self.access: Access = access
        self.sessions: weakref.WeakSet[LiveSession] = weakref.WeakSet()
        """Those that somebody here still holds: what is forgotten without a word ends with its
        lease."""
        self.lease: float = 60.0
        self.epoch: str = ""
        self.refused: str = ""
        """Why it will never do; empty if it may."""
        self.problem: str = ""
        """Why it is set aside; empty if it is not."""
        self.free_at: float = 0.0
        """When it may be asked for another session (`time.monotonic`)."""
        self.turn: int = 0
        self.retired: bool = False
        self.heard_at: float = 0.0
        """When the server last said anything on a session (`time.monotonic`)."""
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._old: set[asyncio.Task[None]] = set()
        self._probe: asyncio.Task[None] | None = None
        self._pauses = Pauses()
        self._probe_at = 0.0
        self._beat: asyncio.Task[None] | None = None

    @property
    def stub(self) -> Any:
        """The calls of the server."""
        if self._stub is None:
            self._channel = self.access.channel(self.address)
            self._stub = mrlm_pb2_grpc.EnvironmentsStub(self._channel)
        return self._stub

    async def ask(self, name: str, request: Any, seconds: float) -> Any:
        """The answer to one unary call.

        Raises:
            Broken: there is none.
        """
        try:
            method = getattr(self.stub, name)
            return await method(request, timeout=seconds, metadata=self.access.metadata())
        except grpc.aio.AioRpcError as error:
            raise Broken.of(error) from None

    def silent(self, since: float, patience: float) -> None:
        """Nobody answered a session. If nobody said anything on any other since then either, the
        connection may be one that only looks alive: let new calls go over a new one."""
        if self.heard_at >= since or self._channel is None:
            return
        old, self._channel, self._stub = self._channel, None, None
        self.heard_at = time.monotonic()  # of the new one nothing is known yet

        async def ended() -> None:
            await asyncio.sleep(2 * patience)  # by then every call on it has ended
            await old.close()

        job = asyncio.get_running_loop().create_task(ended())
        self._old.add(job)
        job.add_done_callback(self._old.discard)

    @property
    def ready(self) -> bool:
        """Whether a new session may be opened there now."""
        return not (self.refused or self.problem) and time.monotonic() >= self.free_at

    # -- set aside, and back --

    def failed(self, problem: str) -> None:
        """Set it aside until it says that it is well."""
        if not self.problem:
            log.info("environment server %s is set aside: %s", self.address, problem)
        self.problem = problem or "it did not answer"

    def refuses(self, reason: str) -> None:
        """Never ask it again."""
        if not self.refused:
            log.warning("environment server %s is not used: %s", self.address, reason)
        self.refused = reason

    def busy(self, seconds: float) -> None:
        """Open no session there for a while."""
        self.free_at = time.monotonic() + max(seconds, WAITING)

    def look(self) -> None:
        """See whether it is well again, if that is due; nobody waits for it."""
        due = self.problem and not self.refused and time.monotonic() >= self._probe_at
        if due and (self._probe is None or self._probe.done()):
            self._probe = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            info = await self.ask("Info", pb.InfoRequest(), PROBING)
        except Broken as error:
            reason = error.final(self.address)
            if reason:
                self.refuses(reason)
            self.problem = str(error)
        else:
            self.problem = "it takes no new sessions" if info.draining else ""
            self.epoch = info.epoch
        if self.problem:
            self._probe_at = time.monotonic() + self._pauses.take()
        else:
            log.info("environment server %s is back", self.address)
            self._pauses, self._probe_at = Pauses(), 0.0

    # -- sessions --

    def hold(self, session: LiveSession) -> None:
        """A session lives there: say from time to time that it is still wanted."""
        self.sessions.add(session)
        if self._beat is None or self._beat.done():
            self._beat = asyncio.get_running_loop().create_task(self._renew())

    async def release(self, session: LiveSession) -> None:
        """A session is over."""
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
            except Broken as error:  # whoever plays there will notice
                log.debug("environment server %s: %s", self.address, error)
                continue
            for name in reply.lost:
                if name in named:
                    named[name].lost = True

    async def close(self) -> None:
        """Let go of the channel."""
        if self._probe is not None:
            self._probe.cancel()
        if self._channel is not None:
            channel, self._channel, self._stub = self._channel, None, None
            await channel.close()


class ServerPool:
    """Environment servers that all offer the same worlds. An episode is played on the one with the
    fewest sessions; one that fails is set aside until it is well again; a step that is under way
    stays where it is.

    Servers may be added, removed and replaced at any time, from any thread.

    Args:
        servers: their addresses: `host:port`, `[::1]:port` or `https://host:port`.
        token: that they ask for.
        token_env: name of the environment variable that holds the token.
        tls_ca: file of the certificates to trust; turns encryption on.
        tls_cert, tls_key: files of the client's own certificate.
        servers_file: a file with an address per line (`#` begins a comment), read again whenever
            it changes; its servers come besides `servers`.

    Raises:
        ConfigError: no server, an address that is none, or a file that is missing.

    Example:
        >>> pool = ServerPool(["10.0.0.5:50051", "10.0.0.6:50051"], tls_ca="ca.pem")
        >>> pool.add("10.0.0.7:50051")
        >>> pool.remove("10.0.0.5:50051")  # what is played there is played to its end
    """

    def __init__(
        self,
        servers: str | Sequence[str] = (),
        *,
        token: str | None = None,
        token_env: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        servers_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.access: Access = access_of(token, token_env, tls_ca, tls_cert, tls_key)
        named = [servers] if isinstance(servers, str) else servers
        self._own = [address_of(each) for each in named]
        self._file = None if servers_file is None else Path(servers_file)
        self._begin()

    def _begin(self) -> None:
        self._stamp: tuple[int, int] | None = None
        self._read_at = 0.0
        self._links: dict[ServerAddress, Link] = {}
        self._made: set[Link] = set()
        weakref.finalize(self, _let_go, self._made).atexit = False
        self._turns = itertools.count(1)
        listed = [] if self._file is None else self._listed()
        self._set([*self._own, *listed])
        if not self._links:
            where = "" if self._file is None else f" ({self._file} lists none)"
            raise ConfigError(f"name at least one environment server{where}: host:port")

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which has channels of its own."""
        return {"access": self.access, "own": self._own, "file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.access, self._own, self._file = state["access"], state["own"], state["file"]
        self._begin()

    def __deepcopy__(self, memo: object) -> ServerPool:
        return self

    @property
    def addresses(self) -> list[str]:
        """The servers on which episodes may begin, as they were written."""
        return [str(address) for address in self._links]

    def link(self, server: str) -> Link:
        """One of the servers, and how it is."""
        return self._links[address_of(server)]

    def add(self, server: str) -> None:
        """Use one more server from now on.

        Raises:
            ConfigError: that is no address.
        """
        self._own = [*self._own, address_of(server)]
        self._set([*self._links, address_of(server)])

    def remove(self, server: str) -> None:
        """Begin no more episodes on a server; those that are played there go on to their end.

        Raises:
            ConfigError: it is not in the pool.
        """
        address = address_of(server)
        if address not in self._links:
            known = ", ".join(self.addresses) or "none"
            raise ConfigError(f"there is no server {server!r} in the pool (there are: {known})")
        self._own = [each for each in self._own if each != address]
        self._set([each for each in self._links if each != address])

    def replace(self, servers: Sequence[str]) -> None:
        """Use these servers from now on, and begin no episodes on any other.

        Raises:
            ConfigError: one is no address.
        """
        self._own = [address_of(each) for each in servers]
        self._set(self._own)

    def _set(self, wanted: Sequence[ServerAddress]) -> None:
        """The links of the servers that are wanted now; the dictionary is replaced as a whole, for
        others may be reading it."""
        old = self._links
        self._links = {each: old.get(each) or Link(each, self.access) for each in wanted}
        self._made.update(self._links.values())
        for address, link in old.items():
            if address not in self._links:
                link.retired = True
                log.info("environment server %s begins no more episodes", address)

    # -- the file of servers --

    def _listed(self) -> list[ServerAddress]:
        """The servers of the file.

        Raises:
            ConfigError: it cannot be read, or a line is no address.
        """
        assert self._file is not None
        try:
            self._stamp = self._mark()
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"servers_file {self._file} cannot be read: {error}") from None
        found = []
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].strip()
            if words:
                try:
                    found.append(address_of(words))
                except ConfigError as error:
                    raise ConfigError(f"{self._file}, line {number}: {error}") from None
        return found

    def _mark(self) -> tuple[int, int]:
        assert self._file is not None
        stat = self._file.stat()
        return stat.st_mtime_ns, stat.st_size

    def look_at_file(self) -> None:
        """Take over what the file of servers says now, if it changed; one that cannot be read
        changes nothing."""
        if self._file is None or time.monotonic() < self._read_at:
            return
        self._read_at = time.monotonic() + READING
        try:
            if self._mark() == self._stamp:
                return
            wanted = [*self._own, *self._listed()]
        except (OSError, ConfigError) as error:
            log.warning("%s; the servers stay as they are", error)
            return
        self._set(wanted)
        log.info("environment servers: %s", ", ".join(self.addresses) or "none")

    # -- who is asked --

    async def choose(self, until: float) -> Link:
        """The server for the next session: of those that are well, the one with the fewest.

        Args:
            until: when to give up (`time.monotonic`).

        Raises:
            ConfigError: no server will ever do.
            Unreachable: none was free in time.
        """
        while True:
            self.look_at_file()
            links = list(self._links.values())
            if links and all(link.refused for link in links):
                raise ConfigError(links[0].refused)
            ready = [link for link in links if link.ready]
            for link in links:
                link.look()
            if ready:
                chosen = min(ready, key=lambda link: (len(link.sessions), link.turn))
                chosen.turn = next(self._turns)
                return chosen
            if time.monotonic() >= until:
                raise Unreachable(self._nobody(links))
            await asyncio.sleep(WAITING / 4)

    def _nobody(self, links: Sequence[Link]) -> str:
        if not links:
            return "there is no environment server in the pool"
        said = "; ".join(f"{link.address}: {link.problem or 'busy'}" for link in links[:4])
        return f"no environment server can be used ({said})"

    async def ask(self, name: str, request: Any, until: float, patience: float) -> Any:
        """The answer to a call that any server may answer.

        Args:
            name: of the call.
            request: what is asked.
            until: when to give up (`time.monotonic`).
            patience: seconds that one server may take.

        Raises:
            ConfigError: the servers will never answer it.
            EpisodeError: the world failed.
            Unreachable: none did in time.
        """
        while True:
            link = await self.choose(until)
            seconds = max(min(patience, until - time.monotonic()), WAITING)
            try:
                return await link.ask(name, request, seconds)
            except Broken as error:
                reason = error.final(link.address)
                if reason:
                    link.refuses(reason)
                elif error.busy:
                    link.busy(error.retry_after)
                elif error.failure is not None:  # the server's own word, which stands
                    bad = error.failure.kind == pb.Failure.BAD
                    kind = ConfigError if bad else EpisodeError
                    raise kind(f"{link.address}: {error.details}") from None
                else:
                    link.failed(str(error))


def _let_go(links: set[Link]) -> None:
    """Close the channels of a pool that nobody holds any more."""
    for link in links:
        start(link.close())
