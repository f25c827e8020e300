"""A learning curve of characters, for the end of a run."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

FEWEST = 4
"""Least number of points for a curve."""
NARROWEST, WIDEST = 20, 300
"""Columns of a curve."""


def learning_curve(
    history: Sequence[Mapping[str, Any]], width: int | None = None, height: int = 12
) -> str:
    """A character plot of the sampled reward (`.`, a moving mean) and the held-out evaluation (`o`)
    over the steps; of the loss if there are no rewards; empty if there are too few points.

    Args:
        history: rows of metrics with a `step`.
        width: total columns, 20 to 300; by default the terminal's, or 80 without one.
        height: lines of the plot.
    """
    width = min(WIDEST, max(NARROWEST, width or shutil.get_terminal_size().columns))
    reward, evaluation = _series(history, "reward/mean"), _series(history, "eval/reward/mean")
    series = {".": _smoothed(reward), "o": evaluation}
    legend = [". sampled reward", "o held-out evaluation"]
    if len(reward) + len(evaluation) < 2:
        series, legend = {".": _smoothed(_series(history, "loss"))}, [". loss"]
    points = [point for row in series.values() for point in row]
    if max(map(len, series.values())) < FEWEST:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    if low == high:
        low, high = low - 0.5, high + 0.5
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    labels = {
        index: _label(high - (high - low) * index / max(1, height - 1), high - low)
        for index in (0, height // 2, height - 1)
    }
    margin = max(map(len, labels.values()))
    inner = width - margin - 2
    canvas = [[" "] * inner for _ in range(height)]
    for mark, row in series.items():
        for step, value in row:
            x = round((step - first) / max(1, last - first) * (inner - 1))
            y = round((value - low) / (high - low) * (height - 1))
            canvas[height - 1 - y][x] = mark
    rows = [f"{labels.get(i, ''):>{margin}} |{''.join(cells)}" for i, cells in enumerate(canvas)]
    lines = [row.rstrip() for row in rows]
    lines.append(" " * (margin + 1) + "+" + "-" * inner)
    ends = f"step {first}", f"step {last}"
    if len("  ".join(ends)) <= inner:
        lines.append(" " * (margin + 2) + ends[0] + ends[1].rjust(inner - len(ends[0])))
    else:
        lines.append(f"steps {first}-{last}".rjust(width))
    whole = " " * (margin + 2) + "   ".join(legend)
    lines += [whole] if len(whole) <= width else [entry[:width] for entry in legend]
    return "\n".join(lines)


def prefix_sums(values: Iterable[float]) -> list[Fraction]:
    """The exact sums of the first 0, 1, 2, ... values, of which two give the sum of a window."""
    return list(accumulate(map(Fraction, values), initial=Fraction(0)))


def _series(history: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(row["step"], row[key]) for row in history if row.get(key) is not None]


def _smoothed(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A moving mean over a twentieth of the run to either side; narrower at the ends, so that
    nothing is shifted."""
    reach = len(points) // 20
    sums = prefix_sums([value for _, value in points])
    smooth = []
    for index, (step, _) in enumerate(points):
        side = min(reach, index, len(points) - 1 - index)
        window = float(sums[index + side + 1] - sums[index - side])
        smooth.append((step, window / (2 * side + 1)))
    return smooth


def _label(value: float, span: float) -> str:
    """A label of the vertical axis in at most eight characters."""
    text = f"{value:.2f}" if 0.05 <= span < 1e4 and abs(value) < 1e4 else f"{value:.1e}"
    return text if len(text) <= 8 else f"{value:.0e}"
