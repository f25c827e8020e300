"""Tar archives of untrusted origin: headers are read by `tarfile`, one block at a time; what
follows them is read here, since extensions of a header may claim any size."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from mrlm.sandbox.archives.inflating import Reader
from mrlm.sandbox.archives.unpacked import MAX_NAME, ArchiveRefused, Budget, Target

BLOCK = tarfile.BLOCKSIZE
MAX_EXTENSION = 1 << 16
"""Bytes of an extended header, which holds a name and some numbers."""

_PAX = re.compile(rb"([0-9]{1,6}) ([^=\n]{1,256})=")
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.GNUTYPE_LONGLINK: "a link",
}


@dataclass(slots=True)
class Extension:
    """What extended headers say of the member that follows them."""

    name: str | None = None
    size: int | None = None

    def set_name(self, name: bytes) -> None:
        """Give the name, which may be given once."""
        if self.name is not None:
            raise ArchiveRefused("a member has two names")
        self.name = name.decode("utf-8", "surrogateescape")


def is_tar(block: bytes) -> bool:
    """Whether a file that begins so is a tar that holds something."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    return True


def untar(reader: Reader, target: Target, budget: Budget) -> None:
    """Unpack a tar.

    Raises:
        ArchiveRefused: it is damaged, or has a member that is no file and no folder.
    """
    extension = Extension()
    while any(block := reader.exactly(BLOCK)):
        budget.member()
        member = _header(block)
        if member.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            _apply(_records(_extension(reader, member)), extension)
        elif member.type == tarfile.XGLTYPE:
            if not {b"path", b"size"}.isdisjoint(_records(_extension(reader, member))):
                raise ArchiveRefused("it names or sizes all its members at once")
        elif member.type == tarfile.GNUTYPE_LONGNAME:
            extension.set_name(_extension(reader, member, MAX_NAME + 1).rstrip(b"\0"))
        else:
            _member(reader, member, extension, target)
            extension = Extension()
    if extension != Extension():
        raise ArchiveRefused("it is cut short")
    if any(piece.strip(b"\0") for piece in reader.rest()):
        raise ArchiveRefused("there is more behind its end")


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError) as error:
        raise ArchiveRefused(f"a header of the tar is damaged: {error}") from None
    if member.size < 0:
        raise ArchiveRefused("a member of the tar has less than no bytes")
    return member


def _member(reader: Reader, member: tarfile.TarInfo, extension: Extension, target: Target) -> None:
    name = member.name if extension.name is None else extension.name
    size = member.size if extension.size is None else extension.size
    if member.type in _FILES:
        target.add_file(name, reader.chunks(size))
        reader.exactly(-size % BLOCK)
    elif member.type == tarfile.DIRTYPE:
        if size:
            raise ArchiveRefused(f"the folder {name!a} has content")
        target.add_folder(name)
    else:
        kind = _KINDS.get(member.type, f"of kind {member.type!r}")
        raise ArchiveRefused(f"the member {name!a} is {kind}")


def _extension(reader: Reader, member: tarfile.TarInfo, most: int = MAX_EXTENSION) -> bytes:
    if member.size > most:
        raise ArchiveRefused(f"an extended header has {member.size} bytes")
    data = reader.exactly(member.size)
    reader.exactly(-member.size % BLOCK)
    return data


def _apply(records: dict[bytes, bytes], extension: Extension) -> None:
    if b"path" in records:
        extension.set_name(records[b"path"])
    if b"size" in records:
        size = records[b"size"]
        if extension.size is not None or not re.fullmatch(rb"[0-9]{1,18}", size):
            raise ArchiveRefused(f"a member has the size {size[:40]!r}")
        extension.size = int(size)


def _records(data: bytes) -> dict[bytes, bytes]:
    """The records of a pax header.

    Raises:
        ArchiveRefused: they are not well-formed, or describe a sparse file.
    """
    records: dict[bytes, bytes] = {}
    for key, value in _split(data):
        if key in records or key.startswith(b"GNU.sparse") or key == b"SCHILY.realsize":
            raise ArchiveRefused(f"an extended header has {key!r}, twice or for a sparse file")
        records[key] = value
    return records


def _split(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(data):
        begin = _PAX.match(data, at)
        end = at + int(begin[1]) if begin else 0
        if begin is None or end > len(data) or end <= begin.end() or data[end - 1 : end] != b"\n":
            raise ArchiveRefused("an extended header is damaged")
        yield begin[2], data[begin.end() : end - 1]
        at = end
