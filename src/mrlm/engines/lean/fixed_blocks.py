"""Keys and values of a batch on an accelerator: a step has the same shapes and addresses until rows
are added or removed, so that it can be recorded. What is not in use is masked."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.attention import hidden
from mrlm.engines.lean.kv_blocks import Blocks, Masks
from mrlm.engines.lean.prompts import halves

TEXT = 128
"""Smallest length of a text that is rounded up to."""


def bucket(number: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << max(number - 1, 0).bit_length())


class FixedBlocks(Blocks):
    """Blocks whose steps depend on memory at fixed addresses only: the rows, prompts and lengths of
    a step are rounded up to powers of two."""

    def arrange(
        self,
        prefixes: np.ndarray,
        lengths: np.ndarray,
        running: np.ndarray,
        owners: np.ndarray | None,
    ) -> None:
        count, since = len(prefixes), self.since[: len(prefixes)]
        self._first = int(since[running].min())
        since[~running] = self._first
        own = prefixes[running]
        sizes = np.bincount(own, minlength=len(lengths))
        most, self._prefixes = bucket(int(sizes.max())), bucket(len(lengths))
        self._most, self._longest = most, bucket(int(lengths.max()), TEXT)
        self.prompts.grow(self._prefixes, self._longest)
        order = np.argsort(own, kind="stable")
        rank = np.empty(len(own), dtype=np.int64)
        rank[order] = np.arange(len(own)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._slots = self._prefixes * most
        place = np.full(count, self._slots)  # rows that do not run have one after the last
        place[running] = own * most + rank
        self._even = np.array_equal(place, np.arange(self._slots))
        self._place = self._lasting("place", place)
        self._answer = self._lasting("answer", place.clip(max=self._slots - 1))
        padded = np.zeros(self._prefixes, dtype=np.int64)
        padded[: len(lengths)] = lengths
        self._length = self._lasting("length", padded)
        self._own_length = self._lasting("own_length", padded[prefixes])
        self.locate()

    def locate(self) -> None:
        """Write the next column, and the first one of each row, to where steps read them."""
        count = len(self._place)
        self._now = self._lasting("column", np.array([self.column]))
        self._since = self._lasting("since", self.since[:count])

    @property
    def form(self) -> tuple[int, ...]:
        """All numbers that the shapes of a step depend on."""
        return (
            *(len(self._place), self.own[0].shape[1], self.room, *self.prompts.size),
            *(self._prefixes, self._most, self._longest, self._even),
        )

    @property
    def reach(self) -> int:
        """Largest number of tokens of a row."""
        return self._longest + self.room

    def make_room(self, steps: int) -> None:
        """Make room for columns."""
        while self.column + steps > self.room:
            self.widen()

    def fixed_step(self, ids: Tensor, positions: Tensor, adapters: Tensor | None) -> Tensor:
        """As `step`, but only with operations on memory at fixed addresses: it may be recorded."""
        decoder, count = self.decoder, len(ids)
        kv, size = decoder.kv_heads, decoder.head_dim
        masks = self._fixed_masks(positions)

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            own = self.own[at][:, :count]
            own.index_copy_(3, self._now, halves(pairs)[:, :, :, None])
            asked = queries.reshape(count, kv, -1, size)
            own_mask, prompt_mask = masks[decoder.windows[at]]
            keys, values = own
            late, late_sum = decoder.attention.look(asked, keys, values, own_mask)
            early, early_sum = self._to_prompts(at, asked, prompt_mask)
            share = torch.sigmoid(early_sum - late_sum).to(late.dtype)
            return torch.lerp(late, early, share[..., None]).reshape(count, -1)

        found = decoder.forward(decoder.embed(ids), positions, self.reach, attend, adapters)
        self._now += 1
        return found

    def _to_prompts(self, at: int, asked: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        _, kv, group, size = asked.shape
        prompts, most, longest = self._prefixes, self._most, self._longest
        grid = asked
        if not self._even:
            grid = asked.new_zeros(self._slots + 1, kv, group, size)
            grid = grid.index_copy_(0, self._place, asked)[: self._slots]
        grid = grid.view(prompts, most, kv, group, size).transpose(1, 2)
        grid = grid.reshape(prompts, kv, most * group, size)
        keys, values = self.prompts.blocks[at][:, :prompts, :, :longest]
        found, total = self.decoder.attention.look(grid, keys, values, mask)
        found = found.view(prompts, kv, most, group, size).transpose(1, 2).flatten(0, 1)
        total = total.view(prompts, kv, most, group).transpose(1, 2).flatten(0, 1)
        if self._even:
            return found, total
        return found[self._answer], total[self._answer]

    def _fixed_masks(self, positions: Tensor) -> Masks:
        """For each window, the masks of the own columns (N, 1, 1, room) and of the prompts (P, 1, 1
        or M, T)."""
        decoder, device, dtype = self.decoder, self.decoder.device, self.decoder.dtype
        columns = torch.arange(self.room, device=device)[None]
        places = torch.arange(self._longest, device=device)
        gone = (columns < self._since[:, None]) | (columns > self._now)
        own = hidden(gone, dtype)[:, None, None]
        short = hidden(places >= self._length[:, None], dtype)[:, None, None]
        masks: Masks = {}
        for window in set(decoder.windows):
            if window is None or self.reach <= window:
                masks[window] = own, short
                continue
            old = gone | (self._now - columns >= window)
            far = positions[:, None] - places >= window
            far |= places >= self._own_length[:, None]
            grid = far.new_zeros(self._slots + 1, self._longest)
            grid = grid.index_copy_(0, self._place, far)[: self._slots]
            grid = grid.view(self._prefixes, self._most, self._longest)
            grid = grid.repeat_interleave(decoder.heads // decoder.kv_heads, 1)
            masks[window] = hidden(old, dtype)[:, None, None], hidden(grid, dtype)[:, None]
        return masks

    def _lasting(self, name: str, numbers: np.ndarray) -> Tensor:
        """Numbers at a fixed address."""
        place = self.memory.take(name, len(numbers), dtype=torch.int64)
        return place.copy_(torch.from_numpy(np.ascontiguousarray(numbers)))
