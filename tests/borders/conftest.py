"""Counts the cases of every border: `pytest tests/borders --borders FILE` merges them into FILE,
from which `python -m scripts.borders` writes the table of `docs/borders.md`.

A file of this folder declares `TITLE`, `JUDGE` (the program that decides, which is not ours) and
`DIFFERENCES` (where our answer differs by design, with the reason). A test is one case; one that
asks its judge several times says how often, with `record_property("cases", n)`.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest


class Tally:
    """Cases and passed cases of every file; a file whose tests were all skipped is left out.

    Args:
        path: JSON file that the counts are merged into.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failed_early = report.when == "setup" and report.failed
        if report.skipped or not (report.when == "call" or failed_early):
            return
        cases = sum(int(n) for name, n in report.user_properties if name == "cases") or 1
        count = self.counts[Path(report.nodeid.partition("::")[0]).name]
        count[0] += cases
        count[1] += cases if report.passed else 0

    def pytest_sessionfinish(self) -> None:
        old = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        new = {name: {"cases": n, "passed": passed} for name, (n, passed) in self.counts.items()}
        text = json.dumps(old | new, indent=2, sort_keys=True) + "\n"
        self.path.write_text(text, encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--borders", type=Path, help="merge the counts of all borders into this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--borders", None)
    if path and not hasattr(config, "workerinput"):  # with several workers, the one that gathers
        config.pluginmanager.register(Tally(path.absolute()))
