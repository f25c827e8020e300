"""Which policies learn in an iteration, one after the other or together, and which roles they play.

All of it follows from the number of the iteration (and a seed), so there is nothing to save: a run
that goes on in the middle of a period knows whose turn it is. It knows neither models nor worlds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

Order = Literal["simultaneous", "alternating", "sequential"]
"""`simultaneous`: all policies learn at once. `alternating`: some learn while others are frozen, in
turn. `sequential`: all learn in every iteration, one after the other in random order."""


class OfPolicy(Protocol):
    """A trainer of one policy."""

    @property
    def policy(self) -> str:
        """The policy's name."""
        ...


L = TypeVar("L", bound=OfPolicy)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Who learns when, and who plays which role.

    Args:
        order: how policies take turns in learning.
        turns: for `alternating`, the policies that learn together, turn by turn.
        period: iterations of a turn.
        swap_every: iterations after which the agents of `roles` exchange their policies; `None`:
            they never do.
        roles: the agents that exchange them. After each swap the policy of every role is that of
            the next one, and that of the last is the first's; after `len(roles)` swaps all is as
            it was.

    Example:
        >>> Schedule(swap_every=5, roles=("pioneer", "observer")).rotation(7)
        1
    """

    order: Order = "simultaneous"
    turns: tuple[frozenset[str], ...] = ()
    period: int = 1
    swap_every: int | None = None
    roles: tuple[str, ...] = ()

    def learns(self, policy: str, step: int) -> bool:
        """Whether a policy learns in an iteration; one that does not is played as it is."""
        if self.order != "alternating":
            return True
        return policy in self.turns[step // self.period % len(self.turns)]

    def stages(self, learners: Sequence[L], step: int, seed: int) -> list[list[L]]:
        """The learners whose turn it is in an iteration: those of a stage update together, stages
        one after the other.

        Args:
            learners: that may update.
            step: iteration.
            seed: of the random order.
        """
        kept = [each for each in learners if self.learns(each.policy, step)]
        if self.order == "sequential":
            return [[each] for each in random.Random(seed).sample(kept, len(kept))]
        return [kept] if kept else []

    def rotation(self, step: int) -> int:
        """How many places the policies have moved along the roles in an iteration."""
        return 0 if self.swap_every is None else step // self.swap_every % len(self.roles)

    def __str__(self) -> str:
        text: str = self.order
        if self.order == "alternating":
            names = " | ".join("+".join(sorted(turn)) for turn in self.turns)
            text += f", every {self.period} iteration(s): {names}"
        if self.swap_every is not None:
            text += f"; {', '.join(self.roles)} swap policies every {self.swap_every} iteration(s)"
        return text
