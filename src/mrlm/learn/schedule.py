"""Schedule of policy updates, and of the roles that policies play: a function of the iteration (and
a seed), so that resuming needs no saved state."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

Order = Literal["simultaneous", "alternating", "sequential"]
"""`simultaneous`: all policies update at once. `alternating`: some update while others are frozen,
in turn. `sequential`: all update in every iteration, one after the other in random order."""


class OfPolicy(Protocol):
    """A learner of one policy."""

    @property
    def policy(self) -> str: ...


L = TypeVar("L", bound=OfPolicy)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Assigns updates and roles to iterations.

    Args:
        order: update order of policies.
        turns: for `alternating`, the policies that update together, turn by turn.
        period: iterations of a turn.
        swap_every: iterations after which agents of `roles` exchange policies; `None`: never.
        roles: the agents that exchange them. Each swap assigns every role the policy of the next
            one (cyclically); `len(roles)` swaps restore the start.

    Examples:
        >>> Schedule(swap_every=5, roles=("pioneer", "observer")).rotation(7)
        1
    """

    order: Order = "simultaneous"
    turns: tuple[frozenset[str], ...] = ()
    period: int = 1
    swap_every: int | None = None
    roles: tuple[str, ...] = ()

    def learns(self, policy: str, step: int) -> bool:
        """Whether a policy is updated in an iteration; otherwise it is frozen."""
        if self.order != "alternating":
            return True
        return policy in self.turns[step // self.period % len(self.turns)]

    def stages(self, learners: Sequence[L], step: int, seed: int) -> list[list[L]]:
        """Learners to update in an iteration: those of a stage update together, stages one after
        the other. The random order follows from the seed."""
        active = [learner for learner in learners if self.learns(learner.policy, step)]
        if self.order == "sequential":
            return [[learner] for learner in random.Random(seed).sample(active, len(active))]
        return [active] if active else []

    def rotation(self, step: int) -> int:
        """Number of places that policies are shifted along the roles in an iteration."""
        return 0 if self.swap_every is None else step // self.swap_every % len(self.roles)

    def __str__(self) -> str:
        text: str = self.order
        if self.order == "alternating":
            names = " | ".join("+".join(sorted(turn)) for turn in self.turns)
            text += f", every {self.period} iteration(s): {names}"
        if self.swap_every is not None:
            text += f"; {', '.join(self.roles)} swap policies every {self.swap_every} iteration(s)"
        return text
