"""The relative change of the weights in an update, measured on a few thousand of them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mrlm.learn.meter import Mean
from mrlm.learn.policy.storage import is_cut

NAME = "weight_change"
"""The metric: norm of the change over the norm before it."""
TENSORS, ENTRIES = 16, 256
"""Number of parameters that are read, and of entries of each, at equal distances."""


class WeightChange:
    """The change of weights since it was made.

    Args:
        weights: the trained parameters, whole or sharded.
        ranks: number of ranks that train them.
    """

    def __init__(self, weights: Sequence[nn.Parameter], ranks: int = 1) -> None:
        self._weights = weights[:: math.ceil(len(weights) / TENSORS)]
        entries = [_entries(weight) for weight in self._weights]
        shares = [1 / _copies(weight, ranks) for weight in self._weights]
        counts = [entry.shape[0] for entry in entries]
        self._shares = torch.from_numpy(np.repeat(shares, counts))
        self._before = _on_host(entries)

    def square(self) -> Mean:
        """The square of the metric; those of all ranks are added."""
        after = _on_host([_entries(weight) for weight in self._weights])
        changes = after - self._before, self._before
        return Mean(*(float(self._shares @ x.square()) for x in changes))


def _on_host(entries: Sequence[Tensor]) -> Tensor:
    """All entries (N,), float64 on the CPU."""
    return torch.cat([*entries]).cpu().double()


def _entries(weight: Tensor) -> Tensor:
    """Some entries of a parameter (entries,): of a sharded one those on this rank."""
    apart = weight.numel() // ENTRIES | 1  # odd, so that it is no multiple of a row
    if not is_cut(weight):
        return weight.detach().reshape(-1)[::apart]
    part: Tensor = weight.to_local()  # type: ignore[operator]
    return part.detach().reshape(-1)[-_offset(weight) % apart :: apart]


def _offset(weight: Tensor) -> int:
    """Entries of a sharded parameter before those of this rank. Shards are runs of rows."""
    cut: Any = weight
    rows, before = len(weight), 0
    for axis, placement in enumerate(cut.placements):
        if placement.is_shard():
            shard_rows = math.ceil(rows / cut.device_mesh.size(axis))
            before = min(rows, shard_rows * cut.device_mesh.get_local_rank(axis))
    return before * (weight.numel() // rows)


def _copies(weight: Tensor, ranks: int) -> int:
    """Number of ranks that have the same part of a parameter."""
    if not is_cut(weight):
        return ranks
    cut: Any = weight
    shards = [k for k, placement in enumerate(cut.placements) if placement.is_shard()]
    return ranks // math.prod(cut.device_mesh.size(k) for k in shards)


def relative(square: Mean) -> dict[str, float]:
    """The metric, from its square; none if all weights were 0."""
    return {NAME: math.sqrt(square.value)} if square.weight else {}
