"""Storage of the keys and values of a running batch, and attention to them. Independent of
requests."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.attention import hidden
from mrlm.engines.lean.decoder import Decoder
from mrlm.engines.lean.low_rank import Adapted
from mrlm.engines.lean.memory import Fresh
from mrlm.engines.lean.prompts import Prompts, halves
from mrlm.learn.fast.kept import Activations

FIRST = 128
"""Initial capacity for sampled tokens; it doubles as needed."""

Masks = dict[int | None, tuple[Tensor | None, Tensor | None]]


def most_columns(width: int) -> int:
    """Largest number of own columns of rows that sample `width` tokens at most: columns that no row
    sees are dropped before more are added."""
    return width + max(width // 4, FIRST)


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
        self.own: list[Tensor] = [
            memory.take(f"own{at}", *shape).zero_() for at in range(len(decoder.windows))
        ]
        self.prompts: Prompts = Prompts(decoder, memory)
        self.column: int = 0
        """The own column of the next step."""
        self.since: np.ndarray = np.zeros(rows, dtype=np.int64)
        """The first own column of each row."""
        self._first = 0
        self.kept: Activations | None = None
        """Keeps the activations of steps."""

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
        where = self._index(rows), self._index(columns)
        return torch.stack([own[:, where[0], :, where[1]].flatten(1, 2) for own in self.own], 1)

    def compact(self, kept: np.ndarray) -> None:
        """Move the rows `kept` to the front."""
        seen, index = slice(self._first, self.column), self._index(kept)
        for own in self.own:
            own[:, : len(kept), :, seen] = own[:, index, :, seen]
        self.since[: len(kept)] = self.since[kept]

    def arrange(self, prefixes: np.ndarray, lengths: np.ndarray, running: np.ndarray) -> None:
        """Record which rows run: the index of each row's shared prompt (N,), the lengths of the
        shared prompts (P,), and the rows whose output is needed (N,)."""
        count, since = len(prefixes), self.since[: len(prefixes)]
        self._first = int(since[running].min())
        since[~running] = self._first
        self._late = bool((since > self._first).any())
        self._since = self._index(since)
        self._longest, self._prefixes = int(lengths.max()), len(lengths)
        sizes = np.bincount(prefixes, minlength=len(lengths))
        order = np.argsort(prefixes, kind="stable")
        rank = np.empty(count, dtype=np.int64)
        rank[order] = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._most = int(sizes.max())
        self._even = np.array_equal(prefixes * self._most + rank, np.arange(count))
        self._even = self._even and count == self._most * len(lengths)
        self._group, self._rank = self._index(prefixes), self._index(rank)
        self._length = self._index(lengths)
        self._short: Tensor | None = None
        if (lengths != self._longest).any():
            places = torch.arange(self._longest, device=self.decoder.device)
            self._short = hidden(places >= self._length[:, None], self.decoder.dtype)[:, None, None]

    # -- one step ----------------------------------------------------------------------------------

    def step(self, ids: Tensor, positions: Tensor, adapters: Adapted | None) -> Tensor:
        """Run one token (N,) per row through the model, at its position (N,); returns hidden states
        (N, hidden). `adapters` is the result of `Decoder.adapted`."""
        if self.column == self.room:
            self.widen()
        found = self._forward(ids, positions, adapters)
        self.column += 1
        return found

    def _forward(self, ids: Tensor, positions: Tensor, adapters: Adapted | None) -> Tensor:
        decoder, count = self.decoder, len(ids)
        column, stop = self.column, self.column + 1
        kv, size = decoder.kv_heads, decoder.head_dim
        reach = self._longest + stop - self._first
        masks = self._step_masks(positions, column, stop)

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            own = self.own[at][:, :count]
            own[:, :, :, column] = halves(pairs)
            keys, values = own[:, :, :, self._first : stop]
            asked = queries.reshape(count, kv, -1, size)
            own_mask, prefix_mask = masks[decoder.windows[at]]
            late, late_sum = decoder.attention.look(asked, keys, values, own_mask)
            early, early_sum = self._attend_to_prefixes(at, asked, prefix_mask)
            share = torch.sigmoid(early_sum - late_sum).to(late.dtype)
            found = torch.lerp(late, early, share[..., None]).reshape(count, -1)
            if self.kept is not None:
                self.kept.put(at, "mixed", found)
                self.kept.put(at, "sums", torch.logaddexp(early_sum, late_sum).flatten(1))
            return found

        return decoder.forward(decoder.embed(ids), positions, reach, attend, adapters, self.kept)

    def _attend_to_prefixes(
        self, at: int, asked: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Attention of queries (N, kv_heads, G, D) to the shared prompts: rows of one prompt are
        one product."""
        count, kv, group, size = asked.shape
        prefixes, most = self._prefixes, self._most
        if self._even:
            grid = asked.view(prefixes, most, kv, group, size)
        else:
            grid = asked.new_zeros(prefixes, most, kv, group, size)
            grid[self._group, self._rank] = asked
        grid = grid.transpose(1, 2).reshape(prefixes, kv, most * group, size)
        keys, values = self.prompts.blocks[at][:, :prefixes, :, : self._longest]
        found, total = self.decoder.attention.look(grid, keys, values, mask)
        found = found.reshape(prefixes, kv, most, group, size).transpose(1, 2)
        total = total.view(prefixes, kv, most, group).transpose(1, 2)
        if self._even:
            return found.reshape(count, kv, group, size), total.reshape(count, kv, group)
        return found[self._group, self._rank], total[self._group, self._rank]

    def _step_masks(self, positions: Tensor, now: int, stop: int) -> Masks:
        """For each window, the masks of the own columns (N or 1, 1, 1, T) and of the shared prompts
        (P, 1, 1 or M, T)."""
        decoder, device = self.decoder, self.decoder.device
        reach = self._longest + stop - self._first
        columns = torch.arange(self._first, stop, device=device)[None]
        unseen = columns < self._since[:, None] if self._late else None
        own = None if unseen is None else hidden(unseen, decoder.dtype)[:, None, None]
        masks: Masks = {}
        for window in set(decoder.windows):
            if window is None or reach <= window:
                masks[window] = own, self._short
                continue
            gone = (columns < self._since[:, None]) | (now - columns >= window) | (columns > now)
            places = torch.arange(self._longest, device=device)
            far = positions[:, None] - places >= window
            far |= places >= self._length[self._group][:, None]
            grid = far.new_zeros(self._prefixes, self._most, self._longest)
            grid[self._group, self._rank] = far
            grid = grid.repeat_interleave(decoder.heads // decoder.kv_heads, 1)
            masks[window] = (
                hidden(gone, decoder.dtype)[:, None, None],
                hidden(grid, decoder.dtype)[:, None],
            )
        return masks

    def widen(self) -> None:
        """Make room for more columns: drop those that no row sees, or double their number, one
        layer after the other."""
        room, first, column = self.room, self._first, self.column
        wider = min(2 * room, self.most)
        for at, own in enumerate(self.own):
            seen = own[:, :, :, first:column]
            if first * 2 >= room or wider == room:
                own[:, :, :, : column - first] = seen.clone()
                continue
            _, rows, kv, _, size = own.shape
            if self.memory.overlaps:
                seen = seen.clone()
            self.own[at] = self.memory.take(f"own{at}", 2, rows, kv, wider, size).zero_()
            self.own[at][:, :, :, : column - first] = seen
        self.since = (self.since - first).clip(min=0)
        self._since = self._since - first
        self.column, self._first = column - first, 0

    # -- helpers ---------------------------------------------------------------------------------

    def _index(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64, device=self.decoder.device)
