"""The arithmetic of an outer loop: the round of an iteration."""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of sampling new answers to rows and training on them.

    Args:
        rows: rows answered at the start of a round; 0: all (see `over`).
        batch: rows trained on per iteration.
        passes: passes over the answers of a round.
        previous: from the second round on, also train on the answers of the previous round, so that
            these rounds are twice as long.

    Examples:
        >>> rounds = Rounds(rows=10, batch=4, passes=1, previous=True)
        >>> [rounds.length(0), rounds.length(1)], rounds.at(3), rounds.total(3)
        ([3, 5], (1, 0), 13)
    """

    rows: int = 0
    batch: int = 1
    passes: int = 1
    previous: bool = False

    def over(self, tasks: int, batch: int) -> "Rounds":
        """The same rounds over `tasks` rows."""
        return replace(self, rows=min(tasks, self.rows or tasks), batch=batch)

    def length(self, number: int) -> int:
        """Iterations of a round."""
        share = 2 if number and self.previous else 1
        return math.ceil(self.rows * self.passes * share / self.batch)

    def at(self, step: int) -> tuple[int, int]:
        """The round of iteration `step`, and the number of its iterations before `step`."""
        first, later = self.length(0), self.length(1)
        if step < first:
            return 0, step
        number, done = divmod(step - first, later)
        return number + 1, done

    def total(self, rounds: int) -> int:
        """Iterations of this many rounds."""
        return sum(self.length(number) for number in range(rounds))
