"""Adapters on packed tokens: the rows of each, and what they add to the products of the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrlm.learn.fast.joined_linear import added
from mrlm.learn.fast.llama_modules import Lora
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


def added_by(x: Tensor, lora: Lora) -> Tensor:
    """The update (N, out) of one adapter, for x (N, in)."""
    low = x if lora.dropout is None else lora.dropout(x)
    low = F.linear(low, lora.down.to(x.dtype))
    return F.linear(low, (lora.up * lora.scaling).to(x.dtype))


def updates(
    x: Tensor,
    found: Sequence[Sequence[Lora | None]],
    widths: Sequence[int],
    owned: Owners,
    direct: bool,
) -> Tensor | None:
    """The additions of adapters to the outputs of linear maps that read x (N, in).

    Args:
        x: the input.
        found: for each map, the update of each adapter of `owned`.
        widths: of the maps.
        owned: the adapter of each token.
        direct: backward adds to `grad` of the weights itself.

    Returns:
        The updates (N, sum of widths), side by side; `None` if there are none.
    """
    if not any(lora for loras in found for lora in loras):
        return None
    if owned.back is None:
        return _update(x, found, widths, None, direct)
    if owned.grid is not None and all(map(_alike, found)):
        return _update(x, found, widths, owned.grid, direct)
    parts = [
        _update(F.embedding(rows, x), [[loras[at]] for loras in found], widths, None, direct)
        for at, rows in enumerate(owned.rows)
    ]
    return F.embedding(owned.back, torch.cat(parts))


def _alike(loras: Sequence[Lora | None]) -> bool:
    """Whether the updates of a map can be one batched product."""
    forms = {
        None if lora is None else (len(lora.down), lora.scaling, lora.dropout) for lora in loras
    }
    (form,) = forms if len(forms) == 1 else ((0, 0.0, "several"),)
    return form is None or form[2] is None


def _update(
    x: Tensor,
    found: Sequence[Sequence[Lora | None]],
    widths: Sequence[int],
    grid: AdapterGrid | None,
    direct: bool,
) -> Tensor:
    """The updates (N, sum of widths) of one adapter, or of all those of a grid."""
    maps = [
        _Map(slice(start, start + width), [lora for lora in loras if lora])
        for loras, start, width in zip(found, accumulate([0, *widths]), widths, strict=False)
    ]
    every = [lora for each in maps for lora in each.loras]
    if any(lora.dropout is not None for lora in every):
        parts = [
            added_by(x, *each.loras) if each.loras else x.new_zeros(len(x), width)
            for each, width in zip(maps, widths, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    if not every:
        return x.new_zeros(len(x), sum(widths))
    leaves = [lora.down for lora in every] + [lora.up for lora in every]
    return _LowRank.apply(x, maps, sum(widths), grid, direct, *leaves)  # pyright: ignore


@dataclass(frozen=True, slots=True)
class _Map:
    """The columns of a linear map among those of its group, and its updates."""

    columns: slice
    loras: list[Lora]


@dataclass(frozen=True, slots=True)
class _Low:
    """The weights of a map for all adapters, in the compute type: `up` (adapters, width, r), and
    the `rows` that are its own in (adapters, sum of r, in)."""

    columns: slice
    rows: slice
    up: Tensor
    scaling: float


class _LowRank(torch.autograd.Function):
    """Updates of several maps of one input, each of several adapters for their own tokens, as
    batched products (Punica, arXiv 2310.18547, does so for serving)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        maps: Sequence[_Map],
        width: int,
        grid: AdapterGrid | None,
        direct: bool,
        *leaves: Tensor,
    ) -> Tensor:
        down, lows = _joined(maps, leaves, x.dtype)
        low = _times(_cells(x, grid), down.transpose(1, 2))
        found = _columns(
            [
                (each.columns, low[..., each.rows], each.up.transpose(1, 2), each.scaling)
                for each in lows
            ],
            width,
        )
        ctx.save_for_backward(x, low, down, *(each.up for each in lows))
        ctx.how = grid, direct, leaves, [(x.columns, x.rows, x.scaling) for x in lows]
        return _tokens(found, grid)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, low, down, *ups = ctx.saved_tensors
        grid, direct, leaves, parts = ctx.how
        grad = _cells(grads[0], grid)
        lows = _columns(
            [
                (rows, grad[..., columns], up, scaling)
                for (columns, rows, scaling), up in zip(parts, ups, strict=True)
            ],
            low.shape[2],
        )
        back = _tokens(_times(lows, down), grid) if ctx.needs_input_grad[0] else None
        needed = ctx.needs_input_grad[5:]
        if not any(needed):
            return back, *(None,) * (4 + len(leaves))
        by_down = _times(lows.transpose(1, 2), _cells(x, grid))
        by_ups = [
            _times(grad[..., columns].transpose(1, 2), low[..., rows], scaling)
            for columns, rows, scaling in parts
        ]
        by_down, *by_ups = _typed([by_down, *by_ups], leaves[0].dtype)
        found = [y for _, rows, _ in parts for y in by_down[:, rows].unbind()]
        found += [y for each in by_ups for y in each.unbind()]
        kept = [y if wanted else None for y, wanted in zip(found, needed, strict=True)]
        return back, None, None, None, None, *(added(leaves, kept) if direct else kept)


