"""`python -m benchmarks --against COMMIT`: has anything become slower since a commit? Its rows are
measured in turn with those of the working copy, in processes of their own."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.side import MISSING
from mrlm.runs import handling, interrupt

ROOT = Path(__file__).parents[1]
SIDE = ROOT / "benchmarks" / "side.py"
TOLERANCE = 1.05
"""Ratio up to which a row counts as level, whatever its spread."""
MISSED = 0.1
"""Chance at most that the interval of a ratio does not contain it."""
PAIRS = 5
"""Pairs from which on an interval can be as sure as that."""

Verdict = Literal["slower", "faster", "level", "unknown"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A part of a row on both sides.

    Args:
        name: of the row, and of its part where it has several.
        ours, theirs: seconds (or what the row measures) of every process of the working copy, and
            of the commit, in the order they ran.
        reason: why there are none.
    """

    name: str
    ours: tuple[float, ...] = ()
    theirs: tuple[float, ...] = ()
    reason: str = ""

    @property
    def ratio(self) -> float:
        """Median of the working copy over that of the commit: above 1 it became slower."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the median of paired ratios."""
        return bounds([own / other for own, other in zip(self.ours, self.theirs, strict=True)])

    @property
    def verdict(self) -> Verdict:
        """`slower` if the whole interval is above `TOLERANCE`, `faster` if it is below its inverse.
        Too few pairs prove nothing."""
        if len(self.ours) < PAIRS:
            return "unknown"
        low, high = self.interval
        if low > TOLERANCE:
            return "slower"
        return "faster" if high < 1 / TOLERANCE else "level"

    def record(self) -> dict[str, Any]:
        """Everything as plain data."""
        row: dict[str, Any] = {"ours": self.ours, "theirs": self.theirs, "verdict": self.verdict}
        if self.reason:
            return row | {"reason": self.reason}
        return row | {"ratio": self.ratio, "interval": self.interval}


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """An interval that contains the median of what the values are drawn from, but for a chance of
    `MISSED`, whatever its distribution: as many of the smallest and of the largest values are left
    out as that allows (none of five to seven, one on either side from eight on)."""
    ordered, count = sorted(values), len(values)
    outside, chance = 0, 2 * 0.5**count
    while chance + 2 * math.comb(count, outside + 1) * 0.5**count <= MISSED:
        outside += 1
        chance += 2 * math.comb(count, outside) * 0.5**count
    return ordered[outside], ordered[count - 1 - outside]


@contextmanager
def checked_out(commit: str, root: Path = ROOT) -> Iterator[Path]:
    """A temporary working copy of a commit, which needs no network.

    Args:
        commit: anything that git resolves to a commit.
        root: the repository.

    Raises:
        LookupError: the repository has no such commit.
    """
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode:
        raise LookupError(
            f"--against {commit}: {root} has no such commit; in a shallow clone, fetch it first"
        )
    with tempfile.TemporaryDirectory(prefix="mrlm-against-") as place:
        folder = Path(place) / "other"
        made = _git(root, "worktree", "add", "--detach", str(folder), found.stdout.strip())
        if made.returncode:
            raise LookupError(f"--against {commit}: {made.stderr.strip()}")
        try:
            with handling(("SIGTERM",), interrupt):
                yield folder
        finally:
            _git(root, "worktree", "remove", "--force", str(folder))


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)


def compared(
    name: str, other: Path, pairs: int, rounds: int, threads: int, quick: bool, root: Path = ROOT
) -> list[Comparison]:
    """The parts of a row, measured in turn (working copy, commit, working copy, ...).

    Args:
        name: of the row.
        other: working copy of the commit.
        pairs: processes of either side.
        rounds: timed rounds of each, after one that is not counted.
        threads: of the numerical libraries.
        quick: tiny work.
        root: the working copy of this program.

    Raises:
        RuntimeError: a process failed.
    """
    sides = {"the working copy": root, "the commit": other}
    found: dict[str, list[dict[str, float]]] = {who: [] for who in sides}
    with tempfile.TemporaryDirectory(prefix="mrlm-models-") as models:
        for _ in range(pairs):
            for who, place in sides.items():
                record = _side(name, place, rounds, threads, quick, models)
                if reason := record.get("reason"):
                    text = f"{who} has no such row" if reason == MISSING else f"{who}: {reason}"
                    return [Comparison(name, reason=text)]
                found[who].append(record["parts"])
    ours, theirs = found.values()
    result = []
    for part in ours[0] | theirs[0]:
        whole = f"{name} {part}".strip()
        lacking = [who for who, each in found.items() if part not in each[0]]
        if lacking:
            result.append(Comparison(whole, reason=f"{lacking[0]} does not measure it"))
            continue
        mine, other_side = (tuple(each[part] for each in side) for side in (ours, theirs))
        result.append(Comparison(whole, mine, other_side))
    return result


def _side(
    name: str, place: Path, rounds: int, threads: int, quick: bool, models: str
) -> dict[str, Any]:
    """The record of one process."""
    words = [sys.executable, "-P", str(SIDE), name, "--models", models]
    words += ["--rounds", str(rounds), "--threads", str(threads), *["--quick"] * quick]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(place / "src"), str(place)]),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"row {name} in {place} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def table(found: Sequence[Comparison]) -> str:
    """A plain table, columns aligned."""
    lines = [("row", "ratio", "interval", "now", "before", "verdict")]
    for each in found:
        if each.reason:
            lines.append((each.name, "", "", "", "", each.reason))
            continue
        low, high = each.interval
        now, before = (f"{statistics.median(side):.4g}" for side in (each.ours, each.theirs))
        found_ratio, interval = f"{each.ratio:.2f}", f"{low:.2f}..{high:.2f}"
        lines.append((each.name, found_ratio, interval, now, before, str(each.verdict)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def guard(
    commit: str,
    names: Sequence[str],
    to: Path,
    *,
    pairs: int = PAIRS,
    rounds: int = 3,
    threads: int = 1,
    quick: bool = False,
    root: Path = ROOT,
) -> int:
    """Compares rows with those of a commit, prints the table and writes it to a file.

    Args:
        commit: the earlier revision.
        names: of the rows.
        to: the file of results.
        pairs, rounds, threads, quick, root: as for `compared`.

    Returns:
        The exit status: 1 if a row became slower, 2 if the commit does not exist.
    """
    found: list[Comparison] = []
    try:
        with checked_out(commit, root) as other:
            for name in names:
                print(f"{name} ...", file=sys.stderr, flush=True)
                found += compared(name, other, pairs, rounds, threads, quick, root)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    to.parent.mkdir(parents=True, exist_ok=True)
    rows = {each.name: each.record() for each in found}
    to.write_text(json.dumps({"against": commit, "pairs": pairs, "rows": rows}, indent=1) + "\n")
    print(f"The working copy over {commit}, {pairs} pairs; above 1 is slower.")
    print(table(found))
    if pairs < PAIRS:
        print(f"fewer than {PAIRS} pairs prove nothing: no row is judged")
    print(to)
    return int(any(each.verdict == "slower" for each in found))
