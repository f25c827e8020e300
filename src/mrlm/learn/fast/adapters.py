"""Adapters on packed tokens: the rows of each, and what they add to the products of the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mrlm.learn.fast.llama_modules import Lora
from mrlm.learn.fast.prefix_tree import PrefixTree

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
class OwnedRows:
    """Rows `start:stop` of the packed tokens, and their adapter."""

    start: int
    stop: int
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
    """The rows of each tree, in order; with `grid`, the updates of the adapters are one batched
    product."""

    parts: tuple[OwnedRows, ...]
    grid: AdapterGrid | None


def added_by(x: Tensor, lora: Lora) -> Tensor:
    """The update (N, out) of one adapter, for x (N, in)."""
    low = x if lora.dropout is None else lora.dropout(x)
    low = F.linear(low, lora.down.to(x.dtype))
    return F.linear(low, (lora.up * lora.scaling).to(x.dtype))


def batched_by(x: Tensor, loras: Sequence[Lora], grid: AdapterGrid) -> Tensor:
    """The updates of adapters of one rank, each for its tokens of x (N, in), as batched products
    (Punica, arXiv 2310.18547, does so for serving)."""
    downs = torch.stack([lora.down for lora in loras])  # (adapters, r, in)
    ups = torch.stack([lora.up for lora in loras])  # (adapters, out, r)
    scaling = ups.new_tensor([lora.scaling for lora in loras])[:, None, None]
    cells = F.embedding(grid.place, x).view(*grid.shape, -1)
    low = torch.bmm(cells, downs.to(x.dtype).transpose(1, 2))
    found = torch.bmm(low, (ups * scaling).to(x.dtype).transpose(1, 2))
    return F.embedding(grid.kept, found.flatten(0, 1))


def owners_of(forest: Sequence[PackedTree], sizes: Sequence[int]) -> Owners:
    """The rows of each tree, of which so many are computed."""
    found: list[OwnedRows] = []
    start = 0
    for plot, size in zip(forest, sizes, strict=True):
        found.append(OwnedRows(start, start + size, plot.adapter))
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
        grid = AdapterGrid((len(sizes), max(sizes)), place.to(device), kept.to(device))
    return Owners(tuple(found), grid)
