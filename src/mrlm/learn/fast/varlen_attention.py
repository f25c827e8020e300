"""Attention of a prefix tree in one kernel on an accelerator: every chunk of packed tokens reads
the keys of its path, whatever their numbers. No mask and no matrix of scores is stored."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mrlm.core.log import log
from mrlm.learn.fast.repeatable import strictly

FROM_LAST = 2
"""Code of the causal mask in which the last query sees all keys."""
WIDEST_HEAD = 256
"""Largest head size of flash attention."""
AGREEMENT = {torch.float32: 1e-2, torch.bfloat16: 1e-1, torch.float16: 2e-2}
"""Largest difference of a kernel's outputs and gradients from attention written out, where they are
about 1, by type; float32 products may be rounded to TF32."""


@dataclass(frozen=True, slots=True)
class KeyPaths:
    """The keys of the chunks of packed tokens, for one call of a kernel.

    Args:
        keys: (M,) packed indices of the keys, path by path, each of which ends with its chunk;
            `None` if every path is its chunk alone.
        ends_q, ends_k: (B + 1,) int32 ends of the chunks and of the paths, after a 0.
        longest: tokens of the longest chunk and of the longest path.
    """

    keys: Tensor | None
    ends_q: Tensor
    ends_k: Tensor
    longest: tuple[int, int]

    def gathered(self, x: Tensor) -> Tensor:
        """The rows of the keys (M, ...) of packed rows (P, ...)."""
        return x if self.keys is None else x.index_select(0, self.keys)

    def scattered(self, grad: Tensor, like: Tensor) -> Tensor:
        """The gradient of `gathered`: rows of one token are added up."""
        if self.keys is None:
            return grad
        back = torch.ops.aten.embedding_dense_backward
        return back(grad.flatten(1), self.keys, like.shape[0], -1, False).view(like.shape)


class Sight(NamedTuple):
    """Which keys queries see: each those of its path, the last `window` at most, with scores times
    `scale`."""

    paths: KeyPaths
    scale: float
    window: int | None


class Kernel(Protocol):
    """Causal attention of sequences of several lengths, of which the last query sees all keys."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, how: Sight) -> tuple[Tensor, ...]:
        """Outputs (P, heads, head_dim) of queries of that shape over gathered keys and values (M,
        kv_heads, head_dim), and what backward needs."""
        ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, outputs: Sequence[Tensor], how: Sight
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients by `q`, `k` and `v`; `outputs` is what `forward` returned."""
        ...


class FlashKernel:
    """Flash attention (arXiv 2307.08691), in 16-bit types."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, how: Sight) -> tuple[Tensor, ...]:
        paths, scale, window = how
        left, causal = (-1, True) if window is None else (window - 1, False)
        out, total, seed, unused, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, paths.ends_q, paths.ends_k, *paths.longest, 0.0, causal, False,
            scale=scale, window_size_left=left, window_size_right=0,
        )  # fmt: skip
        return out, total, seed, unused

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, outputs: Sequence[Tensor], how: Sight
    ) -> tuple[Tensor, Tensor, Tensor]:
        paths, scale, window = how
        left, causal = (-1, True) if window is None else (window - 1, False)
        out, total, seed, unused = outputs
        return torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, total, paths.ends_q, paths.ends_k, *paths.longest, 0.0, causal,
            seed, unused, scale=scale, window_size_left=left, window_size_right=0,
        )  # fmt: skip


class EfficientKernel:
    """Memory-efficient attention (arXiv 2112.05682), also in float32; keys and values are repeated
    for the queries that share them. No window hides a key: with one, torch's kernel is wrong where
    a path is longer than its chunk."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, how: Sight) -> tuple[Tensor, ...]:
        paths, scale, _ = how
        k, v = self._repeated(k, q), self._repeated(v, q)
        out, total, seed, offset, _, _ = torch.ops.aten._efficient_attention_forward(
            q[None], k[None], v[None], None, paths.ends_q, paths.ends_k, *paths.longest, 0.0,
            FROM_LAST, True, scale=scale,
        )  # fmt: skip
        return out[0], total, seed, offset

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, outputs: Sequence[Tensor], how: Sight
    ) -> tuple[Tensor, Tensor, Tensor]:
        paths, scale, _ = how
        out, total, seed, offset = outputs
        wide_k, wide_v = self._repeated(k, q), self._repeated(v, q)
        dq, dk, dv, _ = torch.ops.aten._efficient_attention_backward(
            grad[None], q[None], wide_k[None], wide_v[None], None, out[None], paths.ends_q,
            paths.ends_k, *paths.longest, total, 0.0, seed, offset, FROM_LAST, False, scale=scale,
        )  # fmt: skip
        heads = k.shape[1]
        dk, dv = (x[0].unflatten(1, (heads, -1)).sum(2) for x in (dk, dv))
        return dq[0], dk, dv

    def _repeated(self, x: Tensor, q: Tensor) -> Tensor:
        group = q.shape[1] // x.shape[1]
        return x if group == 1 else x.repeat_interleave(group, 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of attention: type, sizes and number of heads, and window."""

    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None


