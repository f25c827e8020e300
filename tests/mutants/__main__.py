"""Whether the tests notice mistakes: changes one place of the source at a time and runs the tests
that reach it.

    make mutants                       a sample of 120 over the rooms below
    make mutants ARGS="--count 40 --rooms learn/credit.py algorithms"
    make mutants ARGS="--rooms metrics.py --count 0"     every mutant of a file

The first run records which test reaches which line (`outputs/mutants`, minutes); remove the folder
after the tests have changed. Mutants that are no different are named in `equivalent.txt`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import coverage
import pytest
from tests.mutants.mutations import Mutant, mutants, mutated

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
RECORD = ROOT / "outputs" / "mutants"
EQUIVALENT = Path(__file__).parent / "equivalent.txt"
ROOMS = ("learn", "algorithms", "metrics.py", "cli", "population.py", "play/ratings.py")
MOST_TESTS = 40
"""Tests that are run against a mutant, the quickest first."""
MOST_SECONDS = 60.0
"""What these may take together, by what they took when they were recorded."""
LIMIT = 240.0
"""Seconds after which a mutant counts as noticed: it hangs."""
PRELOADED = (
    "torch",
    "transformers",
    "peft",
    "numpy",
    "pydantic",
    "yaml",
    "typer",
    "rich",
    "jinja2",
)


class Durations:
    """Pytest plug-in: seconds of every test."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def record(arguments: list[str]) -> None:
    """Run the tests once, and keep which lines each reaches and how long it takes."""
    RECORD.mkdir(parents=True, exist_ok=True)
    os.environ["COVERAGE_FILE"] = str(RECORD / "coverage")
    durations = Durations()
    options = [
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "--cov=mrlm",
        "--cov-report=",
        "--cov-fail-under=0",
    ]
    code = pytest.main([*options, "--cov-context=test", *arguments], plugins=[durations])
    if code != 0:
        raise SystemExit(f"tests must pass before they can be judged (pytest: {code})")
    (RECORD / "durations.json").write_text(json.dumps(durations.seconds), encoding="utf-8")


def reaching() -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    """File -> line -> the tests that reach it; and test -> seconds."""
    data = coverage.CoverageData(str(RECORD / "coverage"))
    data.read()
    found: dict[str, dict[int, list[str]]] = {}
    for path in data.measured_files():
        name = str(Path(path).relative_to(SOURCE / "mrlm"))
        lines = data.contexts_by_lineno(path)
        found[name] = {
            line: sorted({context.partition("|")[0] for context in contexts if context})
            for line, contexts in lines.items()
        }
    return found, json.loads((RECORD / "durations.json").read_text(encoding="utf-8"))


def candidates(rooms: list[str]) -> list[Mutant]:
    """Every mutant of the files of some rooms, but for those that are known to be equivalent."""
    same = {line.split("  #")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    found: list[Mutant] = []
    for room in rooms:
        place = SOURCE / "mrlm" / room
        files = [place] if place.suffix else sorted(place.rglob("*.py"))
        for file in files:
            name = str(file.relative_to(SOURCE / "mrlm"))
            every = mutants(name, file.read_text(encoding="utf-8"))
            found += [each for each in every if f"{each.file}  {each.text}" not in same]
    return found


def chosen_tests(tests: list[str], seconds: dict[str, float]) -> list[str]:
    """The quickest tests, as many as there is time for; always one."""
    ranked = sorted(tests, key=lambda test: seconds.get(test, 1e9))
    kept, total = ranked[:1], seconds.get(ranked[0], 0.0)
    for test in ranked[1:MOST_TESTS]:
        total += seconds.get(test, 1e9)
        if total > MOST_SECONDS:
            break
        kept.append(test)
    return kept


def noticed(mutant: Mutant, tests: list[str], tree: Path) -> bool:
    """Whether any of the tests fails with the mutant in `tree`, a copy of the source."""
    file = tree / "mrlm" / mutant.file
    source = file.read_text(encoding="utf-8")
    file.write_text(mutated(source, mutant), encoding="utf-8")
    sys.stdout.flush()
    try:
        child = os.fork()
        if child == 0:
            os.setsid()
            _run(tests, tree)
        return _wait(child) != 0
    finally:
        file.write_text(source, encoding="utf-8")


def _run(tests: list[str], tree: Path) -> None:
    """In a forked process: the tests against a copy of the source; ends the process."""
    code = 1
    try:
        os.environ["PYTHONPATH"] = f"{tree}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        sys.path.insert(0, str(tree))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "--timeout", "120"]
        code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)


def _wait(child: int) -> int:
    """Exit code of a child, which is killed with its own children when it takes too long."""
    ends = time.monotonic() + LIMIT
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=120, help="how many; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS))
    parser.add_argument("--tests", nargs="+", default=["tests"], help="which tests are recorded")
    parser.add_argument("--at-least", type=float, default=0.95)
    given = parser.parse_args()
    if not (RECORD / "durations.json").exists():
        # in a process of its own: here nothing of the project may be imported
        code = "from tests.mutants.__main__ import record; import sys; record(sys.argv[1:])"
        subprocess.run([sys.executable, "-c", code, *given.tests], cwd=ROOT, check=True)
    lines, seconds = reaching()
    every = candidates(given.rooms)
    reached = [each for each in every if lines.get(each.file, {}).get(each.line)]
    print(f"{len(every)} mutants, {len(reached)} of them on lines that a test reaches")
    random.Random(given.seed).shuffle(reached)
    sample = reached[: given.count] if given.count else reached
    for name in PRELOADED:
        __import__(name)
    tree = RECORD / "source"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(SOURCE, tree, ignore=shutil.ignore_patterns("__pycache__"))
    survivors: list[Mutant] = []
    begun = time.monotonic()
    for number, mutant in enumerate(sample, 1):
        tests = chosen_tests(lines[mutant.file][mutant.line], seconds)
        if not noticed(mutant, tests, tree):
            survivors.append(mutant)
            print(f"survived  {mutant}  ({len(tests)} tests)", flush=True)
        if number % 10 == 0:
            print(f"{number} of {len(sample)}, {time.monotonic() - begun:.0f} s", flush=True)
    share = 1 - len(survivors) / max(1, len(sample))
    print(f"{len(sample)} mutants, {len(sample) - len(survivors)} noticed ({share:.1%})")
    raise SystemExit(share < given.at_least)


if __name__ == "__main__":
    main()
