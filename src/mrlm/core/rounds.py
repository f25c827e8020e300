"""The arithmetic of an outer loop: which round an iteration belongs to. Both halves count with
it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of answering rows anew and learning from the answers.

    Args:
        rows: rows that are answered at the start of a round.
        batch: rows learned from per iteration.
        passes: times a round goes over its answers.
        previous: from the second round on, the answers of the round before are learned from, too,
            so that these rounds are twice as long.

    Example:
        >>> rounds = Rounds(rows=10, batch=4, passes=1, previous=True)
        >>> [rounds.length(0), rounds.length(1)], rounds.at(3), rounds.total(3)
        ([3, 5], (1, 0), 13)
    """

    rows: int
    batch: int
    passes: int = 1
    previous: bool = False

    def length(self, number: int) -> int:
        """Iterations of a round."""
        share = 2 if number and self.previous else 1
        return math.ceil(self.rows * self.passes * share / self.batch)

    def at(self, step: int) -> tuple[int, int]:
        """The round of iteration `step`, and how many iterations of it are over by then."""
        first, later = self.length(0), self.length(1)
        if step < first:
            return 0, step
        number, done = divmod(step - first, later)
        return number + 1, done

    def total(self, rounds: int) -> int:
        """Iterations of so many rounds."""
        return sum(self.length(number) for number in range(rounds))
