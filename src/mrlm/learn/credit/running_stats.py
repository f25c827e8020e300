"""Statistics of a growing sample: mean and deviation, or the position in a sliding window."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from mrlm.learn.ops import Moments


@dataclass(slots=True)
class RunningStats:
    """Moments of a growing sample; `squares` is the sum of squared deviations from the mean.

    Examples:
        >>> seen = RunningStats()
        >>> seen.add(Moments(2, 1.0, 2.0))  # 0 and 2
        >>> seen.add(Moments(1, 4.0, 0.0))  # 4
        >>> seen.mean, seen.std
        (2.0, 2.0)
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, moments: Moments) -> None:
        """Adds numbers by their moments (the pairwise formula of Chan, Golub and LeVeque, 1979)."""
        total = self.count + moments.count
        if not total:
            return
        gap = moments.mean - self.mean
        self.squares += moments.variance * (moments.count - 1)
        self.squares += gap * gap * self.count * moments.count / total
        self.mean += gap * moments.count / total
        self.count = total

    @property
    def std(self) -> float:
        """Unbiased standard deviation; 0 for fewer than two numbers."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


@dataclass(slots=True)
class Window:
    """Sliding window over the latest numbers.

    Args:
        numbers: oldest first.

    Examples:
        >>> window = Window(1000)
        >>> window.add(range(101))
        >>> window.place(50.0), window.place(-3.0), window.place(100.0)
        (0.5, 0.0, 1.0)
    """

    size: int
    numbers: list[float] = field(default_factory=list)

    def add(self, numbers: Iterable[float]) -> None:
        """Adds numbers in any order; the oldest are dropped."""
        self.numbers = [*self.numbers, *sorted(map(float, numbers))][-self.size :]

    def place(self, number: float) -> float:
        """0 up to the 5th percentile, 1 from the 95th, linear between; 0.5 if they are equal."""
        if not self.numbers:
            return 0.5
        low, high = np.percentile(self.numbers, (5, 95))
        if low == high:
            return 0.5
        return float((min(max(number, low), high) - low) / (high - low))
