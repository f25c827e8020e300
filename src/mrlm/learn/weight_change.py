"""The relative change of the weights in an update, measured on a few thousand of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mrlm.learn.policy.storage import is_cut

NAME = "weight_change"
"""The metric: norm of the change over the norm before it."""
TENSORS, ENTRIES = 16, 256
"""Number of parameters that are read, and of entries of each, at equal distances."""
_MOVED, _WHOLE = f"{NAME}:moved", f"{NAME}:whole"


class WeightChange:
    """The change of weights since it was made.

    Args:
        weights: the trained parameters; of sharded ones the part on this rank is read.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self._weights = weights[:: math.ceil(len(weights) / TENSORS)]
        self._before = self._read()

    def _read(self) -> Tensor:
        return torch.cat([_entries(weight) for weight in self._weights])

    def numbers(self) -> dict[str, float]:
        """Sums of squares that can be added over ranks; `relative` divides them."""
        moved = (self._read() - self._before).square().sum()
        return {_MOVED: float(moved), _WHOLE: float(self._before.square().sum())}


def _entries(weight: Tensor) -> Tensor:
    """Some entries of a parameter (entries,), float64 on the CPU."""
    part = weight.to_local() if is_cut(weight) else weight  # type: ignore[operator]
    flat = part.detach().reshape(-1)
    apart = len(flat) // ENTRIES | 1  # odd, so that it is no multiple of a row
    return flat[::apart].cpu().double()


def relative(sums: Mapping[str, float]) -> dict[str, float]:
    """The metric, from the sums of all ranks; none if all weights were 0."""
    whole = sums.get(_WHOLE, 0.0)
    return {NAME: math.sqrt(sums[_MOVED] / whole)} if whole else {}
