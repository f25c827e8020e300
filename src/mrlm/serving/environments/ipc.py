"""Frames over a socket between a server and its worker processes, independent of their contents."""

import asyncio
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

_HEADER = struct.Struct("<IQB16s")
NOBODY: bytes = bytes(16)
"""The session id of a frame that concerns no session."""


class Op(IntEnum):
    """The operations of a worker."""

    HELLO = 0
    DESCRIBE = 1
    TASK = 2
    OPEN = 3
    CALL = 4
    FORK = 5
    CLOSE = 6


class End(IntEnum):
    """The outcome of an operation: done; refused without execution; or the session is over, and
    (`HUNG`) some of its code still runs in the worker."""

    DONE = 0
    REFUSED = 1
    OVER = 2
    HUNG = 3


class Frame(NamedTuple):
    """A request with an `Op`, or its answer, with the same number and an `End`. The session's id
    has 16 bytes; the body is a protocol message, or one between server and worker."""

    number: int
    kind: int
    session: bytes
    body: bytes


class Frames(asyncio.Protocol):
    """One end of the socket: calls `heard` with every frame, and `ended` when the other is gone."""

    def __init__(self, heard: Callable[[Frame], None], ended: Callable[[], None]) -> None:
        self._heard, self._ended = heard, ended
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER.size:
            length, number, kind, session = _HEADER.unpack_from(buffer, start)
            end = start + _HEADER.size + length
            if len(buffer) < end:
                break
            body = bytes(memoryview(buffer)[start + _HEADER.size : end])
            start = end
            self._heard(Frame(number, kind, session, body))
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()

    def send(self, number: int, kind: int, session: bytes, body: bytes) -> None:
        """Send a frame; does nothing if the other end is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_HEADER.pack(len(body), number, kind, session) + body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
