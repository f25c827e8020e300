"""The file of episodes and its index: every write is one part, a whole gzip member (or lines of
text), and one line of the index says where it is. Parts of a step are removed by cutting the file.
"""

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from mrlm.core.replacing import replacing
from mrlm.record.opening import parsed_line, run_file
from mrlm.record.tail import lines_from_end

COMPRESSED, PLAIN, INDEX = "episodes.jsonl.gz", "episodes.jsonl", "episodes.index"
LEVEL = 6
"""Level of compression."""
LOOKED_BACK = 64
"""Training steps before the end of a file that show which ones thinning has left."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the file: the episodes of one step's training or evaluation.

    Args:
        at: offset of its first byte; `size` is the number of bytes.
        ids: four hexadecimal digits for the id of every episode; `None` in earlier versions.
    """

    step: int
    evaluation: bool
    at: int
    size: int
    episodes: int
    ids: str | None = None

    @property
    def end(self) -> int:
        return self.at + self.size

    def may_have(self, id: str) -> bool:
        """Whether an episode can be in it; few parts say so that do not have it."""
        mark, ids = _mark_of(id), self.ids
        if ids is None or mark not in ids:
            return ids is None
        return any(ids[at : at + 4] == mark for at in range(0, len(ids), 4))


class EpisodeFile:
    """Appends episodes to a run folder.

    A file over its limit is thinned: of training steps only those divisible by 2 are kept, then
    those by 4, and so on; evaluations stay.

    Args:
        folder: the run folder.
        first: parts of this step and later ones are removed.
        compress: whether a new file is compressed; one that exists stays as it is.
        max_bytes: limit of the file's size.
    """

    def __init__(
        self, folder: Path, first: int = 0, *, compress: bool = True, max_bytes: int | None = None
    ) -> None:
        self.path: Path = episode_file(folder) or folder / (COMPRESSED if compress else PLAIN)
        self.index: Path = folder / INDEX
        self.max_bytes = max_bytes
        self._cut(first)
        self._look_back()

    def _cut(self, first: int) -> None:
        """Keep the parts of earlier steps than `first`, which are a beginning of the file: both it
        and the index are cut after the last one, and what is before is not read."""
        last, index_end = self._last_before(first)
        self.size: int = 0 if last is None else last.end
        more: list[Part] = []
        if first and self.path.exists():  # parts that the index does not have
            later = scanned_parts(self.path, self.size)
            more = list(takewhile(lambda part: part.step < first, later))
            self.size = more[-1].end if more else self.size
        if self.path.exists() and self.path.stat().st_size > self.size:
            os.truncate(self.path, self.size)
        if self.index.exists():
            os.truncate(self.index, index_end)
        _extend(self.index, "".join(map(_line, more)).encode())

    def _last_before(self, first: int) -> tuple[Part | None, int]:
        """The last part in the index of an earlier step that the file has, and the offset in the
        index after its line."""
        if first == 0 or not (self.index.is_file() and self.path.exists()):
            return None, 0
        length = self.path.stat().st_size
        for at, line in lines_from_end(self.index):
            part = indexed_part(line) if line.endswith(b"\n") else None
            if part and part.step < first and part.end <= length:
                return (part, at + len(line)) if _has(self.path, part) else (None, 0)
        return None, 0

    def _look_back(self) -> None:
        """Find what thinning has left: the largest power of two that divides all training steps,
        read from the end until it can be no smaller, or a step in between would have been seen."""
        self._training: int = 0
        steps = bits = 0
        for _, line in lines_from_end(self.index):
            part = indexed_part(line)
            if part is None or part.evaluation:
                continue
            self._training += 1
            steps, bits = steps + bool(part.step), bits | part.step
            if steps > 1 and (bits & 1 or steps == LOOKED_BACK):
                break
        self.every: int = bits & -bits if steps > 1 else 1

    def append(
        self, step: int, rows: Iterable[Mapping[str, Any]], *, evaluation: bool = False
    ) -> bool:
        """Writes rows as one part, each as soon as it is made; none of them is read if the step is
        not kept. Returns whether the file was thinned. Raises `OSError`: it cannot be written."""
        if not (evaluation or step % self.every == 0):
            return False
        # non-ASCII is escaped: no control code of a model's text reaches a terminal
        encode = json.JSONEncoder(allow_nan=False, check_circular=False).encode
        lines, marks = [], []
        for row in rows:
            lines.append(encode({"step": step, **row}))
            marks.append(_mark_of(str(row["id"])))
        if not lines:
            return False
        data = "\n".join([*lines, ""]).encode()
        if self.path.suffix == ".gz":
            data = gzip.compress(data, LEVEL, mtime=0)
        _extend(self.path, data)
        part = Part(step, evaluation, self.size, len(data), len(lines), "".join(marks))
        _extend(self.index, _line(part).encode())
        self.size = part.end
        self._training += not evaluation
        # a single training step is kept, however large evaluations are
        if self.max_bytes is None or self.size <= self.max_bytes or self._training < 2:
            return False
        return self._thin()

    def _thin(self) -> bool:
        """Remove every second training step, until at most half of the limit is used."""
        parts = remaining = parts_of(self.path.parent)
        every = self.every
        while sum(part.size for part in remaining) > (self.max_bytes or 0) // 2:
            every *= 2
            fewer = [part for part in remaining if part.evaluation or part.step % every == 0]
            if all(part.evaluation for part in fewer):
                break
            remaining, self.every = fewer, every
        if remaining == parts:
            return False
        moved, end = [], 0
        with replacing(self.path) as temporary:
            with self.path.open("rb") as old, temporary.open("wb") as new:
                for part in remaining:
                    old.seek(part.at)
                    new.write(old.read(part.size))
                    moved.append(replace(part, at=end))
                    end += part.size
            _replace(self.index, b"")  # without an index the file is read from its beginning
        _replace(self.index, "".join(_line(part) for part in moved).encode())
        self.size, self._training = end, sum(not part.evaluation for part in moved)
        return True


