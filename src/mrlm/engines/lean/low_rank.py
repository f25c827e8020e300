"""LoRA adapters in the decoder: rows of several adapters in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mrlm.learn.fast.llama_modules import Lora


@dataclass(frozen=True, slots=True)
class Low:
    """The updates of linear maps with one input, of all adapters of a call; R is the largest rank.

    Args:
        down: (adapters, maps * R, in).
        up: (adapters, maps * R, sum of widths), scaled; rows of a map are 0 in columns of others.
    """

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True)
class RowGrid:
    """Rows as the cells of a grid (adapters, rows), each adapter's in its own line.

    Args:
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


def grid_of(owners: np.ndarray, count: int, dtype: torch.dtype) -> RowGrid:
    """The grid of rows with these of `count` adapters, -1 for none: no more products than with a
    mask, and mostly far fewer."""
    rows = np.flatnonzero(owners >= 0)
    order = rows[np.argsort(owners[rows], kind="stable")]
    sizes = np.bincount(owners[rows], minlength=count)
    real = np.arange(int(sizes.max())) < sizes[:, None]
    cell_rows = np.zeros(real.shape, dtype=np.int64)
    cell_rows[real] = order
    row_cells = np.zeros(len(owners), dtype=np.int64)
    row_cells[order] = np.flatnonzero(real)
    alike = real.all() and np.array_equal(order, np.arange(len(owners)))
    adapted = None
    if len(rows) < len(owners):
        adapted = torch.as_tensor(owners >= 0).to(dtype)[:, None]
    flat = None if alike else torch.as_tensor(cell_rows.reshape(-1))
    return RowGrid(real.shape, flat, torch.as_tensor(row_cells), adapted)


def low_of(
    loras_of_maps: Sequence[Sequence[Lora | None]],
    widths: Sequence[int],
    rank: int,
    dtype: torch.dtype,
    old: Low | None,
) -> Low:
    """The updates of linear maps with one input: for each map those of all adapters, padded with
    zeros to a rank. They are written over `old` ones of the same maps if these are as large."""
    first = next(lora.down for loras in loras_of_maps for lora in loras if lora)
    shape = len(loras_of_maps[0]), len(loras_of_maps) * rank
    low = old
    if low is None or low.down.shape[:2] != shape:
        zeros = partial(first.new_zeros, *shape, dtype=dtype)
        low = Low(zeros(first.shape[1]), zeros(sum(widths)))
    start = 0
    for number, (loras, width) in enumerate(zip(loras_of_maps, widths, strict=True)):
        rows = slice(number * rank, (number + 1) * rank)
        _write(loras, low.down[:, rows], low.up[:, rows, start : start + width])
        start += width
    return low


def _write(loras: Sequence[Lora | None], down: Tensor, up: Tensor) -> None:
    """Write the updates of a map: (adapters, R, in) and (adapters, R, width)."""
    present = [lora for lora in loras if lora]
    if len(present) == len(loras) and all(len(lora.down) == down.shape[1] for lora in present):
        down.copy_(torch.stack([lora.down for lora in present]))
        up.copy_(torch.stack([lora.up * lora.scaling for lora in present]).transpose(1, 2))
        return
    down.zero_()
    up.zero_()
    for at, lora in enumerate(loras):
        if lora:
            rank = len(lora.down)
            down[at, :rank] = lora.down
            up[at, :rank] = lora.up.t() * lora.scaling


def add(y: Tensor, x: Tensor, low: Low, adapted: Adapted | None) -> None:
    """Add the updates for x (N, in) to y (N, sum of widths); `None`: all rows have the only
    adapter."""
    count, height, _ = low.down.shape
    if not isinstance(adapted, RowGrid):
        inner = (x @ low.down.flatten(0, 1).t()).view(len(x), count, height)
        inner = inner if adapted is None else inner * adapted[:, :, None]
        y.addmm_(inner.flatten(1), low.up.flatten(0, 1))
        return
    if not adapted.shape[1]:  # no row has an adapter
        return
    cells = x if adapted.place is None else x.index_select(0, adapted.place)
    inner = torch.bmm(cells.view(*adapted.shape, -1), low.down.transpose(1, 2))
    if adapted.place is None:
        y.view(*adapted.shape, -1).baddbmm_(inner, low.up)
        return
    update = torch.bmm(inner, low.up).flatten(0, 1).index_select(0, adapted.kept)
    y += update if adapted.own is None else update * adapted.own
