"""The metrics of a run as columns, as far as they are known at a step."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from mrlm.core.owners import agent_label

OF_AGENT = re.compile(r"advantage/(.+)/zero")


class History:
    """The metrics of a run, a row per step.

    Args:
        rows: those that are known, in order.

    Attributes:
        policies: agent -> its policy, in the recorded episodes of the latest steps.
        twin: the history of a run of one agent to compare with.

    Examples:
        >>> history = History([{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}])
        >>> history.column("loss")
        array([ 2., nan])
    """

    def __init__(self, rows: Any = ()) -> None:
        self._rows = 0
        self._columns: dict[str, np.ndarray] = {}
        self.policies: dict[str, str] = {}
        self.twin: History | None = None
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds the metrics of a step."""
        place, self._rows = self._rows, self._rows + 1
        numbers = {name: value for name, value in row.items() if name != "time"}
        for name in numbers.keys() - self._columns.keys():
            self._columns[name] = np.full(max(64, 2 * self._rows), np.nan)
            self.__dict__.pop("agents", None)
        for name, column in self._columns.items():
            if place == len(column):
                self._columns[name] = np.concatenate([column, np.full(place, np.nan)])
            value = numbers.get(name)
            self._columns[name][place] = math.nan if value is None else float(value)

    def __len__(self) -> int:
        return self._rows

    def column(self, name: str) -> np.ndarray:
        """(rows,) float64; NaN where the metric is not known."""
        known = self._columns.get(name)
        return np.full(self._rows, np.nan) if known is None else known[: self._rows]

    def known(self, name: str, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The steps in which a metric is known, and its values there; `last`: the last so many."""
        column = self.column(name)
        (places,) = np.nonzero(np.isfinite(column))
        places = places if last is None else places[-last:]
        return self.column("step")[places].astype(int), column[places]

    def names(self, pattern: str) -> dict[str, str]:
        """Metrics whose names match a pattern -> its first group."""
        found = ((name, re.fullmatch(pattern, name)) for name in sorted(self._columns))
        return {name: match[1] for name, match in found if match}

    @cached_property
    def agents(self) -> list[str]:
        """The agents that are trained."""
        pairs = ((name, OF_AGENT.fullmatch(name)) for name in sorted(self._columns))
        labels = [match[1] for _, match in pairs if match]
        return [each for each in labels if f"reward/{each}/mean" in self._columns]

    def of_agent(self, name: str, agent: str) -> str:
        """The name under which an agent's value of a metric is logged."""
        agents: dict[str, set[str]] = {}
        for each, policy in self.policies.items():
            if each in self.agents:
                agents.setdefault(policy, set()).add(each)
        if len(self.agents) < 2:
            return name
        policy = self.policies.get(agent, agent)
        label = agent_label(agent, policy, agents)
        return f"{name}/{policy if label is None else label}"
