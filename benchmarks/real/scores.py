"""`python -m benchmarks.real.scores RUN` prints the scores of a run's first and last evaluation, as
shares with the 95 % interval of Wilson."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mrlm.core.statistics import wilson_interval

ROWS = 64
"""Tasks of each environment in `configs/real/scores.yaml`."""
SCORES = ("correct", "all_passed")


def table(metrics: Path) -> str:
    """A table of Markdown: rows, first and last score.

    Args:
        metrics: the file of a run.
    """
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    evaluated = [row for row in rows if any(name.startswith("eval/") for name in row)]
    lines = ["| rows | before | after |", "|---|---|---|"]
    for name in evaluated[0]:
        agent, _, score = name.removeprefix("eval/reward/").partition("/")
        if score in SCORES:
            cells = [_share(row[name]) for row in (evaluated[0], evaluated[-1])]
            lines.append(f"| {agent} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(share: float) -> str:
    low, high = wilson_interval(round(share * ROWS), ROWS)[1:]
    return f"{share:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    print(table(Path(sys.argv[1]) / "metrics.jsonl"))
