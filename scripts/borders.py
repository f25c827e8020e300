"""Writes the table of `docs/borders.md` from the files of `tests/borders` and their counts.

    python -m scripts.borders            run tests/borders, count, and write the table
    python -m scripts.borders --table    write the table from the counts at hand
    python -m scripts.borders --check    exit with 1 if the table is out of date

Tests that need another library are counted by `make test-extras`.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "borders"
COUNTS = ROOT / "docs" / "borders" / "counts.json"
PAGE = ROOT / "docs" / "borders.md"
MARK = "<!-- written by `python -m scripts.borders` -->"


def declared(file: Path) -> dict[str, object]:
    """`TITLE`, `JUDGE` and `DIFFERENCES` of a file of tests, without importing it."""
    values: dict[str, object] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("TITLE", "JUDGE", "DIFFERENCES"):
                values[name] = ast.literal_eval(node.value)
    missing = {"TITLE", "JUDGE", "DIFFERENCES"} - set(values)
    if missing:
        raise SystemExit(f"{file.name} does not declare {', '.join(sorted(missing))}")
    return values


def table() -> str:
    """The table: border, judge, cases, passed, differences by design."""
    counts = json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else {}
    rows = ["| border | judge | cases | passed | differences by design |", "|---|---|---|---|---|"]
    for file in sorted(FOLDER.glob("test_*.py")):
        border, count = declared(file), counts.get(file.name, {"cases": "-", "passed": "-"})
        differences = "; ".join(border["DIFFERENCES"]) or "none"  # type: ignore[arg-type]
        shown = (border["TITLE"], border["JUDGE"], count["cases"], count["passed"], differences)
        rows.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in shown) + " |")
    return "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """Counts if asked, and writes or checks the table."""
    failed = 0
    if not arguments:
        command = [sys.executable, "-m", "pytest", "-q", str(FOLDER), "--borders", str(COUNTS)]
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode
    text = PAGE.read_text(encoding="utf-8")
    before, mark, after = text.partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE.name} lacks the mark {MARK}")
    rest = after.partition("\n\n")[2].partition("\n\n")[2]
    made = f"{before}{MARK}\n\n{table()}" + (f"\n{rest}" if rest else "")
    if "--check" in arguments:
        if made != text:
            print(f"{PAGE.name} is out of date: python -m scripts.borders")
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
