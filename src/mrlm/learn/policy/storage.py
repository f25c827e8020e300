"""Storage of a policy's weights: whole on one rank, or sharded (implemented in `distributed`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

Whole = TypeVar("Whole", covariant=True)


class Storage(Protocol[Whole]):
    """The storage of a model's weights. With a sharded model every call is collective: all ranks
    make the same ones."""

    @property
    def sharded(self) -> bool:
        """Whether this rank has a part of the weights only."""
        ...

    @property
    def whole(self) -> Whole:
        """The unsharded policy on this rank, for sampling and checkpoints."""
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


class InMemory(Generic[Whole]):
    """The weights of a module that is whole on this rank.

    Args:
        whole: the module.
        parameters: all of its parameters.
        own: those that no other module has too; by default all.
    """

    sharded = False

    def __init__(
        self,
        whole: Whole,
        parameters: Callable[[], Iterable[Tensor]],
        own: Callable[[], Iterable[Tensor]] | None = None,
    ) -> None:
        self.whole: Whole = whole
        self._parameters = parameters
        self._own = own or parameters

    @property
    def device(self) -> torch.device:
        return next(iter(self._parameters())).device

    def begin(self, last: bool) -> None:
        pass

    def rest(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def take(self) -> None:
        pass

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> float:
        return float(nn.utils.clip_grad_norm_(parameters, limit))

    def fingerprint(self) -> tuple[float, ...]:
        """The sum of all weights, and that of their squares."""
        with torch.no_grad():
            values = [value.detach().double() for value in self._own()]
            sums = torch.stack([value.sum() for value in values]).sum()
            squares = torch.stack([value.square().sum() for value in values]).sum()
            return (float(sums), float(squares))

    def place(self, weight: nn.Parameter, value: Tensor) -> Tensor:
        return value


def is_cut(tensor: object) -> bool:
    """Whether a tensor is sharded over ranks."""
    return hasattr(tensor, "full_tensor")
