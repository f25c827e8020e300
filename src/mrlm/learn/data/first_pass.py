"""Columns of rollouts as they were when an own loop first asked for their loss: what later epochs
over the same rollouts compare with."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from mrlm.core.types import Rollout, Turn

COLUMNS = ("old_logprobs", "values", "ref_logprobs", "full_kl", "entropies")
"""What a learner or a critic writes on turns before credit."""


class FirstPass:
    """Remembers columns of rollouts for as long as the rollouts exist.

    A ratio is taken to the policy at the start of the update. An own loop has no other sign of that
    start than the first loss of a rollout, so every later loss of the same `Rollout` object takes
    the columns of the first one, as the trainers do over their epochs.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Rollout], dict[Any, dict[str, Any]]]] = {}

    def recall(self, rollout: Rollout, turns: Iterable[Turn]) -> bool:
        """Write what is known on turns of a rollout; whether every one of them is known."""
        _, known = self._known.get(id(rollout), (None, {}))
        complete = True
        for turn in turns:
            columns = known.get(_key(turn))
            complete = complete and columns is not None
            for name, column in (columns or {}).items():
                setattr(turn, name, column)
        return complete

    def keep(self, rollout: Rollout, turns: Sequence[Turn]) -> None:
        """Remember the columns of turns of a rollout that are not known yet."""
        place = id(rollout)
        if place not in self._known:
            known = self._known
            forget = weakref.ref(rollout, lambda _: known.pop(place, None))
            self._known[place] = (forget, {})
        _, columns = self._known[place]
        for turn in turns:
            found = {name: getattr(turn, name) for name in COLUMNS}
            columns.setdefault(_key(turn), found)

    def forget(self) -> None:
        """Forget everything: the next loss begins a new update."""
        self._known.clear()


def _key(turn: Turn) -> tuple[Any, ...]:
    return (turn.agent, tuple(turn.prompt_ids), tuple(turn.completion_ids))
