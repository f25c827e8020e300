"""Attention of a decoding step by flash attention (arXiv 2307.08691) on a GPU. Every row and head
of keys is a sequence of its own, which reads the keys that it has and no others."""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from mrlm.core.log import log
from mrlm.learn.fast.varlen_attention import AGREEMENT, WIDEST_HEAD


class Sequences(NamedTuple):
    """B sequences of queries and of keys.

    Args:
        ends_q: (B + 1,) int32 ends of their queries, after a 0.
        starts_k: (B + 1,) int32 places of their first keys, and a last number that is not read.
        used: (B,) int32 numbers of keys.
        longest: most queries and most keys of a sequence.
    """

    ends_q: Tensor
    starts_k: Tensor
    used: Tensor
    longest: tuple[int, int]


def look(
    queries: Tensor, keys: Tensor, values: Tensor, sequences: Sequences, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of queries (T, G, D) to all keys of their sequences; keys and values (K, 1, D).

    Returns:
        Outputs (T, G, D), and the logarithm of the sum of the exponential scores (G, T) in float32.
    """
    out, total, *_ = torch.ops.aten._flash_attention_forward(
        queries, keys, values, sequences.ends_q, sequences.starts_k, *sequences.longest, 0.0, False,
        False, scale=scale, seqused_k=sequences.used,
    )  # fmt: skip
    return out, total


@functools.cache
def serves(device: torch.device, dtype: torch.dtype, group: int, head_dim: int) -> bool:
    """Whether a device has the kernel and computes a small example right with it.

    Args:
        dtype: of keys and values.
        group: queries of a head of keys, G.
        head_dim: D.
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    if head_dim % 8 or head_dim > WIDEST_HEAD or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    reason = disagreement(device, dtype, group, head_dim)
    if reason is not None:
        log.warning("decoding: flash attention is not used on %s: %s", device, reason)
    return reason is None


@torch.inference_mode()
def disagreement(device: torch.device, dtype: torch.dtype, group: int, head_dim: int) -> str | None:
    """Reason against the kernel: it fails on an example, or differs from attention written out."""
    make = torch.Generator().manual_seed(0)
    for counts, starts, used in (([1, 1, 1], [2, 12, 21], [5, 8, 1]), ([3, 3], [0, 16], [9, 4])):
        queries = torch.randn(sum(counts), group, head_dim, generator=make).to(device, dtype)
        keys, values = torch.randn(2, 32, 1, head_dim, generator=make).to(device, dtype).unbind()
        ends = torch.tensor([0, *counts]).cumsum(0)
        places, sizes = (torch.tensor(x).to(device, torch.int32) for x in ([*starts, 32], used))
        longest = (max(counts), 10)
        sequences = Sequences(ends.to(device, torch.int32), places, sizes, longest)
        parts: list[Tensor] = []
        totals: list[Tensor] = []
        at = ends.tolist()
        for number, (start, size) in enumerate(zip(starts, used, strict=True)):
            here, there = slice(*at[number : number + 2]), slice(start, start + size)
            scores = queries[here].float() @ keys[there, 0].float().t() * head_dim**-0.5
            totals.append(scores.logsumexp(-1))
            parts.append(scores.softmax(-1) @ values[there, 0].float())
        try:
            mixed, total = look(queries, keys, values, sequences, head_dim**-0.5)
            gaps = (mixed.float() - torch.cat(parts)).abs(), (total.t() - torch.cat(totals)).abs()
        except (NotImplementedError, RuntimeError, TypeError) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        gap = max(float(difference.max()) for difference in gaps)
        if not gap <= AGREEMENT[dtype]:
            return f"an example differs by {gap:.2g}"
    return None
