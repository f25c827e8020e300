"""The table of metrics: what a run logs, in which range it is healthy, and what to do outside it.
The page of metrics and the tooltips of charts are made from it."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import Pattern

EVALUATION = "eval/"
"""Prefix of the metrics of evaluations."""
OWNER = r"(/[^/]+){0,2}"
"""Suffix of numbers that are also logged by policy or agent."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table.

    Args:
        name: the name; parts in angle brackets are names of a run.
        by: `policy`, or `policy, agent`: it is also logged as `<name>/<policy>` (and
            `<name>/<agent>`) in runs with several; empty: it is not.
        meaning: the definition.
        unit: its unit.
        healthy: the range or the course to expect.
        do: what to do otherwise.
    """

    name: str
    by: str
    meaning: str
    unit: str
    healthy: str
    do: str

    @property
    def pattern(self) -> Pattern[str]:
        """The names that it describes."""
        parts = re.split(r"(<\w+>)", self.name)
        text = "".join(_part(part) for part in parts)
        return re.compile(text + (OWNER if self.by else ""))

    @property
    def sentence(self) -> str:
        """The row as a tooltip."""
        return f"{self.meaning} ({self.unit}). Healthy: {self.healthy}. Otherwise: {self.do}."


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """Rows of the table with a title, and a sentence on all of them."""

    title: str
    about: str
    metrics: tuple[Metric, ...]


@cache
def sections() -> tuple[MetricGroup, ...]:
    """The table."""
    text = Path(__file__).with_name("metrics.json").read_text(encoding="utf-8")
    return tuple(
        MetricGroup(part["title"], part["about"], tuple(Metric(**row) for row in part["metrics"]))
        for part in json.loads(text)
    )


def metric(name: str) -> Metric | None:
    """The row that describes a logged name; `None` if there is none. The most literal row wins."""
    name = name.removeprefix(EVALUATION)
    rows = [row for row, pattern in _patterns() if pattern.fullmatch(name)]
    return min(rows, key=lambda row: row.name.count("<"), default=None)


def described(names: Iterable[str]) -> dict[str, str]:
    """Logged name -> its description, for names in the table."""
    entries = {name: metric(name) for name in names}
    return {name: row.sentence for name, row in entries.items() if row is not None}


@cache
def _patterns() -> tuple[tuple[Metric, Pattern[str]], ...]:
    return tuple((row, row.pattern) for part in sections() for row in part.metrics)


def _part(text: str) -> str:
    """The pattern of a part of a name."""
    if text in ("<component>", "<metric>"):
        return ".+"
    return "[^/]+" if text.startswith("<") else re.escape(text)
