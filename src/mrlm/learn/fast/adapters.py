"""Adapters on packed tokens: the rows of each, and what they add to the products of the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

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
