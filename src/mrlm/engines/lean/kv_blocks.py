"""Storage of the keys and values of a running batch, and attention to them. Independent of
requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.decoder import HIDDEN, Decoder

FIRST = 128
"""Initial capacity for sampled tokens; it doubles as needed."""

Masks = dict[int | None, tuple[Tensor | None, Tensor | None]]


STATIC = {"cuda"}
"""Devices where steps keep the same shapes as long as no row is added or removed: they also attend
to unwritten columns, which are masked."""
BEFORE_GRAPH = 3
"""Steps of one shape before a graph is recorded."""


class Graph:
    """A function of tensors that computes with memory at fixed addresses, recorded once as a CUDA
    graph and replayed on other inputs of the same types and shapes."""

    def __init__(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(x.clone() for x in inputs)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._output = function(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Replay the graph; the next call overwrites the output."""
        for own, new in zip(self._inputs, inputs, strict=True):
            own.copy_(new)
        self._graph.replay()
        return self._output


class Blocks:
    """The key-value blocks of a batch. Each row attends to two: the block of its prompt (shared by
    all rows with that prompt), and its own.

    The own block has one column per decode step for all rows alike; a row that was added later does
    not see the columns before its first one. So every step writes one column, whichever rows run.

    There are `rows` rows at most, and each samples `width` tokens at most.
    """

    def __init__(self, decoder: Decoder, rows: int, width: int) -> None:
        self.decoder: Decoder = decoder
        self.shape: tuple[int, int, int] = (
            len(decoder.windows),
            2 * decoder.kv_heads,
            decoder.head_dim,
        )
        layers, kv, size = self.shape
        self.own: Tensor = self._empty(layers, rows, kv, min(width, FIRST), size).zero_()
        self.prefix: Tensor = self._empty(layers, 0, kv, 0, size)
        self.column = 0
        """The own column of the next step."""
        self.since: np.ndarray = np.zeros(rows, dtype=np.int64)
        """The first own column of each row."""
        self._first = 0
        self.static: bool = decoder.device.type in STATIC
        self._graph: Graph | None = None
        self._same = 0

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self.decoder.dtype, device=self.decoder.device)

    # -- assignment of rows ------------------------------------------------------------------------

    def start(self) -> None:
        """Start at the first column again; no row runs."""
        self.column = self._first = 0

    def gather(self, rows: np.ndarray, columns: np.ndarray) -> Tensor:
        """Keys and values (N, layers, 2 kv_heads, D) of single tokens of own blocks."""
        return self.own[:, self._index(rows), :, self._index(columns)]

    def compact(self, kept: np.ndarray) -> None:
        """Move the rows `kept` to the front."""
        seen = slice(self._first, self.column)
        self.own[:, : len(kept), :, seen] = self.own[:, self._index(kept), :, seen]
        self.since[: len(kept)] = self.since[kept]

    def keep_prefixes(self, kept: np.ndarray) -> None:
        """Move the shared prompts `kept` to the front; the others are dropped."""
        self.prefix = self.prefix[:, self._index(kept)]

    def arrange(self, prefixes: np.ndarray, lengths: np.ndarray, running: np.ndarray) -> None:
        """Record which rows run: the index of each row's shared prompt (N,), the lengths of the
        shared prompts (P,), and the rows whose output is needed (N,)."""
        self._graph, self._same = None, 0
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
            self._short = self._hidden(places >= self._length[:, None])[:, None, None]

    # -- one step ----------------------------------------------------------------------------------

    def step(self, ids: Tensor, positions: Tensor, adapters: Tensor | None) -> Tensor:
        """Run one token (N,) per row through the model, at its position (N,); returns hidden states
        (N, hidden). `adapters` is the result of `Decoder.adapter_mask`."""
        if self.column == self.own.shape[3]:
            self._widen()
        if self.static:
            now = torch.tensor([self.column], device=self.decoder.device)
            hidden = self._replayed(ids, positions, now, adapters)
        else:
            hidden = self._forward(ids, positions, self.column, self.column + 1, adapters)
        self.column += 1
        return hidden

    def _forward(
        self,
        ids: Tensor,
        positions: Tensor,
        column: int | Tensor,
        stop: int,
        adapters: Tensor | None,
    ) -> Tensor:
        """Run a step that writes to `column` and attends to the columns before `stop`. If the
        column is a tensor (1,), it may change when the same operations are replayed."""
        decoder, count = self.decoder, len(ids)
        kv, size = decoder.kv_heads, decoder.head_dim
        reach = self._longest + stop - self._first
        masks = self._step_masks(positions, column, stop)

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            own = self.own[at][:count]
            if isinstance(column, Tensor):
                own.index_copy_(2, column, pairs[:, :, None])
            else:
                own[:, :, column] = pairs
            seen = own[:, :, self._first : stop]
            asked = queries.reshape(count, kv, -1, size)
            own_mask, prefix_mask = masks[decoder.windows[at]]
            late, late_sum = decoder.look(asked, seen[:, :kv], seen[:, kv:], own_mask)
            early, early_sum = self._attend_to_prefixes(at, asked, prefix_mask)
            share = torch.sigmoid(early_sum - late_sum).to(late.dtype)
            return torch.lerp(late, early, share[..., None]).reshape(count, -1)

        return decoder.forward(decoder.embed(ids), positions, reach, attend, adapters)

    def _replayed(
        self, ids: Tensor, positions: Tensor, column: Tensor, adapters: Tensor | None
    ) -> Tensor:
        """Run a step of fixed shapes. On a GPU, after a few steps without a change of rows, it is
        recorded as a graph and replayed from then on: the CPU launches one graph instead of
        hundreds of kernels."""

        def step(ids: Tensor, positions: Tensor, column: Tensor) -> Tensor:
            return self._forward(ids, positions, column, self.own.shape[3], adapters)

        if self._graph is None:
            self._same += 1
            if self._same <= BEFORE_GRAPH or self.decoder.device.type != "cuda":
                return step(ids, positions, column)
            self._graph = Graph(step, (ids, positions, column))
        return self._graph(ids, positions, column)

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
        block = self.prefix[at][:prefixes, :, : self._longest]
        found, total = self.decoder.look(grid, block[:, :kv], block[:, kv:], mask)
        found = found.reshape(prefixes, kv, most, group, size).transpose(1, 2)
        total = total.view(prefixes, kv, most, group).transpose(1, 2)
        if self._even:
            return found.reshape(count, kv, group, size), total.reshape(count, kv, group)
        return found[self._group, self._rank], total[self._group, self._rank]

    def _step_masks(self, positions: Tensor, now: int | Tensor, stop: int) -> Masks:
        """For each window, the masks of the own columns (N or 1, 1, 1, T) and of the shared prompts
        (P, 1, 1 or M, T)."""
        decoder, device = self.decoder, self.decoder.device
        reach = self._longest + stop - self._first
        columns = torch.arange(self._first, stop, device=device)[None]
        unseen = columns < self._since[:, None] if self._late else None
        if isinstance(now, Tensor):
            unseen = columns > now if unseen is None else unseen | (columns > now)
        own = None if unseen is None else self._hidden(unseen)[:, None, None]
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
            masks[window] = self._hidden(gone)[:, None, None], self._hidden(grid)[:, None]
        return masks

    def _widen(self) -> None:
        """Make room for more columns: drop those that no row sees, or double their number."""
        room, first, column = self.own.shape[3], self._first, self.column
        seen = self.own[:, :, :, first:column]
        if first * 2 >= room:
            self.own[:, :, :, : column - first] = seen.clone()
        else:
            layers, rows, kv, _, size = self.own.shape
            self.own = self._empty(layers, rows, kv, 2 * room, size).zero_()
            self.own[:, :, :, : column - first] = seen
        self.since = (self.since - first).clip(min=0)
        self._since = self._since - first
        self.column, self._first = column - first, 0
        self._graph, self._same = None, 0

    # -- prefill -----------------------------------------------------------------------------------

    def read(
        self,
        numbers: Sequence[int],
        texts: Sequence[np.ndarray],
        known: Sequence[Tensor],
        adapters: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Prefill shared prompts.

        Args:
            numbers: the index of each of P prompts.
            texts: the ids of each.
            known: keys and values (n, layers, 2 kv_heads, D) of the cached prefix of each.
            adapters: result of `Decoder.adapter_mask`, for the prompts.

        Returns:
            Hidden states of the last tokens (P, hidden), and keys and values (N, layers, 2
            kv_heads, D) of all tokens that were not cached.
        """
        decoder = self.decoder
        layers, pairs_per_token, size = self.shape
        lengths, starts = np.array([len(t) for t in texts]), np.array([len(t) for t in known])
        new = lengths - starts
        wide, tall, count = int(lengths.max()), int(new.max()), len(texts)
        block = self._empty(layers, count, pairs_per_token, wide, size).zero_()
        if starts.any():
            row = self._index(np.repeat(np.arange(count), starts))
            block[:, row, :, self._ranges(starts * 0, starts)] = torch.cat(list(known))
        row = self._index(np.repeat(np.arange(count), new))
        column = self._ranges(starts, lengths)
        place = row * tall + self._ranges(starts * 0, new)
        masks = self._reading_masks(starts, tall, wide)
        kept: list[Tensor] = []

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            kept.append(pairs)
            layer = block[at]
            layer[row, :, column] = pairs
            grid = queries.new_zeros(count * tall, *queries.shape[1:])
            grid[place] = queries
            asked = grid.view(count, tall, -1, size).transpose(1, 2)
            mask = masks[decoder.windows[at]]
            keys, values = layer.chunk(2, 1)
            found, _ = decoder.look(asked, keys, values, mask, mask is None)
            return found.transpose(1, 2).reshape(len(grid), -1)[place]

        ids = self._index(np.concatenate([t[a:] for t, a in zip(texts, starts, strict=True)]))
        mask = None if adapters is None else adapters[row]
        hidden = decoder.forward(decoder.embed(ids), column, wide, attend, mask)
        self._place(numbers, block)
        return hidden[self._index(np.cumsum(new) - 1)], torch.stack(kept, 1)

    def _reading_masks(
        self, starts: np.ndarray, tall: int, wide: int
    ) -> dict[int | None, Tensor | None]:
        """For each window, the mask of queries (P, tall) over keys (P, wide); `None` if a causal
        mask is enough."""
        own = self._index(starts)[:, None] + torch.arange(tall, device=self.decoder.device)
        behind = own[:, :, None] - torch.arange(wide, device=self.decoder.device)
        masks: dict[int | None, Tensor | None] = {}
        for window in set(self.decoder.windows):
            masks[window] = None
            if window is not None and window < wide:
                masks[window] = self._hidden((behind < 0) | (behind >= window))[:, None]
            elif starts.any():
                masks[window] = self._hidden(behind < 0)[:, None]
        return masks

    def _place(self, numbers: Sequence[int], block: Tensor) -> None:
        have, wide = self.prefix.shape[1], self.prefix.shape[3]
        want = max(have, max(numbers) + 1), max(wide, block.shape[3])
        if list(numbers) == list(range(want[0])) and block.shape[3] == want[1]:
            self.prefix = block
            return
        if want != (have, wide):
            layers, _, kv, _, size = block.shape
            grown = self._empty(layers, want[0], kv, want[1], size).zero_()
            grown[:, :have, :, :wide] = self.prefix
            self.prefix = grown
        self.prefix[:, self._index(np.array(numbers)), :, : block.shape[3]] = block

    # -- helpers ---------------------------------------------------------------------------------

    def _hidden(self, where: Tensor) -> Tensor:
        """The mask to add to scores, so that keys are hidden where `where` is true."""
        return where.to(self.decoder.dtype).mul_(HIDDEN)

    def _index(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.int64, device=self.decoder.device)

    def _ranges(self, starts: np.ndarray, stops: np.ndarray) -> Tensor:
        """Concatenate the ranges."""
        sizes = stops - starts
        before = np.cumsum(sizes) - sizes
        return self._index(np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes))
