"""The known values of a metric, in bounded memory."""

import base64

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
        table, index = self._table, self._size
        table[0, index], table[1, index], table[2, index] = step, value, self._known
        self._size += 1
        self._known += 1

    def _thin(self) -> None:
        """Keeps at most `MIDDLE` of the values between the first and the latest."""
        middle = self._table[:, HEAD : self._size - TAIL]
        while (thinned := middle[:, middle[2] % self._apart == 0]).shape[1] > MIDDLE:
            self._apart *= 2
        head, tail = self._table[:, :HEAD], self._table[:, self._size - TAIL : self._size]
        table = np.concatenate([head, thinned, tail], axis=1)
        self._size = table.shape[1]
        self._table[:, : self._size] = table

    def record(self) -> tuple[str, str]:
        """The content for JSON: where values are kept, which is the same string for all columns
        that are known in the same steps, and the values."""
        values_kept = self._table[:, : self._size]
        return f"{self._known} {self._apart} {_text(values_kept[::2])}", _text(values_kept[1])

    @classmethod
    def of(cls, places: str, values: str) -> "Column":
        """The column of a `record`."""
        column, (total, apart, where) = cls(), places.split(" ")
        column._known, column._apart = int(total), int(apart)
        column._size = len(row := _numbers(values))
        column._table = np.empty((3, max(64, len(row))))
        column._table[1, : len(row)] = row
        column._table[::2, : len(row)] = _numbers(where).reshape(2, -1)
        return column

    def read(self, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values (values,) float64, views; `last`: the last so many."""
        start = 0 if last is None else max(0, self._size - last)
        return self._table[0, start : self._size], self._table[1, start : self._size]


def _text(numbers: np.ndarray) -> str:
    return base64.b64encode(numbers.astype("<f8").tobytes()).decode()


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f8")
