"""The pool of environment servers: load balancing, setting servers aside, and adding or removing
them during a run. The server that plays an episode does not affect its result."""

import asyncio
import itertools
import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.log import log
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client import calling
from mrlm.serving.client.link import WAITING, Link

READING = 1.0
"""Seconds between two checks of the server file."""


class ServerPool:
    """Environment servers that all offer the same environments. Each episode is played on the
    server with the fewest sessions; a failing server is set aside until it is healthy again; an
    episode in progress stays on its server.

    Servers may be added, removed and replaced at any time, from any thread.

    Args:
        servers: their addresses: `host:port`, `[::1]:port` or `https://host:port`.
        token: the token that they require.
        token_env: name of the environment variable that holds the token.
        tls_ca: file of the certificates to trust; turns encryption on.
        tls_cert, tls_key: files of the client's own certificate.
        servers_file: a file with an address per line (`#` begins a comment), read again whenever it
            changes; its servers are added to `servers`.

    Raises:
        ConfigError: no server, an invalid address, or a missing file.

    Examples:
        >>> pool = ServerPool(["10.0.0.5:50051", "10.0.0.6:50051"], tls_ca="ca.pem")
        >>> pool.add("10.0.0.7:50051")
        >>> pool.remove("10.0.0.5:50051")  # running episodes finish there
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
        self.access: calling.Access = calling.access_of(token, token_env, tls_ca, tls_cert, tls_key)
        named = [servers] if isinstance(servers, str) else servers
        self._own = [calling.address_of(server) for server in named]
        self._file = None if servers_file is None else Path(servers_file)
        self._begin()

    def _begin(self) -> None:
        self._stamp: tuple[int, int] | None = None
        self._read_at = 0.0
        self._links: dict[calling.ServerAddress, Link] = {}
        self._made: set[Link] = set()
        weakref.finalize(self, _let_go, self._made).atexit = False
        self._turns = itertools.count(1)
        listed = [] if self._file is None else self._listed()
        self._set([*self._own, *listed])
        if not self._links:
            where = "" if self._file is None else f" ({self._file} lists none)"
            raise ConfigError(f"name at least one environment server{where}: host:port")

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without channels, which belong to a process."""
        return {"access": self.access, "own": self._own, "file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.access, self._own, self._file = state["access"], state["own"], state["file"]
        self._begin()

    def __deepcopy__(self, memo: object) -> "ServerPool":
        return self

    @property
    def addresses(self) -> list[str]:
        """The servers on which episodes may begin, as they were written."""
        return [str(address) for address in self._links]

    def link(self, server: str) -> Link:
        """The connection to one of the servers."""
        return self._links[calling.address_of(server)]

    def add(self, server: str) -> None:
        """Use one more server from now on. Raises `ConfigError`: the address is invalid."""
        self._own = [*self._own, calling.address_of(server)]
        self._set([*self._links, calling.address_of(server)])

    def remove(self, server: str) -> None:
        """Begin no more episodes on a server; running ones finish there."""
        address = calling.address_of(server)
        if address not in self._links:
            names = ", ".join(self.addresses) or "none"
            raise ConfigError(f"server {server!r} is not in the pool (its servers: {names})")
        self._own = [other for other in self._own if other != address]
        self._set([other for other in self._links if other != address])

    def replace(self, servers: Sequence[str]) -> None:
        """Begin episodes on these servers only. Raises `ConfigError`: an address is invalid."""
        self._own = [calling.address_of(server) for server in servers]
        self._set(self._own)

    def _set(self, addresses: Sequence[calling.ServerAddress]) -> None:
        """Update the links; they are replaced as a whole, as other threads read them."""
        old = self._links
        self._links = {server: old.get(server) or Link(server, self.access) for server in addresses}
        self._made.update(self._links.values())
        for address, link in old.items():
            if address not in self._links:
                link.retired = True
                log.info("environment server %s begins no more episodes", address)

    # -- the file of servers --

    def _listed(self) -> list[calling.ServerAddress]:
        """The servers of the file. Raises `ConfigError`: a line is not an address."""
        assert self._file is not None
        try:
            self._stamp = self._mark()
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"servers_file {self._file} cannot be read: {error}") from None
        addresses = []
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].strip()
            if words:
                try:
                    addresses.append(calling.address_of(words))
                except ConfigError as error:
                    raise ConfigError(f"{self._file}, line {number}: {error}") from None
        return addresses

    def _mark(self) -> tuple[int, int]:
        assert self._file is not None
        stat = self._file.stat()
        return stat.st_mtime_ns, stat.st_size

    def look_at_file(self) -> None:
        """Apply the server file if it has changed; a file that cannot be read changes nothing."""
        if self._file is None or time.monotonic() < self._read_at:
            return
        self._read_at = time.monotonic() + READING
        try:
            if self._mark() == self._stamp:
                return
            servers = [*self._own, *self._listed()]
        except (OSError, ConfigError) as error:
            log.warning("%s; the servers stay as they are", error)
            return
        self._set(servers)
        log.info("environment servers: %s", ", ".join(self.addresses) or "none")

    # -- load balancing --

    async def choose(self, until: float) -> Link:
        """The server for the next session: the available one with the fewest sessions. Raises
        `ConfigError`: no server is usable; `Unreachable`: none was free before `until`."""
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
                raise calling.Unreachable(self._none_usable(links))
            await asyncio.sleep(WAITING / 4)

    def _none_usable(self, links: Sequence[Link]) -> str:
        if not links:
            return "the pool of environment servers is empty"
        problems = "; ".join(f"{link.address}: {link.problem or 'busy'}" for link in links[:4])
        return f"no environment server can be used ({problems})"

    async def ask(self, name: str, request: Any, until: float, patience: float) -> Any:
        """Make a call by its name that any server of the pool may answer, each within `patience`
        seconds, and all before `until` (`time.monotonic`). Raises `ConfigError`: the servers will
        never answer it; `EpisodeError`: the environment failed; `Unreachable`: none answered."""
        while True:
            link = await self.choose(until)
            seconds = max(min(patience, until - time.monotonic()), WAITING)
            try:
                return await link.ask(name, request, seconds)
            except calling.Broken as error:
                passing = error.busy or error.final(link.address)
                if error.failure is not None and not passing:  # the server's own answer
                    bad = error.failure.kind == pb.Failure.BAD
                    kind = ConfigError if bad else EpisodeError
                    raise kind(f"{link.address}: {error.details}") from None
                link.judge(error)


def _let_go(links: set[Link]) -> None:
    """Close the channels of a pool that is no longer referenced."""
    for link in links:
        calling.start(link.close())
