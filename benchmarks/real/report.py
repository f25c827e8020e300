"""The page of real models: what was predicted, what came out, and what was not run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.credit.curves import Curve
from benchmarks.credit.curves_report import drawn
from benchmarks.real.runs import ARMS, SETTINGS, Measured
from benchmarks.report import write_page
from benchmarks.teams.settings import verdict
from mrlm.core.statistics import mean_interval

PREDICTED = ("<!-- predictions: written by `python -m benchmarks.real` -->", "<!-- end -->")
MEASURED = ("<!-- results: written by `python -m benchmarks.real` -->", "<!-- end of results -->")
FIGURE = "real.svg"
SIDES = {"team": "#0b62b8", "one": "#c8541c"}
GIB = 1 << 30
ENOUGH = 3
"""Seeds below which a row says how few it has."""


def predictions() -> str:
    """The table of what was predicted."""
    lines = ["| setting | task | measure | prediction | because |", "|---|---|---|---|---|"]
    for name, setting in SETTINGS.items():
        cells = (name, setting["about"], f"`{setting['measure']}`", _predicted(setting))
        lines.append(f"| {' | '.join(cells)} | {setting['because'].strip()} |")
    return "\n".join(lines)


def _predicted(setting: Mapping[str, Any]) -> str:
    if "winner" in setting:
        return f"`{setting['winner']}` is better"
    return f"{setting['low']:g} to {setting['high']:g}"


def results(rows: Sequence[Measured], machine: str) -> str:
    """Everything that was measured.

    Args:
        rows: finished runs.
        machine: words for it.
    """
    lines = [
        "| setting | arm | seeds | begins | ends | predicted | outcome | tokens | CPU s | "
        "peak, planned, GiB | doctor |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, (name, _) in ARMS.items():
        runs = [row for row in rows if row.arm == arm]
        cells = _cells(name, runs, rows) if runs else ["0", *["–"] * 7, "not run"]
        lines.append(f"| {name} | {arm.partition('/')[2]} | {' | '.join(cells)} |")
    seconds = sum(row.seconds for row in rows)
    absent = [arm for arm in ARMS if all(row.arm != arm for row in rows)]
    few = {arm: len({row.seed for row in rows if row.arm == arm}) for arm in ARMS}
    short = [f"{arm} ({count})" for arm, count in few.items() if 0 < count < ENOUGH]
    return "\n".join(
        [
            f"{len(rows)} runs, {seconds / 60:.0f} minutes of one core ({machine}). Begins and "
            "ends: the measure on held-out tasks, greedy, before the first and after the last "
            "step; the mean over seeds with its 95 % interval (Student's t), from two seeds on.",
            "",
            *lines,
            "",
            f"- **Fewer than {ENOUGH} seeds**: {'; '.join(short) or 'none'}.",
            f"- **Not run**: {'; '.join(absent) or 'none'}.",
        ]
    )


def _cells(name: str, runs: Sequence[Measured], rows: Sequence[Measured]) -> list[str]:
    """The cells of an arm that was run, after its name."""
    setting = SETTINGS[name]
    alarms = sorted({f"`{rule}`" for row in runs for rule in row.alarms})
    return [
        str(len(runs)),
        _interval([row.rewards[0] for row in runs]),
        _interval([row.rewards[-1] for row in runs]),
        _predicted(setting),
        outcome(name, rows),
        f"{fmean(row.tokens[-1] for row in runs):,.0f}",
        f"{fmean(row.seconds for row in runs):.0f}",
        f"{max(row.peak for row in runs) / GIB:.1f}, {fmean(r.planned for r in runs) / GIB:.1f}",
        ", ".join(alarms) or "none",
    ]


def outcome(name: str, rows: Sequence[Measured]) -> str:
    """What the runs of a setting say of its prediction."""
    setting = SETTINGS[name]
    ends = {
        side: {row.seed: row.rewards[-1] for row in rows if row.arm == f"{name}/{side}"}
        for side in setting["arms"]
    }
    if "winner" not in setting:
        (values,) = ends.values()
        inside = setting["low"] <= fmean(values.values()) <= setting["high"]
        return "right" if inside else "wrong"
    team, one = ends["team"], ends["one"]
    pairs = [team[seed] - one[seed] for seed in sorted(team.keys() & one.keys())]
    if not pairs:
        return "undecided: one arm was not run"
    difference = mean_interval(pairs)
    if len(pairs) == 1:
        return f"{pairs[0]:+.3f}, one pair of seeds"
    found = verdict(difference)
    word = {"undecided": "undecided", setting["winner"]: "right"}.get(found, "wrong")
    return f"{word}: {difference[0]:+.3f} ± {difference[0] - difference[1]:.3f}"


def _interval(values: Sequence[float]) -> str:
    mean, low, _ = mean_interval(values)
    return f"{mean:.3f}" if len(values) == 1 else f"{mean:.3f} ± {mean - low:.3f}"


def figure(rows: Sequence[Measured]) -> str:
    """An SVG: a panel for every setting that was run, a line for each arm."""
    groups: dict[str, dict[str, list[Curve]]] = {}
    for row in rows:
        name, side = ARMS[row.arm][0], row.arm.partition("/")[2]
        curve = Curve(row.arm, side, row.rate, row.seed, list(row.tokens), list(row.rewards))
        groups.setdefault(name, {}).setdefault(side, []).append(curve)
    heading = "Measure on held-out tasks by sampled tokens, mean and 95 % interval"
    return drawn({n: groups[n] for n in SETTINGS if n in groups}, heading, "tokens", SIDES)


def publish(page: Path, rows: Sequence[Measured], machine: str) -> None:
    """Writes the tables into a page, and the runs and the figure beside it."""
    folder = page.parent / "real"
    folder.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    text = f'{{"machine": {json.dumps(machine)}, "runs": [\n{lines}\n]}}\n'
    (folder / "runs.json").write_text(text, encoding="utf-8")
    write_page(page, predictions(), PREDICTED)
    write_page(page, results(rows, machine), MEASURED)
    (page.parent / "figures" / FIGURE).write_text(figure(rows), encoding="utf-8")


def published(page: Path) -> tuple[list[Measured], str]:
    """The runs beside a page, and the machine."""
    data: dict[str, Any] = json.loads((page.parent / "real" / "runs.json").read_text("utf-8"))
    return [Measured(**row) for row in data["runs"]], data["machine"]
