"""`python -m benchmarks.teams`: trains teams and single agents on small games from the same weights
with the same number of sampled tokens, and compares them. Finished runs are not repeated."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.one_thread import use_one_thread

use_one_thread()

from benchmarks.learning.runs import quiet  # noqa: E402 - after the number of threads is set
from benchmarks.report import machine  # noqa: E402
from benchmarks.teams import report, runs  # noqa: E402
from benchmarks.teams.settings import SETTINGS  # noqa: E402

HERE = Path(__file__).parent.parent
QUICK = "evidence, one view"


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teams", description=__doc__)
    parser.add_argument("--settings", nargs="+", metavar="NAME", help="which; all if not given")
    parser.add_argument("--seeds", type=int, default=10, help="of each arm")
    parser.add_argument("--tuning", type=int, default=1, help="other seeds, with three rates each")
    parser.add_argument(
        "--budget", type=float, metavar="HOURS", help="processor time, after which no run is begun"
    )
    parser.add_argument("--list", action="store_true", help="print the runs and an estimate")
    parser.add_argument("--no-runs", action="store_true", help="report the runs that are there")
    parser.add_argument("--quick", action="store_true", help="one setting, few tokens, one seed")
    parser.add_argument("--output", type=Path, help="folder of models and finished runs")
    parser.add_argument("--page", type=Path, help="page to write; runs are copied to teams/")
    chosen = parser.parse_args(given)
    known = {setting.name for setting in SETTINGS}
    for name in chosen.settings or ():
        if name not in known:
            parser.error(f"--settings: {name!r} is not one of: {'; '.join(sorted(known))}")
    if min(chosen.seeds, chosen.tuning) < 1 or (chosen.budget or 1) <= 0:
        parser.error("--seeds and --tuning must be at least 1, --budget above 0")
    if chosen.quick and chosen.page:
        parser.error("numbers of --quick mean nothing, so they are not for a --page")
    if chosen.quick:
        chosen.seeds, chosen.tuning, chosen.settings = 1, 1, [QUICK]
    if chosen.output is None:
        chosen.output = HERE / "results" / ("teams-quick" if chosen.quick else "teams")
    return chosen


def main(given: list[str] | None = None) -> int:
    """Makes missing runs and reports all."""
    chosen = arguments(given)
    quiet()
    path = chosen.output / runs.RESULTS
    arms = runs.arms_of(chosen.settings)
    if chosen.list:
        print(_listed(runs.load(path), arms, chosen))
        return 0
    if not chosen.no_runs:
        print(_listed(runs.load(path), arms, chosen).splitlines()[-1], file=sys.stderr)
        _run(path, arms, chosen)
    rows = runs.load(path)
    text = report.results(rows, chosen.tuning, machine())
    print(text)
    if chosen.page is not None:
        report.publish(chosen.page, rows, chosen.tuning, machine())
    return 0


def _listed(rows: Sequence[runs.Row], arms: Sequence[str], chosen: argparse.Namespace) -> str:
    jobs = runs.next_jobs(rows, arms, chosen.seeds, chosen.tuning)
    seconds = sum(runs.estimate(rows, job) for job in jobs)
    lines = [f"{job.arm:20} rate {job.rate:g} seed {job.seed}" for job in jobs]
    most = "" if chosen.budget is None else f", of which at most {chosen.budget:g} will be used"
    said = f"{len(jobs)} runs, about {seconds / 3600:.2f} hours of one core{most}"
    return "\n".join([*lines, said])


def _run(path: Path, arms: Sequence[str], chosen: argparse.Namespace) -> None:
    """Makes runs until all are there or the budget is used."""
    tokens = 2 * runs.STEP_TOKENS if chosen.quick else runs.BUDGET
    runs.run_missing(
        path,
        lambda: runs.next_jobs(runs.load(path), arms, chosen.seeds, chosen.tuning),
        lambda job: runs.train(job, chosen.output, tokens),
        chosen.budget,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
