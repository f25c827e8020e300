"""The processes that train one run together, as each of them sees the others. The halves know this
class only; where there are several processes, `distributed` makes another one of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Peers:
    """One process alone: everything is here already.

    Every method that exchanges something is called by all processes, in the same order.
    """

    rank: int = 0
    """Place of this process."""
    size: int = 1
    """How many there are."""

    @property
    def main(self) -> bool:
        """Whether this is the process that writes and speaks for all."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """What every process brings, in order of rank."""
        return [value]

    async def exchange(self, value: T) -> list[T]:
        """`gather` for work that goes on beside other work of the same process."""
        return self.gather(value)

    def first(self, job: Callable[[], T]) -> T:
        """The result of a job that only the main process does."""
        return job()

    def barrier(self) -> None:
        """Return when every process has come here."""

    def channel(self) -> Peers:
        """The same processes, for exchanges that do not wait for those of others."""
        return self

    def add_gradients(self, parameters: Iterable[Any]) -> None:
        """Make the gradient of every parameter the sum over all processes; one that is absent here
        counts as zero, and one that is absent everywhere stays so."""

    def add_numbers(self, tables: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
        """Sums of numbers by name, of each table over all processes; a name may be missing."""
        return [dict(table) for table in tables]

    def spread(self, tensors: Iterable[Any]) -> None:
        """Give every process the main one's numbers, in place."""

    def farewell(self) -> None:
        """Before all end early: return when the main process has written everything, or is gone."""


ALONE = Peers()
"""The peers of a process that has none."""


def shares(loads: Sequence[float], size: int) -> list[list[int]]:
    """The places of `loads` in `size` shares of nearly the same load: the heaviest first, each to
    whoever has least. The places of a share are in order.

    Example:
        >>> shares([5.0, 1.0, 4.0, 1.0], 2)
        [[0, 3], [1, 2]]
    """
    held = [0.0] * size
    found: list[list[int]] = [[] for _ in range(size)]
    for place in sorted(range(len(loads)), key=lambda place: (-loads[place], place)):
        least = min(range(size), key=lambda rank: (held[rank], len(found[rank]), rank))
        held[least] += loads[place]
        found[least].append(place)
    return [sorted(places) for places in found]
