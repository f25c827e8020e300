"""Rows that are read during training: a few of a data set are in memory at a time, and their order
is derived from the seed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mrlm.core.episodes import Group
from mrlm.data.tasks import Reading, Row
from mrlm.play.agent import seed_of
from mrlm.play.sources.rows import Grouping
from mrlm.play.sources.source import EpisodeSource


@dataclass(eq=False, repr=False)
class StreamedRows(EpisodeSource):
    """Groups made of the rows of a data set that is read row by row, again in every epoch. Every
    epoch has another order: a buffer is filled, and each row that is taken from it at random makes
    place for the next one. A resumed run reads its epoch again up to where it was.

    Args:
        reading, grouping: the data set, and what makes groups of its rows.
        seed: of the order.
        buffer: rows that are in memory; 1 keeps the order of the data set.

    Raises:
        ConfigError: from `take`; a row lacks what it needs, or cannot be read.
    """

    reading: Reading
    grouping: Grouping
    seed: int
    buffer: int
    _epoch: int = field(default=0, init=False)
    _place: int = field(default=0, init=False)
    _rows: Iterator[tuple[int, Row]] | None = field(default=None, init=False)
    _ahead: tuple[int, Row] | None = field(default=None, init=False)

    samples = rewarded = False

    async def take(self, count: int) -> list[Group]:
        groups = [self._next()]
        epoch = self._epoch
        while len(groups) < count and self._more():
            groups.append(self._next())
        assert self._epoch == epoch  # a batch ends with its epoch
        return groups

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._place = state["epoch"], 0
        self._rows, self._ahead = self._shuffled(), None
        while self._place < state["place"]:
            next(self._rows)
            self._place += 1

    def _more(self) -> bool:
        """Reads the next row, if the epoch has one."""
        if self._ahead is None and self._rows is not None:
            self._ahead = next(self._rows, None)
        return self._ahead is not None

    def _next(self) -> Group:
        if not self._more():
            if self._rows is not None:
                self._epoch += 1
            self._place, self._rows = 0, self._shuffled()
            self._more()
        assert self._ahead is not None
        (index, row), self._ahead = self._ahead, None
        self._place += 1
        self.grouping.check(row, index)
        return self.grouping.group(row, index)

    def _shuffled(self) -> Iterator[tuple[int, Row]]:
        """The rows of an epoch with their numbers, in its order."""
        generator = np.random.Generator(np.random.Philox(seed_of((self.seed, "rows", self._epoch))))
        held: list[tuple[int, Row]] = []
        for numbered in enumerate(self.reading):
            if len(held) < self.buffer:
                held.append(numbered)
                continue
            index = int(generator.integers(self.buffer))
            yield held[index]
            held[index] = numbered
        for index in generator.permutation(len(held)):
            yield held[index]