def episode_file(folder: Path) -> Path | None:
    """The file of episodes of a run folder, if there is one."""
    return run_file(folder, COMPRESSED) or run_file(folder, PLAIN)


def parts_of(folder: Path) -> list[Part]:
    """The whole parts of a run folder's file of episodes, by its index; what the index does not
    have (its line was not written, or there is no index) is read from the file."""
    path = episode_file(folder)
    if path is None:
        return []
    length, parts = path.stat().st_size, []
    index = run_file(folder, INDEX)
    if index is not None:
        for line in index.read_text(encoding="utf-8").splitlines():
            part = indexed_part(line)
            if part is None or part.end > length or part.at != (parts[-1].end if parts else 0):
                break
            parts.append(part)
    start = parts[-1].end if parts else 0
    return [*parts, *scanned_parts(path, start)] if start < length else parts


def indexed_part(line: str | bytes) -> Part | None:
    """The part that a line of the index describes; `None` if the line is damaged."""
    try:
        return Part(**json.loads(line))
    except (ValueError, TypeError):
        return None


def rows_of(
    folder: Path,
    parts: Iterable[Part] | None = None,
    id: str | None = None,
    most: int | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of some parts of a run folder, or of the whole file, without an incomplete end:
    those of one episode (`id`), for which only parts that may have it are read, or the `most` first
    rows of each part, whose rest is not decompressed."""
    mark = b"" if id is None else json.dumps(id).encode()
    path = episode_file(folder)
    if path is None:
        return
    for part in parts_of(folder) if parts is None else parts:
        if id is not None and not part.may_have(id):
            continue
        for line in lines_of(path, part.at, part.size, most):
            if mark in line:
                row = parsed_line(line, path)
                if id is None or row.get("id") == id:
                    yield row


def lines_of(path: Path, at: int, size: int, most: int | None = None) -> list[bytes]:
    """The lines of a part of the file of episodes, `size` bytes from the offset `at`; the `most`
    first ones, or all. Raises `OSError`, `EOFError` or `zlib.error`: no compressed part is
    there."""
    with path.open("rb") as file:
        file.seek(at)
        data = file.read(size)
    if most is not None:
        whole = io.BytesIO(data)
        return list(islice(gzip.GzipFile(fileobj=whole) if path.suffix == ".gz" else whole, most))
    return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()


def last_parts(folder: Path, first: int) -> list[Part]:
    """The parts of a step and later ones, by the end of an index without damage."""
    parts: list[Part] = []
    for _, line in lines_from_end(folder / INDEX):
        part = indexed_part(line)
        if part is None or part.step < first:
            break
        parts.append(part)
    return parts[::-1]


def scanned_parts(path: Path, start: int) -> Iterator[Part]:
    """The parts of a file without an index, from an offset: runs of rows of one step."""
    pieces = _members(path, start) if path.suffix == ".gz" else _lines(path, start)
    held: Part | None = None
    for at, size, data in pieces:
        try:
            rows = [json.loads(line) for line in data.splitlines()]
            step, evaluation = rows[0]["step"], str(rows[0]["id"]).startswith("eval/")
            ids = "".join(_mark_of(str(row["id"])) for row in rows)
        except (ValueError, KeyError, IndexError, TypeError):
            break
        if held and path.suffix != ".gz" and (held.step, held.evaluation) == (step, evaluation):
            joined_ids, count = f"{held.ids}{ids}", held.episodes + len(rows)
            held = Part(step, evaluation, held.at, held.size + size, count, joined_ids)
            continue
        if held:
            yield held
        held = Part(step, evaluation, at, size, len(rows), ids)
    if held:
        yield held


def _lines(path: Path, start: int) -> Iterator[tuple[int, int, bytes]]:
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield start, len(line), line
            start += len(line)


def _members(path: Path, start: int) -> Iterator[tuple[int, int, bytes]]:
    """The whole gzip members of a file from an offset."""
    with path.open("rb") as file:
        while True:
            file.seek(start)
            inflate, pieces, size = zlib.decompressobj(wbits=31), [], 0
            while not inflate.eof:
                chunk = file.read(1 << 20)
                if not chunk:
                    return
                try:
                    pieces.append(inflate.decompress(chunk))
                except zlib.error:
                    return
                size += len(chunk) - len(inflate.unused_data)
            yield start, size, b"".join(pieces)
            start += size


def _has(path: Path, part: Part) -> bool:
    """Whether a file has a part where the index says so."""
    try:
        row = json.loads(lines_of(path, part.at, part.size)[0])
        return bool(row["step"] == part.step)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, IndexError, TypeError):
        return False


def _mark_of(id: str) -> str:
    return hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()


def _line(part: Part) -> str:
    fields = {name: value for name, value in asdict(part).items() if value is not None}
    return json.dumps(fields) + "\n"


def _extend(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _replace(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)