def _joined(
    maps: Sequence[_Map], leaves: Sequence[Tensor], dtype: torch.dtype
) -> tuple[Tensor, list[_Low]]:
    """The weights `down` of all maps (adapters, sum of r, in), and the others map by map; those of
    a single adapter are not copied where they need not be."""
    known = [each for each in maps if each.loras]
    count, half = len(known[0].loras), len(leaves) // 2
    downs, ups = leaves[:half], leaves[half:]
    groups = [[downs[at + one] for one in range(count) for at in range(0, half, count)]]
    groups += [list(ups[at : at + count]) for at in range(0, half, count)]
    if leaves[0].dtype == dtype:
        whole = [each[0] if len(each) == 1 else torch.cat(each) for each in groups]
    else:
        sizes = [[len(x) for x in each] for each in groups]
        whole = [
            each[0].new_empty((sum(size), each[0].shape[1]), dtype=dtype)
            for each, size in zip(groups, sizes, strict=True)
        ]
        targets = [y for x, size in zip(whole, sizes, strict=True) for y in x.split(size)]
        sources = [x for each in groups for x in each]
        torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
    down, *rest = (each.unflatten(0, (count, -1)) for each in whole)
    ranks = [len(each.loras[0].down) for each in known]
    lows = [
        _Low(each.columns, slice(start, start + rank), up, each.loras[0].scaling)
        for each, start, rank, up in zip(known, accumulate([0, *ranks]), ranks, rest, strict=False)
    ]
    return down, lows


def _cells(x: Tensor, grid: AdapterGrid | None) -> Tensor:
    """Tokens (N, width) as (adapters, tokens, width), zeros where an adapter has fewer."""
    if grid is None:
        return x[None]
    if len(grid.place) == len(grid.kept):
        return x.index_select(0, grid.place).view(*grid.shape, -1)
    cells = x.new_zeros(len(grid.place), x.shape[1]).index_copy_(0, grid.kept, x)
    return cells.view(*grid.shape, -1)


def _tokens(cells: Tensor, grid: AdapterGrid | None) -> Tensor:
    """Inverse of `_cells`."""
    return cells[0] if grid is None else cells.flatten(0, 1).index_select(0, grid.kept)


def _times(a: Tensor, b: Tensor, scaling: float = 1.0) -> Tensor:
    """Batched products (B, N, M) of (B, N, K) and (B, K, M)."""
    found = a.new_empty(len(a), a.shape[1], b.shape[2])
    return _columns([(slice(None), a, b, scaling)], b.shape[2], found)


def _columns(
    parts: Sequence[tuple[slice, Tensor, Tensor, float]], width: int, found: Tensor | None = None
) -> Tensor:
    """Batched products (B, N, width), those of each part in columns of its own; others are 0."""
    columns, a, _, _ = parts[0]
    filled = sum(b.shape[2] for _, _, b, _ in parts) == width
    if found is None:
        make = a.new_empty if filled else a.new_zeros
        found = make(len(a), a.shape[1], width)
    for columns, a, b, scaling in parts:
        if len(a) == 1:
            found[0][:, columns].addmm_(a[0], b[0], beta=0, alpha=scaling)
        elif len(parts) == 1 and filled:
            found.baddbmm_(a, b, beta=0, alpha=scaling)
        else:  # in one call only where memory is contiguous
            found[..., columns] = torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scaling)
    return found


def _typed(given: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Tensors in another type, in one kernel."""
    if given[0].dtype == dtype:
        return given
    found = [torch.empty_like(x, dtype=dtype) for x in given]
    torch._foreach_copy_(found, given)  # pyright: ignore[reportPrivateImportUsage]
    return found


def owners_of(adapters: Sequence[str | None], places: Sequence[np.ndarray], device: Any) -> Owners:
    """The adapters of packed tokens, from the indices of the tokens of each tree."""
    found: dict[str | None, list[np.ndarray]] = {}
    for adapter, own in zip(adapters, places, strict=True):
        found.setdefault(adapter, []).append(own)
    names = tuple(found)
    if len(names) == 1:
        return Owners(names)
    parts = [np.concatenate(own) for own in found.values()]
    every, counts = np.concatenate(parts), np.array([len(part) for part in parts])
    grid, most = None, int(counts.max())
    if all(names) and len(names) * most <= WASTE * len(every):
        real = np.arange(most) < counts[:, None]
        place = np.zeros(real.shape, dtype=np.int64)
        place[real] = every
        kept = np.empty_like(every)
        kept[every] = np.flatnonzero(real)
        grid = AdapterGrid(
            real.shape, to_device(place.reshape(-1), device), to_device(kept, device)
        )
    rows = tuple(to_device(part, device) for part in parts)
    return Owners(names, rows, to_device(np.argsort(every), device), grid)
