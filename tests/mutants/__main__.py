"""Whether the tests notice mistakes: changes one place of the source at a time and runs the tests
that reach it.

    make mutants                       a sample of 120 over the rooms below
    make mutants ARGS="--count 40 --rooms learn/credit/groups.py algorithms"
    make mutants ARGS="--rooms training/metrics.py --count 0"     every mutant of a file
    make mutants ARGS="--again --tests tests/unit/learn/test_credit.py"
                                       do these notice the survivors?

Which test reaches which line is recorded first (`outputs/mutants`, minutes), and again for files of
tests that are newer than their record; remove the folder after the source has changed. Tests that
fail unchanged are left out. Survivors are listed in `outputs/mutants/survivors.txt`. Mutants that
are no different are named in `equivalent.txt`, by the same keys.
"""

import argparse
import ast
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutations import Mutant, mutants, mutated
from tests.mutants.recording import RECORD, ROOMS, ROOT, SOURCE, Reached

EQUIVALENT = Path(__file__).parent / "equivalent.txt"
SURVIVORS = RECORD / "survivors.txt"
MOST_TESTS = 120
"""Tests that are run against a mutant at first."""
WIDER = 6.0
"""How much longer the tests may take, with no limit to their number, that a survivor meets next."""
DEFAULTS = "tests/contracts/test_defaults.py::test_defaults_are_those_of_the_table"
SETTINGS = {
    "algorithms/": [
        "tests/contracts/test_algorithm_settings.py::test_defaults_and_bounds_are_those_of_the_table",
        "tests/contracts/test_paper_presets.py::test_the_page_is_that_of_the_tables",
        f"{DEFAULTS}[specs]",
    ],
    "learn/": [f"{DEFAULTS}[arguments]", f"{DEFAULTS}[specs]"],
    "cli/": [f"{DEFAULTS}[options]"],
}
"""Run against every mutant of a folder: defaults are read at import, before any test."""
HANGS = 240.0
"""Seconds beside those of its tests after which a process hangs; a busy machine starts it late."""
KINDS = ("unit", "contracts", "properties", "system")
"""The folders of tests."""


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


def at_import(file: str) -> set[int]:
    """The lines of a file outside of functions, which run when it is imported."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return set(range(1, tree.body[-1].end_lineno or 0)) - inside


def chosen_tests(tests: list[str], reached_by: Reached, most: float) -> list[str]:
    """Of the seconds that there are, half go to the shortest ones; the rest to those that reach the
    fewest lines, which is where a line is looked at most closely, first one of every file of tests,
    since files look at different things, then a second one, and so on. Always one; the shortest
    stand first."""
    seconds, widths = reached_by.seconds, reached_by.widths
    kept: set[str] = set()
    total = 0.0
    for test in sorted(tests, key=lambda test: seconds[test]):
        if total + seconds[test] > most / 2:
            break
        kept.add(test)
        total += seconds[test]
    of_file: Counter[str] = Counter()
    ranked: list[tuple[int, int, str]] = []
    for test in sorted(tests, key=lambda test: (widths[test], seconds[test])):
        file = test.partition("::")[0]
        ranked.append((of_file[file], widths[test], test))
        of_file[file] += 1
    for _, _, test in sorted(ranked):
        if test not in kept and (not kept or total + seconds[test] <= most):
            kept.add(test)
            total += seconds[test]
    return sorted(kept, key=lambda test: seconds[test])


def survives(mutant: Mutant, tests: list[str], seconds: float, tree: Path) -> bool:
    """Whether tests that take so many seconds notice nothing, in a process that ends with the first
    failure, of a mutant in a copy of the source: so it is seen by what is done at import, and by
    the processes that tests start."""
    file = tree / "mrlm" / mutant.file
    source = (SOURCE / mutant.file).read_text(encoding="utf-8")
    file.write_text(mutated(source, mutant), encoding="utf-8")
    options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:cov"]
    child = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = child.wait(HANGS + 4.0 * seconds)
    except subprocess.TimeoutExpired:
        print(f"hangs  {mutant}", flush=True)
        code = 1
    with contextlib.suppress(ProcessLookupError):  # and whatever it has started
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    file.write_text(source, encoding="utf-8")
    return code == 0


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=120, help="how many; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS))
    parser.add_argument("--tests", nargs="+", help="files of tests, instead of all of them")
    parser.add_argument("--record", action="store_true", help="record these tests again")
    parser.add_argument(
        "--again",
        nargs="?",
        const=SURVIVORS,
        type=Path,
        metavar="LIST",
        help="only the survivors of last time, or those of a list",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="what the tests of a mutant may take together, by what they took when recorded",
    )
    parser.add_argument(
        "--quick", action="store_true", help="do not try survivors again with many more tests"
    )
    parser.add_argument("--at-least", type=float, default=0.95)
    return parser.parse_args()


def main() -> None:
    """See the top of the file."""
    options = _arguments()
    folders = [ROOT / "tests" / kind for kind in KINDS]
    every_file = sorted(str(path) for folder in folders for path in folder.rglob("test_*.py"))
    files = options.tests or every_file
    wanted = [each for each in files if options.record or not _recorded(Path(each))]
    record(wanted, options.jobs)
    reached_by = Reached.read([Path(each).stem for each in files])
    lines = reached_by.lines
    every = candidates(options.rooms)
    reached = [each for each in every if lines.get(each.file, {}).get(each.line)]
    print(f"{len(every)} mutants, {len(reached)} of them on lines that a test reaches", flush=True)
    random.Random(options.seed).shuffle(reached)
    sample = reached[: options.count] if options.count else reached
    if options.again:
        listed = set(options.again.read_text(encoding="utf-8").splitlines())
        sample = [each for each in every if each.key in listed]

    imported = {file: at_import(file) for file in {mutant.file for mutant in sample}}

    def tests(mutant: Mutant, many: bool) -> tuple[list[str], float]:
        here = lines.get(mutant.file, {})
        found = here.get(mutant.line, [])
        if mutant.line in imported[mutant.file]:
            found = list(dict.fromkeys(test for tests in here.values() for test in tests))
        seconds = options.seconds * (WIDER if many else 1.0)
        chosen = chosen_tests(found, reached_by, seconds)[: None if many else MOST_TESTS]
        folder = mutant.file.partition("/")[0] + "/"
        named = [*chosen, *SETTINGS.get(folder, [])]
        return named, sum(reached_by.seconds.get(test, 1.0) for test in named)

    trees: SimpleQueue[Path] = SimpleQueue()
    for tree in copies(options.jobs):
        trees.put(tree)

    def tried(mutant: Mutant) -> bool:
        """Whether it survives a few tests, and then many."""
        tree = trees.get()
        try:
            ways = (False,) if options.quick else (False, True)
            found = [tests(mutant, many) for many in ways]
            survived = all(survives(mutant, *each, tree) for each in found)
        finally:
            trees.put(tree)
        if survived:
            print(f"survived  {mutant}  ({len(found[-1][0])} tests)", flush=True)
        return survived

    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(tried, sample))
    survivors = [mutant for mutant, lived in zip(sample, outcomes, strict=True) if lived]
    SURVIVORS.write_text("\n".join(each.key for each in survivors) + "\n", encoding="utf-8")
    share = 1 - len(survivors) / max(1, len(sample))
    print(f"{len(sample)} mutants, {len(sample) - len(survivors)} noticed ({share:.1%})")
    raise SystemExit(share < options.at_least)


if __name__ == "__main__":
    main()
