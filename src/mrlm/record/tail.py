"""The ends of files that grow line by line: read backwards, and cut."""

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mrlm.core.log import log
from mrlm.core.replacing import replacing

BLOCK = 1 << 18
"""Bytes that are read at a time."""


def lines_from_end(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from the last to the first, each with the offset of its first byte. They
    keep their ends; the last one may have none."""
    with path.open("rb") as file:
        at, rest = file.seek(0, os.SEEK_END), b""
        while at:
            size = min(BLOCK, at)
            at -= size
            file.seek(at)
            rest = file.read(size) + rest
            *whole, last = (line + b"\n" for line in rest.split(b"\n"))
            lines = [*whole, last[:-1]]
            offset = at + len(rest)
            for line in reversed(lines[1:]):
                offset -= len(line)
                if line:
                    yield offset, line
            rest = lines[0]
        if rest:
            yield 0, rest


_FLAT = re.compile(rb'\{"step": (\d+), [^{}\0]*\}\n')
"""A whole row of metrics, whose step is known without parsing the rest."""


def last_step(path: Path) -> float | None:
    """The step of the last line of a JSONL file; infinite if it is incomplete, `None` if it is
    damaged or does not exist."""
    return next((_step_of(line) for _, line in lines_from_end(path)), None)


def rewind(path: Path, step: int) -> None:
    """Keeps the lines of a JSONL file before `step`. An incomplete last line is dropped silently;
    damaged ones before it are dropped with a warning. A file that only loses its end is cut there,
    another is replaced atomically.

    The file is read from its end, until a line is found that is kept, and `BLOCK` bytes before it:
    what a crash damaged is there, and the rest may be long.
    """
    if not path.exists():
        return
    damaged, end, gaps = 0, 0, False
    for at, line in lines_from_end(path):
        number = _step_of(line)
        damaged += number is None
        if number is None or number >= step:
            gaps |= end > 0
        elif not end:
            end = at + len(line)
        if end and end - at >= BLOCK:
            break
    if gaps:
        _rewrite(path, step)
    elif end < path.stat().st_size:
        os.truncate(path, end)
    if damaged:
        log.warning("%s: %d damaged lines were dropped", path, damaged)


def _rewrite(path: Path, step: int) -> None:
    """Keeps the lines before `step`, wherever they are."""
    with replacing(path) as temporary, path.open("rb") as old, temporary.open("wb") as new:
        for line in old:
            number = _step_of(line)
            if number is not None and number < step:
                new.write(line)


def _step_of(line: bytes) -> float | None:
    """The step of a line; infinite for an incomplete one, `None` for a damaged one."""
    if not line.endswith(b"\n"):
        return math.inf
    flat = _FLAT.fullmatch(line)
    if flat:
        return int(flat[1])
    try:
        row = json.loads(line)
    except ValueError:
        return None
    step = row.get("step") if isinstance(row, dict) else None
    return step if isinstance(step, int) else None
