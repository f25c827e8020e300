"""The fast forward of Llama-like models for training: packed tokens without padding, each shared
prefix once, outputs at trained positions only. It computes the same as the model's own forward,
with the model's own weights; `llama_modules.py` lists the supported models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mrlm.learn.fast.attention import attention
from mrlm.learn.fast.elementwise import Norm16, Rotate, SwiGLU
from mrlm.learn.fast.llama_modules import Anatomy, Layer, Lora, linear_of, loras_of
from mrlm.learn.fast.prefix_tree import PrefixPiece, PrefixTree

WASTE = 2
"""Adapters are computed in one product where padding to equal numbers of tokens makes the tokens at
most this many times as many."""
Rotary = Mapping[str, tuple[Tensor, Tensor]]
Masks = Mapping[tuple[int, int | None], Tensor]


@dataclass(frozen=True, slots=True)
class PackedTree:
    """One tree of a forest: the packed tokens of one policy, and their LoRA adapter (`None` and
    `""` for the base weights alone)."""

    tree: PrefixTree
    adapter: str | None


@dataclass(frozen=True, slots=True)
class _Owned:
    """Rows `start:stop` of the packed tokens, and their adapter."""

    start: int
    stop: int
    adapter: str | None


@dataclass(frozen=True, slots=True)
class _Grid:
    """The packed tokens of several adapters as rows of a grid (adapters, tokens): `place` has the
    token of each cell (any one where an adapter has fewer), `kept` the cell of each token."""

    shape: tuple[int, int]
    place: Tensor
    kept: Tensor


@dataclass(frozen=True, slots=True)
class _Owners:
    """The rows of each tree, in order; with `grid`, the updates of the adapters are one batched
    product."""

    parts: tuple[_Owned, ...]
    grid: _Grid | None


@dataclass(eq=False)
class LeanForward:
    """Computes hidden states of packed tokens in `dtype`; weights keep their own. Trees of several
    policies on one base run together: products with the base weights are computed once, and each
    adapter adds to its own tokens."""

    anatomy: Anatomy
    dtype: torch.dtype

    def hidden(self, forest: Sequence[PackedTree], checkpointing: bool = False) -> list[Tensor]:
        """Hidden states (N, H) that the head reads at each tree's `predictors`. With
        `checkpointing`, each block is recomputed in backward instead of keeping its activations."""
        anatomy = self.anatomy
        trees = [plot.tree for plot in forest]
        ids = torch.cat([tree.ids for tree in trees])
        stream = F.embedding(ids, anatomy.embedding, anatomy.padding_idx)
        if anatomy.embed_scale != 1.0:
            scale = torch.tensor(anatomy.embed_scale, dtype=stream.dtype, device=stream.device)
            stream = stream * scale
        stream = stream.to(self.dtype)
        positions = torch.cat([tree.positions for tree in trees])
        rotary = anatomy.rotary(positions, self.dtype)
        masks = [self._masks(tree) for tree in trees]
        needed = [torch.unique(tree.predictors, return_inverse=True) for tree in trees]
        owned = _owners(forest, [len(tree.ids) for tree in trees])
        ends = _owners(forest, [len(rows) for rows, _ in needed])
        pairs = zip(owned.parts, needed, strict=True)
        rows = torch.cat([each.start + rows for each, (rows, _) in pairs])
        last = len(anatomy.layers) - 1
        for number, layer in enumerate(anatomy.layers):
            kept, left = (rows, ends) if number == last else (None, owned)
            arguments = (stream, layer, trees, owned, rotary[layer.rope], masks, kept, left)
            if checkpointing and torch.is_grad_enabled():
                stream = checkpoint(self._block, *arguments, use_reentrant=False)
            else:
                stream = self._block(*arguments)
        stream = self._norm(stream, anatomy.final_norm)
        return [
            F.embedding(which, stream[each.start : each.stop])
            for each, (_, which) in zip(ends.parts, needed, strict=True)
        ]

    def _block(
        self,
        stream: Tensor,
        layer: Layer,
        trees: Sequence[PrefixTree],
        owned: _Owners,
        rotary: tuple[Tensor, Tensor],
        masks: Sequence[Masks],
        rows: Tensor | None,
        left: _Owners,
    ) -> Tensor:
        """One block; with `rows`, for those tokens alone, in the order of `left`."""
        anatomy = self.anatomy
        normed = self._norm(stream, layer.norm_attention)
        queries = self._apply(normed, layer.q, owned).unflatten(1, (anatomy.heads, -1))
        keys = self._apply(normed, layer.k, owned).unflatten(1, (anatomy.kv_heads, -1))
        values = self._apply(normed, layer.v, owned)
        if layer.norm_q is not None and layer.norm_k is not None:
            queries = self._norm(queries, layer.norm_q)
            keys = self._norm(keys, layer.norm_k)
        queries, keys = Rotate.apply(queries, *rotary), Rotate.apply(keys, *rotary)
        flat = (queries.flatten(1), keys.flatten(1), values)
        found: list[Tensor] = []
        for each, tree, mask in zip(owned.parts, trees, masks, strict=True):
            q, k, v = (x[each.start : each.stop] for x in flat)
            found += self._attend(q, k, v, layer, tree.pieces, mask)
        mixed = found[0] if len(found) == 1 else torch.cat(found)
        if rows is not None:
            mixed, stream = mixed[rows], stream[rows]
        added = self._apply(mixed, layer.o, left)
        if layer.norm_after_attention is not None:
            added = self._norm(added, layer.norm_after_attention)
        stream = stream + added
        normed = self._norm(stream, layer.norm_mlp)
        gate = self._apply(normed, layer.gate, left)
        up = self._apply(normed, layer.up, left)
        if anatomy.activation is F.silu:
            opened = SwiGLU.apply(gate, up)
        else:
            opened = anatomy.activation(gate) * up
        added = self._apply(opened, layer.down, left)
        if layer.norm_after_mlp is not None:
            added = self._norm(added, layer.norm_after_mlp)
        return stream + added

    def _attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        layer: Layer,
        pieces: tuple[PrefixPiece, ...],
        masks: Masks,
    ) -> list[Tensor]:
        """Attention of all packed tokens of a tree, piece by piece: (P, heads * head_dim) from
        queries of that shape, and keys and values (P, kv_heads * head_dim)."""
        anatomy = self.anatomy
        found: list[Tensor] = []
        for number, piece in enumerate(pieces):
            batch, asking, _ = piece.shape
            here = slice(piece.start, piece.stop)
            own = (
                (lambda x, here=here, batch=batch: x[here].unflatten(0, (batch, -1)))
                if piece.rows is None
                else (lambda x, rows=piece.rows: F.embedding(rows, x))
            )
            q = own(queries).view(batch, asking, anatomy.heads, -1).transpose(1, 2)
            k, v = (
                (own(x) if piece.keys is None else F.embedding(piece.keys, x))
                .unflatten(2, (anatomy.kv_heads, -1))
                .transpose(1, 2)
                for x in (keys, values)
            )
            mask = masks.get((number, layer.window))
            mixed = attention(q, k, v, mask, anatomy.scale, anatomy.attention_softcap)
            mixed = mixed.transpose(1, 2).reshape(batch * asking, -1)
            found.append(mixed if piece.inside is None else mixed[piece.inside])
        return found

    def _masks(self, tree: PrefixTree) -> Masks:
        """Additive masks by piece and window; causal pieces need none."""
        masks: dict[tuple[int, int | None], Tensor] = {}
        windows = {layer.window for layer in self.anatomy.layers}
        for number, piece in enumerate(tree.pieces):
            for window in windows:
                wide = window is None or window >= piece.shape[2]
                if piece.keys is None and wide and self.anatomy.attention_softcap is None:
                    continue
                seen = piece.visible(None if wide else window)
                zeros = torch.zeros(seen.shape, dtype=self.dtype, device=seen.device)
                masks[number, window] = zeros.masked_fill_(~seen, -torch.inf)
        return masks

    def _norm(self, x: Tensor, module: nn.Module) -> Tensor:
        weight = self.anatomy.norm_weight(module)
        if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
            return Norm16.apply(x, weight.to(x.dtype), self.anatomy.eps)  # pyright: ignore
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), self.anatomy.eps)

    def _apply(self, x: Tensor, module: nn.Module, owned: _Owners) -> Tensor:
        """A linear module: the base product for all rows, and each adapter's share for its rows."""
        linear = linear_of(module, None)
        bias = None if linear.bias is None else linear.bias.to(x.dtype)
        y = F.linear(x, linear.weight.to(x.dtype), bias)
        loras = loras_of(module, [each.adapter for each in owned.parts])
        known = [lora for lora in loras if lora is not None]
        if not known:
            return y
        one_rank = len(known) == len(loras) and len({len(lora.down) for lora in known}) == 1
        if owned.grid is not None and one_rank and all(lora.dropout is None for lora in known):
            return y + _batched(x, known, owned.grid)
        rows = [
            y.new_zeros(each.stop - each.start, y.shape[1])
            if lora is None
            else _added(x[each.start : each.stop], lora)
            for each, lora in zip(owned.parts, loras, strict=True)
        ]
        return y + (rows[0] if len(rows) == 1 else torch.cat(rows))


