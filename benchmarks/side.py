"""One side of `--against`: measures a row once with the library of a working copy, in a process
of its own, and prints what it cost. It runs beside revisions that do not have it, so it uses names
only that they have too."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWN = {name: HERE / f"{name}.py" for name in ("quickstart", "grading", "prompts")}
"""Rows that this program measures where a revision does not have them."""
MISSING = "missing"


def parts_of(result: Any) -> dict[str, float]:
    """What a row cost: of a comparison the seconds of a step, of a growth the sum of each of its
    lines, else its value."""
    if result.ours is not None:
        return {"": result.ours}
    if result.lines:
        return {name: sum(y for _, y in points) for name, points in result.lines.items()}
    return {} if result.value is None else {"": result.value}


def measured(
    name: str, root: Path, rounds: int, threads: int, quick: bool, models: Path | None
) -> dict[str, Any]:
    """The record of a row in a working copy: `parts`, or the `reason` why there are none."""
    if name in OWN:
        return {"parts": runpy.run_path(str(OWN[name]))["stages"](root, quick, models)}
    from benchmarks.rows import Bench, Unavailable
    from benchmarks.table import ROWS

    row = {each.name: each for each in ROWS}.get(name)
    if row is None:
        return {"reason": MISSING}
    try:
        result = row.measure(Bench(rounds, threads, quick, peers=False))
    except Unavailable as error:
        return {"reason": str(error)}
    parts = parts_of(result)
    return {"parts": parts} if parts else {"reason": result.reason or "it has no value"}


def main() -> None:
    """Prints one line of JSON, the last of its output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", type=Path)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    import mrlm

    root = Path.cwd().resolve()
    if not Path(mrlm.__file__).resolve().is_relative_to(root):
        sys.exit(f"{mrlm.__file__} was imported, which is not of the working copy {root}")
    found = measured(chosen.row, root, chosen.rounds, chosen.threads, chosen.quick, chosen.models)
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
