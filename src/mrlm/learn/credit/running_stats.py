"""Running mean and deviation, for reward scaling during training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mrlm.learn.ops import Moments


@dataclass(slots=True)
class RunningStats:
    """Moments of a growing sample.

    Args:
        count: number of values.
        mean: of the values.
        squares: sum of squared deviations from the mean.

    Example:
        >>> seen = RunningStats()
        >>> seen.add(Moments(2, 1.0, 2.0))  # 0 and 2
        >>> seen.add(Moments(1, 4.0, 0.0))  # 4
        >>> seen.mean, seen.std
        (2.0, 2.0)
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, found: Moments) -> None:
        """Adds numbers by their moments (the pairwise formula of Chan, Golub and LeVeque, 1979)."""
        total = self.count + found.count
        if not total:
            return
        gap = found.mean - self.mean
        self.squares += found.variance * (found.count - 1)
        self.squares += gap * gap * self.count * found.count / total
        self.mean += gap * found.count / total
        self.count = total

    @property
    def std(self) -> float:
        """Unbiased standard deviation; 0 for fewer than two numbers."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0