def _added(x: Tensor, lora: Lora) -> Tensor:
    low = x if lora.dropout is None else lora.dropout(x)
    low = F.linear(low, lora.down.to(x.dtype))
    return F.linear(low, (lora.up * lora.scaling).to(x.dtype))


def _batched(x: Tensor, loras: Sequence[Lora], grid: _Grid) -> Tensor:
    """The updates of adapters of one rank, each for its tokens of x (N, in), as batched products
    (Punica, arXiv 2310.18547, does so for serving)."""
    downs = torch.stack([lora.down for lora in loras])  # (adapters, r, in)
    ups = torch.stack([lora.up for lora in loras])  # (adapters, out, r)
    scaling = ups.new_tensor([lora.scaling for lora in loras])[:, None, None]
    cells = F.embedding(grid.place, x).view(*grid.shape, -1)
    low = torch.bmm(cells, downs.to(x.dtype).transpose(1, 2))
    found = torch.bmm(low, (ups * scaling).to(x.dtype).transpose(1, 2))
    return F.embedding(grid.kept, found.flatten(0, 1))


def _owners(forest: Sequence[PackedTree], sizes: Sequence[int]) -> _Owners:
    found: list[_Owned] = []
    start = 0
    for plot, size in zip(forest, sizes, strict=True):
        found.append(_Owned(start, start + size, plot.adapter))
        start += size
    adapters = [plot.adapter for plot in forest]
    grid = None
    if all(adapters) and len(set(adapters)) > 1 and len(sizes) * max(sizes) <= WASTE * start:
        counts = torch.tensor(sizes)
        columns = torch.arange(max(sizes))
        real = columns < counts[:, None]
        starts = counts.cumsum(0) - counts
        place = torch.where(real, starts[:, None] + columns, 0).flatten()
        kept = real.flatten().nonzero()[:, 0]
        device = forest[0].tree.ids.device
        grid = _Grid((len(sizes), max(sizes)), place.to(device), kept.to(device))
    return _Owners(tuple(found), grid)
