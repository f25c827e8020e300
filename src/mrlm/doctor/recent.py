"""The recorded episodes of the latest steps, and what rules compute of them once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar, cast

Row = Mapping[str, Any]
Rows = Sequence[Row]
"""Rows of recorded episodes, as in `docs/record.md`."""

MOST = 32
"""Episodes of training, and of evaluations, of a step that are kept."""

Found = TypeVar("Found")


class RecentEpisodes(Sequence[Row]):
    """The rows of recorded episodes of the latest steps, in order.

    Example:
        >>> recent = RecentEpisodes()
        >>> recent.add({"step": 1, "id": "train/a/0/0", "reward": 0.5})
        >>> recent.by_step(lambda rows: max(row["reward"] for row in rows))
        {1: 0.5}
    """

    def __init__(self) -> None:
        self._steps: dict[int, list[Row]] = {}
        self._counts: dict[tuple[int, bool], int] = {}
        self._found: dict[int, dict[Callable[[Rows], object], object]] = {}

    def add(self, row: Row) -> None:
        """Adds an episode; of each step, and of its evaluation, the first ones are kept."""
        step, evaluation = int(row["step"]), is_evaluation(row)
        count = self._counts.get((step, evaluation), 0)
        if count < MOST:
            self._counts[step, evaluation] = count + 1
            self._steps.setdefault(step, []).append(row)
            self._found.pop(step, None)

    def forget(self, last: int) -> None:
        """Removes the episodes of a step and of those before it."""
        for step in [step for step in self._steps if step <= last]:
            del self._steps[step]
            self._found.pop(step, None)
            for evaluation in (False, True):
                self._counts.pop((step, evaluation), None)

    def keep(self, every: int) -> None:
        """Removes the episodes of training of all but some steps: multiples of a number."""
        for step in [step for step in self._steps if step % every]:
            self._steps[step] = [row for row in self._steps[step] if is_evaluation(row)]
            self._found.pop(step, None)
            if not self._steps[step]:
                del self._steps[step]

    def by_step(self, summarise: Callable[[Rows], Found]) -> dict[int, Found]:
        """Step -> the result of a function of its episodes, computed once for every step.

        Args:
            summarise: a function of a step's rows and of nothing else. Its identity is that of
                the result: a function of a module, not one that is made at every call.
        """
        results: dict[int, Found] = {}
        for step, rows in self._steps.items():
            cached = self._found.setdefault(step, {})
            if summarise not in cached:
                cached[summarise] = summarise(rows)
            results[step] = cast("Found", cached[summarise])
        return results

    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(self._steps.values())

    def __len__(self) -> int:
        return sum(map(len, self._steps.values()))

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]


def is_evaluation(row: Row) -> bool:
    """Whether a row is of an evaluation."""
    return row["id"].startswith("eval/")


def is_training(row: Row) -> bool:
    """Whether a row is neither of an evaluation nor a replay."""
    return not (is_evaluation(row) or row.get("replayed"))


def training(episodes: Rows) -> Rows:
    """The episodes that are neither of evaluations nor replays."""
    return [row for row in episodes if is_training(row)]
