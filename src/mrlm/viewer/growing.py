"""Files that a run appends to, read from where the last read ended: lines of JSON, and the parts of
the file of episodes."""

import hashlib
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mrlm.record.files import INDEX, Part, episode_file, indexed_part, scanned_parts

READ = 1 << 22
"""Bytes of lines that are read at once."""
SCANNED = 64
"""Parts without an index that are read at once."""
COMPARED = 512
"""Bytes before an offset by which a file that was written again is noticed."""


class RewrittenError(Exception):
    """A file does not continue what was read of it: its run was resumed from an earlier step, or
    its record was thinned."""


def ending(path: Path, at: int) -> str:
    """A digest of the bytes before an offset."""
    with path.open("rb") as file:
        file.seek(max(0, at - COMPARED))
        return hashlib.blake2b(file.read(min(at, COMPARED)), digest_size=8).hexdigest()


class Position:
    """The position up to which a file was read: the offset of the first byte that was not read, and
    a digest of the bytes before it."""

    def __init__(self, at: int = 0, mark: str = "") -> None:
        self.at: int = at
        self.mark: str = mark
        self._seen: tuple[int, int, int] | None = None

    def record(self) -> list[Any]:
        """The position as JSON, the arguments of another one."""
        return [self.at, self.mark]

    def move(self, path: Path, at: int) -> None:
        """Sets the position after a read."""
        self.at, self.mark = at, ending(path, at)

    def check(self, path: Path) -> bool:
        """Whether the file has changed since the last check. Raises `RewrittenError`: it does not
        continue what was read."""
        if not path.is_file():
            if self.at:
                raise RewrittenError
            return False
        stat = path.stat()
        seen = stat.st_ino, stat.st_size, stat.st_mtime_ns
        if seen == self._seen:
            return False
        if stat.st_size < self.at or (self.at and ending(path, self.at) != self.mark):
            raise RewrittenError
        self._seen = seen
        return True


class GrowingLines:
    """The lines of a JSONL file, which may not exist yet, as they are written."""

    def __init__(self, path: Path, position: Position) -> None:
        self.path: Path = path
        self.position: Position = position
        self.more: bool = False
        """Whether the last read left lines."""

    def read(self) -> list[dict[str, Any]]:
        """The next whole lines. Raises `RewrittenError`: the file does not continue what was
        read."""
        if not (self.position.check(self.path) or self.more):
            return []
        with self.path.open("rb") as file:
            file.seek(self.position.at)
            data = file.read(READ)
            if len(data) == READ:
                data += file.readline()
        self.more = len(data) >= READ
        whole = data[: data.rfind(b"\n") + 1]
        if whole:
            self.position.move(self.path, self.position.at + len(whole))
        return [row for line in whole.splitlines() if isinstance(row := _json(line), dict)]


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


class GrowingParts:
    """The parts of a run folder's file of episodes, as they are written: by its index, and where
    the index has no line for them, from the file. Parts before `position` are found again."""

    def __init__(self, folder: Path, position: Position) -> None:
        self.folder: Path = folder
        self.position: Position = position
        self.known: list[Part] = []
        """The parts, without the marks of their ids: these are most of a long index."""
        self.episodes: int = 0
        self.more: bool = False
        """Whether the last read left parts."""
        self._index = Position()
        self._tail: tuple[int, int] = (0, 0)
        self._tries = 0
        """Calls that found the file with the same bytes after its parts."""

    @property
    def end(self) -> int:
        return self.known[-1].end if self.known else 0

    def read(self) -> None:
        """Adds new parts to those known. Raises `RewrittenError`: the file does not continue what
        was read."""
        self.more = False
        path = episode_file(self.folder)
        if path is None:
            if self.position.at:
                raise RewrittenError
            return
        self.position.check(path)
        size = path.stat().st_size
        self._read_index(size)
        if self.end < size:
            self._scan(path, size)
        if self.end > self.position.at:
            self.position.move(path, self.end)

    def _read_index(self, size: int) -> None:
        """Adds the parts of new lines of the index; those whose bytes are not there yet wait."""
        index = self.folder / INDEX
        self._index.check(index)
        if not index.is_file():
            return
        at = self._index.at
        with index.open("rb") as file:
            file.seek(at)
            for line in file:
                part = indexed_part(line) if line.endswith(b"\n") else None
                if part is None or part.end > size or part.at > self.end:
                    break
                if part.end > self.end:
                    if part.at < self.end:
                        raise RewrittenError
                    self._add(part)
                at += len(line)
        if at > self._index.at:
            self._index.move(index, at)

    def _scan(self, path: Path, size: int) -> None:
        """Adds parts that the index does not have. Its line is written after the part, so that the
        file is read only where it has not grown since the last call."""
        tail = self.end, size
        self._tries = self._tries + 1 if tail == self._tail else 0
        self._tail = tail
        if self._tries == (self.folder / INDEX).is_file():
            new_parts = list(islice(scanned_parts(path, self.end), SCANNED))
            for part in new_parts:
                self._add(part)
            self.more = len(new_parts) == SCANNED

    def _add(self, part: Part) -> None:
        self.known.append(replace(part, ids=None))
        self.episodes += part.episodes
