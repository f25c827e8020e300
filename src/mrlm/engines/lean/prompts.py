"""Keys and values of the prompts of a running batch, each of which several rows may share, and
their prefill."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.attention import hidden
from mrlm.engines.lean.decoder import Decoder
from mrlm.engines.lean.memory import Fresh
from mrlm.learn.fast.varlen_attention import KeyPaths, Shape, kernel_for

PIECE = 8192
"""Tokens of one prompt that are prefilled at once on an accelerator."""


class Prompts:
    """Blocks of keys and values (2, P, kv_heads, T, D) of P prompts, one for each layer.

    Args:
        decoder: computes them.
        memory: where they lie.
    """

    def __init__(self, decoder: Decoder, memory: Fresh) -> None:
        self.decoder, self.memory = decoder, memory
        shape = (2, 0, decoder.kv_heads, 0, decoder.head_dim)
        self.blocks: list[Tensor] = [
            memory.take(f"prompts{at}", *shape) for at in range(len(decoder.windows))
        ]

    @property
    def size(self) -> tuple[int, int]:
        """Number of prompts and of tokens that fit in."""
        return self.blocks[0].shape[1], self.blocks[0].shape[3]

    def keep(self, kept: np.ndarray) -> None:
        """Move the prompts `kept` to the front; the others are dropped."""
        index = self.index(kept)
        for at, block in enumerate(self.blocks):
            found = block[:, index]
            if self.memory.overlaps:
                found = self.memory.take(f"prompts{at}", *found.shape).copy_(found)
            self.blocks[at] = found

    def gather(self, numbers: np.ndarray, columns: np.ndarray) -> Tensor:
        """Keys and values (N, layers, 2 kv_heads, D) of single tokens of prompts."""
        where = self.index(numbers), self.index(columns)
        return torch.stack(
            [block[:, where[0], :, where[1]].flatten(1, 2) for block in self.blocks], 1
        )

    def grow(self, count: int, longest: int) -> None:
        """Make room for so many prompts of so many tokens."""
        for at in range(len(self.blocks)):
            self._grow(at, count, longest)

    def read(
        self,
        numbers: Sequence[int],
        texts: Sequence[np.ndarray],
        known: Sequence[np.ndarray],
        pool: Tensor,
        owners: np.ndarray | None,
    ) -> Tensor:
        """Prefill prompts.

        Args:
            numbers: the index of each of P prompts.
            texts: the ids of each.
            known: rows (n,) of the pool with the cached prefix of each.
            pool: keys and values (rows, layers, 2 kv_heads, D).
            owners: result of `Decoder.owners`, for the prompts.

        Returns:
            Hidden states of the last tokens (P, hidden).
        """
        lengths, starts = np.array([len(t) for t in texts]), np.array([len(t) for t in known])
        cached = self.index(np.concatenate(known)) if starts.any() else None
        while True:
            stops = lengths
            if not self.decoder.on_processor and len(texts) == 1:
                stops = np.minimum(lengths, starts + PIECE)
            piece = _Piece(self, numbers, texts, starts, stops, int(lengths.max()))
            found = piece.run(cached, pool, owners)
            if (stops == lengths).all():
                return found
            starts, cached = stops, None

    def index(self, numbers: np.ndarray) -> Tensor:
        """Numbers as a tensor of the device."""
        return torch.as_tensor(numbers, dtype=torch.int64, device=self.decoder.device)

    def place(self, at: int, numbers: Sequence[int], layer: Tensor) -> None:
        """Store the blocks (2, P, kv_heads, T, D) of prompts in a layer."""
        have, wide = self.blocks[at].shape[1], self.blocks[at].shape[3]
        count, longest = max(have, max(numbers) + 1), max(wide, layer.shape[3])
        if list(numbers) == list(range(count)) and layer.shape[3] == longest:
            self.blocks[at] = layer
            return
        self._grow(at, count, longest)
        self.blocks[at][:, self.index(np.array(numbers)), :, : layer.shape[3]] = layer

    def _grow(self, at: int, count: int, longest: int) -> None:
        block = self.blocks[at]
        _, have, kv, wide, size = block.shape
        count, longest = max(have, count), max(wide, longest)
        if (count, longest) == (have, wide):
            return
        if self.memory.overlaps:
            block = block.clone()
        self.blocks[at] = block  # the old place may be freed
        grown = self.memory.take(f"prompts{at}", 2, count, kv, longest, size).zero_()
        grown[:, :have, :, :wide] = block
        self.blocks[at] = grown


class _Piece:
    """Tokens `starts` to `stops` of prompts, which are read at once; `wide` is the length of the
    longest prompt."""

    def __init__(
        self,
        prompts: Prompts,
        numbers: Sequence[int],
        texts: Sequence[np.ndarray],
        starts: np.ndarray,
        stops: np.ndarray,
        wide: int,
    ) -> None:
        self.prompts, self.decoder, self.numbers = prompts, prompts.decoder, numbers
        self.starts, self.stops, self.wide = starts, stops, wide
        self.count, self.new = len(texts), stops - starts
        new = self.new
        self.tall = int(new.max())
        index = prompts.index
        parts = [text[a:b] for text, a, b in zip(texts, starts, stops, strict=True)]
        self.ids = index(np.concatenate(parts))
        self.row = index(np.repeat(np.arange(self.count), new))
        self.column = index(_ranges(starts, stops))
        self.slot = self.row * self.tall + index(_ranges(starts * 0, new))
        self.last = index(np.cumsum(new) - 1)

    def run(self, cached: Tensor | None, pool: Tensor, owners: np.ndarray | None) -> Tensor:
        """Read them; returns hidden states of the last tokens (P, hidden)."""
        decoder = self.decoder
        if cached is not None:
            self._cached = self._places(self.starts * 0, self.starts)
        attend = self._on_processor() if decoder.on_processor else self._on_accelerator()

        def stored(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            return attend(at, queries, pairs, None if cached is None else pool[cached, at])

        own = None if owners is None else np.repeat(owners, self.new)
        adapted = decoder.adapted(own)
        x = decoder.forward(decoder.embed(self.ids), self.column, self.wide, stored, adapted)
        return x[self.last]

    def _places(self, starts: np.ndarray, stops: np.ndarray) -> tuple[Tensor, Tensor]:
        """Number in this piece and column of tokens."""
        index = self.prompts.index
        return index(np.repeat(np.arange(self.count), stops - starts)), index(
            _ranges(starts, stops)
        )

    def _grid(self, queries: Tensor) -> Tensor:
        """Queries (N, heads, D) by prompt, (P, heads, tall, D)."""
        grid = queries.new_zeros(self.count * self.tall, *queries.shape[1:])
        grid[self.slot] = queries
        return grid.view(self.count, self.tall, *queries.shape[1:]).transpose(1, 2)

    def _flat(self, found: Tensor) -> Tensor:
        return found.transpose(1, 2).reshape(self.count * self.tall, -1)[self.slot]

    def _on_processor(self):
        prompts, decoder = self.prompts, self.decoder
        masks = self._masks()

        def attend(at: int, queries: Tensor, pairs: Tensor, cached: Tensor | None) -> Tensor:
            shape = (2, self.count, decoder.kv_heads, self.wide, decoder.head_dim)
            layer = prompts.memory.take("", *shape).zero_()
            if cached is not None:
                layer[:, self._cached[0], :, self._cached[1]] = _pairs(cached)
            layer[:, self.row, :, self.column] = _pairs(pairs)
            mask = masks[decoder.windows[at]]
            keys, values = layer
            asked = self._grid(queries)
            found, _ = decoder.attention.look(asked, keys, values, mask, mask is None)
            prompts.place(at, self.numbers, layer)
            return self._flat(found)

        return attend

    def _masks(self) -> dict[int | None, Tensor | None]:
        """For each window, the mask of queries (P, tall) over keys (P, wide); `None` if a causal
        mask is enough."""
        device = self.decoder.device
        own = self.prompts.index(self.starts)[:, None] + torch.arange(self.tall, device=device)
        behind = own[:, :, None] - torch.arange(self.wide, device=device)
        masks: dict[int | None, Tensor | None] = {}
        for window in set(self.decoder.windows):
            masks[window] = None
            if window is not None and window < self.wide:
                masks[window] = hidden((behind < 0) | (behind >= window), self.decoder.dtype)[
                    :, None
                ]
            elif self.starts.any():
                masks[window] = hidden(behind < 0, self.decoder.dtype)[:, None]
        return masks

    def _on_accelerator(self):
        """Nothing has the size of queries times keys: one kernel for prompts of all lengths, or
        blocks of queries."""
        prompts, decoder, kv = self.prompts, self.decoder, self.decoder.kv_heads
        prompts.grow(max(self.numbers) + 1, self.wide)
        own = prompts.index(np.array(self.numbers))
        row, first = own[self.row], prompts.index(self.starts)
        key_row, key_column = self._places(self.starts * 0, self.stops)
        key_row = own[key_row]
        paths = self._paths()
        last = int(self.stops.max())

        def attend(at: int, queries: Tensor, pairs: Tensor, cached: Tensor | None) -> Tensor:
            block, window = prompts.blocks[at], decoder.windows[at]
            if cached is not None:
                block[:, own[self._cached[0]], :, self._cached[1]] = _pairs(cached)
            block[:, row, :, self.column] = _pairs(pairs)
            kernel = None
            if decoder.attention.softcap is None:
                shape = Shape(queries.dtype, decoder.heads, kv, decoder.head_dim, window)
                kernel = kernel_for(queries.device, shape)
            if kernel is not None:
                k, v = block[:, key_row, :, key_column].unbind(1)
                scale = decoder.attention.scale
                found = kernel.forward(queries.contiguous(), k, v, paths, scale, window)[0]
                return found.reshape(len(queries), -1)
            keys, values = block[:, own, :, :last]
            asked = self._grid(queries)
            return self._flat(decoder.attention.read(asked, keys, values, first, window))

        return attend

    def _paths(self) -> KeyPaths:
        """The keys of each prompt's new tokens: the prompt up to the last of them."""

        def ends(sizes: np.ndarray) -> Tensor:
            each = np.concatenate([[0], np.cumsum(sizes)])
            return torch.as_tensor(each, dtype=torch.int32, device=self.decoder.device)

        new = self.stops - self.starts
        return KeyPaths(None, ends(new), ends(self.stops), (self.tall, int(self.stops.max())))


def halves(pairs: Tensor) -> Tensor:
    """Keys and values (2, N, kv_heads, D) of pairs (N, 2 kv_heads, D)."""
    return _pairs(pairs).transpose(0, 1)


def _pairs(pairs: Tensor) -> Tensor:
    """(N, 2, kv_heads, D)."""
    count, kv, size = pairs.shape
    return pairs.view(count, 2, kv // 2, size)


def _ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Concatenate the ranges."""
    sizes = stops - starts
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
