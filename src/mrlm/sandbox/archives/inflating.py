"""Compressed streams of untrusted origin: they are inflated a piece at a time, every piece is
counted, and their end and checksum are checked."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

from mrlm.sandbox.archives.unpacked import ArchiveRefused, Budget

PIECE = 1 << 18
"""Bytes that are inflated at a time."""
READ = 1 << 15
"""Bytes that are read at a time."""
MAX_DICTIONARY = 128 << 20
"""Memory an xz stream may ask for, in bytes."""
MAX_STREAMS = 10_000
"""Streams in one file, one after the other (blocked gzip has one in every 64 KiB)."""


class Inflater(Protocol):
    """What `bz2` and `lzma` have: one stream."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Deflated:
    """The same for zlib.

    Args:
        wbits: -15 for bare deflate (zip), 31 for gzip.
    """

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits)
        self._rest = b""
        self._full = False  # zlib may hold back what had no room

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._rest and not self._full and not self.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        found = self._inner.decompress(self._rest + data, max_length)
        self._rest = self._inner.unconsumed_tail
        self._full = len(found) == max_length
        return found


def gzip_stream() -> Inflater:
    """One gzip member."""
    return Deflated(31)


def deflate_stream() -> Inflater:
    """What a zip holds."""
    return Deflated(-15)


def bz2_stream() -> Inflater:
    """One bzip2 stream."""
    return bz2.BZ2Decompressor()


def xz_stream() -> Inflater:
    """One xz stream, with a bound on its memory."""
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_DICTIONARY)


COMPRESSIONS: dict[bytes, Callable[[], Inflater]] = {
    b"\x1f\x8b": gzip_stream,
    b"BZh": bz2_stream,
    b"\xfd7zXZ\x00": xz_stream,
}
"""What a compressed file begins with."""


def plain(file: BinaryIO, budget: Budget) -> Iterator[bytes]:
    """A file as it is, piece by piece, counted."""
    while piece := file.read(PIECE):
        budget.spend(len(piece))
        yield piece


def inflated(
    file: BinaryIO, budget: Budget, new: Callable[[], Inflater], length: int | None = None
) -> Iterator[bytes]:
    """What a file holds, piece by piece, counted.

    Args:
        file: from where it stands.
        budget: what may be unpacked.
        new: makes an inflater for one stream.
        length: compressed bytes of the only stream there is (zip); `None` for all that follow up to
            the end of the file, with zeros behind them.

    Raises:
        ArchiveRefused: it is damaged, cut short, or too large.
    """
    left = length
    one, streams, data = new(), 1, b""
    while True:
        if one.eof:
            data = one.unused_data
            if length is not None:
                if data or left:
                    raise ArchiveRefused("there is more behind the end of a compressed member")
                return
            data = data.lstrip(b"\0") or _behind_zeros(file, budget)
            if not data:
                return
            streams += 1
            if streams > MAX_STREAMS:
                raise ArchiveRefused(f"it has more than {MAX_STREAMS} streams")
            one = new()
        elif one.needs_input and not data:
            data = file.read(READ if left is None else min(READ, left))
            if not data:
                raise ArchiveRefused("it is cut short")
            left = None if left is None else left - len(data)
        budget.look()
        piece = _step(one, data)
        data = b""
        if piece:
            budget.spend(len(piece))
            yield piece


def _step(one: Inflater, data: bytes) -> bytes:
    try:
        return one.decompress(data, PIECE)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, MemoryError) as error:
        raise ArchiveRefused(f"its compressed data cannot be read: {error}") from None


def _behind_zeros(file: BinaryIO, budget: Budget) -> bytes:
    while data := file.read(READ):
        budget.look()
        if data := data.lstrip(b"\0"):
            return data
    return b""


class Reader:
    """Pieces, read in the sizes one needs."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""
        self._at = 0

    def exactly(self, num_bytes: int) -> bytes:
        """The next bytes, which should be few.

        Raises:
            ArchiveRefused: there are not so many.
        """
        return b"".join(self.chunks(num_bytes))

    def chunks(self, num_bytes: int) -> Iterator[bytes]:
        """The next bytes, in chunks as they come."""
        while num_bytes:
            chunk = self._held[self._at : self._at + num_bytes]
            if chunk:
                self._at += len(chunk)
                num_bytes -= len(chunk)
                yield chunk
            elif not self._more():
                raise ArchiveRefused("it is cut short")

    def rest(self) -> Iterator[bytes]:
        """Everything that is left."""
        yield self._held[self._at :]
        yield from self._pieces

    def peek(self, num_bytes: int) -> bytes:
        """The next bytes, or fewer if there are fewer, which stay."""
        while len(self._held) - self._at < num_bytes and self._more(keep=True):
            pass
        return self._held[self._at : self._at + num_bytes]

    def _more(self, keep: bool = False) -> bool:
        kept = self._held[self._at :] if keep else b""
        piece = next(self._pieces, b"")
        self._held, self._at = kept + piece, 0
        return bool(piece)
