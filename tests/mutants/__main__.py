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
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from tests.mutants.mutations import Mutant, mutants, mutated
from tests.mutants.recording import RECORD, ROOMS, ROOT, SOURCE, Reached
from tests.mutants.swapping import Functions

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
KINDS = ("unit", "contracts", "properties", "system")
"""The folders of tests."""
FEW, MANY, ALONE = range(3)
"""The ways to try a mutant, one after the other."""
UNTRIED = 99
"""Exit code where a mutant cannot be put into a running process."""


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


class Trial:
    """A mutant and the tests that run against it, in a process that ends with the first failure."""

    def __init__(self, mutant: Mutant, tests: list[str], seconds: float) -> None:
        self.mutant, self.tests = mutant, tests
        self.child = 0
        self.ends = time.monotonic() + 40.0 + 4.0 * seconds

    def in_this_state(self, session: pytest.Session, functions: Functions, folder: Path) -> None:
        """Run what is collected in a fork of this process, with the code of functions exchanged."""
        items = {item.nodeid: item for item in session.items}
        chosen = [items[test] for test in self.tests if test in items]
        sys.stdout.flush()
        self.child = os.fork()
        if self.child:
            return
        code = UNTRIED
        try:
            os.setsid()
            _silent()
            factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
            factory._given_basetemp = folder
            if functions.swap(self.mutant):
                code = int(any(map(_fails, chosen, [*chosen[1:], None])))
        finally:
            os._exit(code)

    def on_its_own(self, tree: Path) -> None:
        """Run them in a new process, against a copy of the source: it sees what is done at import,
        and so do the processes that tests start."""
        file = tree / "mrlm" / self.mutant.file
        source = (SOURCE / self.mutant.file).read_text(encoding="utf-8")
        file.write_text(mutated(source, self.mutant), encoding="utf-8")
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov"]
        self.child = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *self.tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).pid

    def end(self) -> int | None:
        """0 if every test passed, UNTRIED, or else another number; None while they run."""
        done, status = os.waitpid(self.child, os.WNOHANG)
        if not done and time.monotonic() < self.ends:
            return None
        with contextlib.suppress(ProcessLookupError):  # and whatever it has started
            os.killpg(self.child, signal.SIGKILL)
        if not done:
            print(f"hangs  {self.mutant}", flush=True)
            os.waitpid(self.child, 0)
            return 1
        return os.waitstatus_to_exitcode(status)


def _silent() -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)


def _fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    return any(report.failed for report in runtestprotocol(item, nextitem=following, log=False))


class Trials:
    """Pytest plug-in that tries mutants instead of running what is collected: each in a fork, once
    more with many more tests if nothing was noticed there, and at last in a process of its own, as
    those are that cannot be tried in a fork.

    Args:
        sample: the mutants.
        tests: those that run against a mutant, a few or many, and the seconds they take.
        jobs: how many at once.
        sure: whether survivors are tried in a process of their own.
    """

    def __init__(
        self,
        sample: list[Mutant],
        tests: Callable[[Mutant, bool], tuple[list[str], float]],
        jobs: int,
        sure: bool,
    ) -> None:
        self.waiting = [(mutant, FEW) for mutant in reversed(sample)]
        self.tests, self.sure, self.total = tests, sure, len(sample)
        self.trees = copies(jobs)
        self.survivors: list[Trial] = []
        self.done, self.begun = 0, time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._import()
        functions = Functions(SOURCE)
        running: list[tuple[Trial, int, Path]] = []
        while self.waiting or running:
            while self.waiting and self.trees:
                mutant, way = self.waiting.pop()
                tests, seconds = self.tests(mutant, way != FEW)
                trial, tree = Trial(mutant, tests, seconds), self.trees.pop()
                if way == ALONE:
                    trial.on_its_own(tree)
                else:
                    trial.in_this_state(session, functions, tree / "tmp")
                running.append((trial, way, tree))
            time.sleep(0.01)
            for each in list(running):
                trial, way, tree = each
                code = trial.end()
                if code is not None:
                    running.remove(each)
                    self.trees.append(tree)
                    self.over(trial, code, way, tree)
        return True

    def _import(self) -> None:
        """Import what is changed, and what the fixtures of every test import: else each fork does
        so again."""
        files = {mutant.file for mutant, _ in self.waiting} | {"tracking/run_log.py"}
        for file in sorted(files):
            importlib.import_module(f"mrlm.{file.removesuffix('.py').replace('/', '.')}")

    def over(self, trial: Trial, code: int, way: int, tree: Path) -> None:
        """Count a mutant, or let it wait for the next way to try it."""
        if way == ALONE:
            shutil.copy(SOURCE / trial.mutant.file, tree / "mrlm" / trial.mutant.file)
        elif code == UNTRIED or (code == 0 and (way == FEW or self.sure)):
            self.waiting.append((trial.mutant, ALONE if code == UNTRIED else way + 1))
            return
        self.done += 1
        if code == 0:
            self.survivors.append(trial)
            print(f"survived  {trial.mutant}  ({len(trial.tests)} tests)", flush=True)
        if self.done % 50 == 0:
            seconds = time.monotonic() - self.begun
            print(f"{self.done} of {self.total}, {seconds:.0f} s", flush=True)


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
        "--quick", action="store_true", help="do not try survivors again in a process of their own"
    )
    parser.add_argument("--at-least", type=float, default=0.95)
    given = parser.parse_args()
    folders = [ROOT / "tests" / kind for kind in KINDS]
    every_file = sorted(str(path) for folder in folders for path in folder.rglob("test_*.py"))
    files = given.tests or every_file
    wanted = [each for each in files if given.record or not _recorded(Path(each))]
    record(wanted, given.jobs)
    reached_by = Reached.read([Path(each).stem for each in files])
    lines = reached_by.lines
    every = candidates(given.rooms)
    reached = [each for each in every if lines.get(each.file, {}).get(each.line)]
    print(f"{len(every)} mutants, {len(reached)} of them on lines that a test reaches", flush=True)
    random.Random(given.seed).shuffle(reached)
    sample = reached[: given.count] if given.count else reached
    if given.again:
        listed = set(given.again.read_text(encoding="utf-8").splitlines())
        sample = [each for each in every if each.key in listed]

    imported = {file: at_import(file) for file in {mutant.file for mutant in sample}}

    def tests(mutant: Mutant, many: bool) -> tuple[list[str], float]:
        here = lines.get(mutant.file, {})
        found = here.get(mutant.line, [])
        if mutant.line in imported[mutant.file]:
            found = list(dict.fromkeys(test for tests in here.values() for test in tests))
        seconds = given.seconds * (WIDER if many else 1.0)
        chosen = chosen_tests(found, reached_by, seconds)[: None if many else MOST_TESTS]
        folder = mutant.file.partition("/")[0] + "/"
        named = [*chosen, *SETTINGS.get(folder, [])]
        return named, sum(reached_by.seconds.get(test, 1.0) for test in named)

    trials = Trials(sample, tests, given.jobs, not given.quick)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    options = ["-q", "-s", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:cov"]
    pytest.main([*options, *files], plugins=[trials])
    survivors = [trial.mutant for trial in trials.survivors]
    SURVIVORS.write_text("\n".join(each.key for each in survivors) + "\n", encoding="utf-8")
    share = 1 - len(survivors) / max(1, trials.done)
    print(f"{trials.done} mutants, {trials.done - len(survivors)} noticed ({share:.1%})")
    raise SystemExit(share < given.at_least)


if __name__ == "__main__":
    main()
