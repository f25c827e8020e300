"""Position of a number within a sliding window, for quantities of unknown scale."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Window:
    """Sliding window over the latest numbers.

    Args:
        size: of the window.
        numbers: oldest first.

    Example:
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
