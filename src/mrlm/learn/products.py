"""Matrix products with weights that stay for a while: how the weights are stored, and which kernel
computes them.

Which kernel is decided by shapes and by one exact check of this machine, never by a clock: two runs
must give the same bits. The limits come from measurements on AVX-512 processors (1 to 256 rows,
widths 128 to 32000).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

LARGE = 1 << 17
"""Weights with fewer entries are left to the default kernel: oneDNN's calls cost 10 us more."""
EXACT = 2e-6
"""Largest error of a float32 product, relative to the largest entry, that is taken for rounding. A
processor that computes float32 products in a shorter type stays far above."""


def stored(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Weights (out, in) one below the other as one, in the order of memory that products of few
    rows are fastest with. A single weight that is well as it is is not copied."""
    first = weights[0].detach()
    turned = first.device.type == "cpu" and dtype == torch.float32
    if len(weights) == 1 and first.dtype == dtype:
        tall = first.shape[0] <= first.shape[1]
        return first if tall or not turned else first.t().contiguous().t()
    joined = torch.cat([weight.detach().to(dtype) for weight in weights])
    return joined.t().contiguous().t() if turned else joined


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, without gradients.

    Args:
        x: (N, in).
        weight: (out, in), in any order of memory; `stored` finds a good one.
        bias: (out,).
    """
    if (
        x.shape[0] > 1
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and weight.numel() >= LARGE
        and onednn_is_exact()
    ):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


@cache
def onednn_is_exact() -> bool:
    """Whether oneDNN is at hand and computes float32 products in float32."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 512, generator=generator)
    weight = torch.randn(256, 512, generator=generator)
    with torch.no_grad():
        try:
            found = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        except (AttributeError, RuntimeError):
            return False
    exact = x.double() @ weight.double().t()
    return float((found - exact).abs().max() / exact.abs().max()) < EXACT
