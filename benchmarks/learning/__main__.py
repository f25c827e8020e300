"""`python -m benchmarks.learning`: train every algorithm on small games, from several seeds, and
say by how much each of them improves."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path

from benchmarks.one_thread import use_one_thread

use_one_thread()

from benchmarks.learning import configs, report  # noqa: E402 - after the number of threads is set
from benchmarks.learning.configs import CONFIGS, ConfigJob  # noqa: E402
from benchmarks.learning.runs import Curve, Job, jobs_of, prepare, quiet, train  # noqa: E402
from benchmarks.report import machine  # noqa: E402

HERE = Path(__file__).parent.parent


def arguments(given: list[str] | None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="which; all if not given")
    parser.add_argument(
        "--games",
        nargs="+",
        metavar="GAME",
        help=f"which; all of the table if not given; {', '.join(CONFIGS)} are files of configs/",
    )
    parser.add_argument("--seeds", type=int, default=5, help="of every matrix game (relay: 3)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    parser.add_argument("--no-runs", action="store_true", help="write what is known already")
    parser.add_argument("--output", type=Path, help="folder of models and results")
    parser.add_argument(
        "--page", type=Path, help="page to write; results go to learning/ beside it"
    )
    chosen = parser.parse_args(given)
    if min(chosen.seeds, chosen.jobs) < 1:
        parser.error("--seeds and --jobs must be at least 1")
    if chosen.quick and chosen.page:
        parser.error("numbers of --quick mean nothing, so they are not for a --page")
    if chosen.output is None:
        chosen.output = HERE / "results" / ("learning-quick" if chosen.quick else "learning")
    return chosen


def main(given: list[str] | None = None) -> int:
    """Run what was asked for. The exit status is 1 if a run failed, or an algorithm did not learn
    where it can."""
    chosen = arguments(given)

    files = [game for game in chosen.games or () if game in CONFIGS]
    games = None if chosen.games is None else [each for each in chosen.games if each not in files]
    try:
        jobs = jobs_of(chosen.algorithms, games, chosen.seeds, chosen.output, chosen.quick)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.list:
        every = [*jobs, *configs.jobs_of(files, chosen.seeds, chosen.output)]
        print("\n".join(f"{job.algorithm:14} {job.game:10} seed {job.seed}" for job in every))
        return 0
    results = chosen.output if chosen.page is None else chosen.page.parent / "learning"
    failed = _files(files, chosen, results / "worlds") if files else 0
    return (_table(jobs, chosen, results) if jobs or not files else 0) or failed


def _files(names: Sequence[str], chosen: argparse.Namespace, folder: Path) -> int:
    """Experiments that come as files; their results have a folder of their own."""
    jobs = configs.jobs_of(names, chosen.seeds, chosen.output, chosen.quick)
    curves: list[Curve] = []
    for curve in () if chosen.no_runs else _each(configs.train, jobs, chosen.jobs):
        curves.append(curve)
        report.merge(folder, [curve])
    everything = report.merge(folder, [])
    found = [row for row in report.findings(everything) if row.game in names]
    print(report.markdown(found, machine()))
    configs.plots(folder, everything)
    for curve in curves:
        if curve.error:
            print(f"{curve.game}, seed {curve.seed}: {curve.error}")
    return int(any(curve.error for curve in curves) or any(row.failed for row in found))


def _table(jobs: Sequence[Job], chosen: argparse.Namespace, results: Path) -> int:
    """Algorithms on small games."""
    curves: list[Curve] = []
    for curve in () if chosen.no_runs else _trained(jobs, chosen.jobs):
        curves.append(curve)
        report.merge(results, [curve])  # what is known stays known, whatever happens next
    everything = report.merge(results, [])
    found = report.findings(everything)
    print(report.markdown(found, machine()))
    pictures = report.plots(results, everything)
    if chosen.page is not None:
        report.write_page(chosen.page, found, machine(), pictures)
    failed = [curve for curve in curves if curve.error]
    for curve in failed:
        print(f"{curve.algorithm} on {curve.game}, seed {curve.seed}: {curve.error}")
    asked = {(job.algorithm, job.game) for job in jobs}
    wrong = [row for row in found if (row.algorithm, row.game) in asked and row.failed]
    return 1 if failed or wrong else 0


def _trained(jobs: Sequence[Job], processes: int) -> Iterator[Curve]:
    """Run jobs side by side, models first; says how each of them went."""
    with get_context("spawn").Pool(
        processes, initializer=quiet
    ) as pool:  # who leaves takes the processes along
        for _ in pool.imap_unordered(prepare, {job.base: job for job in jobs}.values()):
            pass
        yield from _said(pool.imap_unordered(train, jobs), len(jobs))


def _each(
    run: Callable[[ConfigJob], Curve], jobs: Sequence[ConfigJob], processes: int
) -> Iterator[Curve]:
    """Run jobs that need no model side by side; says how each of them went."""
    with get_context("spawn").Pool(processes, initializer=quiet) as pool:
        yield from _said(pool.imap_unordered(run, jobs), len(jobs))


def _said(curves: Iterable[Curve], number: int) -> Iterator[Curve]:
    for count, curve in enumerate(curves, 1):
        said = curve.error or " ".join(f"{reward:.2f}" for reward in curve.rewards)
        name = f"{curve.algorithm:14} {curve.game:10} seed {curve.seed}"
        print(f"[{count}/{number}] {name} {said}", file=sys.stderr, flush=True)
        yield curve


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
