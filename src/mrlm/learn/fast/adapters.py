"""Adapters on packed tokens: the rows of each, and what they add to the products of the base."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrlm.learn.fast.joined_linear import added
from mrlm.learn.fast.llama_modules import Linear, Lora
from mrlm.learn.fast.prefix_tree import PrefixTree, to_device

WASTE = 2
"""Adapters are computed in one product where padding to equal numbers of tokens makes the tokens at
most this many times as many."""


@dataclass(frozen=True, slots=True)
class PackedTree:
    """One tree of a forest: the packed tokens of one policy, and their LoRA adapter (`None` and
    `""` for the base weights alone)."""

    tree: PrefixTree
    adapter: str | None


@dataclass(frozen=True, slots=True)
class AdapterGrid:
    """The packed tokens of several adapters as rows of a grid (adapters, tokens): `place` has the
    token of each cell (any one where an adapter has fewer), `kept` the cell of each token."""

    shape: tuple[int, int]
    place: Tensor
    kept: Tensor


@dataclass(frozen=True, slots=True)
class Owners:
    """The adapters of packed tokens.

    Args:
        adapters: their names, each once.
        rows: the tokens of each; empty if there is one adapter for all.
        back: place of each token in the concatenation of `rows`.
        grid: given if the updates of the adapters can be one batched product.
    """

    adapters: tuple[str | None, ...]
    rows: tuple[Tensor, ...] = ()
    back: Tensor | None = None
    grid: AdapterGrid | None = None


Place = tuple[int, int, int]
"""The outputs of a map: number of the tensor, first and last column."""


def add_updates(
    outputs: Sequence[Tensor],
    widths: Sequence[int],
    x: Tensor,
    map_loras: Sequence[Sequence[Lora | None]],
    owned: Owners,
    direct: bool,
    bases: Sequence[Linear] = (),
) -> Sequence[Tensor]:
    """Adds the updates of adapters to the outputs of linear maps that read x (N, in), in place.

    Args:
        outputs: those of all maps side by side (N, sum of widths); none if `bases` are given.
        widths: of each map.
        map_loras: for each map, the update of each adapter of `owned`.
        owned: the adapter of each token.
        direct: backward adds to `grad` of the weights itself.
        bases: the maps, whose outputs (N, width) are returned. If they are frozen, backward adds
            up the gradients by x itself.
    """
    ends, own = accumulate(widths), bool(bases)
    triples = zip(range(len(widths)), widths, ends, strict=True)
    places = [(at, 0, width) if own else (0, end - width, end) for at, width, end in triples]
    adapted = [(x, place) for x, place in zip(map_loras, places, strict=True) if any(x)]
    single = owned.back is None
    plain = all(lora is None or lora.dropout is None for loras, _ in adapted for lora in loras)
    once = plain and (single or (owned.grid is not None and all(_alike(x) for x, _ in adapted)))
    frozen = all(base.frozen_as(x) for base in bases)
    if once and adapted and frozen:
        return _low_rank(x, adapted, owned.grid, direct, outputs, bases)
    outputs = outputs or [base(x) for base in bases]
    if not adapted:
        return outputs
    if once:
        return _low_rank(x, adapted, owned.grid, direct, outputs)
    inputs = [x] if single else [F.embedding(rows, x) for rows in owned.rows]
    updates: list[Tensor | None] = []
    for loras in map_loras:
        pairs = zip(inputs, loras, strict=True)
        parts = [lora and added_by(tokens, lora, direct) for tokens, lora in pairs]
        updates.append(_rejoined(parts, owned) if owned.rows and any(loras) else parts[0])
    if own:
        pairs = zip(outputs, updates, strict=True)
        return [y if update is None else y.add_(update) for y, update in pairs]
    pairs = zip(updates, widths, strict=True)
    filled = [x.new_zeros(len(x), width) if y is None else y for y, width in pairs]
    return [outputs[0].add_(torch.cat(filled, 1))]


def added_by(x: Tensor, lora: Lora, direct: bool) -> Tensor:
    """The update (N, out) of one adapter, for x (N, in)."""
    if lora.dropout is None:
        zeros = x.new_zeros(len(x), len(lora.up))
        return _low_rank(x, [([lora], (0, 0, len(lora.up)))], None, direct, [zeros])[0]
    low = F.linear(lora.dropout(x), lora.down.to(x.dtype))
    return F.linear(low, (lora.up * lora.scaling).to(x.dtype))


def _rejoined(parts: Sequence[Tensor | None], owned: Owners) -> Tensor:
    """The updates (N, width) of one map from those of each adapter for its own tokens."""
    tensor = next(part for part in parts if part is not None)
    rows = [
        tensor.new_zeros(len(indices), tensor.shape[1]) if part is None else part
        for part, indices in zip(parts, owned.rows, strict=True)
    ]
    assert owned.back is not None
    return F.embedding(owned.back, torch.cat(rows))


def _alike(loras: Sequence[Lora | None]) -> bool:
    """Whether the updates of a map can be one batched product."""
    return len({lora and (len(lora.down), lora.scaling) for lora in loras}) == 1


def _columns(outputs: Sequence[Tensor], place: Place) -> Tensor:
    at, start, end = place
    return outputs[at] if end - start == outputs[at].shape[1] else outputs[at][:, start:end]


def _low_rank(
    x: Tensor,
    adapted: Sequence[tuple[Sequence[Lora | None], Place]],
    grid: AdapterGrid | None,
    direct: bool,
    outputs: Sequence[Tensor],
    bases: Sequence[Linear] = (),
) -> tuple[Tensor, ...]:
    every = [lora for loras, _ in adapted for lora in loras if lora]
    leaves = [lora.down for lora in every] + [lora.up for lora in every]
    # autograd does not see weights to whose `grad` backward adds itself, but one that has it run
    seen = [x for x in leaves if x.requires_grad][:1] if direct else leaves
    how = adapted, grid, direct, leaves, bases, len(outputs)
    return _LowRank.apply(x, *how, *outputs, *seen)  # pyright: ignore


class _LowRank(torch.autograd.Function):
    """Adds to outputs (N, width) of several maps of one input the updates of several adapters for
    their own tokens, as batched products (Punica, arXiv 2310.18547, does so for serving). In
    backward the rank is the first dimension where it can be, up to three times as fast on a CPU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        adapted: Sequence[tuple[Sequence[Lora], Place]],
        grid: AdapterGrid | None,
        direct: bool,
        leaves: Sequence[Tensor],
        bases: Sequence[Linear],
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        outputs = tensors[:count] or tuple(base(x) for base in bases)
        down, ups = _joined(len(adapted[0][0]), leaves, x.dtype)
        low = _times(_cells(x, grid), down.mT)
        parts = [
            (up.shape[-1], loras[0].scaling, place)
            for up, (loras, place) in zip(ups, adapted, strict=True)
        ]
        ctx.save_for_backward(x, low, down, *ups)
        ctx.how = grid, direct, leaves, parts, bases, count
        lows = low.split([rank for rank, *_ in parts], -1)
        for low_part, up, (_, scaling, place) in zip(lows, ups, parts, strict=True):
            y = _columns(outputs, place)
            if grid is None:
                y.addmm_(low_part, up.t(), alpha=scaling)
            else:
                y.add_(_tokens(_times(low_part, up.mT, scaling), grid))
        ctx.mark_dirty(*tensors[:count])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, low, down, *ups = ctx.saved_tensors
        grid, direct, leaves, parts, bases, count = ctx.how
        cells = [_cells(_columns(grads, place), grid) for *_, place in parts]
        by_lows = [
            _times(up.mT, grad.mT, scaling)
            for up, grad, (_, scaling, _) in zip(ups, cells, parts, strict=True)
        ]
        by_low = by_lows[0] if len(by_lows) == 1 else torch.cat(by_lows, -2)
        back = None
        if ctx.needs_input_grad[0]:
            back = _tokens(_times(by_low.mT, down), grid)
            for base, grad in zip(bases, grads, strict=False):
                back.addmm_(grad, base.stored)
        before = back, *(None,) * 6, *grads[:count]
        if not any(ctx.needs_input_grad[len(before) :]):
            return *before, *(None,) * (len(ctx.needs_input_grad) - len(before))
        sizes = [rank for rank, *_ in parts]
        by_down = _times(by_low, _cells(x, grid)).split(sizes, -2)
        by_up = [
            _by_up(grad, low_part, scaling)
            for low_part, grad, (_, scaling, _) in zip(
                low.split(sizes, -1), cells, parts, strict=True
            )
        ]
        stacked = _typed([*by_down, *by_up], leaves[0].dtype)
        if grid is not None:
            stacked = chain.from_iterable(x.unbind() for x in stacked)
        pairs = zip(leaves, stacked, strict=True)
        leaf_grads = [y if x.requires_grad else None for x, y in pairs]
        if direct:
            added(leaves, leaf_grads)
            leaf_grads = [None]
        return *before, *leaf_grads


