"""A folder that an archive of untrusted origin is unpacked into: names are checked before anything
is made, bytes are counted while they are written. It knows no archive format."""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import time
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mrlm.core.errors import ConfigError, DataError

MAX_NAME = 1024
"""Longest path of a member, in bytes of UTF-8."""
MAX_PART = 255
"""Longest part of it between two slashes: what file systems allow."""
MAX_DEPTH = 32
"""Folders within folders."""

_BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_DRIVE = re.compile(r"[A-Za-z]:")


class ArchiveRefused(DataError):
    """An archive was not unpacked, and nothing of it is left: it is damaged, too large, or holds
    what an honest archive does not."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What an archive may use.

    Args:
        total: bytes it may unpack to; of a tar, its headers and padding count too.
        members: files, folders and headers; folders that are only implied by names count too.
        archive: bytes of the archive itself.
        seconds: that unpacking may take.

    Raises:
        ConfigError: a limit that is not a positive finite number.
    """

    total: int = 64 << 20
    members: int = 10_000
    archive: int = 256 << 20
    seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
                raise ConfigError(f"archive limit {name!r} must be positive, not {value!r}")


class Budget:
    """Counts what is read, written and made, and ends it when a limit is reached."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self.limits = limits
        self._bytes = self._members = 0
        self._end = time.monotonic() + limits.seconds

    def spend(self, num_bytes: int) -> None:
        """Count bytes that were unpacked.

        Raises:
            ArchiveRefused: they are too many, or it took too long.
        """
        self._bytes += num_bytes
        if self._bytes > self.limits.total:
            raise ArchiveRefused(
                f"it unpacks to more than {self.limits.total} bytes (limit `total`)"
            )
        self.look()

    def look(self) -> None:
        """Look at the clock."""
        if time.monotonic() > self._end:
            raise ArchiveRefused(
                f"it takes longer than {self.limits.seconds:g} s (limit `seconds`)"
            )

    def member(self) -> None:
        """Count something that was made."""
        self._members += 1
        if self._members > self.limits.members:
            raise ArchiveRefused(
                f"it has more than {self.limits.members} members (limit `members`)"
            )


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a member's name, which is relative and stays where it is put; `./` is dropped.

    Raises:
        ArchiveRefused: the name leads elsewhere, would elsewhere, or is not what it looks like.
    """
    shown = ascii(name if len(name) <= 80 else name[:77] + "...")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise ArchiveRefused(f"the name {shown} is not UTF-8") from None
    if len(encoded) > MAX_NAME:
        raise ArchiveRefused(f"the name {shown} has {len(encoded)} bytes")
    if any(unicodedata.category(c) in ("Cc", "Zl", "Zp") or c in _BIDI for c in name):
        raise ArchiveRefused(f"the name {shown} has control characters")
    plain = unicodedata.normalize("NFKC", name)  # what a careless reader makes of it
    for form in (name, plain):
        if form.startswith("/") or "\\" in form or _DRIVE.match(form):
            raise ArchiveRefused(f"the name {shown} is not relative")
        if ".." in (part.strip() for part in form.split("/")):
            raise ArchiveRefused(f"the name {shown} leads out of the folder")
    if plain.count("/") != name.count("/"):
        raise ArchiveRefused(f"the name {shown} has letters that look like a slash")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if len(parts) > MAX_DEPTH:
        raise ArchiveRefused(f"the name {shown} lies {len(parts)} folders deep")
    if any(len(part.encode()) > MAX_PART for part in parts):
        raise ArchiveRefused(f"the name {shown} has a part of more than {MAX_PART} bytes")
    return parts


class Target:
    """A new folder, written under another name beside its place and renamed when it is whole.

    Files are made anew, never opened; they are ordinary files that nobody may execute, whatever the
    archive says of modes, owners and times.

    Args:
        folder: where it shall be; nothing, or an empty folder.
        budget: what may be used.

    Raises:
        ConfigError: there is something already, or no folder to put it into.
    """

    def __init__(self, folder: Path, budget: Budget) -> None:
        folder = Path(os.path.abspath(folder))
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise ConfigError(f"{folder} is not a folder; name one that is empty or is not there")
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; an archive is unpacked into a new folder")
        if not folder.parent.is_dir():
            raise ConfigError(f"there is no folder {folder.parent} to unpack into; make it first")
        self.files: list[str] = []
        self._folder, self._budget = folder, budget
        self._kinds: dict[tuple[str, ...], str] = {(): "folder"}
        self._beside = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
        self._inside = self._beside / "new"
        self._inside.mkdir()

    def add_folder(self, name: str) -> None:
        """Make a folder, and those it lies in; it may be there already."""
        self._make(parts_of(name))

    def add_file(self, name: str, chunks: Iterable[bytes]) -> None:
        """Make a file and write what it holds.

        Args:
            name: as the archive has it.
            chunks: its content; all of it is counted against the budget by whoever unpacks it.
        """
        parts = parts_of(name)
        if not parts or name.endswith("/"):
            raise ArchiveRefused(f"{name!a} is no name of a file")
        self._make(parts[:-1])
        if self._key(parts) in self._kinds:
            raise ArchiveRefused(f"there is {name!a} twice")
        self._kinds[self._key(parts)] = "file"
        self._budget.member()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        try:
            handle = os.open(self._inside.joinpath(*parts), flags, 0o666)
        except FileExistsError:  # a file system that does not tell these two names apart
            raise ArchiveRefused(f"there is {name!a} twice") from None
        with open(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        self.files.append("/".join(parts))

    def finish(self) -> None:
        """Put the whole folder into its place."""
        os.rename(self._inside, self._folder)
        self._beside.rmdir()

    def discard(self) -> None:
        """Remove everything that was written, if it is not in its place yet."""
        shutil.rmtree(self._beside, ignore_errors=True)

    def _make(self, parts: tuple[str, ...]) -> None:
        for depth in range(1, len(parts) + 1):
            key = self._key(parts[:depth])
            if key not in self._kinds:
                self._budget.member()
                try:
                    self._inside.joinpath(*parts[:depth]).mkdir()
                except FileExistsError:
                    raise ArchiveRefused(f"{'/'.join(parts[:depth])!a} is twice") from None
                self._kinds[key] = "folder"
            elif self._kinds[key] != "folder":
                raise ArchiveRefused(f"{'/'.join(parts[:depth])!a} is a file and a folder")

    @staticmethod
    def _key(parts: tuple[str, ...]) -> tuple[str, ...]:
        """Names that some file system takes for the same one are the same."""
        return tuple(unicodedata.normalize("NFC", part) for part in parts)
