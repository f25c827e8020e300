"""What a policy knows of being cut over several processes; `distributed` does the cutting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

Whole = TypeVar("Whole", covariant=True)


class Shards(Protocol[Whole]):
    """A model of which each process holds a part. All processes compute with it at the same time,
    and equally often.

    `whole` is a copy that this process has for itself, to sample with and to write down.
    """

    @property
    def whole(self) -> Whole:
        """A policy with all of the weights."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    def begin(self, last: bool) -> None:
        """Before a micro-batch: gradients are added up after the last one of a step."""
        ...

    def rest(self) -> None:
        """After passes without gradients: give back what they have put together, so that the
        model's parameters are its shards again."""
        ...

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> float:
        """Clip the gradient, shards and whatever is whole together, to a norm; returns its norm."""
        ...

    def fingerprint(self) -> tuple[float, ...]:
        """A few numbers that change when any weight does."""
        ...

    def refresh(self) -> None:
        """Give the whole copy the weights as they are."""
        ...

    def take(self) -> None:
        """Take the weights of the whole copy."""
        ...

    def place(self, weight: nn.Parameter, value: Tensor) -> Tensor:
        """What belongs to a weight (a moment of its optimiser), cut as the weight is."""
        ...


def is_cut(tensor: object) -> bool:
    """Whether a tensor is cut over processes, so that this one holds a part of it."""
    return hasattr(tensor, "full_tensor")
