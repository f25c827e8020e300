"""Products with weights in 8 bits, for sampling on a CPU: the input is rounded to 8 bits as well,
row by row, and the integers are multiplied exactly (dynamic quantization, arXiv 2208.07339, without
its outliers). Bits do not depend on the number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 127.0
NOTHING = 1e-30
"""Added to the largest number of a row, which may be all zeros."""


@dataclass(slots=True)
class Int8:
    """Weights in 8 bits.

    Args:
        values: integers (out, in), from -127 to 127.
        scales: their unit for each output (out,), divided by 127, which the input's lacks.
    """

    values: Tensor
    scales: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The type of the input and of the result."""
        return self.scales.dtype


def rounded(weights: Sequence[Tensor]) -> Int8:
    """Weights (out, in), concatenated along `out`, rounded to 8 bits with a scale for each row."""
    joined = torch.cat([weight.detach().float() for weight in weights])
    scales = joined.abs().amax(1).add_(NOTHING).div_(LARGEST)
    values = joined.div_(scales[:, None]).round_().to(torch.int8)
    return Int8(values, scales / LARGEST)


def linear(x: Tensor, weight: Int8, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` (N, out) in float32, for x (N, in)."""
    x = x.float()
    size = torch.linalg.vector_norm(x, torch.inf, -1, True).add_(NOTHING)
    quantized = (x * (LARGEST / size)).round_().to(torch.int8)
    product = (torch.ops.aten._int_mm(quantized, weight.values.t()) * size).mul_(weight.scales)
    return product if bias is None else product.add_(bias)
