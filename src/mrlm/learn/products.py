"""Matrix products with weights that stay for a while: how they are stored, and which kernel
computes them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def stored(weight: Tensor) -> Tensor:
    """A copy of a weight (out, in), in the order of memory that products of few rows are fastest
    with."""
    if weight.device.type != "cpu":
        return weight.clone()
    return weight.t().contiguous().t()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` without gradients; x (N, in), weight (out, in), bias (out,)."""
    return F.linear(x, weight, bias)
