"""What a person sees of a run: a live panel on a terminal, one line per step elsewhere, and a
learning curve at the end."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = (
    ("reward", "reward/mean", "{:.3f}"),
    ("eval", "eval/reward/mean", "{:.3f}"),
    ("loss", "loss", "{:.4f}"),
    ("tok/s", "tokens_per_second", "{:,.0f}"),
)
"""Title, metric and form of what is always shown."""

log = logging.getLogger("mrlm")


class ConsoleLog:
    """Shows the progress of a run, unless the level of the logger `mrlm` is above INFO.

    Args:
        run_name: title.
        total_steps: iterations of the run.
        start: step the run begins with.
    """

    def __init__(self, run_name: str, total_steps: int, start: int = 0) -> None:
        self.run_name, self.total = run_name, total_steps
        self.step = self.first = max(0, start - 1)
        self.known: dict[str, float] = {}
        self.started = time.monotonic()
        self.moved: float | None = None
        self._live: Any = None
        self._quiet = log.level > logging.INFO
        if is_terminal() and not self._quiet:
            self._open()

    def log(self, step: int, metrics: Mapping[str, float], shown: bool = True) -> None:
        """Take the metrics of a step; `shown=False` leaves the line out where lines are printed."""
        self.step = step
        self.known.update(metrics)
        if step == self.first:
            self.moved = time.monotonic()
        if self._live is not None:
            self._live.update(self._panel())
        elif not self._quiet and (shown or step == self.total):
            print(self._line(metrics), flush=True)

    def close(self) -> None:
        """End the live display; its last state stays on the screen."""
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)
            self._live.stop()
            self._live = None

    def seconds_left(self) -> float | None:
        """Time until the last step at the pace so far; `None` before the first."""
        done = self.step - self.first
        if done < 1:
            return None
        spent = time.monotonic() - (self.moved or self.started)
        return spent / done * (self.total - self.step)

    def _line(self, metrics: Mapping[str, float]) -> str:
        parts = [f"{self.run_name}  step {self.step}/{self.total}"]
        for title, key, form in COLUMNS:
            if key in metrics:
                parts.append(f"{title} {form.format(metrics[key])}")
        left = self.seconds_left()
        if left is not None and self.step < self.total:
            parts.append(f"left {clock(left)}")
        return "  ".join(parts)

    # -- on a terminal -----------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the display; what is printed meanwhile appears above it."""
        from rich.live import Live

        self._live = Live(self._panel(), refresh_per_second=4)
        self._live.start()

    def _panel(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 3))
        heads = ["step", *(title for title, _, _ in COLUMNS), "elapsed", "left"]
        left = self.seconds_left()
        cells = [f"{self.step}/{self.total}"]
        for _, key, form in COLUMNS:
            cells.append(form.format(self.known[key]) if key in self.known else "-")
        cells += [clock(time.monotonic() - self.started), "-" if left is None else clock(left)]
        table.add_row(*(Text(head, style="dim") for head in heads))
        table.add_row(*(Text(cell) for cell in cells))
        bar = ProgressBar(total=max(1, self.total), completed=self.step)
        return Panel(Group(bar, table), title=self.run_name, title_align="left")


def is_terminal() -> bool:
    """Whether somebody is looking: standard output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def learning_curve(
    history: Sequence[Mapping[str, Any]], width: int | None = None, height: int = 12
) -> str:
    """A plot in characters of the sampled reward (`.`) and the held-out evaluation (`o`) over the
    steps; empty if nothing was played.

    Args:
        history: rows of metrics with a `step`.
        width: columns in all; the terminal's, at most 80, when `None`.
        height: lines of the plot.
    """
    width = width or min(80, max(60, shutil.get_terminal_size().columns))
    series = {
        mark: [(row["step"], row[key]) for row in history if row.get(key) is not None]
        for mark, key in ((".", "reward/mean"), ("o", "eval/reward/mean"))
    }
    points = [point for row in series.values() for point in row]
    if len(points) < 2:
        return ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    inner = width - 9
    canvas = [[" "] * inner for _ in range(height)]
    for mark, row in series.items():
        for step, value in row:
            x = round((step - first) / max(1, last - first) * (inner - 1))
            y = round((value - low) / ((high - low) or 1.0) * (height - 1))
            canvas[height - 1 - y][x] = mark
    lines = []
    for index, cells in enumerate(canvas):
        value = high - (high - low) * index / max(1, height - 1)
        label = f"{value:7.2f}" if index in (0, height // 2, height - 1) else " " * 7
        lines.append(f"{label} |{''.join(cells)}".rstrip())
    lines.append(" " * 8 + "+" + "-" * inner)
    ends = f"step {first}", f"step {last}"
    lines.append(" " * 9 + ends[0] + ends[1].rjust(inner - len(ends[0])))
    lines.append(" " * 9 + ". sampled reward   o evaluation on held-out tasks")
    return "\n".join(lines)
