"""The metrics of a run as columns, as far as they are known at a step."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from mrlm.core.errors import ConfigError
from mrlm.core.owners import agent_label
from mrlm.doctor.column import TAIL, Column

OF_AGENT = r"advantage/(.+)/zero"
CLOCKED = ("tokens_per_second", "seconds/")
"""Metrics of time, which no rule may read: two runs of one seed have the same alarms, and the same
checkpoints."""


class History:
    """The metrics of a run but those of time. A step costs the same however many came before: what
    rules read of a long run is bounded (`Column`).

    Args:
        rows: those that are known, in order.

    Attributes:
        step: the last one; 0 before the first.
        policies: agent -> its policy, in the recorded episodes of the latest steps.
        range: least and largest return of an agent, if the environment declares them.
        twin: the history of a run of one agent to compare with.

    Examples:
        >>> history = History([{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}])
        >>> history.known("loss")
        (array([1]), array([2.]))
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.step: int = 0
        self.policies: dict[str, str] = {}
        self.range: tuple[float, float] | None = None
        self.twin: History | None = None
        self._columns: dict[str, Column] = {}
        self._agents: tuple[int, list[str]] = (0, [])
        self._matches: dict[str, tuple[int, dict[str, str]]] = {}
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds the metrics of a step."""
        self.step = int(row["step"])
        for name, value in row.items():
            if name not in self._columns:
                if name in ("step", "time") or name.startswith(CLOCKED):
                    continue
                self._columns[name] = Column()
            if value is not None and math.isfinite(value):
                self._columns[name].append(self.step, float(value))

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; of bounded size, as what is kept."""
        columns: dict[str, dict[str, str]] = {}
        for name, column in self._columns.items():
            places, values = column.record()
            columns.setdefault(places, {})[name] = values
        return {"step": self.step, "columns": columns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`, in a history without steps."""
        self.step = state["step"]
        for places, columns in state["columns"].items():
            self._columns |= {name: Column.of(places, column) for name, column in columns.items()}

    def known(self, name: str, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The steps in which a metric is known, and its values there.

        Args:
            name: the metric.
            last: the last so many values, at most `TAIL`. By default all; of a metric with several
                thousand values those between the first and the latest are thinned.

        Raises:
            ConfigError: `last` is larger than `TAIL`.
        """
        if last is not None and last > TAIL:
            raise ConfigError(
                f"training.doctor_rules: a rule reads the last {last} values of {name}, and "
                f"{TAIL} are kept; set fewer steps"
            )
        steps, values = self._columns.get(name, _NONE).read(last)
        return steps.astype(int), values

    def has(self, pattern: str, count: int) -> bool:
        """Whether a metric whose name matches a pattern is known in so many steps."""
        matching = self.names(f"({pattern})")
        return any(len(self.known(name, min(count, TAIL))[0]) >= count for name in matching)

    def together(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The steps in which all of several metrics are known, and the values (names, steps)."""
        return common(*(self._columns.get(name, _NONE).read() for name in names))

    def names(self, pattern: str) -> dict[str, str]:
        """Metrics whose names match a pattern -> its first group."""
        seen, matches = self._matches.get(pattern, (0, {}))
        if seen < len(self._columns):
            new = ((x, re.fullmatch(pattern, x)) for x in islice(self._columns, seen, None))
            more = {name: match[1] for name, match in new if match}
            matches = dict(sorted({**matches, **more}.items())) if more else matches
            self._matches[pattern] = len(self._columns), matches
        return matches

    @property
    def agents(self) -> list[str]:
        """The agents that are trained."""
        seen, agents = self._agents
        if seen < len(self._columns):
            labels = self.names(OF_AGENT).values()
            agents = [label for label in labels if f"reward/{label}/mean" in self._columns]
            self._agents = len(self._columns), agents
        return agents

    def of_agent(self, name: str, agent: str) -> str:
        """The name under which an agent's value of a metric is logged."""
        trained = self.agents
        if len(trained) < 2:
            return name
        agents: dict[str, set[str]] = {}
        for trained_agent, policy in self.policies.items():
            if trained_agent in trained:
                agents.setdefault(policy, set()).add(trained_agent)
        policy = self.policies.get(agent, agent)
        label = agent_label(agent, policy, agents)
        return f"{name}/{policy if label is None else label}"


def common(*columns: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The steps that several columns of steps and values share, and the values (columns, steps)."""
    steps = columns[0][0]
    if all(np.array_equal(steps, others) for others, _ in columns[1:]):
        return steps.astype(int), np.stack([values for _, values in columns])
    for others, _ in columns[1:]:
        steps = np.intersect1d(steps, others, assume_unique=True)
    values = [column[np.searchsorted(column_steps, steps)] for column_steps, column in columns]
    return steps.astype(int), np.stack(values)


_NONE = Column()
