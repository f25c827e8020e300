"""Dense attention for training, independent of models and prefix trees."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mrlm.learn.fast.cpu_backends import small_products


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None = None,
    known: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Attention outputs (B, heads, S, head_dim) of S queries over T keys. `k` and `v` are (B,
    kv_heads, T, head_dim), each for `heads / kv_heads` heads; `mask` (B or 1, 1, S, T) is added to
    the scores, `None` for causal attention; `softcap` is `c` of `c tanh(scores / c)` and needs a
    mask. `known`, on a CPU without `softcap`, are the outputs and (B, heads, S) the logarithms of
    the sums of exponential scores, so that only the gradient is left to do."""
    group, kind = q.shape[1] // k.shape[1], q.dtype
    if softcap is None and (q.device.type != "cpu" or kind == torch.float64):
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=group > 1
        )
    if softcap is None:  # on CPU, backward takes twice as long in bfloat16 as in float32
        q, k, v = q.float(), k.float(), v.float()
        mask = None if mask is None else mask.float()
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if softcap is None:
        return _Flash.apply(q, k, v, mask, scale, known).to(kind)  # pyright: ignore
    assert mask is not None
    scores = softcap * torch.tanh(q @ k.transpose(2, 3) * (scale / softcap)) + mask
    return scores.float().softmax(-1).to(v.dtype) @ v


class _Flash(torch.autograd.Function):
    """Flash attention (arXiv 2205.14135) in float32 on CPU. Its small tiles use the matmul library
    that is fast for them, whatever the surrounding setting."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        q, k, v, mask, scale, known = inputs
        if known is not None:
            found, total = known
        else:
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
            with small_products():
                found, total = flash(q, k, v, 0.0, mask is None, attn_mask=mask, scale=scale)
        ctx.save_for_backward(q, k, v, found, total, mask)
        ctx.scale = scale
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, found, total, mask = ctx.saved_tensors
        back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        with small_products():
            causal = mask is None
            dq, dk, dv = back(
                grads[0], q, k, v, found, total, 0.0, causal, attn_mask=mask, scale=ctx.scale
            )
        return dq, dk, dv, None, None, None
