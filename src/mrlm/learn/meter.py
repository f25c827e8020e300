"""Numbers of an update by name and agent, which add up over micro-batches, ranks and policies."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sum:
    """A number that is added."""

    value: Tensor | float = 0.0

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.value + other.value)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean as its numerator and denominator."""

    total: Tensor | float = 0.0
    weight: float = 0.0

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> Tensor | float:
        """The mean; with no weight the numerator."""
        return self.total / self.weight if self.weight else self.total


@dataclass(frozen=True, slots=True)
class Max:
    """A number of which the largest counts."""

    value: float = -math.inf

    def __add__(self, other: "Max") -> "Max":
        return Max(max(self.value, other.value))


Number = Sum | Mean | Max
Key = tuple[str, str]
"""A name and an agent; "" for the policy."""


class Meter(dict[Key, Number]):
    """Numbers by name and agent."""

    def add(self, name: str, agent: str, number: Number) -> None:
        """Adds a number to the one of its name and agent."""
        self[name, agent] = self.get((name, agent), type(number)()) + number  # type: ignore[operator]


class Measured(dict[str, float]):
    """Metrics of an update by name; in `agents` those of each agent, and in `tokens` the number of
    its trained tokens."""

    def __init__(
        self,
        metrics: Mapping[str, float] | Iterable[tuple[str, float]] = (),
        agents: Mapping[Key, Number] | None = None,
        tokens: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(metrics)
        self.agents: Meter = Meter(agents or {})
        self.tokens: dict[str, int] = dict(tokens or {})
