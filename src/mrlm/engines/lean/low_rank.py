"""LoRA adapters in the decoder: rows of several adapters in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mrlm.learn.fast.llama_modules import Lora


@dataclass(slots=True)
class Low:
    """The updates of linear maps with one input, of all adapters of a call; R is the largest rank.

    Args:
        down: (adapters, maps * R, in).
        ups: for each map (adapters, R, width), scaled; `None` if no adapter has the map.
        widths: of the maps.
    """

    down: Tensor
    ups: list[Tensor | None]
    widths: list[int]


@dataclass(frozen=True, slots=True)
class RowGrid:
    """Rows as the cells of a grid (adapters, rows), each adapter's in its own line.

    Args:
        shape: of the grid.
        place: the row of each cell, any one where an adapter has fewer; `None` if the rows are the
            cells, in order.
        kept: (N,) the cell of each row.
        own: (N, 1) 0 for rows without an adapter, 1 for others; `None` if there are none.
    """

    shape: tuple[int, int]
    place: Tensor | None
    kept: Tensor
    own: Tensor | None


Adapted = Tensor | RowGrid
"""The adapters of rows: a mask (N, adapters), or, where shapes may follow the rows, a grid."""


def mask_of(owners: np.ndarray, count: int) -> Tensor:
    """The mask (N, count) of rows with these of `count` adapters, -1 for none."""
    return torch.as_tensor(owners[:, None] == np.arange(count))


def grid_of(owners: np.ndarray, count: int, dtype: torch.dtype) -> RowGrid:
    """The grid of the same rows, which takes no more products than a mask, and mostly far fewer."""
    rows = np.flatnonzero(owners >= 0)
    order = rows[np.argsort(owners[rows], kind="stable")]
    sizes = np.bincount(owners[rows], minlength=count)
    real = np.arange(int(sizes.max())) < sizes[:, None]
    place = np.zeros(real.shape, dtype=np.int64)
    place[real] = order
    kept = np.zeros(len(owners), dtype=np.int64)
    kept[order] = np.flatnonzero(real)
    alike = real.all() and np.array_equal(order, np.arange(len(owners)))
    own = None
    if len(rows) < len(owners):
        own = torch.as_tensor(owners >= 0).to(dtype)[:, None]
    flat = None if alike else torch.as_tensor(place.reshape(-1))
    return RowGrid(real.shape, flat, torch.as_tensor(kept), own)


def low_of(
    found: Sequence[Sequence[Lora | None]], widths: list[int], rank: int, dtype: torch.dtype
) -> Low:
    """The updates of linear maps with one input: for each map those of all adapters, padded with
    zeros to a rank."""
    first = next(lora.down for loras in found for lora in loras if lora)
    count = len(found[0])
    down = first.new_zeros(count, len(found), rank, first.shape[1], dtype=dtype)
    ups: list[Tensor | None] = []
    for number, (loras, width) in enumerate(zip(found, widths, strict=True)):
        known = [lora for lora in loras if lora]
        if len(known) == count and all(len(lora.down) == rank for lora in known):
            down[:, number] = torch.stack([lora.down for lora in known])
            up = torch.stack([lora.up for lora in known]).transpose(1, 2)
            scaling = up.new_tensor([lora.scaling for lora in known])
            ups.append((up * scaling[:, None, None]).to(dtype).contiguous())
            continue
        up = first.new_zeros(count, rank, width, dtype=dtype)
        for at, lora in enumerate(loras):
            if lora:
                own = len(lora.down)
                down[at, number, :own] = lora.down
                up[at, :own] = lora.up.t() * lora.scaling
        ups.append(up if known else None)
    return Low(down.flatten(1, 2), ups, widths)


def add(y: Tensor, x: Tensor, low: Low, adapted: Adapted | None) -> None:
    """Add the updates for x (N, in) to y (N, sum of widths); `None`: all rows have the only
    adapter."""
    count, height, _ = low.down.shape
    rank = height // len(low.ups)
    if isinstance(adapted, RowGrid):
        if not adapted.shape[1]:  # no row has an adapter
            return
        cells = x if adapted.place is None else x.index_select(0, adapted.place)
        inner = torch.bmm(cells.view(*adapted.shape, -1), low.down.transpose(1, 2))
    else:
        inner = (x @ low.down.flatten(0, 1).t()).view(len(x), count, height)
        inner = inner if adapted is None else inner * adapted[:, :, None]
    start = 0
    for number, (up, width) in enumerate(zip(low.ups, low.widths, strict=True)):
        columns = slice(start, start + width)
        start += width
        if up is None:
            continue
        part = inner[..., number * rank : (number + 1) * rank]
        if not isinstance(adapted, RowGrid):
            y[:, columns].addmm_(part.flatten(1), up.flatten(0, 1))
        elif adapted.place is None:
            y.view(*adapted.shape, -1)[..., columns].baddbmm_(part, up)
        else:
            update = torch.bmm(part, up).flatten(0, 1).index_select(0, adapted.kept)
            y[:, columns] += update if adapted.own is None else update * adapted.own
