"""Tables and the figure of learning curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from benchmarks.credit.curves import COURSES, RULES, Curve, on_grid
from mrlm.core.statistics import mean_interval, t_point

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 190, 46, 60, 54
COLOURS = (
    *("#222222", "#8a8a8a", "#c4c4c4", "#0b62b8", "#6fb1ef"),
    *("#c8541c", "#2b8a3e", "#8fce9b", "#8e44ad"),
)


def save(path: Path, found: Sequence[Curve]) -> None:
    """Writes curves as JSON; those that the file has of other games and rules stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = {(each.game, each.entry) for each in found}
    known = load(path) if path.is_file() else []
    kept = [each for each in known if (each.game, each.entry) not in new]
    rows = [each.record() for each in [*kept, *found]]
    path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")


def load(path: Path) -> list[Curve]:
    """Reads them."""
    return [Curve(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def grouped(found: Sequence[Curve]) -> dict[str, dict[str, list[Curve]]]:
    """Game -> rule -> its runs with the chosen rate, by seed; in the order of the tables."""
    games, rules = list(COURSES), [rule.title for rule in RULES]
    chosen = [each for each in found if not each.tuning]
    chosen.sort(key=lambda e: (games.index(e.game), rules.index(e.entry), e.seed))
    groups: dict[str, dict[str, list[Curve]]] = {}
    for each in chosen:
        groups.setdefault(each.game, {}).setdefault(each.entry, []).append(each)
    return groups


def markdown(found: Sequence[Curve], about: Mapping[str, str]) -> str:
    """A table for every game.

    Args:
        found: curves.
        about: game -> what it is.
    """
    parts = []
    for game, rules in grouped(found).items():
        known = [curve for curves in rules.values() for curve in curves]
        counts = [curve.steps[-1] for curve in known]
        seeds = {len(curves) for curves in rules.values()}
        start = np.mean([curve.returns[0] for curve in known])
        number = (
            f"{min(counts):,}"
            if min(counts) == max(counts)
            else (f"{min(counts):,} to {max(counts):,}")
        )
        parts.append(
            f"`{game}`: {about[game]}. {number} evaluations, {min(seeds)} seeds, "
            f"{start:.3f} at first."
        )
        parts.append(_table(rules))
    return "\n\n".join(parts)


def _table(rules: Mapping[str, Sequence[Curve]]) -> str:
    lines = [
        "| | rate | mean of the curve | at the end | mean less that of the shared advantage |",
        "|---|---|---|---|---|",
    ]
    base = rules.get(RULES[0].title, [])
    for title, curves in rules.items():
        area = _interval([curve.area for curve in curves])
        final = _interval([curve.final for curve in curves])
        lines.append(
            f"| {title} | {curves[0].rate:g} | {area} | {final} | {_against(curves, base)} |"
        )
    return "\n".join(lines)


def _interval(values: Sequence[float]) -> str:
    mean, low, _ = mean_interval(values)
    return f"{mean:.3f} ± {mean - low:.3f}"


def _against(curves: Sequence[Curve], base: Sequence[Curve]) -> str:
    """The difference of the areas, pair by pair of equal seeds; bold if 0 is outside its
    interval."""
    if curves is base or not base:
        return "–"
    known = {curve.seed: curve.area for curve in base}
    mean, low, high = mean_interval([c.area - known[c.seed] for c in curves if c.seed in known])
    text = f"{mean:+.3f} ± {mean - low:.3f}"
    return f"**{text}**" if low > 0 or high < 0 else text


def figure(found: Sequence[Curve]) -> str:
    """An SVG: a panel for every game, a line for every rule with its 95 % interval."""
    groups = grouped(found)
    titles = list(dict.fromkeys(title for rules in groups.values() for title in rules))
    heading = "Return by evaluations of the environment, mean and 95 % interval"
    return drawn(groups, heading, "evaluations", dict(zip(titles, COLOURS, strict=False)))


def drawn(
    groups: Mapping[str, Mapping[str, Sequence[Curve]]],
    heading: str,
    unit: str,
    colours: Mapping[str, str],
) -> str:
    """An SVG of curves with 95 % intervals.

    Args:
        groups: title of a panel -> title of a line -> its runs.
        heading: text above the panels.
        unit: what the steps of the curves count.
        colours: title of a line -> its colour.
    """
    titles = list(dict.fromkeys(title for rules in groups.values() for title in rules))
    columns = 2
    rows = -(-len(groups) // columns)
    legend = TOP + rows * (HEIGHT + GAP)
    width, height = LEFT + columns * (WIDTH + GAP), legend + 20 * -(-len(titles) // 2) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="18" font-size="13">{escape(heading)}</text>',
    ]
    for place, (game, rules) in enumerate(groups.items()):
        x = LEFT + (place % columns) * (WIDTH + GAP)
        y = TOP + (place // columns) * (HEIGHT + GAP)
        parts += _panel(game, rules, colours, x, y, unit)
    for place, title in enumerate(titles):
        x, y = LEFT + (place % 2) * (WIDTH + GAP), legend + 20 * (place // 2)
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="{y}" y2="{y}" stroke="{colours[title]}" '
            'stroke-width="3"/>'
            f'<text x="{x + 28}" y="{y + 4}">{escape(title)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    game: str,
    rules: Mapping[str, Sequence[Curve]],
    colours: Mapping[str, str],
    x: int,
    y: int,
    unit: str,
) -> list[str]:
    grids = {title: on_grid(curves) for title, curves in rules.items()}
    last = max(steps[-1] for steps, _ in grids.values())
    low = min(float(values.mean(0).min()) for _, values in grids.values())
    high = max(float(values.mean(0).max()) for _, values in grids.values())
    pad = 0.06 * (high - low or 1.0)
    low, high = low - pad, high + pad

    def point(step: float, value: float) -> str:
        value = min(max(value, low), high)
        across, up = step / last, (value - low) / (high - low)
        return f"{x + WIDTH * across:.1f},{y + HEIGHT * (1 - up):.1f}"

    parts = [
        f'<text x="{x}" y="{y - 8}" font-size="12">{escape(game)}</text>',
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>',
        f'<text x="{x + WIDTH}" y="{y + HEIGHT + 14}" text-anchor="end" fill="#555">{last:,.0f} '
        f"{unit}</text>",
    ]
    for value in np.linspace(low + pad, high - pad, 3):
        up = y + HEIGHT * (1 - (value - low) / (high - low))
        parts.append(
            f'<text x="{x - 4}" y="{up + 4:.1f}" text-anchor="end" fill="#555">{value:.2f}</text>'
        )
    bands, lines = [], []
    for title, (steps, values) in grids.items():
        mean, half = values.mean(0), np.zeros(len(steps))
        if len(values) > 1:
            half = t_point(len(values) - 1) * values.std(0, ddof=1) / np.sqrt(len(values))
        edges = [*zip(steps, mean + half, strict=True)]
        edges += reversed([*zip(steps, mean - half, strict=True)])
        band = " ".join(point(*each) for each in edges)
        bands.append(f'<polygon points="{band}" fill="{colours[title]}" fill-opacity="0.1"/>')
        dash = ' stroke-dasharray="5 3"' if title == RULES[-1].title else ""  # often upon another
        line = " ".join(point(*each) for each in zip(steps, mean, strict=True))
        stroke = f'stroke="{colours[title]}" stroke-width="1.8"{dash}'
        lines.append(
            f'<polyline points="{line}" fill="none" {stroke}><title>{escape(title)}</title>'
            "</polyline>"
        )
    return [*parts, *bands, *lines]
