"""The fast forward of Llama-like models for training: packed tokens without padding, each shared
prefix once, outputs at trained positions only. It computes the same as the model's own forward,
with the model's own weights; `llama_modules.py` lists the supported models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mrlm.learn.fast.adapters import Owners, PackedTree, add_updates, owners_of
from mrlm.learn.fast.attention import attention, attention_in_blocks
from mrlm.learn.fast.elementwise import CastAll, JoinedSwiGLU, Norm, Rotate, SwiGLU, with_signs
from mrlm.learn.fast.joined_linear import BlockWeights, joined_linear
from mrlm.learn.fast.llama_modules import Anatomy, Layer, linear_of, loras_of
from mrlm.learn.fast.piece_attention import AttendPieces, HeadRows, Masks, piece_masks
from mrlm.learn.fast.prefix_tree import PackedTokens, merged, to_device
from mrlm.learn.fast.row_blocks import linears_in_blocks, padded
from mrlm.learn.fast.varlen_attention import (
    Kernel,
    KeyPaths,
    Shape,
    Sight,
    attend,
    effective,
    kernel_for,
)

Rotary = Mapping[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class _Pass:
    """The inputs that all blocks of a pass read.

    Args:
        tokens, owned: the packed tokens, and their adapters.
        rotary: cosines and sines by rotary table, as `Rotate` takes them.
        masks, heads: for attention piece by piece on a CPU, the latter if all pieces of a layer are
            one function.
        paths, kernels: for attention in one kernel, by window, where the device has one.
        norms: factors of norms in the compute type, by module; others are read from the model.
        direct: whether backward adds to `grad` of the weights itself.
    """

    tokens: PackedTokens
    owned: Owners
    rotary: Rotary
    masks: Masks
    heads: Sequence[HeadRows]
    paths: KeyPaths | None
    kernels: Mapping[int | None, Kernel]
    norms: Mapping[nn.Module, Tensor]
    direct: bool


@dataclass(eq=False)
class LeanForward:
    """Computes hidden states of packed tokens in `dtype`; weights keep their own. Trees of several
    policies on one base run together: products with the base weights are computed once, and each
    adapter adds to its own tokens."""

    anatomy: Anatomy
    dtype: torch.dtype

    def hidden(
        self, forest: Sequence[PackedTree], checkpointing: bool = False, direct: bool = False
    ) -> Tensor:
        """Hidden states (N, H) that the head reads at the trees' `predictors`, tree by tree. With
        `checkpointing`, each block is recomputed in backward instead of keeping its activations;
        with `direct`, backward may add to `grad` of the weights without autograd."""
        anatomy = self.anatomy
        tokens, places = merged([plot.tree for plot in forest])
        owned = owners_of([plot.adapter for plot in forest], places, tokens.ids.device)
        stream = F.embedding(padded(tokens.ids), anatomy.embedding, anatomy.padding_idx)
        if anatomy.embed_scale != 1.0:
            scale = torch.full((), anatomy.embed_scale, dtype=stream.dtype, device=stream.device)
            stream = stream * scale
        stream = stream.to(self.dtype)
        shared = self._shared(tokens, owned, direct)
        rows, ends = self._ends(forest, places)
        rows = padded(rows)
        last = len(anatomy.layers) - 1
        for number, layer in enumerate(anatomy.layers):
            output_rows, left = (rows, ends) if number == last else (None, shared.owned)
            arguments = (stream, layer, shared, output_rows, left)
            if checkpointing and torch.is_grad_enabled():
                stream = checkpoint(self._block, *arguments, use_reentrant=False)
            else:
                stream = self._block(*arguments)
        stream = self._norm(stream, anatomy.final_norm, shared)
        starts = accumulate([0, *(len(plot.tree.needed) for plot in forest)])
        which = [plot.tree.which + start for plot, start in zip(forest, starts, strict=False)]
        return F.embedding(torch.cat(which), stream)

    def _ends(
        self, forest: Sequence[PackedTree], places: Sequence[np.ndarray]
    ) -> tuple[Tensor, Owners]:
        """The tokens that the head reads, tree by tree, and their adapters."""
        trees = [plot.tree for plot in forest]
        ends = np.cumsum([len(tree.needed) for tree in trees])
        indices = np.split(np.arange(ends[-1]), ends[:-1])
        device = trees[0].ids.device
        owners = owners_of([plot.adapter for plot in forest], indices, device)
        if len(trees) == 1:
            return trees[0].needed, owners
        before = np.cumsum([0, *map(len, places)]).tolist()
        needed = [tree.needed + first for tree, first in zip(trees, before, strict=False)]
        return to_device(np.concatenate(places), device)[torch.cat(needed)], owners

    def _shared(self, tokens: PackedTokens, owned: Owners, direct: bool) -> _Pass:
        device, anatomy = tokens.ids.device, self.anatomy
        kernels = self._kernels(tokens)
        rotary = anatomy.rotary(padded(tokens.positions), self.dtype)
        masks: Masks = {}
        heads: list[HeadRows] = []
        if device.type == "cpu":
            plain = anatomy.attention_softcap is None
            windows = {layer.window for layer in anatomy.layers}
            masks = piece_masks(tokens, windows, self.dtype, causal=plain)
            if plain and self.dtype == torch.float32:
                sizes = anatomy.heads, anatomy.kv_heads
                heads = [HeadRows.of(piece, *sizes) for piece in tokens.pieces]
        return _Pass(
            tokens,
            owned,
            {name: (cos, with_signs(sin)) for name, (cos, sin) in rotary.items()},
            masks,
            heads,
            tokens.paths if kernels else None,
            kernels,
            self._cast_norms(device),
            direct,
        )

    def _kernels(self, tokens: PackedTokens) -> dict[int | None, Kernel]:
        """Kernels for attention along paths, by window; none if one of them is missing."""
        anatomy, device = self.anatomy, tokens.ids.device
        if device.type == "cpu" or anatomy.attention_softcap is not None:
            return {}
        sizes = anatomy.heads, anatomy.kv_heads, anatomy.head_dim
        reach = tokens.paths.longest[1]
        kernels = {
            window: kernel_for(device, Shape(self.dtype, *sizes, effective(window, reach)))
            for window in {layer.window for layer in anatomy.layers}
        }
        available = {window: kernel for window, kernel in kernels.items() if kernel is not None}
        return available if len(available) == len(kernels) else {}

    def _cast_norms(self, device: torch.device) -> dict[nn.Module, Tensor]:
        """Factors of all norms in the compute type, in few kernels."""
        norms = [norm for layer in self.anatomy.layers for norm in layer.norms]
        norms.append(self.anatomy.final_norm)
        weights: list[Any] = [norm.weight for norm in norms]
        if device.type == "cpu" or all(weight.dtype == self.dtype for weight in weights):
            return {}
        cast = CastAll.apply(self.dtype, 1.0 if self.anatomy.unit_offset else 0.0, *weights)
        return dict(zip(norms, cast, strict=True))  # pyright: ignore

    def _block(
        self, stream: Tensor, layer: Layer, shared: _Pass, rows: Tensor | None, left: Owners
    ) -> Tensor:
        """One block; with `rows`, for those tokens alone, in the order of `left`."""
        weights = None
        if stream.device.type != "cpu":
            weights = BlockWeights(layer.base_linears, self.dtype)
        normed = self._norm(stream, layer.norm_attention, shared)
        mixed = self._mixed(normed, layer, shared, weights)
        if rows is not None:
            mixed, stream = mixed[rows], stream[rows]
        added = self._product(mixed, layer, "o", left, shared, weights)
        if layer.norm_after_attention is not None:
            added = self._norm(added, layer.norm_after_attention, shared)
        stream = stream + added
        normed = self._norm(stream, layer.norm_mlp, shared)
        opened = self._opened(normed, layer, left, shared, weights)
        added = self._product(opened, layer, "down", left, shared, weights)
        if weights is not None:
            weights.release()
        if layer.norm_after_mlp is not None:
            added = self._norm(added, layer.norm_after_mlp, shared)
        return stream + added

    def _opened(
        self, x: Tensor, layer: Layer, left: Owners, shared: _Pass, weights: BlockWeights | None
    ) -> Tensor:
        """The inner activations of the MLP."""
        activation = self.anatomy.activation
        if weights is None:
            gate, up = self._linears(x, layer, "gate_up", left, shared)
            if activation is F.silu:
                return SwiGLU.apply(gate, up)  # pyright: ignore[reportReturnType]
        else:
            both = self._product(x, layer, "gate_up", left, shared, weights)
            if activation is F.silu:
                return JoinedSwiGLU.apply(both)  # pyright: ignore[reportReturnType]
            gate, up = both.chunk(2, 1)
        return activation(gate) * up

    def _mixed(
        self, x: Tensor, layer: Layer, shared: _Pass, weights: BlockWeights | None
    ) -> Tensor:
        """Attention outputs (P, heads * head_dim) of the block's normed input."""
        heads, kv_heads, size = self.anatomy.heads, self.anatomy.kv_heads, self.anatomy.head_dim
        cos_sin = shared.rotary[layer.rope]
        if weights is None:
            queries, keys, values = self._linears(x, layer, "qkv", shared.owned, shared)
            queries, keys = queries.unflatten(1, (heads, -1)), keys.unflatten(1, (kv_heads, -1))
            if layer.norm_q is not None and layer.norm_k is not None:
                queries = self._norm(queries, layer.norm_q, shared)
                keys = self._norm(keys, layer.norm_k, shared)
            queries, keys = Rotate.apply(queries, *cos_sin), Rotate.apply(keys, *cos_sin)
        else:
            every = self._product(x, layer, "qkv", shared.owned, shared, weights)
            both, values = every.split([(heads + kv_heads) * size, kv_heads * size], 1)
            values = values.contiguous()  # so that the rest is freed
            together = both.unflatten(1, (heads + kv_heads, -1))
            if layer.norm_q is not None and layer.norm_k is not None:
                queries, keys = together.split([heads, kv_heads], 1)
                queries = self._norm(queries, layer.norm_q, shared)
                together = torch.cat([queries, self._norm(keys, layer.norm_k, shared)], 1)
            turned = Rotate.apply(together, *cos_sin)
            queries, keys = turned.split([heads, kv_heads], 1)  # pyright: ignore
        if shared.paths is not None:
            values = values.unflatten(1, (kv_heads, -1))
            how = Sight(shared.paths, self.anatomy.scale, layer.window)
            return attend(queries, keys, values, shared.kernels[layer.window], how).flatten(1)
        return self._attend(queries.flatten(1), keys.flatten(1), values, layer, shared)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, layer: Layer, shared: _Pass
    ) -> Tensor:
        """Attention of all packed tokens, piece by piece: (P, heads * head_dim) from queries of
        that shape, and keys and values (P, kv_heads * head_dim)."""
        anatomy = self.anatomy
        outputs: list[Tensor] = []
        pieces = shared.tokens.pieces
        if shared.heads:
            masks = [shared.masks.get((number, layer.window)) for number in range(len(pieces))]
            how = anatomy.head_dim, anatomy.scale, shared.heads, masks
            return AttendPieces.apply(queries, keys, values, *how)  # pyright: ignore
        sizes = [piece.stop - piece.start for piece in pieces]
        *parts, left = queries.split([*sizes, len(queries) - sum(sizes)])
        for number, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
            batch, asking, _ = piece.shape
            part = part if piece.rows is None else F.embedding(piece.rows - piece.start, part)
            q = part.view(batch, asking, anatomy.heads, -1).transpose(1, 2)
            k, v = (
                (piece.take(x) if piece.keys is None else F.embedding(piece.keys, x))
                .unflatten(2, (anatomy.kv_heads, -1))
                .transpose(1, 2)
                for x in (keys, values)
            )
            cap, window = anatomy.attention_softcap, layer.window
            wide = window is None or window >= piece.shape[2]
            if q.device.type == "cpu" or (piece.keys is None and wide and cap is None):
                mixed = attention(q, k, v, shared.masks.get((number, window)), anatomy.scale, cap)
            else:
                visible = partial(piece.visible, None if wide else window)
                mixed = attention_in_blocks(q, k, v, visible, anatomy.scale, cap)
            mixed = mixed.transpose(1, 2).reshape(batch * asking, -1)
            outputs.append(mixed if piece.inside is None else mixed[piece.inside])
        if len(left):  # rows that only complete the shape of products
            outputs.append(torch.zeros_like(left))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _norm(self, x: Tensor, module: nn.Module, shared: _Pass) -> Tensor:
        weight = shared.norms.get(module)
        if weight is None:
            weight = self.anatomy.norm_weight(module)
        if x.device.type == "cpu":
            return Norm.apply(x, weight.to(x.dtype), self.anatomy.eps)  # pyright: ignore
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), self.anatomy.eps)

    def _product(
        self,
        x: Tensor,
        layer: Layer,
        product: str,
        owned: Owners,
        shared: _Pass,
        weights: BlockWeights | None,
    ) -> Tensor:
        """A product of a block: the outputs (N, out) of its linear modules, side by side."""
        if weights is None:
            return self._linears(x, layer, product, owned, shared)[0]
        y = joined_linear(x, weights, product, shared.direct)
        loras = [loras_of(module, owned.adapters) for module in layer.modules(product)]
        widths = [base.out_features for base in weights.linears[product]]
        return add_updates([y], widths, x, loras, owned, shared.direct)[0]

    def _linears(
        self, x: Tensor, layer: Layer, product: str, owned: Owners, shared: _Pass
    ) -> Sequence[Tensor]:
        """The same, of each module for itself."""
        modules = layer.modules(product)
        linears = [linear_of(module, None) for module in modules]
        if (blocks := linears_in_blocks(x, linears)) is not None:
            return blocks
        loras = [loras_of(module, owned.adapters) for module in modules]
        widths = [linear.module.out_features for linear in linears]
        return add_updates((), widths, x, loras, owned, shared.direct, linears)
