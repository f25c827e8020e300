"""Keys and values of the prompts of a running batch, each of which several rows may share."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.decoder import Attend, Decoder
from mrlm.engines.lean.memory import Fresh
from mrlm.engines.lean.prefill import Prefill, Queries
from mrlm.learn.fast.varlen_attention import Shape, Sight, effective, kernel_for

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
        names = [f"prompts{at}" for at in range(len(decoder.windows))]
        self.blocks: list[Tensor] = [memory.take(name, *shape) for name in names]

    @property
    def size(self) -> tuple[int, int]:
        """Number of prompts and of tokens that fit in."""
        return self.blocks[0].shape[1], self.blocks[0].shape[3]

    def keep(self, numbers: np.ndarray) -> None:
        """Move the prompts `numbers` to the front; the others are dropped."""
        index = self.decoder.index(numbers)
        for at, block in enumerate(self.blocks):
            kept_block = block[:, index]
            if self.memory.overlaps:
                kept_block = self.memory.take(f"prompts{at}", *kept_block.shape).copy_(kept_block)
            self.blocks[at] = kept_block

    def gather(self, numbers: np.ndarray, columns: np.ndarray) -> Tensor:
        """Keys and values (N, layers, 2 kv_heads, D) of single tokens of prompts."""
        row, column = self.decoder.index(numbers), self.decoder.index(columns)
        return torch.stack([block[:, row, :, column].flatten(1, 2) for block in self.blocks], 1)

    def grow(self, count: int, longest: int) -> None:
        """Make room for so many prompts of so many tokens."""
        for at in range(len(self.blocks)):
            self._grow(at, count, longest)

    def read(
        self,
        numbers: Sequence[int],
        texts: Sequence[np.ndarray],
        kinds: np.ndarray,
        cached_rows: Sequence[np.ndarray],
        pool: Tensor,
        owners: np.ndarray | None,
    ) -> tuple[Tensor, int]:
        """Prefill prompts.

        Args:
            numbers: the index of each of P prompts.
            texts: the ids of each; those that share a beginning are neighbours.
            kinds: (P,) prompts of different kinds share nothing.
            cached_rows: rows (n,) of the pool with the cached prefix of each.
            pool: keys and values (rows, layers, 2 kv_heads, D).
            owners: result of `Decoder.owners`, for the prompts.

        Returns:
            Hidden states of the last tokens (P, hidden), and the number of computed tokens.
        """
        computed = 0
        lengths, starts = np.array([len(t) for t in texts]), np.array([len(t) for t in cached_rows])
        cached = self.decoder.index(np.concatenate(cached_rows)) if starts.any() else None
        while True:
            stops = lengths
            if not self.decoder.on_processor and len(texts) == 1:
                stops = np.minimum(lengths, starts + PIECE)
            prefill = Prefill(self.decoder, texts, kinds, starts, stops)
            computed += int(prefill.new.sum())
            before = None if cached is None else (cached, pool)
            on = self._on_processor if self.decoder.on_processor else self._on_accelerator
            last_states = prefill.forward(on(prefill, numbers, before), owners)
            if (stops == lengths).all():
                return last_states, computed
            starts, cached = stops, None

    def _on_processor(
        self, prefill: Prefill, numbers: Sequence[int], cached: tuple[Tensor, Tensor] | None
    ) -> Attend:
        decoder, stored = self.decoder, prefill.stored
        shape = (2, prefill.count, decoder.kv_heads, prefill.wide, decoder.head_dim)
        before = None if cached is None else prefill.places(prefill.cached)
        masks = {
            (group, window): prefill.mask(group, window)
            for group in (*prefill.groups, prefill.ends)
            for window in set(decoder.windows)
        }

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            layer = self.memory.take("", *shape).zero_()
            if cached is not None and before is not None:
                layer[:, before[0], :, before[1]] = _pairs(cached[1][cached[0], at])
            new = pairs if stored.token is None else pairs[stored.token]
            layer[:, stored.prompt, :, stored.column] = _pairs(new)

            def look(group: Queries, asking: Tensor) -> Tensor:
                keys, values = layer if group.prompts is None else layer[:, group.prompts]
                mask = masks[group, decoder.windows[at]]
                if mask is None:
                    keys, values = keys[:, :, : group.tall], values[:, :, : group.tall]
                grouped = group.grid(asking)
                outputs, _ = decoder.attention.look(grouped, keys, values, mask, mask is None)
                return group.flat(outputs)

            mixed = prefill.asked(at, queries, look)
            self.place(at, numbers, layer)
            return mixed

        return attend

    def _on_accelerator(
        self, prefill: Prefill, numbers: Sequence[int], cached: tuple[Tensor, Tensor] | None
    ) -> Attend:
        """Nothing has the size of queries times keys: one kernel for prompts of all lengths, or
        blocks of queries."""
        decoder, stored = self.decoder, prefill.stored
        self.grow(max(numbers) + 1, prefill.wide)
        block_rows = self.decoder.index(np.array(numbers))
        row = block_rows[stored.prompt]
        before = None if cached is None else prefill.places(prefill.cached)
        key_row, key_column = prefill.places(prefill.stops)
        key_row = block_rows[key_row]
        paths = {last: prefill.paths(last) for last in (False, True)}
        stop = int(prefill.stops.max())

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            block, window = self.blocks[at], decoder.windows[at]
            if cached is not None and before is not None:
                block[:, block_rows[before[0]], :, before[1]] = _pairs(cached[1][cached[0], at])
            new = pairs if stored.token is None else pairs[stored.token]
            block[:, row, :, stored.column] = _pairs(new)
            kernel = None
            if decoder.attention.softcap is None:
                size = decoder.heads, decoder.kv_heads, decoder.head_dim
                hides = effective(window, stop)
                kernel = kernel_for(queries.device, Shape(queries.dtype, *size, hides))
            if kernel is not None:
                last = at == len(self.blocks) - 1
                asking = (queries[prefill.last] if last else queries).contiguous()
                k, v = block[:, key_row, :, key_column].unbind(1)
                how = Sight(paths[last], decoder.attention.scale, window)
                return kernel.forward(asking, k, v, how)[0].reshape(len(asking), -1)

            def look(group: Queries, asking: Tensor) -> Tensor:
                chosen = block_rows if group.prompts is None else block_rows[group.prompts]
                keys, values = block[:, chosen, :, :stop]
                grouped = group.grid(asking)
                outputs = decoder.attention.read(grouped, keys, values, group.first, window)
                return group.flat(outputs)

            return prefill.asked(at, queries, look)

        return attend

    def place(self, at: int, numbers: Sequence[int], layer: Tensor) -> None:
        """Store the blocks (2, P, kv_heads, T, D) of prompts in a layer."""
        have, wide = self.blocks[at].shape[1], self.blocks[at].shape[3]
        count, longest = max(have, max(numbers) + 1), max(wide, layer.shape[3])
        if list(numbers) == list(range(count)) and layer.shape[3] == longest:
            self.blocks[at] = layer
            return
        self._grow(at, count, longest)
        self.blocks[at][:, self.decoder.index(np.array(numbers)), :, : layer.shape[3]] = layer

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


def halves(pairs: Tensor) -> Tensor:
    """Keys and values (2, N, kv_heads, D) of pairs (N, 2 kv_heads, D)."""
    return _pairs(pairs).transpose(0, 1)


def _pairs(pairs: Tensor) -> Tensor:
    """(N, 2, kv_heads, D)."""
    count, kv, size = pairs.shape
    return pairs.view(count, 2, kv // 2, size)
