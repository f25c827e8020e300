"""Cache of columns from the first loss of a rollout in a custom loop, for later epochs."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mrlm.core.types import ANNOTATED, Rollout, Turn


class FirstPass:
    """Caches columns of rollouts for the lifetime of the rollout objects.

    Importance ratios refer to the policy at the start of the update. In a custom loop the first
    loss of a rollout marks that start: later losses of the same `Rollout` object reuse its columns,
    as the trainers do across epochs.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Rollout], dict[Any, dict[str, Any]]]] = {}

    def fill(
        self,
        sources: Sequence[tuple[Rollout, Sequence[Turn]]],
        annotate: Callable[[], None],
        again: bool = False,
    ) -> None:
        """Writes cached columns to turns; `annotate` computes them if one is missing, or
        `again`."""
        cached = [self.recall(*source) for source in sources]
        if again or not all(cached):
            annotate()
            for source in sources:
                self.recall(*source)
                self.keep(*source)

    def recall(self, rollout: Rollout, turns: Iterable[Turn]) -> bool:
        """Writes cached columns to turns of a rollout; returns whether all turns were cached."""
        _, cached = self._known.get(id(rollout), (None, {}))
        complete = True
        for turn in turns:
            columns = cached.get(_key(turn))
            complete = complete and columns is not None
            for name, column in (columns or {}).items():
                setattr(turn, name, column)
        return complete

    def keep(self, rollout: Rollout, turns: Sequence[Turn]) -> None:
        """Caches the columns of turns that are not cached yet."""
        key = id(rollout)
        if key not in self._known:
            cache = self._known
            forget = weakref.ref(rollout, lambda _: cache.pop(key, None))
            self._known[key] = (forget, {})
        _, columns = self._known[key]
        for turn in turns:
            columns.setdefault(_key(turn), {name: getattr(turn, name) for name in ANNOTATED})

    def forget(self) -> None:
        """Clears the cache: the next loss starts a new update."""
        self._known.clear()


def _key(turn: Turn) -> tuple[Any, ...]:
    return (turn.agent, tuple(turn.prompt_ids), tuple(turn.completion_ids))
