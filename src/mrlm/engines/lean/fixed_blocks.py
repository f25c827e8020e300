"""Keys and values of a batch on an accelerator: a step has the same shapes and addresses until rows
are added or removed, so that it can be recorded. What is not in use is masked."""

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.attention import hidden
from mrlm.engines.lean.flash_decode import Sequences, look, serves
from mrlm.engines.lean.kv_blocks import Blocks
from mrlm.engines.lean.prompts import halves
from mrlm.learn.fast.prefix_tree import to_device

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
        self._bound(running)
        count, prompt_of_running = len(prefixes), prefixes[running]
        sizes = np.bincount(prompt_of_running, minlength=len(lengths))
        most, self._prefixes = bucket(int(sizes.max())), bucket(len(lengths))
        self._most, self._longest = most, bucket(int(lengths.max()), TEXT)
        self.prompts.grow(self._prefixes, self._longest)
        order = np.argsort(prompt_of_running, kind="stable")
        rank = np.empty(len(prompt_of_running), dtype=np.int64)
        rank[order] = np.arange(len(prompt_of_running)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        cell = np.zeros(count, dtype=np.int64)  # rows that do not run have any
        cell[running] = prompt_of_running * most + rank
        self._even = np.array_equal(cell, np.arange(self._prefixes * most))
        prompt, place = self._lasting("prompt", cell // most), self._lasting("place", cell % most)
        self._place = prompt[:, None], place[:, None]
        asking = np.zeros(self._prefixes * most, dtype=np.int64)  # as have places without a row
        asking[cell[running]] = np.flatnonzero(running)
        self._asking = self._lasting("asking", asking)
        self._heads = self._lasting("heads", np.arange(self.decoder.kv_heads))
        padded = np.zeros(self._prefixes, dtype=np.int64)
        padded[: len(lengths)] = lengths
        self._own_length = self._lasting("own_length", padded[prefixes])
        self._locate_prompts(padded)
        self.locate()

    def locate(self) -> None:
        """Write the next column, and the first one of each row, to where steps read them."""
        count, kv = len(self._own_length), self.decoder.kv_heads
        self._now = self._lasting("column", np.array([self.column]))
        self._since = self._lasting("since", self.since[:count])
        starts = np.arange(count * kv) * self.room + self.since[:count].repeat(kv)
        self._own_starts = self._lasting32("own_starts", np.append(starts, 0))
        self._own_ends = self._lasting32("own_ends", np.arange(count * kv + 1))
        self._masked = {window for window in self.decoder.windows if not self._flashes(window)}

    def _locate_prompts(self, lengths: np.ndarray) -> None:
        """Write where the prompts of these lengths (P,) lie to where steps read it."""
        kv, sequences = self.decoder.kv_heads, len(lengths) * self.decoder.kv_heads
        starts = np.arange(sequences + 1) * self.prompts.size[1]
        self._to_prompts = Sequences(
            self._lasting32("prompt_ends", np.arange(sequences + 1) * self._most),
            self._lasting32("prompt_starts", starts),
            self._lasting32("prompt_used", lengths.repeat(kv)),
            (self._most, self._longest),
        )

    @property
    def form(self) -> tuple[int, ...]:
        """All numbers that the shapes of a step depend on."""
        return (
            *(len(self._own_length), self.own[0].shape[1], self.room, *self.prompts.size),
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
        masks = self._fixed_masks(positions)
        sequences = self._to_own()

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            self.own[at][:, :count].index_copy_(3, self._now, halves(pairs)[:, :, :, None])
            grouped = queries.reshape(count, decoder.kv_heads, -1, decoder.head_dim)
            mask = masks.get(decoder.windows[at])
            if mask is None:
                return self._flash(at, grouped, sequences).reshape(count, -1)
            return self._whole(at, grouped, mask).reshape(count, -1)

        states = decoder.forward(decoder.embed(ids), positions, self.reach, attend, adapters)
        self._now += 1
        return states

    def _whole(self, at: int, queries: Tensor, mask: Tensor) -> Tensor:
        """Attention of queries (N, kv_heads, G, D) with scores of all columns."""
        decoder, late = self.decoder, self.room
        keys, values = self.own[at][:, : len(queries)]
        block = self.prompts.blocks[at][:, : self._prefixes, :, : self._longest]
        early = self._by_row(self._by_prompt(queries) @ block[0].transpose(2, 3))
        scores = self._joined(queries @ keys.transpose(2, 3), early)
        shares = decoder.attention.shares(scores, mask, values.dtype)
        mixed = shares[..., :late] @ values
        early = self._by_row(self._by_prompt(shares[..., late:]) @ block[1])
        return mixed.view(early.shape) + early

    def _flash(self, at: int, queries: Tensor, to_own: Sequences) -> Tensor:
        """The same with a kernel that reads only what rows see, and stores no scores."""
        kv, group, size = queries.shape[1:]
        scale, most = self.decoder.attention.scale, self._most
        grid = queries.reshape(-1, group, size)
        keys, values = self.own[at].view(2, -1, 1, size)
        late, late_sum = look(grid, keys, values, to_own, scale)
        if most > 1 or not self._even:
            grid = self._by_prompt(queries).view(-1, group, size)
        keys, values = self.prompts.blocks[at].view(2, -1, 1, size)
        early, early_sum = look(grid, keys, values, self._to_prompts, scale)
        early = self._by_row(early.view(-1, kv, most * group, size))
        early_sum = self._by_row(early_sum.t().reshape(-1, kv, most * group, 1))
        late, late_sum = late.view(early.shape), late_sum.t().reshape(early_sum.shape)
        return torch.lerp(late, early, torch.sigmoid(early_sum - late_sum).to(late.dtype))

    def _to_own(self) -> Sequences:
        """The own columns of the rows of a step, of which those from the first to the new one are
        seen."""
        used = (self._now + 1 - self._since).to(torch.int32)
        used = used.repeat_interleave(self.decoder.kv_heads)
        return Sequences(self._own_ends, self._own_starts, used, (1, self.room))

    def _by_prompt(self, x: Tensor) -> Tensor:
        """Rows (N, kv_heads, G, n) by shared prompt, (P, kv_heads, M * G, n)."""
        rows = self._asking.view(self._prefixes, 1, self._most)
        return x[rows, self._heads[:, None]].flatten(2, 3)

    def _by_row(self, x: Tensor) -> Tensor:
        """The inverse: (N, kv_heads, G, n), or, in the same order, (P, M, kv_heads, G, n)."""
        x = x.unflatten(2, (self._most, -1))
        if self._even:
            return x.transpose(1, 2)
        prompt, rank = self._place
        return x[prompt, self._heads, rank]

    def _joined(self, late: Tensor, early: Tensor) -> Tensor:
        """Scores (N, kv_heads, G, T) of the own columns and of those of the prompts."""
        return torch.cat([late.view(*early.shape[:-1], -1), early], -1).view(*late.shape[:-1], -1)

    def _flashes(self, window: int | None) -> bool:
        """Whether layers of a window use flash attention, which has neither soft caps nor windows
        that hide a key of a prompt."""
        decoder = self.decoder
        if decoder.attention.softcap is not None or not (window is None or self.reach <= window):
            return False
        group = decoder.heads // decoder.kv_heads
        return serves(decoder.device, decoder.dtype, group, decoder.head_dim)

    def _fixed_masks(self, positions: Tensor) -> dict[int | None, Tensor]:
        """For each window that needs one, the mask (N, 1, 1, T) of the own columns and those of the
        prompts."""
        device = self.decoder.device
        if not self._masked:
            return {}
        columns = torch.arange(self.room, device=device)[None]
        places = torch.arange(self._longest, device=device)
        gone = (columns < self._since[:, None]) | (columns > self._now)
        short = places >= self._own_length[:, None]
        masks: dict[int | None, Tensor] = {}
        for window in self._masked:
            unseen, early = gone, short
            if window is not None and self.reach > window:
                unseen = gone | (self._now - columns >= window)
                early = short | (positions[:, None] - places >= window)
            masks[window] = hidden(torch.cat([unseen, early], 1), torch.float32)[:, None, None]
        return masks

    def _lasting(self, name: str, numbers: np.ndarray, dtype: torch.dtype = torch.int64) -> Tensor:
        """Numbers at a fixed address."""
        buffer = self.memory.take(name, len(numbers), dtype=dtype)
        return buffer.copy_(to_device(np.ascontiguousarray(numbers), buffer.device))

    def _lasting32(self, name: str, numbers: np.ndarray) -> Tensor:
        return self._lasting(name, numbers, torch.int32)
