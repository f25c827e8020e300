"""What a run of the benchmarks leaves behind: a table, a JSON file, plots, and the table in a page
of documentation."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import mrlm
from benchmarks.rows import Bench, Result, Row, Unavailable

RESULTS = "results.json"
MARKS = ("<!-- table: written by `python -m benchmarks` -->", "<!-- end of table -->")
HEADINGS = ("row", "what", "value", "spread", "ours", "peer", "of limit", "must", "goal", "met")
GREEN, AMBER, RED, GREY = "#2e7d32", "#f9a825", "#c62828", "#9e9e9e"
COLOURS = {"goal": GREEN, "must": AMBER, "missed": RED, "": GREY}


def machine() -> str:
    """What everything was measured on, in words that name no host."""
    capability = torch.backends.cpu.get_cpu_capability()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = f"{cores} cores, {capability}, torch {torch.__version__.split('+')[0]}"
    if torch.cuda.is_available():
        words += f", {torch.cuda.get_device_name()}"
    return f"{words}, Python {platform.python_version()}"


def version() -> str:
    """The library's revision where it is a working copy, else its version."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, cwd=Path(mrlm.__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return mrlm.__version__
    return done.stdout.strip()


def measure(rows: Sequence[Row], bench: Bench, to: Path) -> list[str]:
    """Measure rows into a folder; the names of those that failed."""
    failed: list[str] = []
    for row in rows:
        print(f"{row.name} ...", file=sys.stderr, flush=True)
        load = round(os.getloadavg()[0], 1)
        context = {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
        try:
            result = row.measure(bench)
        except Unavailable as error:
            result = Result(reason=f"skipped: {error}")
        except Exception as error:
            result = Result(reason=f"failed: {error!r}")
            failed.append(row.name)
            traceback.print_exc()
        result.quick, result.load, result.version = bench.quick, load, version()
        if bench.dry:
            result.note = "; ".join(filter(None, [result.note, "not measured on a GPU"]))
        save(to, {row.name: result}, context)
    return failed


def save(folder: Path, found: Mapping[str, Result], context: Mapping[str, Any]) -> Path:
    """Write results into `folder`; rows that were not measured now stay as they were."""
    path = folder / RESULTS
    data = json.loads(path.read_text()) if path.is_file() else {"rows": {}}
    data["rows"] |= {name: result.record() | dict(context) for name, result in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def load(folder: Path) -> dict[str, Result]:
    """Row -> result, of every row that was ever measured into `folder`."""
    path = folder / RESULTS
    if not path.is_file():
        return {}
    known = Result().record().keys()
    rows = json.loads(path.read_text())["rows"]
    return {
        name: Result(**{key: value for key, value in row.items() if key in known})
        for name, row in rows.items()
    }


def table(rows: Iterable[Row], found: Mapping[str, Result]) -> str:
    """A plain table, columns aligned; notes and reasons stand under it."""
    lines = [HEADINGS, *(_cells(row, found[row.name]) for row in rows if row.name in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:], "", *_remarks(rows, found)])


def markdown(rows: Iterable[Row], found: Mapping[str, Result], words: str) -> str:
    """The same for a page, under a line that says on what it was measured."""
    rows = [row for row in rows if row.name in found]
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(_cells(row, found[row.name]) for row in rows)]
    text = ["| " + " | ".join(cell or " " for cell in line) + " |" for line in lines]
    remarks = [re.sub(r"^( *)", r"\1- ", line) for line in _remarks(rows, found)]
    return "\n".join([f"Measured on {words}.", "", *text, "", *remarks])


def write_page(page: Path, text: str, marks: tuple[str, str] = MARKS) -> None:
    """Put `text` between the marks of a page.

    Raises:
        ValueError: the page has no marks.
    """
    whole = page.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
    if not pattern.search(whole):
        raise ValueError(f"{page}: it has no line {marks[0]!r} followed by {marks[1]!r}")
    new = pattern.sub(lambda _: f"{marks[0]}\n{text}\n{marks[1]}", whole)
    page.write_text(new, encoding="utf-8")


