"""`python -m benchmarks.doctor`: trains healthy runs and runs with planted diseases, and counts the
alarms of `mrlm doctor` in them. Runs that are there are not repeated. With `--only` or `--real` the
other rows of a page stay as they are."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path

from benchmarks.one_thread import use_one_thread

use_one_thread()

from benchmarks.doctor import report  # noqa: E402 - after the number of threads is set
from benchmarks.doctor.found import Finding, examined, real_runs  # noqa: E402
from benchmarks.doctor.runs import Job, bases_of, jobs_of, prepare, state_of, train  # noqa: E402
from benchmarks.learning.runs import quiet  # noqa: E402
from benchmarks.report import machine, write_page  # noqa: E402

RESULTS = Path(__file__).parent.parent / "results"


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doctor", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="runs whose names contain one")
    parser.add_argument("--seeds", type=int, default=3, help="of diseases and their controls")
    parser.add_argument("--first-seed", type=int, default=0, help="smaller ones were looked at")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--quick", action="store_true", help="two short runs")
    parser.add_argument("--list", action="store_true", help="print the runs")
    parser.add_argument("--no-runs", action="store_true", help="examine the runs that are there")
    parser.add_argument("--real", type=Path, help="folder of benchmarks.real: examine its runs")
    parser.add_argument("--output", type=Path, help="folder of models, runs and results")
    parser.add_argument("--page", type=Path, help="page to write; results go to doctor/ beside it")
    chosen = parser.parse_args(given)
    if min(chosen.seeds, chosen.jobs) < 1:
        parser.error("--seeds and --jobs must be at least 1")
    if chosen.first_seed < 0:
        parser.error("--first-seed must be at least 0")
    if chosen.page and chosen.quick:
        parser.error("a --page needs whole runs; remove --quick")
    if chosen.output is None:
        chosen.output = RESULTS / ("doctor-quick" if chosen.quick else "doctor")
    return chosen


def main(given: list[str] | None = None) -> int:
    """Trains, examines and prints. The exit status is 1 if a run failed."""
    chosen = arguments(given)
    jobs = jobs_of(chosen.output, chosen.seeds, chosen.quick, chosen.first_seed)
    if chosen.only:
        jobs = [job for job in jobs if any(part in job.name for part in chosen.only)]
    if chosen.list:
        print("\n".join(f"{job.kind:8} {job.name:24} seed {job.seed}" for job in jobs))
        return 0
    started = time.perf_counter()
    if chosen.real:
        findings = real_runs(chosen.real)
    else:
        findings = _run(jobs, chosen.jobs, not chosen.no_runs)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    results = chosen.output if chosen.page is None else chosen.page.parent / "doctor"
    if chosen.page and (chosen.only or chosen.real):
        findings = report.merged(report.load(results / report.RESULTS), findings)
    report.save(results / report.RESULTS, findings, machine())
    text = report.markdown(findings, machine())
    print(text)
    if chosen.page is not None:
        write_page(chosen.page, text, report.MARKS)
    failed = [each for each in findings if each.error]
    for each in failed:
        print(f"{each.name}, seed {each.seed}: {each.error}", file=sys.stderr)
    return int(bool(failed))


def _run(jobs: Sequence[Job], processes: int, trains: bool) -> list[Finding]:
    """Models, runs and their examinations, in several processes."""
    known = {job: state_of(job) for job in jobs}
    missing = [job for job, done in known.items() if trains and (done is None or done.error)]
    with get_context("spawn").Pool(processes, initializer=quiet) as pool:
        for seed in sorted({job.seed for job in missing}):
            own = [job for job in missing if job.seed == seed]
            for _ in pool.imap_unordered(prepare, bases_of(own)):
                pass
            for job in pool.imap_unordered(train, own):
                done = state_of(job)
                assert done is not None
                name = f"{job.kind:8} {job.name:24} seed {job.seed}"
                print(f"{name} {done.seconds:.0f} s {done.error}", file=sys.stderr, flush=True)
        there = [job for job in jobs if state_of(job) is not None]
        return list(pool.imap(examined, there))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
