"""Copies of the weights of a model: fused linear maps, the multipliers of norms, and which weights
changed since they were made."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mrlm.learn.fast import matmul
from mrlm.learn.policy.digest import digests


@dataclass(slots=True)
class Product:
    """Several linear maps of one input fused into one: weight (out, in), bias (out,), and the width
    of each map."""

    weight: matmul.Weight
    bias: Tensor | None
    widths: list[int]

    def holds(self, linears: Sequence[Any], dtype: torch.dtype) -> bool:
        """Whether it was made of these maps as they are now, bit by bit; `False` in 8 bits."""
        weights = [linear.weight for linear in linears]
        return matmul.holds(self.weight, weights) and same(self.bias, joined_bias(linears, dtype))


def joined_bias(linears: Sequence[Any], dtype: torch.dtype) -> Tensor | None:
    """The biases of several linear maps as one (out,), zero where there is none; `None` if no map
    has one."""
    if all(linear.bias is None for linear in linears):
        return None
    biases = [
        torch.zeros(linear.module.out_features, dtype=dtype, device=linear.stored.device)
        if linear.bias is None
        else linear.bias
        for linear in linears
    ]
    return torch.cat(biases).detach().to(dtype)


def multiplier(unit_offset: bool, scaled: bool, module: nn.Module | None) -> Tensor | None:
    """The multiplier (width,) of a norm; `None` without one.

    Args:
        unit_offset: the norm multiplies by `1 + weight`, which is not rounded to the type of the
            weights.
        scaled: by the root of the width, for a vector that is divided by its length instead of its
            root mean square.
    """
    if module is None:
        return None
    parameter: Any = module.weight
    weight: Tensor = parameter.detach()
    if unit_offset:
        weight = weight.float() + 1.0
    return weight * len(weight) ** 0.5 if scaled else weight.clone()


def same(one: Tensor | None, two: Tensor | None) -> bool:
    """Whether two tensors are equal, or there are none."""
    return two is None if one is None else two is not None and one.equal(two)


class Changes:
    """Tracks which tensors changed since the previous call: those named by `mark`, or, if weights
    may be written without notice, those with different values (`compared`)."""

    def __init__(self, compared: bool) -> None:
        self.compared = compared
        self._marked = True
        self._digests: list[int] = []

    @property
    def pending(self) -> bool:
        """Whether a tensor may have changed since the previous `take`."""
        return self.compared or self._marked

    def mark(self) -> None:
        """Mark all tensors as possibly changed."""
        self._marked = True

    def take(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return which tensors have changed since the previous call."""
        marked, self._marked = self._marked, False
        if not self.compared:
            return [marked] * len(tensors)
        before, self._digests = self._digests, digests(tensors)
        if marked or len(before) != len(tensors):
            return [True] * len(tensors)
        return [one != two for one, two in zip(before, self._digests, strict=True)]
