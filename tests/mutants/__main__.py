"""Whether the tests notice mistakes: changes one place of the source at a time and runs the tests
that reach it.

    make mutants                       a sample of 120 over the rooms below
    make mutants ARGS="--count 40 --rooms learn/credit/groups.py algorithms"
    make mutants ARGS="--rooms training/metrics.py --count 0"     every mutant of a file

Which test reaches which line is recorded first (`outputs/mutants`, minutes), and again for files of
tests that are newer than their record; remove the folder after the source has changed. Tests that
fail unchanged are left out. Survivors are listed in `outputs/mutants/survivors.txt`, and `--again`
tries them again. Mutants that are no different are named in `equivalent.txt`, by the same keys.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.mutants.mutations import Mutant, mutants, mutated
from tests.mutants.recording import RECORD, ROOT, SOURCE, Reached

EQUIVALENT = Path(__file__).parent / "equivalent.txt"
ROOMS = ("learn", "algorithms", "training/metrics.py", "cli", "selfplay")
SURVIVORS = RECORD / "survivors.txt"
MOST_TESTS = 120
"""Tests that are run against a mutant."""
SETTINGS = ["tests/test_algorithm_settings.py::test_defaults_and_bounds_are_those_of_the_table"]
"""Run against every mutant of an algorithm: defaults are read at import, before any test."""
LIMIT = 600.0
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


def record(tests: list[str], jobs: int) -> None:
    """Run files of tests in so many processes, and note what each reaches: here nothing of the
    project may be imported."""
    code = "import sys; from tests.mutants.recording import record; record(sys.argv[1:])"
    parts = [tests[number::jobs] for number in range(jobs)]
    started = [
        subprocess.Popen([sys.executable, "-c", code, *part], cwd=ROOT) for part in parts if part
    ]
    codes = [each.wait() for each in started]
    if any(codes):
        raise SystemExit("the tests could not be run")


def candidates(rooms: list[str]) -> list[Mutant]:
    """Every mutant of the files of some rooms, but for those that are known to be equivalent."""
    same = {
        line.partition("  #")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()
    }
    found: list[Mutant] = []
    for room in rooms:
        place = SOURCE / room
        files = [place] if place.suffix else sorted(place.rglob("*.py"))
        for file in files:
            name = str(file.relative_to(SOURCE))
            every = mutants(name, file.read_text(encoding="utf-8"))
            found += [each for each in every if each.key not in same]
    return found


def chosen_tests(tests: list[str], reached_by: Reached, most: float) -> list[str]:
    """Those that reach the fewest lines, which is where a line is looked at most closely: as many
    as there are seconds for; always one."""
    seconds, widths = reached_by.seconds, reached_by.widths
    ranked = sorted(tests, key=lambda test: (widths[test], seconds[test]))
    kept, total = ranked[:1], sum(seconds[test] for test in ranked[:1])
    for test in ranked[1:MOST_TESTS]:
        total += seconds[test]
        if total > most:
            break
        kept.append(test)
    return kept


class Trial:
    """A mutant in a copy of the source, and the tests that run against it in a process."""

    def __init__(self, mutant: Mutant, tests: list[str], tree: Path) -> None:
        self.mutant, self.tests, self.tree = mutant, tests, tree
        self.file = tree / "mrlm" / mutant.file
        self.source = self.file.read_text(encoding="utf-8")
        self.file.write_text(mutated(self.source, mutant), encoding="utf-8")
        self.ends = time.monotonic() + LIMIT
        sys.stdout.flush()
        self.child = os.fork()
        if self.child == 0:
            os.setsid()
            _run(tests, tree)

    def noticed(self) -> bool | None:
        """Whether a test fails or hangs; None while they run. Takes the mutant back at the end."""
        done, status = os.waitpid(self.child, os.WNOHANG)
        if done:
            found = os.waitstatus_to_exitcode(status) != 0
        elif time.monotonic() > self.ends:
            print(f"hangs  {self.mutant}", flush=True)
            os.killpg(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            found = True
        else:
            return None
        self.file.write_text(self.source, encoding="utf-8")
        return found


def trials(
    sample: list[Mutant], trees: list[Path], tests: Callable[[Mutant], list[str]]
) -> Iterator[tuple[Trial, bool]]:
    """Every mutant and whether it is noticed; as many at once as there are copies of the source."""
    waiting, free, running = list(reversed(sample)), list(trees), list[Trial]()
    while waiting or running:
        while waiting and free:
            mutant = waiting.pop()
            running.append(Trial(mutant, tests(mutant), free.pop()))
        time.sleep(0.05)
        for trial in list(running):
            found = trial.noticed()
            if found is not None:
                running.remove(trial)
                free.append(trial.tree)
                yield trial, found


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


def copies(number: int) -> list[Path]:
    """As many copies of the source."""
    trees = [RECORD / f"source-{each}" for each in range(number)]
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(SOURCE.parent, tree, ignore=shutil.ignore_patterns("__pycache__"))
    return trees


def _recorded(tests: Path) -> bool:
    """Whether there is a record of a file of tests as it is."""
    record = RECORD / f"{tests.stem}.json"
    return record.exists() and record.stat().st_mtime > tests.stat().st_mtime


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=120, help="how many; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS))
    parser.add_argument("--tests", nargs="+", help="files of tests, instead of all of them")
    parser.add_argument("--record", action="store_true", help="record these tests again")
    parser.add_argument("--again", action="store_true", help="only the survivors of last time")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="what the tests of a mutant may take together, by what they took when recorded",
    )
    parser.add_argument("--at-least", type=float, default=0.95)
    given = parser.parse_args()
    files = given.tests or sorted(str(path) for path in (ROOT / "tests").glob("test_*.py"))
    wanted = [each for each in files if given.record or not _recorded(Path(each))]
    record(wanted, given.jobs)
    reached_by = Reached.read()
    lines = reached_by.lines
    every = candidates(given.rooms)
    reached = [each for each in every if lines.get(each.file, {}).get(each.line)]
    print(f"{len(every)} mutants, {len(reached)} of them on lines that a test reaches", flush=True)
    random.Random(given.seed).shuffle(reached)
    sample = reached[: given.count] if given.count else reached
    if given.again:
        listed = set(SURVIVORS.read_text(encoding="utf-8").splitlines())
        sample = [each for each in every if each.key in listed]
    for name in PRELOADED:
        __import__(name)

    def tests(mutant: Mutant) -> list[str]:
        found = lines.get(mutant.file, {}).get(mutant.line, [])
        chosen = chosen_tests(found, reached_by, given.seconds)
        return [*SETTINGS, *chosen] if mutant.file.startswith("algorithms/") else chosen

    survivors: list[Mutant] = []
    begun = time.monotonic()
    results = trials(sample, copies(given.jobs), tests)
    for number, (trial, noticed) in enumerate(results, 1):
        if not noticed:
            survivors.append(trial.mutant)
            print(f"survived  {trial.mutant}  ({len(trial.tests)} tests)", flush=True)
        if number % 10 == 0:
            print(f"{number} of {len(sample)}, {time.monotonic() - begun:.0f} s", flush=True)
    SURVIVORS.write_text("\n".join(each.key for each in survivors) + "\n", encoding="utf-8")
    share = 1 - len(survivors) / max(1, len(sample))
    print(f"{len(sample)} mutants, {len(sample) - len(survivors)} noticed ({share:.1%})")
    raise SystemExit(share < given.at_least)


if __name__ == "__main__":
    main()
