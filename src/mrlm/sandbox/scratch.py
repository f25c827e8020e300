"""Removes folders that an untrusted program has filled: of any depth, and never through a link."""

import itertools
import os
import secrets
import stat
from collections.abc import Iterator

OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove_tree(path: str) -> None:
    """Remove a folder and everything below it. A link is removed, not followed; nothing is
    recursive, so depth does not matter. Raises `OSError`: something cannot be removed."""
    parent, name = os.path.split(os.path.abspath(path))
    above = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = _opened(name, above)
        try:
            mark = secrets.token_hex(8)  # a name that the untrusted program cannot have used
            names = (f"{mark}.{number}" for number in itertools.count())
            while _lifted(fd, names):
                pass
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=above)
    except FileNotFoundError:
        pass
    finally:
        os.close(above)


def _lifted(fd: int, names: Iterator[str]) -> bool:
    """Remove the content of a folder; folders inside its folders are moved up to it. Returns
    whether it holds any after that."""
    left = False
    for name in os.listdir(fd):
        if _removed(name, fd):
            continue
        inner = _opened(name, fd)
        try:
            for below in os.listdir(inner):
                if not _removed(below, inner):
                    left = True
                    os.close(_opened(below, inner))  # a folder must be writable itself to be moved
                    os.rename(below, next(names), src_dir_fd=inner, dst_dir_fd=fd)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=fd)
    return left


def _removed(name: str, fd: int) -> bool:
    """Remove one entry, unless it is a folder that is not empty."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=fd)
        return True
    try:
        os.rmdir(name, dir_fd=fd)
    except OSError:
        return False
    return True


def _opened(name: str, fd: int) -> int:
    try:
        inner = os.open(name, OPEN, dir_fd=fd)
    except PermissionError:
        os.chmod(name, stat.S_IRWXU, dir_fd=fd)
        inner = os.open(name, OPEN, dir_fd=fd)
    os.fchmod(inner, stat.S_IRWXU)
    return inner
