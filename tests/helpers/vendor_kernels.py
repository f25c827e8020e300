"""What is one kernel on CUDA and composed of many, or missing, elsewhere: RMSNorm and attention of
sequences of several lengths, as operations that compute on the CPU and count once on the fake
accelerator."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fake_accelerator
from mrlm.learn.fast import forward
from mrlm.learn.fast.varlen_attention import Sight

_library: list[torch.library.Library] = []
_own: list[torch.library.Library] = []
_FORMS = (
    "rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    "rms_norm_backward(Tensor grad, Tensor x, Tensor scale, Tensor weight) -> (Tensor, Tensor)",
    "attention(Tensor q, Tensor k, Tensor v, Tensor ends_q, Tensor ends_k, float scale, int window)"
    " -> (Tensor, Tensor)",
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor total, "
    "Tensor ends_q, Tensor ends_k, float scale, int window) -> (Tensor, Tensor, Tensor)",
)

_SEVERAL = (
    torch.ops.aten._foreach_copy_.default,
    torch.ops.aten._foreach_add_.List,
    torch.ops.aten._foreach_add.Scalar,
)
"""Operations on lists of tensors."""
_COMPOSED = F.rms_norm


def accelerator(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The fake accelerator, with these kernels and with autocast."""
    device = fake_accelerator.register()
    if not _library:
        torch.fake.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # type: ignore
        define()
        several = torch.library.Library("aten", "IMPL")
        for op in _SEVERAL:
            name = op._schema.name + (f".{op._overloadname}" if op._overloadname else "")
            name = name.removeprefix("aten::").removesuffix(".default")
            several.impl(name, functools.partial(fake_accelerator._run, op), "PrivateUse1")
        _library.append(several)
    composed = _COMPOSED

    def rms_norm(x: Tensor, shape: Any, weight: Tensor, eps: float) -> Tensor:
        if x.device.type == "cpu":
            return composed(x, shape, weight, eps)
        return _FusedNorm.apply(x, weight, eps)  # pyright: ignore

    monkeypatch.setattr(F, "rms_norm", rms_norm)
    monkeypatch.setattr(forward, "kernel_for", lambda *_: AttentionKernel())
    return device


class AttentionKernel:
    """Attention along paths, written out."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, how: Sight) -> tuple[Tensor, ...]:
        paths, scale, window = how
        return torch.ops.vendor.attention(
            q, k, v, paths.ends_q, paths.ends_k, scale, -1 if window is None else window
        )

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, outputs: Sequence[Tensor], how: Sight
    ) -> tuple[Tensor, Tensor, Tensor]:
        paths, scale, window = how
        ends = paths.ends_q, paths.ends_k, scale, -1 if window is None else window
        return torch.ops.vendor.attention_backward(grad, q, k, v, *outputs, *ends)


def define() -> None:
    """Define the operations, once in a process."""
    if _own:
        return
    _own.append(torch.library.Library("vendor", "DEF"))
    for form in _FORMS:
        _own[0].define(form)
        name = form.partition("(")[0]
        _own[0].impl(name, globals()[f"_{name}"], "CPU")


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        found, scale = torch.ops.vendor.rms_norm(x, weight, eps)
        ctx.save_for_backward(x, scale, weight)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (*torch.ops.vendor.rms_norm_backward(grads[0], *ctx.saved_tensors), None)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    assert x.dtype == weight.dtype, "the fused kernel takes one type"
    scale = x.float().square().mean(-1, keepdim=True).add(eps).rsqrt()
    return (x.float() * scale * weight.float()).to(x.dtype), scale


def _rms_norm_backward(
    grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    normed, slope = x.float() * scale, grad.float()
    for_weight = (normed * slope).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
    slope = slope * weight.float()
    back = scale * (slope - normed * (slope * normed).mean(-1, keepdim=True))
    return back.to(x.dtype), for_weight


def _seen(asking: int, known: int, window: int) -> Tensor:
    """(S, K): the last query sees all keys, each one before it one fewer; `window` of them at most,
    -1 for all."""
    gap = torch.arange(asking)[:, None] + known - asking - torch.arange(known)
    return (gap >= 0) & (gap < (known if window < 0 else window))


def _sequences(ends_q: Tensor, ends_k: Tensor) -> list[tuple[slice, slice]]:
    q, k = ends_q.tolist(), ends_k.tolist()
    assert len(q) == len(k) and q[0] == k[0] == 0
    assert ends_q.dtype == ends_k.dtype == torch.int32
    pairs = zip(itertools.pairwise(q), itertools.pairwise(k), strict=True)
    return [(slice(*a), slice(*b)) for a, b in pairs]


def _scores(q: Tensor, k: Tensor, scale: float, window: int) -> Tensor:
    """(heads, S, K) in float32."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    found = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    return found.masked_fill(~_seen(q.shape[0], k.shape[0], window), -torch.inf)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, scale: float, window: int
) -> tuple[Tensor, Tensor]:
    out, total = torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
    for here, there in _sequences(ends_q, ends_k):
        scores = _scores(q[here], k[there], scale, window)
        total[:, here] = scores.logsumexp(-1)
        values = v[there].float().repeat_interleave(q.shape[1] // v.shape[1], 1)
        shares = (scores - total[:, here, None]).exp()
        out[here] = torch.einsum("hqk,khd->qhd", shares, values).to(q.dtype)
    return out, total


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor,
    ends_q: Tensor, ends_k: Tensor, scale: float, window: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As flash attention's (arXiv 2205.14135, algorithm 4): shares again from the total."""
    group = q.shape[1] // k.shape[1]
    dq, dk, dv = (torch.zeros(x.shape) for x in (q, k, v))
    for here, there in _sequences(ends_q, ends_k):
        shares = (_scores(q[here], k[there], scale, window) - total[:, here, None]).exp()
        slope = grad[here].float()
        values = v[there].float().repeat_interleave(group, 1)
        keys = k[there].float().repeat_interleave(group, 1)
        along = (slope * out[here].float()).sum(-1).t()[..., None]
        back = shares * (torch.einsum("qhd,khd->hqk", slope, values) - along) * scale
        dq[here] = torch.einsum("hqk,khd->qhd", back, keys)
        for x, found in (
            (dk, torch.einsum("hqk,qhd->khd", back, q[here].float())),
            (dv, torch.einsum("hqk,qhd->khd", shares, slope)),
        ):
            x[there] = found.unflatten(1, (-1, group)).sum(2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
