"""`python -m benchmarks.real`: trains a pretrained model in the settings of `configs/real`, in
processes of one thread, and reports. Finished runs are not repeated."""

from __future__ import annotations

import argparse
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.one_thread import use_one_thread

use_one_thread()

from benchmarks.real import report, runs  # noqa: E402 - after the number of threads is set
from benchmarks.report import machine  # noqa: E402
from benchmarks.teams.runs import RESULTS, Job, append  # noqa: E402


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real", description=__doc__)
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="which; all if not given")
    parser.add_argument("--seeds", type=int, default=3, help="of each arm")
    parser.add_argument("--model", default="smollm2", help="name or folder of the model")
    parser.add_argument("--device", default="cpu", help="of the model (default: cpu)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the runs that are missing")
    parser.add_argument("--no-runs", action="store_true", help="report the runs that are there")
    parser.add_argument("--output", type=Path, help="folder of finished runs")
    parser.add_argument("--page", type=Path, help="page to write; runs are copied to real/")
    chosen = parser.parse_args(argv)
    for name in chosen.arms or ():
        if name not in runs.ARMS:
            parser.error(f"--arms: {name!r} is not one of: {'; '.join(sorted(runs.ARMS))}")
    if chosen.seeds < 1:
        parser.error("--seeds must be at least 1")
    if chosen.jobs < 1:
        parser.error("--jobs must be at least 1")
    chosen.output = chosen.output or runs.ROOT / "results" / "real"
    return chosen


def main(argv: list[str] | None = None) -> int:
    """Makes missing runs and reports all."""
    chosen = arguments(argv)
    path = chosen.output / RESULTS
    jobs = runs.missing(runs.load(path), chosen.arms or list(runs.ARMS), chosen.seeds)
    if chosen.list:
        print("\n".join(f"{job.arm:28} seed {job.seed}" for job in jobs))
        return 0

    def make(job: Job) -> None:
        folder = chosen.output / "runs" / runs.folder_of(job.arm, job.seed)
        row = runs.train(job, chosen.model, folder, chosen.device)
        append(path, row)
        print(f"{row.arm} seed {row.seed} {row.rewards} {row.seconds:.0f} s", file=sys.stderr)

    pool = ThreadPoolExecutor(chosen.jobs)
    futures = {job: pool.submit(make, job) for job in ([] if chosen.no_runs else jobs)}
    try:
        failed = {job: error for job, each in futures.items() if (error := each.exception())}
    finally:
        pool.shutdown(cancel_futures=True)  # a signal begins no further runs
    for job, error in failed.items():
        print(f"{job.arm} seed {job.seed} failed: {error}", file=sys.stderr)
    rows = runs.load(path)
    print(report.results(rows, machine()))
    if chosen.page is not None:
        report.publish(chosen.page, rows, machine())
    return int(bool(failed))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
