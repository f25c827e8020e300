"""The connections of the HTTP server: limits on their number, per address, and on the time a
request may take. The only file that depends on uvicorn's protocol class."""

import asyncio
from collections import defaultdict
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from mrlm.serving.policies.admission import AdmissionLimits

LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\r\n"


class Connections:
    """The open connections of a server by address, the oldest first.

    If there is no room for another, the oldest idle connection is closed: one of the same address,
    else of the address with the most; connections that never sent a request go first. If all of
    them are being answered, the new one is refused.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self._open: defaultdict[str, dict[Any, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def admit(self, connection: Any, address: str) -> bool:
        """Whether there is room for a connection, which is then counted."""
        from_address = self._open[address]
        full = len(self) >= self.limits.connections
        if full or len(from_address) >= self.limits.per_address:
            most = max(self._open.values(), key=len)
            waiting = [other for other in [*from_address, *(most if full else ())] if other.waits]
            if not waiting:
                return False
            idle = next((other for other in waiting if other.cycle is None), waiting[0])
            idle.transport.abort()
            self.forget(idle, idle.address)
        self._open[address][connection] = None
        return True

    def forget(self, connection: Any, address: str) -> None:
        from_address = self._open.get(address, {})
        from_address.pop(connection, None)
        if not from_address:
            self._open.pop(address, None)


class Sending(H11Protocol):
    """A connection that is closed if its client reads nothing for some time."""

    read_seconds: float
    _unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._read()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._read()
        super().connection_lost(exc)

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()


def protocol(connections: Connections) -> type[Any]:
    """uvicorn's protocol class for HTTP/1.1, with the limits of `connections`."""
    limits = connections.limits

    class Limited(Sending):
        """A connection whose requests have a time limit."""

        address = ""
        read_seconds = limits.read_seconds
        _timer: asyncio.TimerHandle | None = None

        @property
        def waits(self) -> bool:
            """Whether no request is being answered on it."""
            return self.cycle is None or self.cycle.response_complete

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.address = self.client[0] if self.client else ""
            if connections.admit(self, self.address):
                self._watch()
            else:
                transport.write(FULL)
                transport.close()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            connections.forget(self, self.address)
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Start or stop the timer for the rest of a head."""
            if not self.waits:
                self._unwatch()
            elif self._timer is None:
                self._timer = self.loop.call_later(limits.head_seconds, self._late)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _late(self) -> None:
            self._timer = None
            if self.waits and not self.transport.is_closing():
                self.transport.write(LATE)
                self.transport.close()

    return Limited


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers limit a TLS handshake like the head of a request."""

    async def create_server(self, *args: Any, **settings: Any) -> Any:
        if settings.get("ssl") is not None:
            settings.setdefault("ssl_handshake_timeout", AdmissionLimits().head_seconds)
        return await super().create_server(*args, **settings)
