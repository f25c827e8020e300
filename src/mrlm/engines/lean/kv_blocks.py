"""Storage of the keys and values of a running batch, and attention to them. Independent of
requests."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.attention import hidden
from mrlm.engines.lean.decoder import Decoder, columns_of
from mrlm.engines.lean.low_rank import Adapted
from mrlm.engines.lean.memory import Fresh
from mrlm.engines.lean.prompts import Prompts, halves

FIRST = 128
"""Initial capacity for sampled tokens; it doubles as needed."""

APART = 0.75
"""Rows that are equal are computed once while at most this share of all differ."""
IDS = 1 << 32
"""Larger than any token id."""

Masks = dict[int | None, tuple[Tensor | None, Tensor | None]]


def most_columns(width: int) -> int:
    """Largest number of own columns of rows that sample `width` tokens at most: columns that no row
    sees are dropped before more are added."""
    return width + max(width // 4, FIRST)


@dataclass(frozen=True, slots=True)
class Rows:
    """The N rows that a step computes.

    Args:
        which: which of all rows they are, and for each of all the one that it is equal to; `None`
            if they are all.
        adapted: their adapters, as `Decoder.adapted` makes them.
        since: (N,) first own column of each; `late` if they differ.
        group, rank: (N,) the shared prompt of each, and its number among the rows with it.
        most: largest number of rows with one prompt.
        even: all prompts have as many rows, in order.
    """

    which: tuple[Tensor, Tensor] | None
    adapted: Adapted | None
    since: Tensor
    late: bool
    group: Tensor
    rank: Tensor
    most: int
    even: bool


class Blocks:
    """The key-value blocks of a batch. Each row attends to two: the block of its prompt (shared by
    all rows with that prompt), and its own.

    The own block has one column per decode step for all rows alike; a row that was added later does
    not see the columns before its first one. So every step writes one column, whichever rows run.

    There are `rows` rows at most, and each samples `width` tokens at most.
    """

    def __init__(self, decoder: Decoder, rows: int, width: int, memory: Fresh) -> None:
        self.decoder: Decoder = decoder
        self.memory: Fresh = memory
        self.most: int = most_columns(width)
        shape = (2, rows, decoder.kv_heads, min(width, FIRST), decoder.head_dim)
        names = [f"own{at}" for at in range(len(decoder.windows))]
        self.own: list[Tensor] = [memory.take(name, *shape).zero_() for name in names]
        self.prompts: Prompts = Prompts(decoder, memory)
        self.column: int = 0
        """The own column of the next step."""
        self.since: np.ndarray = np.zeros(rows, dtype=np.int64)
        """The first own column of each row."""
        self._first = 0
        self._alike: np.ndarray = np.zeros(rows, dtype=np.int64)
        """Rows with the same number have the same text so far."""
        self._differ = True

    @property
    def room(self) -> int:
        """Number of own columns."""
        return self.own[0].shape[3]

    # -- assignment of rows ------------------------------------------------------------------------

    def start(self) -> None:
        """Start at the first column again; no row runs."""
        self.column = self._first = 0

    def gather(self, rows: np.ndarray, columns: np.ndarray) -> Tensor:
        """Keys and values (N, layers, 2 kv_heads, D) of single tokens of own blocks."""
        row, column = self.decoder.index(rows), self.decoder.index(columns)
        return torch.stack([block[:, row, :, column].flatten(1, 2) for block in self.own], 1)

    def compact(self, chosen: np.ndarray) -> None:
        """Move the rows `chosen` to the front."""
        seen, index = slice(self._first, self.column), self.decoder.index(chosen)
        for block in self.own:
            block[:, : len(chosen), :, seen] = block[:, index, :, seen]
        self.since[: len(chosen)] = self.since[chosen]
        self._alike[: len(chosen)] = self._alike[chosen]

    def _bound(self, running: np.ndarray) -> None:
        """Begin with the first column of a running row (N,); rows that do not run begin there."""
        since = self.since[: len(running)]
        self._first = int(since[running].min())
        since[~running] = self._first

    def arrange(
        self,
        prefixes: np.ndarray,
        lengths: np.ndarray,
        running: np.ndarray,
        owners: np.ndarray | None,
    ) -> None:
        """Record which rows run: the index of each row's shared prompt (N,), the lengths of the
        shared prompts (P,), the rows whose output is needed (N,), and the result of
        `Decoder.owners` (N,)."""
        self._bound(running)
        self._longest, self._prefixes = columns_of(self.decoder, int(lengths.max())), len(lengths)
        self._prefix_of, self._running, self._owners = prefixes, running, owners
        self.locate()
        self._length = self.decoder.index(lengths)
        self._short: Tensor | None = None
        if (lengths != self._longest).any():
            places = torch.arange(self._longest, device=self.decoder.device)
            self._short = hidden(places >= self._length[:, None], self.decoder.dtype)[:, None, None]

    def begin(self, rows: np.ndarray, prefixes: np.ndarray) -> None:
        """New rows (n,) begin after prompts (n,): those with one prompt are equal until they say
        something else."""
        self.since[rows] = self.column
        self._alike[rows] = len(self._alike) + prefixes
        self._differ = False

    def locate(self) -> None:
        """Record the first own column of each row."""
        self._every = self._rows(np.arange(len(self._prefix_of)))

    def _rows(self, chosen: np.ndarray, same: np.ndarray | None = None) -> Rows:
        """Rows with these numbers; `same` tells which one every row is equal to."""
        prefixes, since = self._prefix_of[chosen], self.since[chosen]
        count, prompts = len(chosen), self._prefixes
        sizes = np.bincount(prefixes, minlength=prompts)
        order = np.argsort(prefixes, kind="stable")
        rank = np.empty(count, dtype=np.int64)
        rank[order] = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        most, late = int(sizes.max()), bool((since > self._first).any())
        even = np.array_equal(prefixes * most + rank, np.arange(count)) and count == most * prompts
        index, owners = self.decoder.index, self._owners
        which = None if same is None else (index(chosen), index(same))
        adapted = self.decoder.adapted(None if owners is None else owners[chosen])
        first, group, number = map(index, (since, prefixes, rank))
        return Rows(which, adapted, first, late, group, number, most, even)

    def _distinct(self, ids: Tensor) -> Rows:
        """The rows to compute for the next tokens (N,): one of those that are equal so far."""
        if self._differ:
            return self._every
        count = len(ids)
        text_ids = np.where(self._running, self._alike[:count] * IDS + ids.numpy(), -1)
        _, chosen, same = np.unique(text_ids, return_index=True, return_inverse=True)
        self._differ = len(chosen) > APART * count
        if self._differ:
            self._alike[:count] = np.arange(count)
            return self._every
        self._alike[:count] = same
        return self._rows(chosen, same)

    # -- one step ----------------------------------------------------------------------------------

    def step(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Run one token (N,) per row through the model, at its position (N,); returns hidden states
        (N, hidden)."""
        if self.column == self.room:
            self.widen()
        rows = self._distinct(ids)
        if rows.which is None:
            states = self._forward(ids, positions, rows)
        else:
            chosen, same = rows.which
            states = self._forward(ids[chosen], positions[chosen], rows)[same]
        self.column += 1
        return states

    def _forward(self, ids: Tensor, positions: Tensor, rows: Rows) -> Tensor:
        decoder, count = self.decoder, len(ids)
        column, stop = self.column, self.column + 1
        kv, size = decoder.kv_heads, decoder.head_dim
        reach = self._longest + stop - self._first
        masks = self._step_masks(positions, column, stop, rows)

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            new, block = halves(pairs), self.own[at]
            if rows.which is None:
                block[:, :count, :, column] = new
                keys, values = block[:, :count, :, self._first : stop]
            else:
                chosen, same = rows.which
                block[:, : len(same), :, column] = new[:, same]
                keys, values = block[:, chosen, :, self._first : stop]
            grouped = queries.reshape(count, kv, -1, size)
            own_mask, prefix_mask = masks[decoder.windows[at]]
            late, late_sum = decoder.attention.look(grouped, keys, values, own_mask)
            early, early_sum = self._to_prefixes(at, grouped, prefix_mask, rows)
            share = torch.sigmoid(early_sum - late_sum).to(late.dtype)
            return torch.lerp(late, early, share[..., None]).reshape(count, -1)

        return decoder.forward(decoder.embed(ids), positions, reach, attend, rows.adapted)

    def _to_prefixes(
        self, at: int, queries: Tensor, mask: Tensor | None, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """Attention of queries (N, kv_heads, G, D) to the shared prompts: rows of one prompt are
        one product."""
        count, kv, group, size = queries.shape
        prefixes, most = self._prefixes, rows.most
        if rows.even:
            grid = queries.view(prefixes, most, kv, group, size)
        else:
            grid = queries.new_zeros(prefixes, most, kv, group, size)
            grid[rows.group, rows.rank] = queries
        grid = grid.transpose(1, 2).reshape(prefixes, kv, most * group, size)
        keys, values = self.prompts.blocks[at][:, :prefixes, :, : self._longest]
        mixed, total = self.decoder.attention.look(grid, keys, values, mask)
        mixed = mixed.reshape(prefixes, kv, most, group, size).transpose(1, 2)
        total = total.view(prefixes, kv, most, group).transpose(1, 2)
        if rows.even:
            return mixed.reshape(count, kv, group, size), total.reshape(count, kv, group)
        return mixed[rows.group, rows.rank], total[rows.group, rows.rank]

    def _step_masks(self, positions: Tensor, now: int, stop: int, rows: Rows) -> Masks:
        """For each window, the masks of the own columns (N or 1, 1, 1, T) and of the shared prompts
        (P, 1, 1 or M, T)."""
        decoder, device = self.decoder, self.decoder.device
        reach = self._longest + stop - self._first
        columns = torch.arange(self._first, stop, device=device)[None]
        unseen = columns < rows.since[:, None] if rows.late else None
        own_mask = None if unseen is None else hidden(unseen, decoder.dtype)[:, None, None]
        masks: Masks = {}
        for window in set(decoder.windows):
            if window is None or reach <= window:
                masks[window] = own_mask, self._short
                continue
            gone = (columns < rows.since[:, None]) | (now - columns >= window) | (columns > now)
            places = torch.arange(self._longest, device=device)
            far = positions[:, None] - places >= window
            far |= places >= self._length[rows.group][:, None]
            grid = far.new_zeros(self._prefixes, rows.most, self._longest)
            grid[rows.group, rows.rank] = far
            grid = grid.repeat_interleave(decoder.heads // decoder.kv_heads, 1)
            own = hidden(gone, decoder.dtype)[:, None, None]
            masks[window] = own, hidden(grid, decoder.dtype)[:, None]
        return masks

    def widen(self) -> None:
        """Make room for more columns: drop those that no row sees, or double their number, one
        layer after the other."""
        room, first, column = self.room, self._first, self.column
        wider = min(2 * room, self.most)
        for at, block in enumerate(self.own):
            seen = block[:, :, :, first:column]
            if first * 2 >= room or wider == room:
                block[:, :, :, : column - first] = seen.clone()
                continue
            _, rows, kv, _, size = block.shape
            if self.memory.overlaps:
                seen = seen.clone()
            self.own[at] = self.memory.take(f"own{at}", 2, rows, kv, wider, size).zero_()
            self.own[at][:, :, :, : column - first] = seen
        self.since = (self.since - first).clip(min=0)
        self.column, self._first = column - first, 0
        self.locate()