def _joined(
    count: int, leaves: Sequence[Tensor], dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """The weights of several maps of `count` adapters each, in the compute type: `down` of all maps
    (adapters, sum of r, in), and `up` of each (adapters, width, r); without the first dimension
    those of a single adapter, which are not copied where they need not be."""
    half = len(leaves) // 2
    downs, ups = leaves[:half], leaves[half:]
    groups = [[downs[at + one] for one in range(count) for at in range(0, half, count)]]
    groups += [list(ups[at : at + count]) for at in range(0, half, count)]
    if leaves[0].dtype == dtype:
        whole = [group[0] if len(group) == 1 else torch.cat(group) for group in groups]
    else:
        sizes = [[len(x) for x in group] for group in groups]
        whole = [
            group[0].new_empty((sum(size), group[0].shape[1]), dtype=dtype)
            for group, size in zip(groups, sizes, strict=True)
        ]
        targets = [y for x, size in zip(whole, sizes, strict=True) for y in x.split(size)]
        sources = [x for group in groups for x in group]
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
    down, *rest = whole if count == 1 else [x.unflatten(0, (count, -1)) for x in whole]
    return down, rest


def _cells(x: Tensor, grid: AdapterGrid | None) -> Tensor:
    """Tokens (N, width) as (adapters, tokens, width), zeros where an adapter has fewer; as they
    are without a grid."""
    if grid is None:
        return x
    if len(grid.place) == len(grid.kept):
        return x.index_select(0, grid.place).view(*grid.shape, -1)
    cells = x.new_zeros(len(grid.place), x.shape[1]).index_copy_(0, grid.kept, x)
    return cells.view(*grid.shape, -1)


def _tokens(cells: Tensor, grid: AdapterGrid | None) -> Tensor:
    """Inverse of `_cells`."""
    return cells if grid is None else cells.flatten(0, 1).index_select(0, grid.kept)


def _times(a: Tensor, b: Tensor, scaling: float = 1.0) -> Tensor:
    """The product (N, M) of (N, K) and (K, M), or batched ones."""
    if scaling == 1.0:
        return a @ b
    product = torch.addmm if a.dim() == 2 else torch.baddbmm
    return product(a.new_empty(()), a, b, beta=0, alpha=scaling)


def _by_up(grad: Tensor, low: Tensor, scaling: float) -> Tensor:
    """The gradients (width, r) by `up`, of updates with gradients (N, width); or batched ones."""
    if grad.device.type == "cpu":
        return _times(low.mT, grad, scaling).mT
    return _times(grad.mT, low, scaling)


def _typed(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Contiguous tensors in another type, in one kernel."""
    if tensors[0].dtype == dtype:
        return [x.contiguous() for x in tensors]
    copies = [torch.empty(x.shape, dtype=dtype, device=x.device) for x in tensors]
    torch._foreach_copy_(copies, tensors)  # pyright: ignore[reportPrivateImportUsage]
    return copies


def owners_of(adapters: Sequence[str | None], places: Sequence[np.ndarray], device: Any) -> Owners:
    """The adapters of packed tokens, from the indices of the tokens of each tree."""
    by_adapter: dict[str | None, list[np.ndarray]] = {}
    for adapter, indices in zip(adapters, places, strict=True):
        by_adapter.setdefault(adapter, []).append(indices)
    names = tuple(by_adapter)
    if len(names) == 1:
        return Owners(names)
    parts = [np.concatenate(indices) for indices in by_adapter.values()]
    every, counts = np.concatenate(parts), np.array([len(part) for part in parts])
    grid, most = None, int(counts.max())
    if all(names) and len(names) * most <= WASTE * len(every):
        real = np.arange(most) < counts[:, None]
        grid_tokens = np.zeros(real.shape, dtype=np.int64)
        grid_tokens[real] = every
        token_cells = np.empty_like(every)
        token_cells[every] = np.flatnonzero(real)
        grid = AdapterGrid(
            real.shape, to_device(grid_tokens.reshape(-1), device), to_device(token_cells, device)
        )
    rows = tuple(to_device(part, device) for part in parts)
    return Owners(names, rows, to_device(np.argsort(every), device), grid)
