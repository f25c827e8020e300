"""Zip archives of untrusted origin: the directory is read by `zipfile`, members are inflated here,
so that no size is believed and every byte of the file belongs to one member at most."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

from mrlm.sandbox.archives.inflating import READ, deflate_stream, inflated
from mrlm.sandbox.archives.unpacked import ArchiveRefused, Budget, Target

_LOCAL = struct.Struct("<4s5H3I2H")
_END = struct.Struct("<4s4H2IH")
_IN_DESCRIPTOR, _ENCRYPTED, _UTF8 = 0x8, 0x2041, 0x800
_ELSEWHERE = 0xFFFFFFFF  # the size stands in an extra field


def unzip(file: BinaryIO, target: Target, budget: Budget) -> None:
    """Unpack a zip.

    Raises:
        ArchiveRefused: it is damaged, lies about itself, or has a member that is no file and no
            folder.
    """
    _check_end(file, budget)
    try:
        directory = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise ArchiveRefused(f"its directory is damaged: {error}") from None
    members = directory.infolist()
    declared = sum(member.file_size for member in members)
    if declared > budget.limits.total:  # nothing that is larger than it says gets far either
        raise ArchiveRefused(f"it unpacks to more than {budget.limits.total} bytes (limit `total`)")
    starts = {id(member): _start(file, member) for member in members}
    _check_apart(members, starts, directory.start_dir)
    for member in members:
        _check(member)
        if member.orig_filename.endswith("/"):
            target.add_folder(member.orig_filename)
        else:
            content = _content(file, member, starts[id(member)], budget)
            target.add_file(member.orig_filename, content)


def _check_end(file: BinaryIO, budget: Budget) -> None:
    """The end of the directory stands at the very end, and the directory is not too large to be
    read whole."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _END.size - 0xFFFF - 20))
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise ArchiveRefused("it is cut short")
    *_, length, offset, comment = _END.unpack_from(tail, at)
    if len(tail) - at - _END.size != comment:
        raise ArchiveRefused("there is more behind its end")
    if tail[max(0, at - 20) :].startswith(b"PK\x06\x07"):
        raise ArchiveRefused("it is written for more than 4 GiB")
    if offset + length + len(tail) - at != size:
        raise ArchiveRefused("its directory is not where it says")
    file.seek(offset)
    if file.read(length).count(b"PK\x01\x02") > budget.limits.members:
        raise ArchiveRefused(f"it has more than {budget.limits.members} members (limit `members`)")


def _check(member: zipfile.ZipInfo) -> None:
    name, kind = ascii(member.orig_filename), stat.S_IFMT(member.external_attr >> 16)
    is_folder = member.orig_filename.endswith("/")
    if kind not in (0, stat.S_IFDIR if is_folder else stat.S_IFREG):
        raise ArchiveRefused(f"the member {name} is a link, a device or a pipe")
    if is_folder and (member.file_size or member.compress_size > 2):  # 2: nothing, deflated
        raise ArchiveRefused(f"the folder {name} has content")
    if member.flag_bits & _ENCRYPTED:
        raise ArchiveRefused(f"the member {name} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveRefused(f"the member {name} is compressed in a way that is not known here")


def _start(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: behind a header that says the same as the directory."""
    name = ascii(member.orig_filename)
    file.seek(member.header_offset)
    head = file.read(_LOCAL.size)
    if member.header_offset < 0 or len(head) < _LOCAL.size or head[:4] != b"PK\x03\x04":
        raise ArchiveRefused(f"the member {name} is not where the directory says")
    _, _, flags, method, _, _, crc, compressed, size, len_name, len_extra = _LOCAL.unpack(head)
    own = file.read(len_name).decode("utf-8" if flags & _UTF8 else "cp437", "surrogateescape")
    said = ((crc, member.CRC), (compressed, member.compress_size), (size, member.file_size))
    lies = not flags & _IN_DESCRIPTOR and any(a not in (b, _ELSEWHERE) for a, b in said)
    if own != member.orig_filename or method != member.compress_type or lies:
        raise ArchiveRefused(f"the member {name} is another than the directory says")
    return member.header_offset + _LOCAL.size + len_name + len_extra


def _check_apart(members: list[zipfile.ZipInfo], starts: dict[int, int], end: int) -> None:
    spans = sorted(
        (member.header_offset, starts[id(member)] + member.compress_size) for member in members
    )
    for (_, stop), (begin, _) in pairwise([*spans, (end, end)]):
        if stop > begin:
            raise ArchiveRefused("its members lie on one another")


def _content(
    file: BinaryIO, member: zipfile.ZipInfo, start: int, budget: Budget
) -> Iterator[bytes]:
    """What a member holds; in the end its length and checksum are what was said."""
    file.seek(start)
    if member.compress_type == zipfile.ZIP_STORED:
        pieces = _stored(file, member.compress_size, budget)
    else:
        pieces = inflated(file, budget, deflate_stream, member.compress_size)
    size = crc = 0
    for piece in pieces:
        size, crc = size + len(piece), zlib.crc32(piece, crc)
        if size > member.file_size:
            break
        yield piece
    if size != member.file_size or crc != member.CRC:
        raise ArchiveRefused(f"the member {member.orig_filename!a} is not what it says")


def _stored(file: BinaryIO, length: int, budget: Budget) -> Iterator[bytes]:
    while length:
        piece = file.read(min(READ, length))
        if not piece:
            raise ArchiveRefused("it is cut short")
        length -= len(piece)
        budget.spend(len(piece))
        yield piece
