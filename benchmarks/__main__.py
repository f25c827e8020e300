"""`python -m benchmarks`: measure rows, print the table, keep results and plots."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "disabled")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

HERE = Path(__file__).parent


def arguments(given: list[str] | None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="which rows; all if not given")
    parser.add_argument("--list", action="store_true", help="say which rows there are")
    parser.add_argument("--quick", action="store_true", help="tiny work, to see that rows run")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds of each side")
    parser.add_argument("--threads", type=int, default=1, help="of rows that do not fix them")
    parser.add_argument("--no-peers", action="store_true", help="time our side alone")
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="compare with an earlier commit instead, and fail if a row became slower",
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="what needs a GPU: equality tests, then the rows that were not measured yet",
    )
    parser.add_argument("--minutes", type=float, default=10, help="most time of --gpu")
    parser.add_argument("--pairs", type=int, default=5, help="processes of each side (--against)")
    parser.add_argument("--output", type=Path, help="folder of results")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    chosen = parser.parse_args(given)
    if min(chosen.repeats, chosen.threads, chosen.pairs) < 1:
        parser.error("--repeats, --threads and --pairs must be at least 1")
    if chosen.minutes <= 0:
        parser.error("--minutes must be positive")
    if chosen.against and chosen.gpu:
        parser.error("--against compares rows of two commits: --against COMMIT --rows gpu-train")
    if chosen.against and chosen.page:
        parser.error("--page has the table of one revision, --against compares two")
    if chosen.quick and chosen.page:
        parser.error("numbers of --quick mean nothing, so they are not for a --page")
    if chosen.output is None:
        parts = [name for name in ("gpu", "quick") if getattr(chosen, name)]
        chosen.output = HERE.joinpath("results", *parts)
    return chosen


def main(given: list[str] | None = None) -> int:
    """Measure what was asked for. A row that fails is reported, and the exit status says so."""
    chosen = arguments(given)
    os.environ.setdefault("OMP_NUM_THREADS", str(chosen.threads))
    _silence()
    from benchmarks import report
    from benchmarks.against import guard
    from benchmarks.gpu import everything
    from benchmarks.rows import Bench
    from benchmarks.table import ROWS

    if chosen.list:
        print("\n".join(f"{row.name:15} {row.title}" for row in ROWS))
        return 0
    names = [row.name for row in ROWS]
    for name in chosen.rows or ():
        if name not in names:
            print(f"there is no row {name!r}; the rows are {', '.join(names)}", file=sys.stderr)
            return 2
    rounds = 1 if chosen.quick else chosen.repeats
    if chosen.against:
        return guard(
            chosen.against,
            chosen.rows or names,
            chosen.output / "against.json",
            pairs=1 if chosen.quick else chosen.pairs,
            rounds=rounds,
            threads=chosen.threads,
            quick=chosen.quick,
        )
    rows = [row for row in ROWS if not chosen.rows or row.name in chosen.rows]
    if chosen.gpu and not chosen.rows:
        needing = [row for row in ROWS if row.name.startswith("gpu-")]
        return everything(needing, chosen.output, rounds, chosen.quick, 60 * chosen.minutes)
    dry = chosen.gpu and chosen.quick
    bench = Bench(rounds, chosen.threads, chosen.quick, not chosen.no_peers, dry)
    failed = report.measure(rows, bench, chosen.output)
    found = report.load(chosen.output)
    print(report.machine())
    print(report.table(rows, found))
    pictures = report.plots(chosen.output, [row for row in ROWS if row.name in found], found)
    print("\n".join(map(str, [chosen.output / report.RESULTS, *pictures])))
    if chosen.page is not None:
        report.write_page(chosen.page, report.markdown(ROWS, found, report.machine()))
    return 1 if failed else 0


def _silence() -> None:
    """Libraries keep their remarks to themselves: the table is what is to be read."""
    warnings.filterwarnings("ignore")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        import datasets
    except ImportError:
        return
    datasets.disable_progress_bars()


if __name__ == "__main__":
    sys.exit(main())
