"""The metrics on the console besides those of the team: numbers by agent, or those that a user
chose."""

import difflib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

BY_AGENT = (
    ("reward", "reward/{}/mean", "{:.3f}"),
    ("eval", "eval/reward/{}/mean", "{:.3f}"),
    ("length", "completion_length/{}/mean", "{:.1f}"),
    ("entropy", "entropy/{}", "{:.3f}"),
    ("KL", "approx_kl/{}", "{:.1e}"),
    ("advantage std", "advantage/{}/std", "{:.3f}"),
)
"""Title, metric (of an agent or a policy) and format of the columns of the table by agent."""
MOST = 12
"""Most rows of a table."""
POINTS = 24
"""Values of a metric that its sparkline has."""


class ShownMetrics:
    """A table of the metrics that are chosen by names or patterns (`entropy/*`); by none: numbers
    by agent."""

    def __init__(self, chosen: Sequence[str] = ()) -> None:
        self.chosen: tuple[str, ...] = tuple(chosen)
        self.known: dict[str, float] = {}
        self._values: dict[str, deque[float]] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of a step."""
        self.known.update(metrics)
        for name in self._fitting(metrics):
            self._values.setdefault(name, deque(maxlen=POINTS)).append(metrics[name])

    def words(self, metrics: Mapping[str, float]) -> list[str]:
        """The chosen metrics of a step for a line of text."""
        return [f"{name} {short(metrics[name])}" for name in self._fitting(metrics)]

    def table(self) -> list[list[str]]:
        """Rows of equal length, the first with titles; empty if nothing is known."""
        rows = self._chosen_rows() if self.chosen else self._agent_rows()
        left = len(rows) - 1 - MOST
        if left <= 0:
            return rows
        return [*rows[: MOST + 1], [f"{left} more", *[""] * len(rows[0][1:])]]

    def unknown(self) -> list[str]:
        """A sentence for every pattern that fitted no metric."""
        sentences = []
        for pattern in self.chosen:
            if any(fnmatchcase(name, pattern) for name in self.known):
                continue
            near = difflib.get_close_matches(pattern, self.known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            sentences.append(f"--show {pattern}: no metric of this run has this name{hint}")
        return sentences

    def _fitting(self, metrics: Mapping[str, float]) -> list[str]:
        """Chosen names, in the order of the patterns."""
        names = (n for pattern in self.chosen for n in sorted(metrics) if fnmatchcase(n, pattern))
        return list(dict.fromkeys(names))

    def _chosen_rows(self) -> list[list[str]]:
        known = self._values.items()
        rows = [[name, short(values[-1]), sparkline(list(values))] for name, values in known]
        return [["", "", ""], *rows] if rows else []

    def _agent_rows(self) -> list[list[str]]:
        """A row per agent; a row per policy where its name is no agent's."""
        cells: dict[str, dict[str, str]] = {}
        for title, pattern, form in BY_AGENT:
            shape = re.compile(re.escape(pattern).replace(r"\{\}", "([^/]+)"))
            for name, value in self.known.items():
                match = shape.fullmatch(name)
                if match:
                    cells.setdefault(match[1], {})[title] = form.format(value)
        titles = [title for title, *_ in BY_AGENT if any(title in row for row in cells.values())]
        rows = [[name, *(row.get(title, "-") for title in titles)] for name, row in cells.items()]
        return [["", *titles], *rows] if len(rows) > 1 else []


def short(value: float) -> str:
    """A metric in at most nine characters."""
    if value == int(value) and abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def sparkline(values: Sequence[float]) -> str:
    """Values as a row of blocks; empty for fewer than two."""
    if len(values) < 2:
        return ""
    blocks = "▁▂▃▄▅▆▇█"
    low, span = min(values), (max(values) - min(values)) or 1.0
    return "".join(blocks[round((value - low) / span * (len(blocks) - 1))] for value in values)
