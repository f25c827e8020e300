"""Linear maps of few rows through oneDNN, which prepares a kernel for every number of rows, longer
than such a product takes: rows are multiplied in blocks of a few sizes, for which it is kept."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mrlm.learn.fast.cpu_backends import in_blocks
from mrlm.learn.fast.llama_modules import Linear

FEWEST, MOST = 64, 1024
"""Rows of the smallest and of the largest block; all are powers of two."""


def padded(numbers: Tensor) -> Tensor:
    """Numbers (N,) with the last one repeated, so that blocks of as many rows are full; unchanged
    where products are not computed in blocks."""
    added = full(len(numbers)) - len(numbers)
    return torch.cat([numbers, numbers[-1:].expand(added)]) if added else numbers


def full(rows: int) -> int:
    """The length of so many numbers after `padded`."""
    return rows + (-rows % FEWEST if in_blocks() else 0)


def linears_in_blocks(x: Tensor, linears: Sequence[Linear]) -> list[Tensor] | None:
    """The outputs (N, out) of linear maps for x (N, in), with gradients; `None` where products are
    not computed in blocks."""
    leaves = [*(item.stored for item in linears), *(item.bias for item in linears)]
    if not _in_blocks(x) or any(item is not None and item.dtype != x.dtype for item in leaves):
        return None
    return list(_Linears.apply(x, len(linears), *leaves))  # pyright: ignore


def _in_blocks(x: Tensor) -> bool:
    return in_blocks() and len(x) % FEWEST == 0


def _blocks(rows: int) -> Iterator[slice]:
    """Blocks of rows, the largest first."""
    start, size = 0, MOST
    while start < rows:
        while size > rows - start:
            size //= 2
        yield slice(start, start + size)
        start += size


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *leaves: Any) -> tuple[Tensor, ...]:
        weights, biases = leaves[:count], leaves[count:]
        ctx.save_for_backward(x, *weights)
        outputs = [x.new_empty((len(x), len(weight))) for weight in weights]
        for here in _blocks(len(x)):
            for y, weight, bias in zip(outputs, weights, biases, strict=True):
                if bias is None:
                    torch.mm(x[here], weight.t(), out=y[here])
                else:
                    torch.addmm(bias, x[here], weight.t(), out=y[here])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, *weights = ctx.saved_tensors
        needed = ctx.needs_input_grad[2 : 2 + 2 * len(weights)]
        back = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        slopes: list[Any] = [
            torch.empty_like(weight) if required else None
            for weight, required in zip(weights, needed, strict=False)
        ]
        for here in _blocks(len(x)) if _in_blocks(x) else [slice(0, len(x))]:
            rows = x[here]
            for index, (grad, weight) in enumerate(zip(grads, weights, strict=True)):
                part, slope = grad[here], slopes[index]
                if back is not None and index == 0:
                    torch.mm(part, weight, out=back[here])
                elif back is not None:
                    back[here].addmm_(part, weight)
                if slope is not None and here.start == 0:
                    torch.mm(part.t(), rows, out=slope)
                elif slope is not None:
                    slope.addmm_(part.t(), rows)
        pairs = zip(grads, needed[len(weights) :], strict=True)
        biases = [grad.sum(0) if required else None for grad, required in pairs]
        return back, None, *slopes, *biases
