"""KL divergence of two policies over the whole vocabulary, with logits of one chunk of tokens at a
time."""

from __future__ import annotations

import torch
from torch import Tensor

from mrlm.learn.data.batch import Batch
from mrlm.learn.fast.lm_head import Head, TokenChunk, rows_at_once
from mrlm.learn.fast.packed_pass import LeanPass, hidden_states


@torch.no_grad()
def full_kl(own: LeanPass, reference: LeanPass, batch: Batch) -> Tensor:
    """`sum_v p(v) (log p(v) - log q(v))` (N,) at the positions of the trained tokens, with both
    distributions at the sampling temperature of the token.

    Args:
        own: fast path of the policy p.
        reference: fast path of the reference q.
        batch: the tokens.
    """
    (ours,) = hidden_states([(own, batch)])
    (theirs,) = hidden_states([(reference, batch)])
    size = rows_at_once(own.head.weight.shape[0])
    found = ours.new_zeros(len(batch), dtype=torch.float32)
    for start in range(0, len(batch), size):
        here = slice(start, start + size)
        p = _stretch(own.head, ours, batch, here)
        q = _stretch(reference.head, theirs, batch, here)
        gap = (p.logits - p.total.log()) - (q.logits - q.total.log())
        found[here] = (p.weights / p.total * gap).sum(-1)
    return found


def _stretch(head: Head, hidden: Tensor, batch: Batch, here: slice) -> TokenChunk:
    return TokenChunk(head, hidden[here], batch.tokens[here], batch.temperature[here])
