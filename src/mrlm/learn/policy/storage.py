"""Storage of a policy's weights: whole on one rank, or sharded (implemented in `distributed`)."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from mrlm.learn.fast.double import double

Whole = TypeVar("Whole")


class Storage(Generic[Whole]):
    """The weights of a module, whole on this rank. With a sharded model every call is collective:
    all ranks make the same ones.

    Args:
        whole: the module; of a sharded one the copy on this rank, for sampling and checkpoints.
        parameters: all of its parameters.
        own: those that no other module has too; by default all.
    """

    sharded: bool = False
    """Whether this rank has a part of the weights only."""

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
        """Called before a micro-batch: gradients are reduced after the last one of a step."""

    def reshard(self) -> None:
        """Called after passes without gradients: frees gathered weights."""

    def refresh(self) -> None:
        """Copies the current weights into the unsharded copy."""

    def take(self) -> None:
        """Loads the weights of the unsharded copy."""

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> float:
        """Clips the gradient of all parameters together to a norm; returns the norm before."""
        weights = list(parameters)
        total = nn.utils.get_total_norm([x.grad for x in weights if x.grad is not None])
        norm = float(total)
        if norm + 1e-6 > limit:  # else they would be multiplied by 1
            nn.utils.clip_grads_with_norm_(weights, limit, total)
        return norm

    def fingerprint(self) -> tuple[float, ...]:
        """Numbers that change when any weight changes: the sums of weights and of their squares."""
        with torch.no_grad():
            values = [double(value.detach()) for value in self._own()]
            sums = torch.stack([value.sum() for value in values]).sum()
            squares = torch.stack([value.square().sum() for value in values]).sum()
            return (float(sums), float(squares))

    def place(self, weight: nn.Parameter, value: Tensor) -> Tensor:
        """Shards a tensor (an optimiser moment) as its weight is sharded."""
        return value


def is_cut(tensor: object) -> bool:
    """Whether a tensor is sharded over ranks."""
    return hasattr(tensor, "full_tensor")
