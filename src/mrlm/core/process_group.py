"""The process group of a run. Sampling and training depend only on this interface; `distributed`
implements it for several processes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K")


class Peers:
    """The process group of a single process, and the interface of all process groups.

    Every communicating method is called by all processes, in the same order.
    """

    rank: int = 0
    """Rank of this process."""
    size: int = 1
    """Number of processes."""

    @property
    def main(self) -> bool:
        """Whether this is the main process, which writes files and logs."""
        return self.rank == 0

    def from_all(self, value: T) -> list[T]:
        """The values of all processes, in order of rank."""
        return [value]

    async def exchange(self, value: T) -> list[T]:
        """`from_all` for concurrent work of the same process."""
        return self.from_all(value)

    def first(self, job: Callable[[], T]) -> T:
        """The result of a job that only the main process executes."""
        return job()

    def barrier(self) -> None:
        """Return when all processes have reached this call."""

    def channel(self) -> "Peers":
        """The same processes, for communication independent of other channels."""
        return self

    def add_gradients(self, parameters: Iterable[Any]) -> None:
        """Sum the gradient of every parameter over all processes; a missing one counts as zero, and
        one that is missing everywhere remains so."""

    def add_numbers(self, tables: Sequence[Mapping[K, Any]]) -> list[dict[K, Any]]:
        """Sums of numbers by name (floats, or what its type adds to its zero), for each table over
        all processes; names may be missing."""
        return [dict(table) for table in tables]

    def spread(self, tensors: Iterable[Any]) -> None:
        """Broadcast the main process's tensors to all processes, in place."""

    def farewell(self) -> None:
        """Before an early end of all: wait until the main process has written all, or ended."""


ALONE = Peers()
"""The process group of a single process."""


def shares(loads: Sequence[float], size: int) -> list[list[int]]:
    """The indices of `loads` in `size` shares of nearly equal load: the heaviest first, each to the
    share with the least load. The indices of a share are in order.

    Examples:
        >>> shares([5.0, 1.0, 4.0, 1.0], 2)
        [[0, 3], [1, 2]]
    """
    held = [0.0] * size
    rank_indices: list[list[int]] = [[] for _ in range(size)]
    for index in sorted(range(len(loads)), key=lambda index: (-loads[index], index)):
        least = min(range(size), key=lambda rank: (held[rank], len(rank_indices[rank]), rank))
        held[least] += loads[index]
        rank_indices[least].append(index)
    return [sorted(places) for places in rank_indices]
