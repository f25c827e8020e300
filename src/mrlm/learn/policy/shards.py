"""Interface of a sharded policy; `distributed` implements the sharding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

Whole = TypeVar("Whole", covariant=True)


class Shards(Protocol[Whole]):
    """A sharded model. Its computations are collective: all ranks make the same calls.

    `whole` is an unsharded copy on this rank, for sampling and checkpoints.
    """

    @property
    def whole(self) -> Whole:
        """The unsharded policy."""
        ...

    @property
    def device(self) -> torch.device:
        """The compute device."""
        ...

    def begin(self, last: bool) -> None:
        """Called before a micro-batch: gradients are reduced after the last one of a step."""
        ...

    def rest(self) -> None:
        """Called after passes without gradients: frees gathered weights."""
        ...

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> float:
        """Clips the gradient of all parameters together to a norm; returns the norm before."""
        ...

    def fingerprint(self) -> tuple[float, ...]:
        """A few numbers that change when any weight changes."""
        ...

    def refresh(self) -> None:
        """Copies the current weights into the unsharded copy."""
        ...

    def take(self) -> None:
        """Loads the weights of the unsharded copy."""
        ...

    def place(self, weight: nn.Parameter, value: Tensor) -> Tensor:
        """Shards a tensor (an optimiser moment) as its weight is sharded."""
        ...


def is_cut(tensor: object) -> bool:
    """Whether a tensor is sharded over ranks."""
    return hasattr(tensor, "full_tensor")
