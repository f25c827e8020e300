"""Attention of the lean decoder, with the log-sum-exp that merges it with attention to other
keys."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mrlm.learn.fast.attention import SCORES

HIDDEN = -1e30
"""Added to the score of a masked key."""
LANES = 16
"""Keys of shared prompts are stored in multiples of so many on a CPU: torch's kernel takes most of
its time for those beyond one."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of queries to given keys.

    Args:
        scale: factor of the scores.
        softcap: `c` of `c tanh(scores / c)`, or `None`.
    """

    scale: float
    softcap: float | None

    def look(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Attention to all keys at once.

        Args:
            queries: (B, heads or kv_heads, M, D).
            keys, values: (B, kv_heads, T, D).
            mask: (B, 1, M or 1, T), added to the scores.
            causal: query i sees keys up to i; without a mask.

        Returns:
            Outputs (B, heads or kv_heads, M, D) and the logarithm of the sum of the exponential
            scores (B, heads or kv_heads, M).
        """
        cap = self.softcap
        wide = queries.dtype == torch.float32 or queries.shape[2] >= 8
        if cap is None and wide and queries.device.type == "cpu":
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                queries, keys, values, 0.0, causal, attn_mask=mask, scale=self.scale
            )
        rows, heads, count, size = queries.shape
        folded = queries.reshape(rows, keys.shape[1], -1, size)
        scores = torch.matmul(folded, keys.transpose(-1, -2)).float().mul_(self.scale)
        if cap is not None:
            scores.div_(cap).tanh_().mul_(cap)
        scores = scores.view(rows, heads, count, -1)
        if causal:
            later = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
            scores.masked_fill_(later, HIDDEN)
        elif mask is not None:
            scores += mask
        total = scores.logsumexp(-1)
        weights = scores.sub_(total[..., None]).exp_().to(values.dtype)
        mixed = torch.matmul(weights.view(rows, keys.shape[1], folded.shape[2], -1), values)
        return mixed.view(rows, heads, count, size), total

    def shares(self, scores: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights of keys, in few kernels.

        Args:
            scores: (..., T) products of queries and keys.
            mask: added to the scores, in float32.
            dtype: type of the weights.

        Returns:
            Weights (..., T), which sum to 1.
        """
        factor = self.scale
        if self.softcap is not None:
            scores = scores.float().mul_(self.scale / self.softcap).tanh_()
            factor = self.softcap
        return torch.add(mask, scores, alpha=factor).softmax(-1).to(dtype)

    def read(
        self, queries: Tensor, keys: Tensor, values: Tensor, first: Tensor, window: int | None
    ) -> Tensor:
        """Causal attention of prompts in blocks of queries: memory grows with the length of a
        prompt, not with its square.

        Args:
            queries: (P, heads, M, D).
            keys, values: (P, kv_heads, T, D).
            first: (P,) position of the first query of each prompt.
            window: number of keys that a query sees; `None` for all.

        Returns:
            Outputs (P, heads, M, D).
        """
        rows, heads, count, size = queries.shape
        kv = keys.shape[1]
        most = max(1, SCORES // (rows * heads * keys.shape[2]))
        places = torch.arange(keys.shape[2], device=queries.device)
        parts: list[Tensor] = []
        for start in range(0, count, most):
            part = queries[:, :, start : start + most]
            offsets = torch.arange(start, start + part.shape[2], device=queries.device)
            behind = (first[:, None] + offsets)[:, :, None] - places
            gone = behind < 0 if window is None else (behind < 0) | (behind >= window)
            mask = hidden(gone, torch.float32)[:, None, None]
            scores = part.reshape(rows, kv, -1, size) @ keys.transpose(2, 3)
            scores = scores.view(rows, kv, heads // kv, -1, keys.shape[2])
            shares = self.shares(scores, mask, values.dtype).flatten(2, 3)
            parts.append((shares @ values).view(rows, heads, -1, size))
        return torch.cat(parts, 2)


def hidden(where: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask to add to scores, so that keys are hidden where `where` is true."""
    return where.to(dtype).mul_(HIDDEN)
