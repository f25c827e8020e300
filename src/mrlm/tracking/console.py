"""Console output of a run: a live panel on a terminal, one line per step elsewhere."""

import atexit
import logging
import os
import shutil
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mrlm.core.log import log
from mrlm.tracking.shown_metrics import ShownMetrics, sparkline

COLUMNS = (
    ("reward", "reward/mean", "{:.3f}"),
    ("eval", "eval/reward/mean", "{:.3f}"),
    ("loss", "loss", "{:.4f}"),
    ("tok/s", "tokens_per_second", "{:,.0f}"),
)
"""Title, metric and format of the columns that are shown where a run has the metric."""
NOTES = 3
"""Most notes on the panel."""
PACE = 20
"""Steps whose mean duration gives the remaining time."""
WIDEST = 100
"""Most columns of the panel."""


class ConsoleLog:
    """Shows the progress of a run of `total_steps` from the step `start`, unless the level of the
    logger `mrlm` is above INFO. Nothing is shown before the first step or note. A closed output
    (such as a pipe) ends the display with a warning, never the run. `show` are names or patterns of
    the metrics to show; empty: numbers by agent."""

    def __init__(
        self, run_name: str, total_steps: int, start: int = 0, show: Sequence[str] = ()
    ) -> None:
        self.run_name: str = printable(run_name)
        self.total: int = total_steps
        self.step = max(0, start - 1)
        self.shown: ShownMetrics = ShownMetrics(show)
        self.rewards: deque[float] = deque(maxlen=60)
        self.notes: deque[str] = deque(maxlen=NOTES)
        self.started: float = time.monotonic()
        self._marks: deque[tuple[int, float]] = deque(maxlen=PACE + 1)
        self._shown = log.level <= logging.INFO
        self._live: Any = None
        self._doing: tuple[str, int, int] | None = None

    def log(self, step: int, metrics: Mapping[str, float], shown: bool = True) -> None:
        """Show the metrics of a step; `shown=False` omits the line if lines are printed."""
        if not self._marks and step > self.step:  # the time of building and loading is not counted
            self._marks.append((self.step, self.started))
        self.step: int = step
        self._marks.append((step, time.monotonic()))
        self.shown.add(metrics)
        if "reward/mean" in metrics:
            self.rewards.append(metrics["reward/mean"])
        evaluated = "eval/reward/mean" in metrics
        worth = shown or evaluated or step == self.total
        self._show(lambda: self._line(metrics) if worth else None)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how much of a part of the next step is done; on the panel only."""
        self._doing = what, done, total

    def note(self, text: str) -> None:
        """Show a sentence: on the panel, or as a line of its own."""
        text = printable(text)
        self.notes.append(text)
        self._show(lambda: text)

    def say(self, text: str) -> None:
        """Print lines that stay on the screen after `close`; above the panel if there is one."""
        if self._shown:
            self._safely(lambda: print(encodable(printable(text)), flush=True))

    def close(self) -> None:
        """End the live display; its last state stays on the screen."""
        for sentence in self.shown.unknown() if self.shown.known else ():
            self.say(sentence)
        if self._live is not None:
            live, self._live = self._live, None
            atexit.unregister(self.close)
            self._safely(live.stop)

    def seconds_left(self) -> float | None:
        """Estimated time until the last step; `None` before the first."""
        (first, begun), (last, ended) = self._marks[0], self._marks[-1]
        if last == first:
            return None
        return (ended - begun) / (last - first) * (self.total - self.step)

    # -- output ------------------------------------------------------------------------------------

    def _show(self, line: Callable[[], str | None]) -> None:
        if not self._shown:
            return
        if self._live is None and is_terminal():
            self._safely(self._open)
        if self._live is None and self._shown and (text := line()) is not None:
            self._safely(lambda: print(encodable(text), flush=True))

    def _safely(self, job: Callable[[], object]) -> None:
        """Write to the terminal; stop the display if it is gone."""
        try:
            job()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._shown, self._live = False, None
            if isinstance(error, OSError):  # later output must not fail either
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            log.warning("the display of the run is stopped: %s", error)

    def _line(self, metrics: Mapping[str, float]) -> str:
        parts = [f"{self.run_name}  step {self.step}/{self.total}"]
        for title, key, form in COLUMNS:
            if key in metrics:
                parts.append(f"{title} {form.format(metrics[key])}")
        parts += self.shown.words(metrics)
        left = self.seconds_left()
        if left is not None and self.step < self.total:
            parts.append(f"left {clock(left)}")
        return "  ".join(parts)

    # -- on a terminal -----------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the display; other output appears above it."""
        from rich.live import Live

        live = Live(get_renderable=self._panel, refresh_per_second=2)
        live.start(refresh=True)
        self._live = live
        atexit.register(self.close)  # a custom loop may not close the log

    def _panel(self) -> Any:
        from rich.columns import Columns
        from rich.console import Group
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        left, metrics = self.seconds_left() if self._marks else None, self.shown.known
        cells = [("step", f"{self.step}/{self.total}")]
        for title, key, form in COLUMNS:
            if key in metrics:
                cells.append((title, form.format(metrics[key])))
        cells.append(("elapsed", clock(time.monotonic() - self.started)))
        cells.append(("left", "-" if left is None else clock(left)))
        width = max(len(text) for cell in cells for text in cell)
        fields = [Text.assemble((title, "dim"), "\n", (text, "bold")) for title, text in cells]
        rows: list[Any] = [
            Padding(ProgressBar(total=max(1, self.total), completed=self.step), 0),
            Columns(fields, width=width, padding=(0, 2, 0, 0)),
        ]
        if self._doing and self.step < self.total:
            what, done, total = self._doing
            rows.append(Text(f"step {self.step + 1}: {what} {done}/{total}", style="dim"))
        curve = sparkline(list(self.rewards))
        if curve and encodable(curve) == curve:
            parts = ("reward ", "dim"), (curve, "green")
            rows.append(Text.assemble(*parts, overflow="crop", no_wrap=True))
        if table := self.shown.table():
            rows.append(_grid(table))
        rows += [Text(note, style="dim", overflow="ellipsis", no_wrap=True) for note in self.notes]
        seen = min(WIDEST, shutil.get_terminal_size().columns)
        return Panel(Group(*rows), title=Text(self.run_name), title_align="left", width=seen)


def _grid(table: Sequence[Sequence[str]]) -> Any:
    """A table of metrics: names on the left, numbers on the right."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for _ in table[0][1:]:
        grid.add_column(no_wrap=True, overflow="ellipsis", justify="right")
    for number, row in enumerate(table):
        if any(row):
            cells = [printable(cell) for cell in row]
            style = "dim" if number == 0 else ""
            grid.add_row(*(Text(encodable(cell), style=style) for cell in cells))
    return grid


def is_terminal() -> bool:
    """Whether standard output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def leave_closed_terminal() -> None:
    """Write to nowhere instead of to a terminal that was closed, where every write is an error."""
    for descriptor in (1, 2):
        with suppress(OSError):  # closed, too
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def printable(text: str) -> str:
    """Text that cannot control a terminal: control codes and direction marks are escaped, line ends
    stay."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def encodable(text: str) -> str:
    """Text in the encoding of standard output; missing characters are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
