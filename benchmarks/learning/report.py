"""The page of the learning curves: a table and a figure for every family."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.credit.curves import Curve
from benchmarks.credit.curves_report import drawn
from benchmarks.learning.curves import MEASURES, Measured, plays, rates_of
from benchmarks.learning.environments import GROUNDS
from benchmarks.learning.exact import RATE, ascent
from benchmarks.learning.families import ALIKE, FAMILIES, IDENTICAL, TRIALS, Family
from benchmarks.report import write_page
from benchmarks.teams.runs import TUNING, chosen_rates
from mrlm.core.statistics import Interval, mean_interval

MARKS = ("<!-- learning: written by `python -m benchmarks.learning` -->", "<!-- end -->")
RESULTS = "curves.json"
COLOURS = (
    *("#222222", "#0b62b8", "#c8541c", "#2b8a3e", "#8e44ad", "#b8860b", "#6fb1ef", "#e59a72"),
    *("#8fce9b", "#c39bd3", "#8a8a8a", "#d6336c"),
)
COLUMNS = {"critics": "explained_late", "mixing": "explained_late", "replays": "entropy"}
"""Family -> the further metric of its table."""
HEADS = {"explained_late": "critic", "entropy": "idle"}
STEPS = (100, 1000, 20000)
"""Steps of exact gradient ascent that the page quotes."""


def finished(rows: Sequence[Measured], name: str, tuning: int) -> list[Measured]:
    """The runs of a trial with its chosen rate, by seed.

    Args:
        rows: finished runs.
        name: of the trial.
        tuning: seeds that chose the rate.
    """
    rate = chosen_rates(rows, [name], tuning, rates_of).get(name)
    own = [row for row in rows if (row.arm, row.rate) == (name, rate) and row.seed < TUNING]
    return sorted(own, key=lambda row: row.seed)


def gain(runs: Sequence[Measured]) -> Interval:
    """Last less first evaluation with its 95 % interval (Student's t over seeds); last is the mean
    of the last two."""
    return mean_interval([run.final - run.rewards[0] for run in runs])


def against(runs: Sequence[Measured], others: Sequence[Measured]) -> Interval | None:
    """The mean of the curve less that of other runs from the same first weights, paired by seeds,
    with its 95 % interval; `None` with less than two pairs."""
    known = {run.seed: run.area for run in others}
    pairs = [run.area - known[run.seed] for run in runs if run.seed in known]
    return mean_interval(pairs) if len(pairs) > 1 else None


def markdown(rows: Sequence[Measured], tuning: int, machine: str) -> str:
    """Everything that was measured.

    Args:
        rows: finished runs.
        tuning: seeds that chose the rates.
        machine: words for it.
    """
    hours = sum(row.seconds for row in rows) / 3600
    parts = [
        f"{len(rows)} runs, {hours:.2f} hours of one core ({machine}). The rate is the best of "
        f"three by the last reward of {tuning} other seed{'s' * (tuning != 1)}. Last: the mean "
        "of the last two evaluations; gain: last less first, with its 95 % interval over seeds "
        "(Student's t), bold if 0 is outside; flat: seeds whose last two evaluations are less "
        "than .03 above the two before. Less the first row: the difference of the means of the "
        "curves, paired by seeds with the same first weights, bold if 0 is outside its "
        "interval.",
        "\n".join(f"- `{name}`: {ground.about}." for name, ground in GROUNDS.items()),
        _same(),
        _climbing(),
    ]
    parts += [_family(family, rows, tuning) for family in FAMILIES]
    seen = {t.algorithm for t in TRIALS.values() if len(finished(rows, t.name, tuning)) > 1}
    if unseen := sorted({trial.algorithm for trial in TRIALS.values()} - seen):
        parts.append("No curve of their own: " + ", ".join(unseen) + ".")
    return "\n\n".join(part for part in parts if part)


def _same() -> str:
    groups = []
    for name, others in IDENTICAL.items():
        members = [f"`{name}`"]
        for other, own in others.items():
            keys = ", ".join(f"`{key}: {value}`".lower() for key, value in own.items())
            members.append(f"`{other}`" + f" with {keys}" * bool(keys))
        groups.append(", ".join(members))
    alike = "; ".join(
        ", ".join(f"`{each}`" for each in (name, *others)) for name, others in ALIKE.items()
    )
    return (
        "**Identical members.** In games of one step with one reward for all, these are the "
        f"same, bit for bit: {'; '.join(groups)}. These are the same but for rounding, because "
        f"their advantages differ by a constant factor, which Adam removes: {alike}. A test "
        "runs them and compares the weights; with several turns all of them differ, and each "
        "has a row there."
    )


def _climbing() -> str:
    """What the exact gradient does in `climbing`."""
    plain, divided = (
        [f"{value:.3f}" for value in ascent(STEPS, divided)] for divided in (False, True)
    )
    steps = ", ".join(f"{step:,}" for step in STEPS)
    return (
        "**Where `climbing` ends.** (A, A) = 1.000 and (B, B) = .902 are equilibria, (C, C) = "
        ".854 is none: against `C` an agent gains by `B` (.878), and against that `B` the "
        f"other by `B`. Exact gradient ascent from equal probabilities (a step is {RATE:g} "
        f"times the gradient) is at {', '.join(plain)} after {steps} steps, and divided by the "
        f"deviation of the reward, as in `grpo`, at {', '.join(divided)}. A run that is still "
        "at .854 or .878 was stopped on the way."
    )


def _family(family: Family, rows: Sequence[Measured], tuning: int) -> str:
    known = {trial.name: finished(rows, trial.name, tuning) for trial in family.trials}
    lines = _table(family, known)
    if not lines:
        return ""
    picture = f"![{family.title}, mean and 95 % interval](learning/{family.name}.svg)"
    return "\n\n".join(
        [f"### {family.title}", f"{family.shares} {family.separates}", lines, picture]
    )


def _table(family: Family, known: dict[str, list[Measured]]) -> str:
    further = COLUMNS.get(family.name)
    heads = ["algorithm", "environment", "seeds", "rate", "tokens", "episodes", "seconds"]
    heads += ["first", "last", "gain, 95 %", "less the first row", "flat"]
    heads += [HEADS[further]] if further else []
    lines, first = [], dict[str, str]()
    for trial in family.trials:
        runs = known[trial.name]
        reference = first.setdefault(trial.where, trial.name)
        if len(runs) < 2:
            continue
        mean = {
            "tokens": fmean(run.tokens[-1] for run in runs),
            "episodes": fmean(run.episodes for run in runs),
            "seconds": fmean(run.seconds for run in runs),
        }
        alone = reference == trial.name or trial.algorithm in MEASURES
        difference = None if alone else against(runs, known[reference])
        cells = [
            f"`{trial.algorithm}`",
            f"`{trial.where}`",
            str(len(runs)),
            f"{runs[0].rate:g}",
            f"{mean['tokens']:,.0f}" + " rows" * (not plays(trial)),
            f"{mean['episodes']:,.0f}" if plays(trial) else "–",
            f"{mean['seconds']:.1f}",
            f"{fmean(run.rewards[0] for run in runs):.3f}",
            f"{fmean(run.final for run in runs):.3f}",
            _bold(gain(runs)),
            "–" if difference is None else _bold(difference),
            f"{sum(run.plateau for run in runs)} of {len(runs)}",
        ]
        cells += [_further(runs, further)] if further else []
        lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *lines])


def _further(runs: Sequence[Measured], metric: str) -> str:
    values = [run.measures[metric] for run in runs if metric in run.measures]
    if len(values) < 2:
        return "–"
    mean, low, _ = mean_interval(values)
    return f"{mean:.2f} ± {mean - low:.2f}"


def _bold(found: Interval) -> str:
    mean, low, high = found
    text = f"{mean:+.3f} ± {mean - low:.3f}"
    return f"**{text}**" if low > 0 or high < 0 else text


def figure(family: Family, rows: Sequence[Measured], tuning: int) -> str:
    """An SVG: a panel for every environment of a family, a line for every algorithm."""
    groups: dict[str, dict[str, list[Curve]]] = {}
    for trial in family.trials:
        runs = finished(rows, trial.name, tuning)
        if len(runs) > 1:
            groups.setdefault(trial.where, {})[trial.algorithm] = [
                Curve(trial.where, trial.algorithm, run.rate, run.seed, run.tokens, run.rewards)
                for run in runs
            ]
    titles = dict.fromkeys(trial.algorithm for trial in family.trials)
    heading = f"{family.title}: reward, mean and 95 % interval"
    unit = "tokens" if family.name != "data" else "tokens or rows"
    return drawn(groups, heading, unit, dict(zip(titles, COLOURS, strict=False)))


def publish(page: Path, rows: Sequence[Measured], tuning: int, machine: str) -> None:
    """Writes the tables into a page, and the runs and the figures beside it."""
    folder = page.parent / "learning"
    folder.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    about = f'{{"machine": {json.dumps(machine)}, "tuning": {tuning}, "runs": [\n{lines}\n]}}\n'
    (folder / RESULTS).write_text(about, encoding="utf-8")
    write_page(page, markdown(rows, tuning, machine), MARKS)
    for family in FAMILIES:
        picture = figure(family, rows, tuning)
        (folder / f"{family.name}.svg").write_text(picture, encoding="utf-8")


def published(page: Path) -> tuple[list[Measured], int, str]:
    """The runs beside a page, the seeds that chose rates, and the machine."""
    data: dict[str, Any] = json.loads((page.parent / "learning" / RESULTS).read_text("utf-8"))
    return [Measured(**row) for row in data["runs"]], data["tuning"], data["machine"]
