"""Linear maps whose results are known already: forward returns them, backward is the usual one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mrlm.learn.fast.llama_modules import Linear


def known_linears(
    x: Tensor,
    modules: Sequence[Linear],
    found: Sequence[Tensor],
    fresh: Tensor | None,
    before: Tensor | None = None,
) -> list[Tensor]:
    """`x @ weight.T + bias` (M, out) of each module, added to `before` if given.

    Args:
        x: (M, in).
        modules: the linear maps.
        found: (M, out) the results of each; rows `fresh` (F,) are computed and written to them.
        fresh: rows that are not known; `None` for no row.
        before: (M, out).
    """
    kind = x.dtype
    weights = [module.weight.to(kind) for module in modules]
    biases = [None if module.bias is None else module.bias.to(kind) for module in modules]
    maps = list(zip(weights, biases, found, strict=True))
    if fresh is not None:
        with torch.no_grad():
            rows = x[fresh]
            for weight, bias, part in maps:
                own = F.linear(rows, weight, bias)
                part.index_copy_(0, fresh, own if before is None else own + before[fresh])
    return [_Linear.apply(x, *each, before, [part]) for *each, part in maps]  # pyright: ignore


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, weight, _, _, (found,) = inputs
        ctx.save_for_backward(x, weight)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x, weight), (grad,), needed = ctx.saved_tensors, grads, ctx.needs_input_grad
        for_x = grad @ weight if needed[0] else None
        for_weight = grad.t() @ x if needed[1] else None
        for_bias = grad.sum(0) if needed[2] else None
        return for_x, for_weight, for_bias, grad if needed[3] else None, None
