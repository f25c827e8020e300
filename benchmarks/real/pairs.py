"""`python -m benchmarks.real.pairs` makes pairs for DPO of the rows of GSM8K: the solution of a
question, and that of the next one."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from mrlm.data.tasks import read_rows

ROWS = 512
PATH = Path(__file__).parent.parent / "results" / "real" / "pairs.jsonl"


def write(path: Path = PATH, rows: int = ROWS) -> None:
    """Writes the pairs as lines of JSON.

    Args:
        path: of the file.
        rows: number of pairs.
    """
    both = pairwise(read_rows("gsm8k", max_rows=rows + 1))
    pairs = [
        {"prompt": row["prompt"], "chosen": row["completion"], "rejected": other["completion"]}
        for row, other in both
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), encoding="utf-8")


if __name__ == "__main__":
    write()
