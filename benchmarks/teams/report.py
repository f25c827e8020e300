"""The page of the comparison: predictions, results, curves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.credit.curves import Curve
from benchmarks.credit.curves_report import drawn
from benchmarks.report import write_page
from benchmarks.teams.equilibrium import EXACT
from benchmarks.teams.runs import TUNING, Row, chosen_rates
from benchmarks.teams.settings import ARMS, SETTINGS, Setting, verdict
from mrlm.core.statistics import Interval, mean_interval

PREDICTED = ("<!-- predictions: written by `python -m benchmarks.teams` -->", "<!-- end -->")
MEASURED = ("<!-- results: written by `python -m benchmarks.teams` -->", "<!-- end of results -->")
FIGURE = "teams.svg"
SIDES = {"team": "#0b62b8", "one": "#c8541c"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the runs say about a setting.

    Args:
        setting: which.
        team, one: runs with the chosen rates, by seed, the same seeds for both.
    """

    setting: Setting
    team: list[Row]
    one: list[Row]

    @property
    def difference(self) -> Interval:
        """Team less one at the end, paired by seeds, with its 95 % interval."""
        pairs = zip(self.team, self.one, strict=True)
        return mean_interval([team.final - one.final for team, one in pairs])

    @property
    def on_the_way(self) -> Interval:
        """The same for the mean of the curve."""
        pairs = zip(self.team, self.one, strict=True)
        return mean_interval([team.area - one.area for team, one in pairs])

    @property
    def outcome(self) -> str:
        """`team`, `one`, `tie` or `undecided`."""
        return verdict(self.difference)


def compared(rows: Sequence[Row], tuning: int) -> list[Comparison]:
    """The settings with two seeds or more in both arms."""
    found = []
    for setting in SETTINGS:
        team, one = (_by_seed(rows, arm, tuning) for arm in (setting.team, setting.one))
        seeds = sorted(team.keys() & one.keys())
        if len(seeds) > 1:
            found.append(Comparison(setting, [team[s] for s in seeds], [one[s] for s in seeds]))
    return found


def _by_seed(rows: Iterable[Row], arm: str, tuning: int) -> dict[int, Row]:
    known = list(rows)
    rate = chosen_rates(known, [arm], tuning).get(arm)
    return {row.seed: row for row in known if (row.arm, row.rate) == (arm, rate) and not tunes(row)}


def tunes(row: Row) -> bool:
    """Whether a run belongs to the choice of the rate."""
    return row.seed >= TUNING


def predictions() -> str:
    """The table of what was predicted."""
    lines = ["| setting | game | prediction | because |", "|---|---|---|---|"]
    lines += [f"| {s.name} | {s.about} | `{s.prediction}` | {s.reason} |" for s in SETTINGS]
    return "\n".join(lines)


