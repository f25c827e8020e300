"""`python -m benchmarks.sandbox`: how long a program takes in the sandbox, beside the same program
in a bare Python."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from benchmarks.report import machine
from mrlm.sandbox import LocalSandbox
from mrlm.sandbox.opening import TIERS
from mrlm.sandbox.tiers import python

PROGRAM = "import json, math, re, heapq\nprint(6 * 7)"
BARE = [python(), "-I", "-S", "-c", PROGRAM]
COLD_BAR = 40.0
"""Milliseconds that a run from nothing may take, at the median."""
WARM_BAR = 200.0
"""Runs per second with workers kept ready, each with namespaces of its own, on two cores."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tier.

    Args:
        cold: milliseconds of a run from nothing, median.
        bare: of a bare Python with the same program, median, in turn with it.
        warm: milliseconds of a run in a worker that is ready, median.
        rate: such runs per second on all cores.
    """

    tier: str
    cold: float
    bare: float
    warm: float
    rate: float


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measured(name: str, count: int) -> Row:
    """Cold runs and bare ones in turn, then warm ones."""
    fresh, kept = LocalSandbox(TIERS[name], reuse=False), LocalSandbox(TIERS[name])
    cold, bare = [], []
    for _ in range(count):
        cold.append(seconds(lambda: fresh.run_now(PROGRAM)))
        bare.append(
            seconds(
                lambda: subprocess.run([python(), "-I", "-S", "-c", PROGRAM], capture_output=True)
            )
        )
    assert kept.run_now(PROGRAM).stdout == "42\n"
    warm = [seconds(lambda: kept.run_now(PROGRAM)) for _ in range(count * 5)]
    with ThreadPoolExecutor(kept.workers) as pool:
        many = count * 10
        rate = many / seconds(lambda: list(pool.map(kept.run_now, [PROGRAM] * many)))
    for sandbox in (fresh, kept):
        sandbox.close()
    middle = (1e3 * statistics.median(times) for times in (cold, bare, warm))
    return Row(name, *(round(value, 1) for value in middle), round(rate))


def main() -> int:
    """Print a table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="cold runs of each tier")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rows = [measured(name, chosen.count) for name in TIERS]
    if chosen.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(f"Measured on {machine()}.\n")
        print("| tier | cold, ms | bare Python, ms | kept ready, ms | runs/s on all cores |")
        print("|---|---|---|---|---|")
        for row in rows:
            print(f"| {row.tier} | {row.cold} | {row.bare} | {row.warm} | {row.rate:.0f} |")
    return int(rows[0].cold > COLD_BAR or rows[0].rate < WARM_BAR)


if __name__ == "__main__":
    sys.exit(main())
