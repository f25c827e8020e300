"""Dense attention for training, independent of models and prefix trees."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mrlm.learn.fast.cpu_backends import quick, small_products

BLOCK = 1 << 20
"""Scores that fit into a CPU cache together with their gradient."""
MOST = 1 << 24
"""Scores of a sequence from which on they are not stored."""
TINY = 1e-30

SCORES = 1 << 26
"""Scores of an accelerator that are stored at once, without a fused kernel."""
Visible = Callable[[int, int], Tensor]
"""(start, stop) -> mask (B, 1, stop - start, T): the keys that these queries see."""


def attention_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible, scale: float, softcap: float | None
) -> Tensor:
    """As `attention`, on an accelerator without a kernel for it: in blocks of queries, whose scores
    and masks are computed again in backward. Memory grows with the length, not with its square."""
    size = max(1, SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    outputs: list[Tensor] = []
    for start in range(0, q.shape[2], size):
        stop = min(start + size, q.shape[2])
        how = visible, start, stop, scale, softcap
        mixed: Any = checkpoint(
            _block, q[:, :, start:stop], k, v, *how, use_reentrant=False, preserve_rng_state=False
        )
        outputs.append(mixed)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)


def _block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visible,
    start: int,
    stop: int,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention of the queries `start` to `stop`, written out."""
    (rows, heads, count, size), kv = q.shape, k.shape[1]
    scores = (q.reshape(rows, kv, -1, size) @ k.transpose(2, 3)).float()
    scores = scores * (scale if softcap is None else scale / softcap)
    if softcap is not None:
        scores = softcap * scores.tanh()
    unseen = visible(start, stop).logical_not()[:, :, None]
    scores = scores.view(rows, kv, heads // kv, count, -1).masked_fill(unseen, -torch.inf)
    shares = scores.softmax(-1).to(v.dtype).flatten(2, 3)
    return (shares @ v).view(rows, heads, count, size)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float | None = None
) -> Tensor:
    """Attention outputs (B, heads, S, head_dim) of S queries over T keys. `k` and `v` are (B,
    kv_heads, T, head_dim), each for `heads / kv_heads` heads; `mask` (B or 1, 1, S, T) is added to
    the scores, `None` for causal attention; `softcap` is `c` of `c tanh(scores / c)` and needs a
    mask."""
    group, kind = q.shape[1] // k.shape[1], q.dtype
    if softcap is None and (q.device.type != "cpu" or kind == torch.float64):
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=group > 1
        )
    if softcap is None:  # on CPU, backward takes twice as long in bfloat16 as in float32
        q, k, v = q.float(), k.float(), v.float()
        mask = None if mask is None else mask.float()
        large = q.shape[1] * q.shape[2] * k.shape[2] > MOST
        if kind != torch.float32 and mask is not None and not large and quick():
            return _Blocked.apply(q, k, v, mask, scale).to(kind)  # pyright: ignore
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if softcap is None:
        return _Flash.apply(q, k, v, mask, scale).to(kind)  # pyright: ignore
    assert mask is not None
    scores = softcap * torch.tanh(q @ k.transpose(2, 3) * (scale / softcap)) + mask
    return scores.float().softmax(-1).to(v.dtype) @ v


class _Flash(torch.autograd.Function):
    """Flash attention (arXiv 2205.14135) in float32 on CPU. Its small tiles use the matmul library
    that is fast for them, whatever the surrounding setting."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        q, k, v, mask, scale = inputs
        with small_products():
            output, total = flash(q, k, v, mask, scale)
        ctx.save_for_backward(q, k, v, output, total, mask)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, output, total, mask = ctx.saved_tensors
        with small_products():
            back = flash_backward(grads[0], q, k, v, output, total, mask, ctx.scale)
        return *back, None, None


class _Blocked(torch.autograd.Function):
    """The same, with fewer heads of keys than of queries and a gradient of large products: scores
    of a few sequences at a time, for the cache; the gradient has shares that sum to 1."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        q, k, v, mask, scale = inputs
        group = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        with small_products():
            output, total = flash(q, keys, values, mask, scale)
        ctx.save_for_backward(q, k, v, total, mask)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, total, mask = ctx.saved_tensors
        _, heads, asking, size = q.shape
        kv, key_count = k.shape[1:3]
        mask = mask.expand(len(q), -1, -1, -1)
        back = [torch.empty_like(x, memory_format=torch.preserve_format) for x in (q, k, v)]
        rows = max(1, BLOCK // (heads * asking * key_count))
        tensors = (q, k, v, mask, total[..., None], grads[0], *back)
        for parts in zip(*(x.split(rows) for x in tensors), strict=True):
            queries, keys, values, hidden, sums, grad, to_q, to_k, to_v = parts
            queries = (queries * ctx.scale).reshape(-1, heads // kv * asking, size)
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
            shares = torch.bmm(queries, keys.transpose(1, 2)).view(-1, heads, asking, key_count)
            shares.add_(hidden).sub_(sums).exp_()
            whole = shares.sum(-1, True).clamp_(min=TINY)
            grad = (grad / whole).reshape(queries.shape)
            slope = torch.bmm(grad, values.transpose(1, 2)).view(shares.shape).mul_(shares)
            slope.addcmul_(slope.sum(-1, True).div_(whole), shares, value=-1)
            shares, slope = (x.view(len(queries), -1, key_count) for x in (shares, slope))
            to_v.copy_(torch.bmm(shares.transpose(1, 2), grad).view(-1, kv, key_count, size))
            to_q.copy_(torch.bmm(slope, keys).mul_(ctx.scale).view(-1, heads, asking, size))
            to_k.copy_(torch.bmm(slope.transpose(1, 2), queries).view(-1, kv, key_count, size))
        return *back, None, None


def flash(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs, and logarithms of the sums of exponential scores; for use in `small_products`."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return kernel(q, k, v, 0.0, mask is None, attn_mask=mask, scale=scale)


def flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    total: Tensor,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v; `output` and `total` are the outputs of `flash`."""
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return back(grad, q, k, v, output, total, 0.0, mask is None, attn_mask=mask, scale=scale)
