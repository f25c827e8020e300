"""`python -m benchmarks.credit`: measure the credit of every algorithm against the true policy
gradient of small games. No language model is involved."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.credit import curves_report, report
from benchmarks.credit.curves import COURSES, GAMES_LEARNED, RULES, compare
from benchmarks.credit.games import GAMES
from benchmarks.credit.measure import Measured, measure
from benchmarks.credit.table import ENTRIES
from benchmarks.report import write_page

HERE = Path(__file__).parent.parent


def main(given: list[str] | None = None) -> int:
    """Measures what was asked for; the exit status is 2 for unknown names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.credit", description=__doc__)
    parser.add_argument("--games", nargs="+", metavar="GAME", help=f"of {', '.join(GAMES)}")
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="all if not given")
    parser.add_argument("--batches", type=int, default=200, help="of 32 episodes, per policy")
    parser.add_argument("--policies", type=int, default=3, help="random policies per game")
    parser.add_argument(
        "--curves", action="store_true", help="learning curves at equal evaluations"
    )
    parser.add_argument("--seeds", type=int, default=10, help="of every curve")
    parser.add_argument("--quick", action="store_true", help="few batches of one policy")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "credit")
    parser.add_argument("--page", type=Path, help="page to write; the figure goes beside it")
    chosen = parser.parse_args(given)
    games = chosen.games or list(COURSES if chosen.curves else GAMES)
    known = {entry.algorithm for entry in (RULES if chosen.curves else ENTRIES)}
    wrong = [*set(games) - set(COURSES if chosen.curves else GAMES)]
    wrong += [*set(chosen.algorithms or ()) - known]
    if wrong:
        print(f"unknown: {', '.join(wrong)}; see --help and benchmarks/credit/table.py")
        return 2
    if chosen.quick and chosen.page:
        parser.error("numbers of --quick mean nothing, so they are not for a --page")
    if chosen.curves:
        _curves(chosen, games)
    else:
        _gradients(chosen, games)
    return 0


def _gradients(chosen: argparse.Namespace, games: Sequence[str]) -> None:
    """Direction and noise of the gradients."""
    batches, policies = (20, 1) if chosen.quick else (chosen.batches, chosen.policies)
    jobs = [(game, chosen.algorithms, batches, policies) for game in games]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        found = [each for several in pool.map(_measured, jobs) for each in several]
    report.save(chosen.output / "credit.json", found)
    _write(chosen, "credit", report.markdown(found), report.figure(found))


def _curves(chosen: argparse.Namespace, games: Sequence[str]) -> None:
    """Learning curves; what the output has of other games and rules stays."""
    seeds, tuning = (2, 1) if chosen.quick else (chosen.seeds, 3)
    rules = [rule for rule in RULES if rule.algorithm in (chosen.algorithms or [rule.algorithm])]
    courses = [COURSES[game].quick if chosen.quick else COURSES[game] for game in games]
    jobs = [(course, rule, seeds, tuning) for course in courses for rule in rules]
    path = chosen.output / "curves.json"
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for found in pool.map(compare, *zip(*jobs, strict=True)):
            curves_report.save(path, found)
    found = curves_report.load(path)
    about = {name: game.about for name, game in GAMES_LEARNED.items()}
    _write(chosen, "curves", curves_report.markdown(found, about), curves_report.figure(found))


def _write(chosen: argparse.Namespace, name: str, text: str, picture: str) -> None:
    """Prints the tables, and writes them and the figure."""
    (chosen.output / f"{name}.svg").write_text(picture, encoding="utf-8")
    print(text)
    if chosen.page is not None:
        write_page(chosen.page, text, (f"<!-- {name} -->", f"<!-- /{name} -->"))
        figures = chosen.page.parent / "figures"
        file = "credit" if name == "credit" else f"credit_{name}"
        (figures / f"{file}.svg").write_text(picture, encoding="utf-8")


def _measured(job: tuple[str, list[str] | None, int, int]) -> list[Measured]:
    game, names, batches, policies = job
    entries = [entry for entry in ENTRIES if names is None or entry.algorithm in names]
    return measure(GAMES[game], entries, batches, range(policies))


if __name__ == "__main__":
    sys.exit(main())
