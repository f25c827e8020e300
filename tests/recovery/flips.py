"""Checkpoints whose bits flip: it is noticed and said, and an older one taken."""

import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mrlm.learn.checkpoint import checkpoints, newest_verified
from recovery.runs import Found


def flipped(count: int, folder: Path, seed: int = 0) -> Found:
    """Flip single bits in the newest checkpoint of a run; each has to be noticed, the older one
    taken, and the damaged one named.

    Args:
        count: how many.
        folder: of a run with two checkpoints or more; it is as before afterwards.
        seed: of what is chosen.
    """
    found, started, rng = Found(), time.monotonic(), random.Random(seed)
    newest, older = checkpoints(folder)[:2]
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    tried: Counter[str] = Counter()
    said = _Said()
    loud = logging.getLogger("mrlm")
    loud.addHandler(said)
    try:
        for number in range(count):
            # every file comes, also small ones; and most bits lie in the large ones
            path = files[number % len(files)] if number % 2 else _by_size(files, rng)
            place, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
            tried[path.suffix or path.name] += 1
            said.lines.clear()
            _flip(path, place, bit)
            taken = newest_verified(folder)
            named = any(str(newest) in line for line in said.lines)
            _flip(path, place, bit)
            if taken == older and named:
                found.survived += 1
            else:
                found.blame(f"{path.relative_to(folder)}, bit {bit} of byte {place}: {taken} taken")
    finally:
        loud.removeHandler(said)
    if newest_verified(folder) != newest:
        found.blame("the checkpoint is not what it was")
    found.tried, found.seconds = dict(tried.most_common()), time.monotonic() - started
    return found


def _by_size(files: Sequence[Path], rng: random.Random) -> Path:
    return rng.choices(files, [path.stat().st_size for path in files])[0]


def _flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


class _Said(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
