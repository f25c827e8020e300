"""The relative change of the weights in an update, measured on a few thousand of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
        weights: the trained parameters, whole or sharded.
        ranks: number of ranks that train them.
    """

    def __init__(self, weights: Sequence[nn.Parameter], ranks: int = 1) -> None:
        self._weights = weights[:: math.ceil(len(weights) / TENSORS)]
        self._shares = [1 / _copies(weight, ranks) for weight in self._weights]
        self._before = self._read()

    def _read(self) -> list[Tensor]:
        return [_entries(weight) for weight in self._weights]

    def numbers(self) -> dict[str, float]:
        """Sums of squares that can be added over ranks; `relative` divides them."""
        moved = whole = 0.0
        for share, before, after in zip(self._shares, self._before, self._read(), strict=True):
            moved += share * float((after - before).square().sum())
            whole += share * float(before.square().sum())
        return {_MOVED: moved, _WHOLE: whole}


def _entries(weight: Tensor) -> Tensor:
    """Some entries of a parameter (entries,), float64 on the CPU: of a sharded one those of the
    whole that are on this rank."""
    apart = weight.numel() // ENTRIES | 1  # odd, so that it is no multiple of a row
    part = weight.to_local() if is_cut(weight) else weight  # type: ignore[operator]
    first = -_offset(weight) % apart
    return part.detach().reshape(-1)[first::apart].cpu().double()


def _offset(weight: Tensor) -> int:
    """Number of entries of a parameter before those of this rank. Shards are runs of rows."""
    if not is_cut(weight):
        return 0
    cut: Any = weight
    rows, before = len(weight), 0
    for axis, placement in enumerate(cut.placements):
        if placement.is_shard():
            each = math.ceil(rows / cut.device_mesh.size(axis))
            before = min(rows, each * cut.device_mesh.get_local_rank(axis))
    return before * (weight.numel() // rows)


def _copies(weight: Tensor, ranks: int) -> int:
    """Number of ranks that have the same part of a parameter."""
    if not is_cut(weight):
        return ranks
    cut: Any = weight
    shards = [k for k, placement in enumerate(cut.placements) if placement.is_shard()]
    return ranks // math.prod(cut.device_mesh.size(k) for k in shards)


def relative(sums: Mapping[str, float]) -> dict[str, float]:
    """The metric, from the sums of all ranks; none if all weights were 0."""
    whole = sums.get(_WHOLE, 0.0)
    return {NAME: math.sqrt(sums[_MOVED] / whole)} if whole else {}
