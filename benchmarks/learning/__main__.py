"""`python -m benchmarks.learning`: trains every algorithm where its idea matters, from several
seeds, with a learning rate chosen on others, and reports by families. Finished runs are not
repeated."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.one_thread import use_one_thread

use_one_thread()

from benchmarks.learning import curves, report  # noqa: E402 - after the number of threads is set
from benchmarks.learning.families import FAMILIES, TRIALS  # noqa: E402
from benchmarks.learning.runs import quiet  # noqa: E402
from benchmarks.report import machine  # noqa: E402
from benchmarks.teams.runs import RESULTS, estimate, run_missing  # noqa: E402

HERE = Path(__file__).parent.parent
QUICK = ("magrpo on contexts", "dpo on optimum")


def arguments(given: list[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="which; all if not given")
    parser.add_argument("--families", nargs="+", metavar="NAME", help="which; all if not given")
    parser.add_argument("--seeds", type=int, default=5, help="of each algorithm and environment")
    parser.add_argument("--tuning", type=int, default=1, help="other seeds, with three rates each")
    parser.add_argument(
        "--budget", type=float, metavar="HOURS", help="processor time, after which no run is begun"
    )
    parser.add_argument("--list", action="store_true", help="print the runs and an estimate")
    parser.add_argument("--no-runs", action="store_true", help="report the runs that are there")
    parser.add_argument("--quick", action="store_true", help="two trials, few tokens, one seed")
    parser.add_argument("--output", type=Path, help="folder of models and finished runs")
    parser.add_argument("--page", type=Path, help="page to write; runs are copied to learning/")
    chosen = parser.parse_args(given)
    families = {family.name for family in FAMILIES}
    algorithms = {trial.algorithm for trial in TRIALS.values()}
    for option, names, known in (
        ("--families", chosen.families, families),
        ("--algorithms", chosen.algorithms, algorithms),
    ):
        for name in names or ():
            if name not in known:
                parser.error(f"{option}: {name!r} is not one of: {', '.join(sorted(known))}")
    if min(chosen.seeds, chosen.tuning) < 1 or (chosen.budget or 1) <= 0:
        parser.error("--seeds and --tuning must be at least 1, --budget above 0")
    if chosen.quick and chosen.page:
        parser.error("numbers of --quick mean nothing, so they are not for a --page")
    if chosen.quick:
        chosen.seeds = chosen.tuning = 1
    if chosen.output is None:
        chosen.output = HERE / "results" / ("learning-quick" if chosen.quick else "learning")
    return chosen


def main(given: list[str] | None = None) -> int:
    """Makes missing runs and reports all."""
    chosen = arguments(given)
    quiet()
    path = chosen.output / RESULTS
    names = list(QUICK) if chosen.quick else _names(chosen)
    listed = _listed(path, names, chosen)
    if chosen.list:
        print(listed)
        return 0
    if not chosen.no_runs:
        print(listed.splitlines()[-1], file=sys.stderr)
        run_missing(
            path,
            lambda: curves.missing(curves.load(path), names, chosen.seeds, chosen.tuning),
            lambda job: curves.train(job, chosen.output, chosen.quick),
            chosen.budget,
        )
    rows = curves.load(path)
    print(report.markdown(rows, chosen.tuning, machine()))
    if chosen.page is not None:
        report.publish(chosen.page, rows, chosen.tuning, machine())
    return 0


def _names(chosen: argparse.Namespace) -> list[str]:
    """The trials that are asked for, in the order of the page."""
    found = [
        trial
        for family in FAMILIES
        for trial in family.trials
        if chosen.families is None or family.name in chosen.families
    ]
    if chosen.algorithms is not None:
        found = [trial for trial in found if trial.algorithm in chosen.algorithms]
    return list(dict.fromkeys(trial.name for trial in found))


def _listed(path: Path, names: Sequence[str], chosen: argparse.Namespace) -> str:
    rows = curves.load(path)
    jobs = curves.missing(rows, names, chosen.seeds, chosen.tuning)
    seconds = sum(estimate(rows, job) for job in jobs)
    lines = [f"{job.arm:24} rate {job.rate:g} seed {job.seed}" for job in jobs]
    most = "" if chosen.budget is None else f", of which at most {chosen.budget:g} will be used"
    said = f"{len(jobs)} runs, about {seconds / 3600:.2f} hours of one core{most}"
    return "\n".join([*lines, said])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
