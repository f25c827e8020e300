"""Archives of untrusted origin, unpacked: zip, tar (plain, gzip, bzip2, xz), and single files that
are compressed.

No header is believed: bytes are counted while they are written. Only ordinary files and folders
come out, below the target and nowhere else, and all of them or none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mrlm.core.errors import DataError
from mrlm.sandbox.archives.inflating import COMPRESSIONS, Reader, inflated, plain
from mrlm.sandbox.archives.unpacked import ArchiveLimits, ArchiveRefused, Budget, Target
from mrlm.sandbox.archives.untar import BLOCK, is_tar, untar
from mrlm.sandbox.archives.unzip import unzip

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_TAR_NAMES = (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
_ENDINGS = (".gz", ".bz2", ".xz")


def unpack(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    limits: ArchiveLimits | None = None,
) -> list[str]:
    """Unpack an archive into a folder of its own.

    What it is follows from its first bytes, not from its name. Modes, owners and times are not
    taken over. If the process is killed meanwhile, a folder `.unpacking-*` may be left beside the
    target, never a part of the target.

    Args:
        path: the archive. A single compressed file keeps the archive's name without its ending.
        folder: what is made; nothing may be there, or an empty folder.
        limits: what it may use.

    Returns:
        The paths of the files, relative to the folder, in the archive's order.

    Raises:
        ArchiveRefused: it is no archive, damaged, too large, or holds links, devices, paths that
            lead elsewhere, or the like.
        ConfigError: the target cannot be used.
        DataError: the archive cannot be read.

    Example:
        >>> unpack("tasks.tar.gz", "tasks")  # doctest: +SKIP
        ['train.jsonl', 'test.jsonl']
    """
    path = Path(path)
    budget = Budget(limits or ArchiveLimits())
    with _opened(path, budget.limits) as file:
        target = Target(Path(folder), budget)
        try:
            _unpack(file, path.name, target, budget)
            target.finish()
        except ArchiveRefused as refused:
            raise ArchiveRefused(f"{path} is refused: {refused}") from None
        finally:
            target.discard()
    return target.files


def _opened(path: Path, limits: ArchiveLimits) -> BinaryIO:
    """The archive, which is an ordinary file: a pipe would never end."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise DataError(f"{path} is not a file")
    if status.st_size > limits.archive:
        os.close(handle)
        raise ArchiveRefused(
            f"{path} is refused: it has more than {limits.archive} bytes (limit `archive`)"
        )
    return os.fdopen(handle, "rb")


def _unpack(file: BinaryIO, name: str, target: Target, budget: Budget) -> None:
    begin = file.read(8)
    if begin.startswith(_ZIP):
        unzip(file, target, budget)
        return
    file.seek(0)
    new = next((new for magic, new in COMPRESSIONS.items() if begin.startswith(magic)), None)
    pieces: Iterator[bytes] = inflated(file, budget, new) if new else plain(file, budget)
    reader = Reader(pieces)
    if is_tar(reader.peek(BLOCK)) or name.lower().endswith(_TAR_NAMES):
        untar(reader, target, budget)
    elif new:
        target.add_file(_without_ending(name), reader.rest())
    else:
        raise ArchiveRefused("it is no zip, tar, gzip, bzip2 or xz")


def _without_ending(name: str) -> str:
    stem = next((name[: -len(e)] for e in _ENDINGS if name.lower().endswith(e)), "")
    return stem or f"{name}.content"