def plots(folder: Path, rows: Sequence[Row], found: Mapping[str, Result]) -> list[Path]:
    """One picture of all ratios and one of every growth; none without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    paths = []
    ratios = [r for r in rows if r.unit == "x" and not r.less and found[r.name].value is not None]
    if ratios:
        figure, axes = plt.subplots(figsize=(8, 1 + 0.5 * len(ratios)))
        _bars(axes, ratios, found)
        paths.append(_kept(figure, folder / "ratios.png"))
    for row in rows:
        result = found[row.name]
        if result.lines:
            figure, axes = plt.subplots(figsize=(6, 4))
            _lines(axes, result)
            axes.set_title(row.title, fontsize=10)
            paths.append(_kept(figure, folder / f"{row.name}.png"))
    return paths


def _bars(axes: Any, rows: Sequence[Row], found: Mapping[str, Result]) -> None:
    """A bar per ratio, with its spread, and its bounds as marks."""
    for place, row in enumerate(reversed(rows)):
        result = found[row.name]
        assert result.value is not None
        axes.barh(place, result.value, color=COLOURS[row.verdict(result)])
        if result.low is not None and result.high is not None:
            axes.plot([result.low, result.high], [place, place], color="black", lw=1)
        for bound, style in ((row.must, "|"), (row.goal, "d")):
            if bound is not None:
                axes.plot(bound, place, style, color="black", ms=9, mfc="none")
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    axes.axvline(1, color="black", lw=0.5)
    axes.set(xlabel="times as fast as the peer; | must, ◇ goal", xlim=(0, None))


def _lines(axes: Any, result: Result) -> None:
    """A line per name, over a doubling axis."""
    for name, points in result.lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    places = sorted({x for points in result.lines.values() for x, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{x:g}" for x in places])
    axes.set(xlabel=result.axis, ylabel=result.scale)
    axes.set_ylim(bottom=0)
    if len(result.lines) > 1:
        axes.legend()


def _kept(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _cells(row: Row, result: Result) -> tuple[str, ...]:
    def number(value: float | None, unit: str) -> str:
        if value is None:
            return ""
        if unit == "share":
            return f"{100 * value:.0f} %"
        return f"{value:,.0f}" if unit in ("tokens/s", "ms") else f"{value:.2f}"

    bound = "<= " if row.less else ""
    several = result.rounds > 1  # a single round has no spread
    low, high = (number(each, row.unit) if several else "" for each in (result.low, result.high))
    return (
        row.name,
        row.title,
        number(result.value, row.unit) or result.reason.partition(":")[0],
        f"{low}..{high}" if low else "",
        "" if result.ours is None else f"{result.ours:.2f} s",
        "" if result.peer is None else f"{result.peer:.2f} s",
        number(result.limit, "share"),
        "" if row.must is None else bound + number(row.must, row.unit),
        "" if row.goal is None else bound + number(row.goal, row.unit),
        row.verdict(result),
    )


def _remarks(rows: Iterable[Row], found: Mapping[str, Result]) -> list[str]:
    """Why there is no value, what else there is to know, and how it was measured."""
    lines = []
    for row in rows:
        result = found.get(row.name)
        if result is None:
            continue
        rounds, threads = _many(result.rounds, "round"), _many(result.threads, "thread")
        how = f"{rounds}, {threads}, {result.clock}, load {result.load:g}, at {result.version}"
        how += " (quick: tiny work, the numbers mean nothing)" if result.quick else ""
        parts = [result.reason, result.note, result.ceiling, how if result.clock else ""]
        lines.append(f"{row.name}: " + "; ".join(part for part in parts if part))
        lines += [
            f"  {name}: " + ", ".join(f"{x:g}: {y:.2f}" for x, y in points)
            for name, points in result.lines.items()
        ]
    return lines


def _many(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
