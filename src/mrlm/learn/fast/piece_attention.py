"""Attention of packed tokens in float32 on a CPU: all pieces of a layer as one function, which
gathers their queries, keys and values again in backward instead of keeping them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.learn.fast.attention import flash, flash_backward
from mrlm.learn.fast.cpu_backends import small_products
from mrlm.learn.fast.prefix_tree import PackedTokens, PrefixPiece, to_device

Masks = Mapping[tuple[int, int | None], Tensor]
"""Masks (B, 1, S, K) that are added to scores, by number of the piece and window."""


@dataclass(frozen=True, slots=True)
class HeadRows:
    """The heads of a piece of attention, B chunks of S queries and K keys: indices into the rows (P
    * heads, head_dim) of all packed tokens.

    Args:
        queries: (B * heads * S,) rows of the queries; padding has any.
        padding: indices into these that are padding, or `None`.
        keys: (B * kv_heads * K,) rows of keys and values.
        start, stop: range of the rows of its own queries, without padding.
        places: (stop - start,) index of each of these in `queries`.
        shape: (B, heads, kv_heads, S, K).
    """

    queries: Tensor
    padding: Tensor | None
    keys: Tensor
    start: int
    stop: int
    places: Tensor
    shape: tuple[int, int, int, int, int]

    @classmethod
    def of(cls, piece: PrefixPiece, heads: int, kv_heads: int) -> "HeadRows":
        batch, asking, key_count = piece.shape
        query_index = np.arange(batch * asking) if piece.inside is None else piece.inside.numpy()
        chunk, position = np.divmod(query_index, asking)
        head = np.arange(heads)
        places = (chunk[:, None] * heads + head) * asking + position[:, None]
        queries = np.full(batch * heads * asking, piece.start * heads)
        queries[places] = (piece.start + np.arange(len(query_index)))[:, None] * heads + head
        padding = None
        if piece.inside is not None:
            unused = np.ones(len(queries), dtype=bool)
            unused[places] = False
            padding = to_device(np.flatnonzero(unused), "cpu")
        seen = piece.start + np.arange(batch * asking).reshape(batch, asking)
        for table in (piece.rows, piece.keys):
            seen = seen if table is None else table.numpy()
        keys = seen[:, None] * kv_heads + np.arange(kv_heads)[:, None]
        return cls(
            to_device(queries, "cpu"),
            padding,
            to_device(keys.ravel(), "cpu"),
            piece.start * heads,
            piece.stop * heads,
            to_device(places.ravel(), "cpu"),
            (batch, heads, kv_heads, asking, key_count),
        )

    def stores_shares(self, size: int) -> bool:
        """Whether the shares of the values are kept for backward: where they are fewer numbers than
        the queries and keys, of `size` a head. Then they take no more memory than those would."""
        *_, asking, key_count = self.shape
        return asking * key_count <= size * (asking + key_count)

    def gather(self, queries: Tensor, keys: Tensor, values: Tensor) -> list[Tensor]:
        """Queries (B * kv_heads, heads / kv_heads * S, head_dim), and keys and values (B *
        kv_heads, K, head_dim), from the rows of all tokens."""
        batch, _, kv_heads, _, _ = self.shape
        pairs = (queries, self.queries), (keys, self.keys), (values, self.keys)
        return [x.index_select(0, rows).view(batch * kv_heads, -1, x.shape[1]) for x, rows in pairs]

    def shares(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """The weights of the values, from scaled queries and keys as `gather` returns them."""
        scores = torch.bmm(queries, keys.transpose(1, 2))
        self.by_head(scores).add_(mask)
        return scores.softmax(-1)

    def by_head(self, x: Tensor) -> Tensor:
        """Queries or their scores as (B, heads, S, ...)."""
        batch, heads, _, asking, _ = self.shape
        return x.view(batch, heads, asking, x.shape[-1])

    def repeated(self, x: Tensor) -> Tensor:
        """Keys or values for each head of the queries, (B, heads, K, head_dim)."""
        batch, heads, kv_heads, _, key_count = self.shape
        x = x.view(batch, kv_heads, key_count, -1)
        return x.repeat_interleave(heads // kv_heads, 1) if heads > kv_heads else x

    def summed(self, grad: Tensor) -> Tensor:
        """The opposite for a gradient: rows (B * kv_heads * K, head_dim)."""
        kv_heads = self.shape[2]
        return grad.unflatten(1, (kv_heads, -1)).sum(2).flatten(0, 2)


class AttendPieces(torch.autograd.Function):
    """Attention outputs (P, heads * head_dim) of queries of that shape, and of keys and values (P,
    kv_heads * head_dim), for pieces that hold every token once, in order; rows after them get
    zeros. A mask (B, 1, S, K) of each piece is added to its scores; `None` is for causal
    attention."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        size: int,
        scale: float,
        pieces: Sequence[HeadRows],
        masks: Sequence[Tensor | None],
    ) -> Tensor:
        ctx.how = size, scale, pieces, masks
        output = torch.empty_like(queries, memory_format=torch.contiguous_format)
        rows = output.view(-1, size)
        head_rows = [x.reshape(-1, size) for x in (queries, keys, values)]
        activations: list[Tensor] = []
        with small_products():
            for piece, mask in zip(pieces, masks, strict=True):
                piece_rows = rows[piece.start : piece.stop]
                q, k, v = piece.gather(*head_rows)
                if mask is not None and piece.stores_shares(size):
                    shares = piece.shares(q.mul_(scale), k, mask)
                    mixed = torch.bmm(shares, v)
                    activations.append(shares)
                else:
                    k, v = piece.repeated(k), piece.repeated(v)
                    mixed, sums = flash(piece.by_head(q), k, v, mask, scale)
                    activations += [mixed, sums]
                torch.index_select(mixed.reshape(-1, size), 0, piece.places, out=piece_rows)
        rows[pieces[-1].stop :] = 0
        ctx.save_for_backward(queries, keys, values, *activations)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        size, scale, pieces, masks = ctx.how
        saved = ctx.saved_tensors
        inputs, activations = saved[:3], iter(saved[3:])
        queries, keys, values, grad = (x.reshape(-1, size) for x in (*inputs, grads[0]))
        to_q = torch.empty_like(queries)
        to_k, to_v = torch.zeros_like(keys), torch.zeros_like(values)
        with small_products():
            for piece, mask in zip(pieces, masks, strict=True):
                q, k, v = piece.gather(queries, keys, values)
                slope = grad.index_select(0, piece.queries)
                if piece.padding is not None:
                    slope.index_fill_(0, piece.padding, 0)
                if mask is not None and piece.stores_shares(size):
                    q.mul_(scale)
                    dq, dk, dv = _slopes(slope.view(q.shape), q, k, v, next(activations))
                    dq.mul_(scale)
                else:
                    wide = piece.by_head(q), piece.repeated(k), piece.repeated(v)
                    results = next(activations), next(activations)
                    back = flash_backward(piece.by_head(slope), *wide, *results, mask, scale)
                    dq, dk, dv = back[0], piece.summed(back[1]), piece.summed(back[2])
                piece_rows = to_q[piece.start : piece.stop]
                torch.index_select(dq.reshape(-1, size), 0, piece.places, out=piece_rows)
                to_k.index_add_(0, piece.keys, dk.view(-1, size))
                to_v.index_add_(0, piece.keys, dv.view(-1, size))
        to_q[pieces[-1].stop :] = 0
        back = (to.view(x.shape) for to, x in zip((to_q, to_k, to_v), inputs, strict=True))
        return *back, None, None, None, None


def _slopes(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by queries, keys and values of `softmax(q k') v`, whose softmax is `shares`."""
    slope = torch.bmm(grad, v.transpose(1, 2))
    slope = torch.ops.aten._softmax_backward_data(slope, shares, -1, slope.dtype)
    dk, dv = torch.bmm(slope.transpose(1, 2), q), torch.bmm(shares.transpose(1, 2), grad)
    return torch.bmm(slope, k), dk, dv


def piece_masks(
    tokens: PackedTokens, windows: Iterable[int | None], dtype: torch.dtype, causal: bool
) -> Masks:
    """The masks of all pieces; without those of causal attention if `causal`."""
    masks: dict[tuple[int, int | None], Tensor] = {}
    for number, piece in enumerate(tokens.pieces):
        for window in windows:
            wide = window is None or window >= piece.shape[2]
            if piece.keys is not None or not wide or not causal:
                masks[number, window] = piece.mask(None if wide else window, dtype)
    return masks
