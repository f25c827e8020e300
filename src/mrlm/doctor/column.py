"""The known values of a metric, in bounded memory."""

from __future__ import annotations

import numpy as np

HEAD, MIDDLE, TAIL = 64, 1024, 1024
"""Values of a long column that are kept: the first, some at equal distances, and the latest."""


class Column:
    """The known values of a metric with their steps. Of a column that grows without end the first
    and the latest values are kept, and of those between every second, every fourth, and so on, so
    that the cost of reading it does not grow with the run."""

    def __init__(self) -> None:
        self._table = np.empty((3, 64))  # steps, values, places among the known values
        self._size = 0
        self._known = 0
        self._apart = 1

    def append(self, step: float, value: float) -> None:
        """Adds the value of a step."""
        if self._size == HEAD + MIDDLE + 2 * TAIL:
            self._thin()
        if self._size == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.empty_like(self._table)], axis=1)
        self._table[:, self._size] = step, value, self._known
        self._size += 1
        self._known += 1

    def _thin(self) -> None:
        """Keeps at most `MIDDLE` of the values between the first and the latest."""
        middle = self._table[:, HEAD : self._size - TAIL]
        kept = middle[:, middle[2] % self._apart == 0]
        while kept.shape[1] > MIDDLE:
            self._apart *= 2
            kept = middle[:, middle[2] % self._apart == 0]
        head, tail = self._table[:, :HEAD], self._table[:, self._size - TAIL : self._size]
        table = np.concatenate([head, kept, tail], axis=1)
        self._size = table.shape[1]
        self._table[:, : self._size] = table

    def read(self, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values (values,) float64, views; `last`: the last so many."""
        start = 0 if last is None else max(0, self._size - last)
        return self._table[0, start : self._size], self._table[1, start : self._size]