def effective(window: int | None, reach: int) -> int | None:
    """A window, if it hides any of so many keys."""
    return None if window is None or window >= reach else window


@functools.cache
def kernel_for(device: torch.device, shape: Shape) -> Kernel | None:
    """The kernel for a device, if it computes a small example right; `None` if there is none."""
    if device.type != "cuda" or shape.head_dim % 8:
        return None
    kernels: list[Kernel] = [EfficientKernel()] if shape.window is None else []
    flash = shape.dtype in (torch.bfloat16, torch.float16) and shape.head_dim <= WIDEST_HEAD
    if flash and torch.cuda.get_device_capability(device) >= (8, 0):
        kernels.insert(0, FlashKernel())
    for kernel in kernels:
        reason = disagreement(kernel, device, shape)
        if reason is None:
            return kernel
        log.warning("attention: %s is not used on %s: %s", type(kernel).__name__, device, reason)
    return None


def disagreement(kernel: Kernel, device: torch.device, shape: Shape) -> str | None:
    """Reason against a kernel: it fails on an example, or differs from attention written out. The
    example has gradients wherever it is called: the first caller may be an engine."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        return _disagreement(kernel, device, shape)


def _disagreement(kernel: Kernel, device: torch.device, shape: Shape) -> str | None:
    make = torch.Generator().manual_seed(0)

    def normal(rows: int, heads: int) -> Tensor:
        x = torch.randn(rows, heads, shape.head_dim, generator=make)
        return x.to(device, shape.dtype).requires_grad_()

    q, k, v = normal(9, shape.heads), normal(9, shape.kv_heads), normal(9, shape.kv_heads)
    grad = normal(9, shape.heads).detach()
    # a prefix of 4 tokens, and two chunks of 3 and 2 that extend it
    keys = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 7, 8], device=device)
    ends = ([0, 4, 7, 9], [0, 4, 11, 17])
    ends_q, ends_k = (torch.tensor(x, dtype=torch.int32, device=device) for x in ends)
    paths = KeyPaths(keys, ends_q, ends_k, (4, 7))
    how = Sight(paths, shape.head_dim**-0.5, None if shape.window is None else 3)
    reference = _written_out(q, k, v, how)
    pairs = [(reference, *torch.autograd.grad(reference, (q, k, v), grad))]
    try:
        output = attend(q, k, v, kernel, how)
        pairs.append((output, *torch.autograd.grad(output, (q, k, v), grad)))
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    gap = max(float((a - b).detach().abs().max()) for a, b in zip(*pairs, strict=True))
    return None if gap <= AGREEMENT[shape.dtype] else f"an example differs by {gap:.2g}"


def _written_out(q: Tensor, k: Tensor, v: Tensor, how: Sight) -> Tensor:
    """The attention of a few tokens, sequence by sequence."""
    paths, scale, window = how
    group = q.shape[1] // k.shape[1]
    outputs: list[Tensor] = []
    ends_q, ends_k = paths.ends_q.tolist(), paths.ends_k.tolist()
    k, v = (paths.gathered(x).repeat_interleave(group, 1) for x in (k, v))
    for number in range(len(ends_q) - 1):
        here, there = (slice(*ends[number : number + 2]) for ends in (ends_q, ends_k))
        scores = torch.einsum("qhd,khd->hqk", q[here].float(), k[there].float()) * scale
        asking, key_count = scores.shape[1:]
        gap = torch.arange(asking, device=q.device)[:, None] + key_count - asking
        gap = gap - torch.arange(key_count, device=q.device)
        seen = (gap >= 0) & (gap < (key_count if window is None else window))
        shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", shares, v[there].float()))
    return torch.cat(outputs).to(q.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, how: Sight) -> Tensor:
    """Causal attention of packed tokens along their paths: (P, heads, head_dim) from queries of
    that shape, and keys and values (P, kv_heads, head_dim). Differentiable; the gathered keys and
    values are not kept but gathered again."""
    return _Attention.apply(q, k, v, kernel, how)  # pyright: ignore


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        q, k, v, ctx.kernel, how = inputs
        ctx.how = how
        outputs = ctx.kernel.forward(q, how.paths.gathered(k), how.paths.gathered(v), how)
        ctx.save_for_backward(q, k, v, *outputs)
        return outputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, *outputs = ctx.saved_tensors
        paths = ctx.how.paths
        near = paths.gathered(k), paths.gathered(v)
        with strictly():
            dq, dk, dv = ctx.kernel.backward(grads[0].contiguous(), q, *near, outputs, ctx.how)
        return dq, paths.scattered(dk, k), paths.scattered(dv, v), None, None
