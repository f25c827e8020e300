"""Element-wise parts of a block, with gradients in few passes over memory."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CACHED = 1 << 18
"""Numbers that fit into a CPU cache several times over."""


class Rotate(torch.autograd.Function):
    """Rotary embedding of (P, heads, head_dim) by cosines and sines (P, head_dim), of which the
    first half of the sines is negative (RoFormer, arXiv 2104.09864, in the variant that pairs the
    two halves of a head)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        cos, sin = ctx.saved_tensors
        return _rotated(grads[0], cos, sin, -1), None, None


def with_signs(sin: Tensor) -> Tensor:
    """Sines (P, head_dim) for `Rotate`, from those of the angles."""
    first, second = sin.chunk(2, 1)
    return torch.cat([-first, second], 1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    half = x.shape[-1] // 2
    if x.device.type == "cpu":  # in whole heads: loops over halves would be short
        return torch.mul(x, cos[:, None]).addcmul_(x.roll(half, -1), sin[:, None], value=sign)
    rotated = torch.empty_like(x, memory_format=torch.contiguous_format)
    cos, sin = cos[:, None, half:], sin[:, None, half:]
    a, b = x[..., :half], x[..., half:]
    torch.mul(a, cos, out=rotated[..., :half]).addcmul_(b, sin, value=-sign)
    torch.mul(b, cos, out=rotated[..., half:]).addcmul_(a, sin, value=sign)
    return rotated


class Norm(torch.autograd.Function):
    """`x / sqrt(mean(x^2) + eps) * weight` (RMSNorm, arXiv 1910.07467) on a CPU, with the gradient
    computed a few rows at a time; both in float32 at least."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        kind = torch.promote_types(x.dtype, torch.float32)
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=kind)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return torch.mul(x, scale.to(x.dtype)).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, scale = ctx.saved_tensors
        width = x.shape[-1]
        back = torch.empty_like(x, memory_format=torch.contiguous_format)
        for_weight = torch.zeros(width, dtype=scale.dtype, device=x.device)
        rows = max(1, CACHED // 2 // width)
        tall = (each.reshape(-1, each.shape[-1]).split(rows) for each in (x, scale, grads[0], back))
        for part, row_scale, grad, to_x in zip(*tall, strict=True):
            normed, grad = part * row_scale, grad.to(scale.dtype)
            product = normed * grad
            if ctx.needs_input_grad[1]:
                for_weight += product.sum(0)
            along = product.mul_(weight).sum(-1, True).div_(width)
            torch.mul(grad, weight, out=product).addcmul_(normed, along, value=-1)
            torch.mul(product, row_scale, out=to_x)
        return back, for_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None, None


class SwiGLU(torch.autograd.Function):
    """`silu(gate) * up` (arXiv 2002.05202) on a CPU: backward by few rows, for the cache."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        gate, up = ctx.saved_tensors
        for_gate, for_up = torch.empty_like(gate), torch.empty_like(up)
        rows = max(1, CACHED // gate.shape[1])
        pieces = (x.split(rows) for x in (gate, up, grads[0], for_gate, for_up))
        for g, u, grad, to_gate, to_up in zip(*pieces, strict=True):
            share = torch.sigmoid(g)
            opened = torch.mul(share, g, out=to_up)
            # derivative of silu: s + x s (1 - s)
            torch.addcmul(opened, opened, share, value=-1, out=to_gate)
            to_gate.add_(share).mul_(u).mul_(grad)
            to_up.mul_(grad)
        return for_gate, for_up


class JoinedSwiGLU(torch.autograd.Function):
    """`silu(gate) * up` of (N, 2 I) with gate and up side by side, on an accelerator: in the fewest
    kernels, whatever the size."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, 1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (both,), (grad,) = ctx.saved_tensors, grads
        gate, up = both.chunk(2, 1)
        back = torch.empty_like(both)
        to_gate, to_up = back.chunk(2, 1)
        torch.mul(F.silu(gate), grad, out=to_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=to_gate)
        return back


class CastAll(torch.autograd.Function):
    """Small tensors in another type, each increased by `offset`, in one kernel or two for all."""

    @staticmethod
    def forward(
        ctx: Any, dtype: torch.dtype, offset: float, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.types = [x.dtype for x in tensors]
        sources = tensors
        if offset:
            sources = torch._foreach_add(tensors, offset)  # pyright: ignore[reportPrivateImportUsage]
        casts = tuple(torch.empty_like(x, dtype=dtype) for x in tensors)
        torch._foreach_copy_(casts, sources)  # pyright: ignore[reportPrivateImportUsage]
        return casts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = [
            torch.empty_like(x, dtype=dtype) if x is not None and needed else None
            for x, dtype, needed in zip(grads, ctx.types, ctx.needs_input_grad[2:], strict=True)
        ]
        pairs = zip(gradients, grads, strict=True)
        copies = [(to, x) for to, x in pairs if to is not None and x is not None]
        if copies:
            targets, sources = map(list, zip(*copies, strict=True))
            torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
        return None, None, *gradients
