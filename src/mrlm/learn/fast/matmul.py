"""Matrix products with fixed weights: weight layout and choice of kernel.

The kernel is chosen by shapes and one exactness check of the machine, never by timings: two runs
must give the same bits. The limits come from measurements on AVX-512 processors (1 to 1024 rows,
widths 128 to 32000).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mrlm.learn.fast import int8
from mrlm.learn.fast.cpu_backends import exact, onednn_serves
from mrlm.learn.policy.quantized import dense

LARGE = 1 << 17
"""Smallest number of entries for which weights are packed: oneDNN's calls cost 10 us more, and
packing takes longer than a product."""
TYPICAL_ROWS = 32
"""Number of rows that oneDNN packs weights for; others work as well."""
MANY = 32
"""Rows from which oneDNN is the faster library for small weights, too."""
SHAPES = 8
"""Numbers of rows between two powers of two that small weights are multiplied with: oneDNN prepares
a kernel for each, which takes as long as a product."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """Layers in 4 or 8 bits, whose weights are dequantised for every product."""

    layers: Sequence[nn.Linear]


Weight = Tensor | int8.Int8 | Quantized
"""Of a linear map, as it is kept."""


def stored(weights: Sequence[Tensor], dtype: torch.dtype, single: bool = False) -> Tensor:
    """Concatenates weights (out, in) along `out` for `linear` in `dtype`: packed by oneDNN if they
    are large and it is useful, else in the memory layout that is fastest for few rows. A single
    weight in the right layout is not copied.

    In bfloat16 the default kernel is oneDNN as well, which would pack them again for every product.
    Products with a `single` row are bound by reading the weights: these are packed only with
    several threads, since the default kernel reads with one.
    """
    first = weights[0].detach()
    on_processor = first.device.type == "cpu" and dtype == torch.float32
    rows = 1 if single else TYPICAL_ROWS
    if on_processor:
        large = sum(weight.numel() for weight in weights) >= LARGE
        packed = large and (not single or torch.get_num_threads() > 1) and onednn_is_exact()
    else:
        packed = first.device.type == "cpu" and dtype == torch.bfloat16 and onednn_has_bfloat16()
    if len(weights) == 1 and first.dtype == dtype:
        if packed:
            return _packed(first, rows)
        tall = first.shape[0] <= first.shape[1]
        return first if tall or not on_processor else first.t().contiguous().t()
    joined = torch.cat([weight.detach().to(dtype) for weight in weights])
    if packed:
        return _packed(joined, rows)
    return joined.t().contiguous().t() if on_processor else joined


def holds(weight: Weight, weights: Sequence[Tensor]) -> bool:
    """Whether a `weight` from `stored` is `weights` (out, in), bit by bit; `False` in 8 bits."""
    if not isinstance(weight, Tensor):
        return False
    dense = weight.to_dense() if weight.is_mkldnn else weight
    parts = dense.split([len(tensor) for tensor in weights])
    pairs = zip(parts, weights, strict=True)
    return all(torch.equal(part, tensor.detach().to(part.dtype)) for part, tensor in pairs)


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` (N, out) without gradients, for a `weight` from `stored` or
    `int8.rounded`: computed in its dtype, returned in that of `x` (N, in)."""
    if isinstance(weight, int8.Int8):
        return int8.linear(x, weight, bias).to(x.dtype)
    if isinstance(weight, Quantized):
        y = torch.cat([F.linear(x, dense(layer).to(x.dtype)) for layer in weight.layers], -1)
        return y if bias is None else y.add_(bias)
    inputs = x.to(weight.dtype)
    if weight.is_mkldnn:
        output = _through_onednn(inputs, weight, bias)
    elif len(x) >= MANY and _is_small(weight) and onednn_serves():
        added = _rounded(len(x)) - len(x)
        inputs = F.pad(inputs, (0, 0, 0, added)) if added else inputs
        output = _through_onednn(inputs, weight, bias)[: len(x)]
    else:
        output = F.linear(inputs, weight, bias)
    return output.to(x.dtype)


def _is_small(weight: Tensor) -> bool:
    on_processor = weight.device.type == "cpu" and weight.dtype == torch.float32
    return on_processor and weight.numel() < LARGE


def _through_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _rounded(rows: int) -> int:
    """The next number of rows that a kernel is kept for."""
    step = max(1, (1 << (rows - 1).bit_length()) // (2 * SHAPES))
    return -(-rows // step) * step


def _packed(weight: Tensor, rows: int) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)


@cache
def onednn_has_bfloat16() -> bool:
    """Whether oneDNN is available and computes products in bfloat16."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@cache
def onednn_is_exact() -> bool:
    """Whether oneDNN is available and computes float32 products in float32."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return _through_onednn(a, _packed(b, TYPICAL_ROWS), None)

    return torch.backends.mkldnn.is_available() and exact(product)
