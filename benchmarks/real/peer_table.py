"""The table of `benchmarks.real.peers` in a page: rows of its runs, which lie beside the page.

python -m benchmarks.real.peer_table docs/real-models.md RUN.log ...   # adds what these printed
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import write_page
from mrlm.core.statistics import mean_interval

MARKS = (
    "<!-- peers: written by `python -m benchmarks.real.peer_table` -->",
    "<!-- end of peers -->",
)
FILE = Path("real") / "peers.json"
GIB = 1 << 30
METHODS = ("grpo", "magrpo", "iac", "sft", "dpo")
LIBRARIES = {"trl": "TRL", "comlrl": "CoMLRL", "mrlm": "MRLM, the same program"}
Run = Mapping[str, Any]


def table(runs: Sequence[Run]) -> str:
    """Held-out rewards by step, processor seconds and peak of each program, and the seconds over
    those of the same program with this library: means with 95 % intervals."""
    lines = [
        "| | seeds | 0 | 5 | 10 | 15 | 20 | 25 | CPU s of 25 steps | over ours | peak, GiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        for library, name in LIBRARIES.items():
            chosen = [run for run in runs if (run["library"], run["method"]) == (library, method)]
            if not chosen:
                continue
            ours = [
                r["seconds"][-1] for r in runs if (r["library"], r["method"]) == ("mrlm", method)
            ]
            spent = [run["seconds"][-1] for run in chosen]
            ratio = sum(spent) / len(spent) / (sum(ours) / len(ours)) if ours else None
            scores = [run["rewards"] for run in chosen]
            cells = [f"{method.upper()}, {name}", str(len(chosen))]
            cells += [_interval(values, 2) for values in zip(*scores, strict=True)]
            cells += [_interval(spent, 0)]
            cells += ["" if library == "mrlm" or ratio is None else f"{ratio:.1f}"]
            cells += [f"{max(run['peak'] for run in chosen) / GIB:.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(values: Sequence[float], digits: int) -> str:
    mean, low, _ = mean_interval(values)
    text = f"{mean:z.{digits}f}".replace("-0.", "-.").removeprefix("0") or "0"
    half = f"{mean - low:.{digits}f}".removeprefix("0")
    return text if len(values) == 1 or not float(half or 0) else f"{text} ± {half}"


def published(page: Path) -> list[Run]:
    """The runs beside a page."""
    return json.loads((page.parent / FILE).read_text(encoding="utf-8"))


def main(given: Sequence[str] | None = None) -> int:
    """Adds runs and writes the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real.peer_table", description=__doc__
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("logs", type=Path, nargs="*", help="what runs have printed")
    chosen = parser.parse_args(given)
    path = chosen.page.parent / FILE
    runs = published(chosen.page) if path.is_file() else []
    for log in chosen.logs:
        lines = log.read_text(encoding="utf-8").splitlines()
        runs += [json.loads(line) for line in lines if line.startswith('{"library"')]
    unique = {(run["library"], run["method"], run["seed"]): run for run in runs}
    runs = [unique[key] for key in sorted(unique)]
    path.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n", encoding="utf-8")
    write_page(chosen.page, table(runs), MARKS)
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
