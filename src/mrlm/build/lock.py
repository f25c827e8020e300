"""The lock of a run's folder: one process writes to it at a time."""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError

LOCK = ".lock"
"""File with the process, its machine and the time; locked while that process writes."""
BUSY = (errno.EACCES, errno.EAGAIN)

_held: dict[str, int] = {}
"""Folder -> descriptor of its file. Closing any other descriptor of the file would unlock it."""


def lock(folder: Path) -> None:
    """Lock a folder, which is created, for this process; again if it has the lock already. The lock
    of a process that ended does not count: the system releases it. Raises `ConfigError`: another
    process writes to the folder, or it cannot be written."""
    real_path = os.path.realpath(folder)
    if real_path in _held and _is_current(_held[real_path], folder):
        return
    unlock(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except FileExistsError as error:
        raise ConfigError(f"{folder}: it is a file or a dangling link; give another") from error
    except OSError as error:
        raise ConfigError(
            f"output_dir={str(folder)!r} cannot be written: {error.strerror}"
        ) from error
    if not _acquire(file) or not _is_current(file, folder):
        owner = _owner(file)
        os.close(file)
        raise ConfigError(
            f"{folder}: process {owner.get('pid', '?')} on {owner.get('host', '?')} writes there "
            f"since {owner.get('since', '?')}; wait for its end, or give another output folder"
        )
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    os.truncate(file, 0)
    os.pwrite(file, json.dumps(owner).encode(), 0)
    _held[real_path] = file


def check_free(folder: Path) -> None:
    """Check that no other process writes to a folder. Raises `ConfigError`: one does."""
    if (folder / LOCK).exists() and os.path.realpath(folder) not in _held:
        lock(folder)
        unlock(folder)


def is_written(folder: Path) -> bool:
    """Whether a process writes to a folder now. Nothing is changed there."""
    if os.path.realpath(folder) in _held:
        return True
    try:
        file = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _acquire(file)
    finally:
        os.close(file)


def unlock(folder: Path, renamed: Path | None = None) -> None:
    """Release a folder that this process has locked; `renamed` is where it is by now."""
    file, place = _held.pop(os.path.realpath(folder), None), renamed or folder
    if file is None:
        return
    if _is_current(file, place):
        with suppress(OSError):
            (place / LOCK).unlink()
    os.close(file)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, and release it at the end."""
    lock(folder)
    try:
        yield
    finally:
        unlock(folder)


def _acquire(file: int) -> bool:
    """Whether this process has the lock of a file now. Without locks in the file system, the
    process that is named there decides."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in BUSY and not _lives(_owner(file))
    return True


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the process of an owner may still run: on another machine, this is not known."""
    if not owner or owner.get("host") != socket.gethostname():
        return bool(owner)
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return int(owner["pid"]) != os.getpid()


def _owner(file: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(file, 4096, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_current(file: int, folder: Path) -> bool:
    """Whether a descriptor is that of the lock in a folder, which may have been renamed."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(folder / LOCK))
    except OSError:
        return False
