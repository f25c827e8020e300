"""Which test reaches which line: each file of tests has a record of its own, which is written when
its last test is over."""

import json
import os
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "mrlm"
RECORD = ROOT / "outputs" / "mutants"
ROOMS = ("learn", "algorithms", "training/metrics.py", "cli", "selfplay")
"""What is changed, below the source folder, and looked at while tests run."""


@dataclass(slots=True)
class Reached:
    """What tests reach, and how long they take.

    Args:
        seconds: test -> seconds; those that fail are not there.
        lines: file below the source folder -> line -> tests.
        widths: test -> how many lines it reaches.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    widths: Counter[str] = field(default_factory=Counter)

    def add(self, path: Path) -> None:
        """Take in the record of a file of tests."""
        found = json.loads(path.read_text(encoding="utf-8"))
        self.seconds |= found["seconds"]
        for file, lines in found["lines"].items():
            here = self.lines.setdefault(file, {})
            for line, tests in lines.items():
                here.setdefault(int(line), []).extend(tests)
                self.widths.update(tests)

    @classmethod
    def read(cls, files: list[str]) -> "Reached":
        """What is recorded of some files of tests."""
        found = cls()
        for file in sorted(files):
            found.add(RECORD / f"{file}.json")
        return found


class Recorder:
    """Pytest plug-in that writes the records."""

    def __init__(self) -> None:
        RECORD.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        where = [f"{SOURCE / room}{'' if room.endswith('.py') else '/*'}" for room in ROOMS]
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=where)
        self.coverage.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Files whose tests are all slow or skipped have an empty record."""
        looked_at = {item.path for item in session.items}
        for argument in session.config.args:
            if Path(argument) not in looked_at:
                self.write(Path(argument))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        self.coverage.switch_context(item.nodeid)
        result = yield
        self.coverage.switch_context("")
        if nextitem is None or nextitem.path != item.path:
            self.write(item.path)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def write(self, tests: Path) -> None:
        """The record of a file of tests; the next one begins with nothing."""
        self.coverage.stop()
        data = self.coverage.get_data()
        kept = {test: t for test, t in self.seconds.items() if test not in self.failed}
        lines: dict[str, dict[int, list[str]]] = {}
        for path in data.measured_files():
            found = {
                line: sorted(kept.keys() & set(contexts))
                for line, contexts in data.contexts_by_lineno(path).items()
            }
            lines[str(Path(path).relative_to(SOURCE))] = {n: t for n, t in found.items() if t}
        text = json.dumps({"seconds": kept, "lines": lines})
        temporary = RECORD / f".{tests.stem}-{os.getpid()}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(RECORD / f"{tests.stem}.json")
        self.seconds, self.failed = {}, set()
        self.coverage.erase()
        self.coverage.start()


def record(files: list[str]) -> None:
    """Run files of tests and write their records."""
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:cov"]
    code = pytest.main([*options, *files], plugins=[Recorder()])
    fine = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED
    if code not in fine:
        raise SystemExit(f"the tests could not be run (pytest: {code})")