def results(rows: Sequence[Row], tuning: int, machine: str) -> str:
    """Everything that was measured.

    Args:
        rows: finished runs.
        tuning: seeds that chose the rates.
        machine: words for it.
    """
    found = compared(rows, tuning)
    hours = sum(row.seconds for row in rows) / 3600
    parts = [
        f"{len(rows)} runs, {hours:.2f} hours of one core ({machine}). Every arm has three "
        f"learning rates, chosen by the final reward of {_many(tuning, 'other seed')}. Final: the "
        "mean of the last two evaluations. Difference: team less one, paired by seeds with the "
        "same first weights, with its 95 % interval; on the way: that of the mean of the curve. "
        "Best: the highest expected reward of the arm.",
        _outcomes(found),
        _said(found),
        _beyond(found),
        "The greedy joint policy takes the most probable answer to every prompt; its reward is the "
        "exact expectation over all states. Equilibrium: no agent can raise the team's expected "
        "reward by another policy of its own while the others keep theirs (one agent: by any other "
        "policy); exploitability is what the best such deviation adds, the mean and the largest of "
        "the runs. Gain: trained less untrained.",
        _endings(found),
        _costs(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _outcomes(found: Sequence[Comparison]) -> str:
    lines = [
        "| setting | predicted | outcome | seeds | team | one | difference | on the way | best: "
        "team, one |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        setting = each.setting
        best = f"{ARMS[setting.team].best:.3f}, {ARMS[setting.one].best:.3f}"
        finals = (_interval([row.final for row in rows]) for rows in (each.team, each.one))
        right = "" if each.outcome == setting.prediction else " (predicted wrongly)"
        right = " (prediction not decided)" if each.outcome == "undecided" else right
        cells = [
            setting.name,
            f"`{setting.prediction}`",
            f"`{each.outcome}`{right}",
            str(len(each.team)),
            *finals,
            _signed(each.difference),
            _signed(each.on_the_way),
            best,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _said(found: Sequence[Comparison]) -> str:
    """What the outcomes say, and what is not known."""
    wrong = [
        f"{each.setting.name} (predicted `{each.setting.prediction}`, found `{each.outcome}`)"
        for each in found
        if each.outcome not in (each.setting.prediction, "undecided")
    ]
    known = {each.setting.name for each in found}
    texts = {
        "A team is better": [e.setting.name for e in found if e.outcome == "team"],
        "One agent is better": [e.setting.name for e in found if e.outcome == "one"],
        "No difference": [e.setting.name for e in found if e.outcome == "tie"],
        "Undecided": [e.setting.name for e in found if e.outcome == "undecided"],
        "Predicted wrongly": wrong,
        "Not run": [setting.name for setting in SETTINGS if setting.name not in known],
    }
    return "\n".join(
        f"- **{title}**: {'; '.join(all_) or 'none'}." for title, all_ in texts.items()
    )


def _beyond(found: Sequence[Comparison]) -> str:
    """Teams that can reach more than one agent, against the most that one can; exact rewards, since
    those of sampled tasks can exceed the most that is possible."""
    lines = []
    for each in found:
        most = ARMS[each.setting.one].best
        values = [row.greedy for row in each.team if row.greedy is not None]
        if values and ARMS[each.setting.team].best > most + EXACT:
            _, low, _ = mean_interval(values)
            word = "above" if low > most else "not above"
            lines.append(
                f"- {each.setting.name}: the team's greedy reward is {_interval(values)}, of which "
                f"the lower end, {low:.3f}, is {word} the most that one agent can reach, "
                f"{most:.3f}."
            )
    return "\n".join(lines)


def _by_arm(found: Sequence[Comparison]) -> list[tuple[str, list[Row]]]:
    """The runs of each arm, in the order of the table."""
    arms = {each.setting.team: each.team for each in found}
    arms |= {each.setting.one: each.one for each in found}
    order = {arm: place for place, arm in enumerate(ARMS)}
    return sorted(arms.items(), key=lambda pair: order[pair[0]])


def _endings(found: Sequence[Comparison]) -> str:
    """The state of the arms at the end, sampled and greedy."""
    lines = [
        "| arm | untrained | trained | gain | greedy | optimum | equilibrium | exploitability |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, rows in _by_arm(found):
        values = [row.greedy for row in rows if row.greedy is not None]
        gains = [row.gain for row in rows if row.gain is not None]
        best = sum(value >= ARMS[arm].best - EXACT for value in values)
        equal = sum(gain <= EXACT for gain in gains)
        cells = [
            arm,
            _interval([row.rewards[0] for row in rows]),
            _interval([row.final for row in rows]),
            _signed(mean_interval([row.final - row.rewards[0] for row in rows])),
            f"{fmean(values):.3f}" if values else "–",
            f"{best} of {len(values)}" if values else "–",
            f"{equal} of {len(gains)}" if gains else "–",
            f"{fmean(gains):.3f}, {max(gains):.3f}" if gains else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _costs(found: Sequence[Comparison]) -> str:
    """The training of the arms."""
    lines = [
        "| arm | policies | rate | tokens | optimiser steps | episodes | seconds | "
        "runs at a plateau |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, rows in _by_arm(found):
        mean = {
            name: fmean(values)
            for name, values in {
                "tokens": [row.tokens[-1] for row in rows],
                "steps": [row.steps for row in rows],
                "episodes": [row.episodes for row in rows],
                "seconds": [row.seconds for row in rows],
            }.items()
        }
        flat = sum(row.plateau for row in rows)
        lines.append(
            f"| {arm} | {ARMS[arm].policies} | {rows[0].rate:g} | {mean['tokens']:,.0f} | "
            f"{mean['steps']:.0f} | {mean['episodes']:,.0f} | {mean['seconds']:.1f} | "
            f"{flat} of {len(rows)} |"
        )
    return "\n".join(lines)


def figure(rows: Sequence[Row], tuning: int) -> str:
    """An SVG: a panel for every setting, the curves of both arms with 95 % intervals."""
    groups = {
        each.setting.name: {"team": _curves(each.team, "team"), "one": _curves(each.one, "one")}
        for each in compared(rows, tuning)
    }
    return drawn(groups, "Reward by sampled tokens, mean and 95 % interval", "tokens", SIDES)


def _curves(rows: Sequence[Row], side: str) -> list[Curve]:
    return [
        Curve(row.arm, side, row.rate, row.seed, list(row.tokens), list(row.rewards))
        for row in rows
    ]


def publish(page: Path, rows: Sequence[Row], tuning: int, machine: str) -> None:
    """Writes the tables into a page, and the runs and the figure beside it."""
    folder = page.parent / "teams"
    folder.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    about = f'{{"machine": {json.dumps(machine)}, "tuning": {tuning}, "runs": [\n{lines}\n]}}\n'
    (folder / "runs.json").write_text(about, encoding="utf-8")
    write_page(page, predictions(), PREDICTED)
    write_page(page, results(rows, tuning, machine), MEASURED)
    (page.parent / "figures" / FIGURE).write_text(figure(rows, tuning), encoding="utf-8")


def published(page: Path) -> tuple[list[Row], int, str]:
    """The runs beside a page, the seeds that chose rates, and the machine."""
    data: dict[str, Any] = json.loads((page.parent / "teams" / "runs.json").read_text("utf-8"))
    return [Row(**row) for row in data["runs"]], data["tuning"], data["machine"]


def _many(count: int, name: str) -> str:
    return f"{count} {name}" + "s" * (count != 1)


def _interval(values: Sequence[float]) -> str:
    mean, low, _ = mean_interval(values)
    return f"{mean:.3f} ± {mean - low:.3f}"


def _signed(found: Interval) -> str:
    mean, low, _ = found
    return f"{mean:+.3f} ± {mean - low:.3f}"
