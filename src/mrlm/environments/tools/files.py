"""A folder of files for one episode. Every path is walked one folder at a time from an open
descriptor, links are never followed, and only regular files with one name are opened."""

import contextlib
import errno
import os
import stat
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrlm.core.errors import EpisodeError
from mrlm.environments.tools.tool import ToolError
from mrlm.sandbox.scratch import remove_tree

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_PATH = 200
MAX_NAME = 100
MAX_LEVELS = 8
_OURS = ".mrlm-"
"""Reserved prefix of the names of files that are being written or removed."""
_NEW = f"{_OURS}new"


@dataclass(frozen=True, slots=True)
class Quota:
    """Storage limits of a workspace.

    Args:
        total: bytes of all files together.
        file: bytes of one file, written or read.
        entries: number of files and folders.
    """

    total: int = 1 << 20
    file: int = 256 << 10
    entries: int = 64


class Workspace:
    """A folder of files that one episode may read and write.

    Args:
        folder: an existing folder, which is kept at the end; `None`: a new temporary one, which
            `close` removes.
        files: path -> content of initial files.

    Every method raises `ToolError` for an invalid path and for exceeding the quota.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        files: Mapping[str, str] | None = None,
        quota: Quota | None = None,
    ) -> None:
        self.quota: Quota = quota or Quota()
        self.folder: str = tempfile.mkdtemp(prefix="mrlm-files-") if folder is None else str(folder)
        self._finalizer = weakref.finalize(self, remove_tree, self.folder)
        if folder is not None:
            self._finalizer.detach()
        for path, content in (files or {}).items():
            self.write_file(path, content)

    # -- tools for models --------------------------------------------------------------------------

    def read_file(self, path: str) -> str:
        """Read a text file.

        Args:
            path: such as notes/a.txt
        """
        parts = _parts(path)
        with _opened(self.folder, parts[:-1]) as folder:
            return self._read(folder, parts[-1]).decode("utf-8", "replace")

    def write_file(self, path: str, content: str) -> str:
        """Write a text file; folders on the way are made, and what was there is replaced.

        Args:
            path: such as notes/a.txt
            content: the whole text of the file
        """
        parts = _parts(path)
        try:
            data = content.encode()
        except UnicodeEncodeError as error:
            raise ToolError("the content is no valid text") from error
        if len(data) > self.quota.file:
            raise ToolError(f"a file holds at most {self.quota.file} bytes, not {len(data)}")
        held, entries = self._usage()
        with _opened(self.folder, parts[:-1], make=self.quota.entries - entries - 1) as folder:
            before = _kind(folder, parts[-1])
            if before is None and self._usage()[1] >= self.quota.entries:
                raise ToolError(f"there is room for {self.quota.entries} files and folders only")
            if held - (before or 0) + len(data) > self.quota.total:
                raise ToolError(f"all files together hold at most {self.quota.total} bytes")
            self._replace(folder, parts[-1], data)
        return f"wrote {len(data)} bytes"

    def list_files(self) -> str:
        """List all files with their sizes in bytes."""
        lines = sorted(
            f"{path} {status.st_size}"
            for path, status in self._walk(self.folder)
            if stat.S_ISREG(status.st_mode)
        )
        return "\n".join(lines) or "there are no files"

    def delete_file(self, path: str) -> str:
        """Delete a file.

        Args:
            path: such as notes/a.txt
        """
        parts = _parts(path)
        with _opened(self.folder, parts[:-1]) as folder:
            if _kind(folder, parts[-1]) is None:
                raise ToolError(f"there is no file {path!r}")
            os.unlink(parts[-1], dir_fd=folder)
        return "deleted"

    # -- the rest ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove the folder if it is a temporary one."""
        self._finalizer()

    @property
    def files(self) -> dict[str, bytes]:
        """Path -> content of all regular files."""
        contents = {}
        for path, status in self._walk(self.folder):
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                parts = path.split("/")
                with _opened(self.folder, parts[:-1]) as folder:
                    contents[path] = self._read(folder, parts[-1])
        return contents

    def __deepcopy__(self, memo: dict[int, Any]) -> "Workspace":
        return Workspace(None, {p: c.decode() for p, c in self.files.items()}, self.quota)

    def _read(self, folder: int, name: str) -> bytes:
        size = _kind(folder, name)
        if size is None:
            raise ToolError(f"there is no file {name!r} there")
        with _said(name):
            descriptor = os.open(name, _READ, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            _regular(os.fstat(file.fileno()), name)
            data = file.read(self.quota.file + 1)
        if len(data) > self.quota.file:
            raise ToolError(f"{name!r} is larger than {self.quota.file} bytes")
        return data

    def _replace(self, folder: int, name: str, data: bytes) -> None:
        with _said(name):
            descriptor = os.open(_NEW, _WRITE, 0o600, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.replace(_NEW, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(_NEW, dir_fd=folder)
                raise

    def _usage(self) -> tuple[int, int]:
        held = entries = 0
        for _, status in self._walk(self.folder):
            entries += 1
            held += status.st_size if stat.S_ISREG(status.st_mode) else 0
        return held, entries

    def _walk(
        self, root: int | str, parts: Sequence[str] = (), prefix: str = ""
    ) -> Iterator[tuple[str, os.stat_result]]:
        """All entries with their paths, without following links, up to the maximum depth."""
        with _opened(root, parts) as folder:
            for name in sorted(os.listdir(folder))[: 4 * self.quota.entries]:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                yield prefix + name, status
                if stat.S_ISDIR(status.st_mode) and prefix.count("/") < MAX_LEVELS:
                    yield from self._walk(folder, [name], f"{prefix}{name}/")


@contextlib.contextmanager
def _opened(root: int | str, parts: Sequence[str], make: int = 0) -> Iterator[int]:
    """The descriptor of the folder at `parts` below `root`, a descriptor or a path; at most `make`
    folders on the way are created."""
    if isinstance(root, int):
        descriptor = os.dup(root)
    else:
        with _said("the workspace"):
            descriptor = os.open(root, _ROOT)
    try:
        for part in parts:
            with _said(part):
                try:
                    deeper = os.open(part, _FOLDER, dir_fd=descriptor)
                except FileNotFoundError:
                    if make <= 0:
                        raise
                    make -= 1
                    os.mkdir(part, 0o700, dir_fd=descriptor)
                    deeper = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


_SAID = {
    errno.ENOENT: "there is no {} there",
    errno.ELOOP: "{} is a link, and links are not followed",
    errno.ENOTDIR: "{} is no folder",
    errno.EISDIR: "{} is a folder",
    errno.EACCES: "{} may not be used",
    errno.EPERM: "{} may not be used",
    errno.ENXIO: "{} is no regular file",
    errno.ENAMETOOLONG: "{} is too long a name",
}


@contextlib.contextmanager
def _said(name: str) -> Iterator[None]:
    """Convert system errors of a name into a message for the model; a failure of the disk becomes
    an `EpisodeError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _SAID:
            raise EpisodeError(f"the workspace cannot be used: {error.strerror}") from error
        raise ToolError(_SAID[error.errno].format(repr(name))) from error


def _parts(path: str) -> list[str]:
    display = repr(path[:40])
    if not path or len(path) > MAX_PATH:
        raise ToolError(f"a path is 1 to {MAX_PATH} characters long")
    if not path.isprintable() or "\\" in path:
        raise ToolError(f"the path {display} holds characters that paths here may not hold")
    parts = path.removeprefix("./").split("/")
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ToolError(
            f"the path {display} must lead down from the workspace, such as notes/a.txt"
        )
    if len(parts) > MAX_LEVELS or any(len(part.encode()) > MAX_NAME for part in parts):
        raise ToolError(f"a path has at most {MAX_LEVELS} names of at most {MAX_NAME} bytes")
    if any(part.casefold().startswith(_OURS) for part in parts):
        raise ToolError(f"names that begin with {_OURS} are reserved")
    return parts


def _kind(folder: int, name: str) -> int | None:
    """Size of a regular file with one name; `None` if it does not exist."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _regular(status, name)
    return status.st_size


def _regular(status: os.stat_result, name: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{name!r} is a folder")
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise ToolError(f"{name!r} is no regular file with one name")
