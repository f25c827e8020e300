"""The rows of one call of the lean engine: prompts are stored once for all who continue them, and
finished rows make room for those that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.engines._cache import PrefixCache
from mrlm.engines._decoder import HIDDEN, Decoder
from mrlm.engines._sampling import Columns, Draft, uniforms_of
from mrlm.learn.policy import Policy
from mrlm.play.engine import Request

COMPACT = 0.75
"""Finished rows are dropped when no more than this share is still running and nobody waits."""
REFILL = 8
"""Waiting rows come in when one row of so many is free."""
PREFILL = 8192
"""Prompt tokens that are read at once, padding included."""
WORTH = 16
"""Fewer sampled tokens than this are not kept: reading them again costs less."""
FIRST = 64
"""Sampled tokens there is room for at first; the room doubles."""


@dataclass(slots=True)
class Stats:
    """What was read and drawn so far, in tokens."""

    prompt: int = 0
    """Tokens of the prompts of all requests."""
    shared: int = 0
    """Of these, read once for several requests of one call."""
    cached: int = 0
    """Of these, found among what was kept from earlier calls."""
    read: int = 0
    """Of these, put through the model."""
    sampled: int = 0
    steps: int = 0
    """Decode steps."""


def key_of(request: Request) -> tuple[Any, ...]:
    """What requests must have in common to share what was read: the policy, and how their places
    begin (seed and split). A run that is resumed does not evaluate again what it evaluated before,
    so what evaluation read must not serve training: the last bits would be others."""
    return (request.policy, *request.key[:2])


@dataclass(slots=True)
class _Trunk:
    """A prompt in the batch: whose it is, its ids, and the hidden state of its last token."""

    key: tuple[Any, ...]
    ids: np.ndarray
    last: Tensor | None = None


class Batch:
    """The rows of one call that run, and those that wait.

    A row looks at two blocks of keys and values: its prompt's (the trunk, one for all rows of the
    prompt), and its own. The own block has one column per decode step for all rows alike; a row
    that came in later does not see the columns before its own.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: PrefixCache,
        policies: Mapping[str, Policy],
        requests: Sequence[Request],
        batch_size: int,
        stats: Stats,
    ) -> None:
        self.decoder, self.cache, self.stats = decoder, cache, stats
        self.device = self.decoder.device
        self.policies = policies
        self.drafts = [Draft(request, policies[request.policy]) for request in requests]
        stats.prompt += sum(len(request.prompt_ids) for request in requests)
        order = sorted(
            range(len(requests)),
            key=lambda i: (len(requests[i].prompt_ids), requests[i].policy, requests[i].prompt_ids),
        )
        self.queue = deque(order)
        rows = min(batch_size, len(requests))
        self.width = max(request.sampling.max_new_tokens for request in requests)
        self.who = np.full(rows, -1)  # draft of each row, -1 for none
        self.trunk_of = np.zeros(rows, dtype=np.int64)
        self.since = np.zeros(rows, dtype=np.int64)  # first own column
        self.names = sorted({request.policy for request in requests})
        self.trunks: list[_Trunk | None] = []
        self._tensors(rows)

    def _tensors(self, rows: int) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        decoder = self.decoder
        self.hidden = zeros(rows, decoder.anatomy.hidden, dtype=decoder.stream)
        self.position, self.count, self.limit = zeros(rows), zeros(rows), zeros(rows)
        self.policy = zeros(rows)
        self.uniforms = zeros(rows, self.width, dtype=torch.float64)
        self.tokens = zeros(rows, self.width)
        self.logprobs = zeros(rows, self.width, dtype=torch.float32)
        self.ends = zeros(len(self.names), len(decoder.anatomy.head), dtype=torch.bool)
        for number, name in enumerate(self.names):
            ends = [id for id in self.policies[name].eos_ids if id < self.ends.shape[1]]
            self.ends[number, ends] = True
        layers, kv = len(decoder.anatomy.layers), 2 * decoder.kv_heads
        room = min(self.width, FIRST)
        shape = (layers, rows, kv, room, decoder.head_dim)
        self.own = zeros(*shape, dtype=decoder.dtype)
        self.trunk = zeros(layers, 0, kv, 0, decoder.head_dim, dtype=decoder.dtype)
        self.rows, self.running, self.column, self.first = 0, 0, 0, 0

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Until everybody has finished."""
        while self.queue or self.running:
            free = len(self.who) - self.running
            if self.queue and free * REFILL >= len(self.who):
                self._admit(free)
            tokens = self._draw()
            if self.running and not self.queue and self.running <= COMPACT * self.rows:
                tokens = tokens[self._compact()]
            if self.running:
                self._step(tokens)

    def _draw(self) -> Tensor:
        """Draw the next token of every row, and let go of the rows that end with it."""
        n, count = self.rows, self.count[: self.rows, None]
        logits = self.decoder.logits(self.hidden[:n])
        tokens, logprobs = self.columns.draw(logits, self.uniforms[:n].gather(1, count)[:, 0])
        self.tokens[:n].scatter_(1, count, tokens[:, None])
        self.logprobs[:n].scatter_(1, count, logprobs[:, None])
        count += 1
        self.stats.sampled += self.running
        ended = self.ends[self.policy[:n], tokens] | (count[:, 0] >= self.limit[:n])
        count.clamp_(max=self.width - 1)
        done = {row for row in ended.nonzero()[:, 0].tolist() if self.who[row] >= 0}
        for row in self.watched:
            draft = self.drafts[self.who[row]]
            draft.token_ids.append(int(tokens[row]))
            draft.judge()
            if draft.finish_reason:
                done.add(row)
        if done:
            self._finish(sorted(done))
        return tokens

    def _finish(self, rows: list[int]) -> None:
        """Take down what rows have sampled, and keep their keys and values."""
        drawn, scores = self.tokens[rows].tolist(), self.logprobs[rows].tolist()
        for row, ids, logprobs in zip(rows, drawn, scores, strict=True):
            draft = self.drafts[self.who[row]]
            size = self.column - int(self.since[row]) + 1
            draft.token_ids, draft.logprobs = ids[:size], logprobs[:size]
            if draft.finish_reason is None:
                draft.judge()
        self._keep(rows)
        self.who[rows] = -1
        self.running -= len(rows)
        self.watched = [row for row in self.watched if self.who[row] >= 0]

    def _keep(self, rows: list[int]) -> None:
        """Keep the keys and values of finished rows: whoever continues them need not read again
        what they said. The last token was never read."""
        places, at, columns = [], [], []
        for row in rows:
            draft, trunk = self.drafts[self.who[row]], self.trunks[self.trunk_of[row]]
            assert trunk is not None
            if len(draft.token_ids) <= WORTH:
                continue
            ids = np.concatenate([trunk.ids, np.array(draft.token_ids[:-1])])
            known, found = self.cache.add(trunk.key, ids, len(trunk.ids))
            places.append(found)
            at.append(np.full(len(found), row))
            start = self.since[row] + known - len(trunk.ids)
            columns.append(np.arange(start, start + len(found)))
        if places and sum(map(len, places)):
            picked = self.own[:, self._index(at), :, self._index(columns)]
            self.cache.write(np.concatenate(places), picked)

    # -- who comes in and who leaves ---------------------------------------------------------------

    def _admit(self, free: int) -> None:
        """Let waiting requests in: prompts that nobody in the batch has are read first."""
        chosen = [self.queue.popleft() for _ in range(min(free, len(self.queue)))]
        slots = np.flatnonzero(self.who < 0)[: len(chosen)]
        if not self.running:
            self.column = self.first = 0
        self._leave_trunks()
        places = {(t.key, t.ids.tobytes()): i for i, t in enumerate(self.trunks) if t}
        fresh: list[int] = []
        for slot, index in zip(slots, chosen, strict=True):
            request = self.drafts[index].request
            ids = np.array(request.prompt_ids, dtype=np.int64)
            key = (key_of(request), ids.tobytes())
            if key not in places:
                places[key] = self._vacant()
                self.trunks[places[key]] = _Trunk(key[0], ids)
                fresh.append(places[key])
            else:
                self.stats.shared += len(ids)
            self.who[slot], self.trunk_of[slot] = index, places[key]
        self._read(fresh)
        self.running += len(chosen)
        self.rows = int(np.flatnonzero(self.who >= 0).max()) + 1
        self._settle(slots)

    def _settle(self, slots: np.ndarray) -> None:
        """Set up the rows of those that came in."""
        at = self._index([slots])
        self.since[slots] = self.column
        requests = [self.drafts[self.who[slot]].request for slot in slots]
        trunks = [self.trunks[self.trunk_of[slot]] for slot in slots]
        self.hidden[at] = torch.stack([trunk.last for trunk in trunks if trunk])  # pyright: ignore
        lengths = [len(request.prompt_ids) for request in requests]
        self.position[at] = torch.tensor(lengths, device=self.device)
        self.count[at] = 0
        limits = [request.sampling.max_new_tokens for request in requests]
        self.limit[at] = torch.tensor(limits, device=self.device)
        numbers = [self.names.index(request.policy) for request in requests]
        self.policy[at] = torch.tensor(numbers, device=self.device)
        uniforms = np.zeros((len(slots), self.width))
        for row, request in enumerate(requests):
            own = uniforms_of(request)
            uniforms[row, : len(own)] = own
        self.uniforms[at] = torch.as_tensor(uniforms, device=self.device)
        self._arrange()

    def _compact(self) -> Tensor:
        """Move the running rows together; returns which they were."""
        kept = np.flatnonzero(self.who[: self.rows] >= 0)
        at = self._index([kept])
        for name in ("position", "count", "limit", "policy", "uniforms", "tokens", "logprobs"):
            column = getattr(self, name)
            column[: len(kept)] = column[at]
        seen = slice(self.first, self.column)
        self.own[:, : len(kept), :, seen] = self.own[:, at, :, seen]
        for column in (self.who, self.trunk_of, self.since):
            column[: len(kept)] = column[kept]
            column[len(kept) :] = 0
        self.who[len(kept) :] = -1
        self.rows = len(kept)
        self._leave_trunks()
        self._arrange()
        return at

    def _leave_trunks(self) -> None:
        """Forget prompts nobody continues; the rest move together if they are few."""
        used = np.unique(self.trunk_of[self.who >= 0])
        self.trunks = [t if i in set(used.tolist()) else None for i, t in enumerate(self.trunks)]
        if len(used) <= COMPACT * len(self.trunks):
            self.trunk = self.trunk[:, self._index([used])]
            self.trunks = [self.trunks[i] for i in used]
            self.trunk_of = np.searchsorted(used, self.trunk_of).clip(max=max(len(used) - 1, 0))

    def _vacant(self) -> int:
        """The number of a trunk that is free."""
        for number, trunk in enumerate(self.trunks):
            if trunk is None:
                return number
        self.trunks.append(None)
        return len(self.trunks) - 1

    def _arrange(self) -> None:
        """What follows from who runs in which row."""
        n = self.rows
        drafts = [self.drafts[max(index, 0)] for index in self.who[:n]]
        self.columns = Columns([draft.request.sampling for draft in drafts], self.device)
        self.watched = [
            row
            for row, draft in enumerate(drafts)
            if self.who[row] >= 0 and draft.request.sampling.stop
        ]
        self.adapters = self.decoder.adapter_mask([draft.policy.adapter for draft in drafts])
        running = self.who[:n] >= 0
        self.first = int(self.since[:n][running].min())
        self.since[:n][~running] = self.first
        lengths = np.array([len(trunk.ids) if trunk else 0 for trunk in self.trunks])
        self.longest = int(lengths.max())
        self.trunk_length = torch.as_tensor(lengths, device=self.device)
        groups = self.trunk_of[:n]
        sizes = np.bincount(groups, minlength=len(lengths))
        self.most = int(sizes.max())
        order = np.argsort(groups, kind="stable")
        rank = np.empty(n, dtype=np.int64)
        rank[order] = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self.even = bool(np.array_equal(groups * self.most + rank, np.arange(n)))
        self.even = self.even and n == self.most * len(lengths)
        self.group, self.rank = self._index([groups]), self._index([rank])
        self.since_own = self._index([self.since[:n]])
        self.late = bool((self.since[:n] > self.first).any())
        self.trunk_mask: Tensor | None = None
        if (lengths != self.longest).any():
            places = torch.arange(self.longest, device=self.device)
            short = (places >= self.trunk_length[:, None]).to(self.decoder.dtype)
            self.trunk_mask = short.mul_(HIDDEN)[:, None, None]

    # -- reading prompts ---------------------------------------------------------------------------

    def _read(self, fresh: list[int]) -> None:
        """Put new prompts through the model, as many at once as fit."""
        part: list[int] = []
        longest = 0
        for number in fresh:
            length = len(self._prompt(number))
            if part and max(longest, length) * (len(part) + 1) > PREFILL:
                self._prefill(part)
                part, longest = [], 0
            part.append(number)
            longest = max(longest, length)
        if part:
            self._prefill(part)

    def _prompt(self, number: int) -> np.ndarray:
        trunk = self.trunks[number]
        assert trunk is not None
        return trunk.ids

    def _prefill(self, part: list[int]) -> None:
        """Read prompts, but for what is known of them, and put them where rows look."""
        decoder = self.decoder
        trunks = [trunk for trunk in (self.trunks[i] for i in part) if trunk]
        known = [self.cache.match(trunk.key, trunk.ids[:-1]) for trunk in trunks]
        lengths = np.array([len(trunk.ids) for trunk in trunks])
        starts = np.array([len(rows) for rows in known])
        new = lengths - starts
        wide, tall = int(lengths.max()), int(new.max())
        block = torch.zeros(
            len(decoder.windows),
            len(part),
            2 * decoder.kv_heads,
            wide,
            decoder.head_dim,
            dtype=decoder.dtype,
            device=self.device,
        )
        if starts.any():
            row = self._index([np.repeat(np.arange(len(part)), starts)])
            column = self._index([np.arange(n) for n in starts])
            block[:, row, :, column] = self.cache.read(np.concatenate(known))
        row = self._index([np.repeat(np.arange(len(part)), new)])
        column = self._index([np.arange(a, b) for a, b in zip(starts, lengths, strict=True)])
        place = row * tall + self._index([np.arange(n) for n in new])
        masks = self._reading_masks(starts, tall, wide)
        kept: list[Tensor] = []

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            kept.append(pairs)
            block[at][row, :, column] = pairs
            grid = queries.new_zeros(len(part) * tall, *queries.shape[1:])
            grid[place] = queries
            kv = decoder.kv_heads
            asked = grid.view(len(part), tall, kv, -1, decoder.head_dim).permute(0, 2, 3, 1, 4)
            asked = asked.reshape(len(part), kv, -1, decoder.head_dim)
            keys, values = block[at][:, :kv], block[at][:, kv:]
            found, _ = decoder.look(asked, keys, values, masks[decoder.windows[at]])
            found = found.reshape(len(part), kv, -1, tall, decoder.head_dim)
            return found.permute(0, 3, 1, 2, 4).reshape(len(grid), -1)[place]

        ids = self._index([t.ids[a:] for t, a in zip(trunks, starts, strict=True)])
        adapters = [self.policies[t.key[0]].adapter for t in trunks]
        mask = decoder.adapter_mask(adapters)
        x = decoder.forward(
            decoder.embed(ids), column, wide, attend, None if mask is None else mask[row]
        )
        ends = np.cumsum(new)
        for trunk, end in zip(trunks, ends, strict=True):
            trunk.last = x[end - 1]
        self.stats.read += len(ids)
        self.stats.cached += int(starts.sum())
        self._place(part, block)
        self._keep_prompts(trunks, starts, ends - new, torch.stack(kept, 1))

    def _reading_masks(self, starts: np.ndarray, tall: int, wide: int) -> dict[int | None, Tensor]:
        """For each window, what queries (P, tall) see of keys (P, wide), for all heads of a
        group."""
        own = self._index([starts])[:, None] + torch.arange(tall, device=self.device)
        behind = own[:, :, None] - torch.arange(wide, device=self.device)
        group = self.decoder.heads // self.decoder.kv_heads
        masks: dict[int | None, Tensor] = {}
        for window in set(self.decoder.windows):
            hidden = behind < 0
            if window is not None and window < wide:
                hidden |= behind >= window
            added = hidden.to(self.decoder.dtype).mul_(HIDDEN)
            masks[window] = added[:, None].repeat(1, 1, group, 1)
        return masks

    def _place(self, part: list[int], block: Tensor) -> None:
        """Put the keys and values of prompts where rows look."""
        have, wide = self.trunk.shape[1], self.trunk.shape[3]
        want = max(len(self.trunks), have), max(block.shape[3], wide)
        if part == list(range(want[0])) and block.shape[3] == want[1]:
            self.trunk = block
            return
        if want != (have, wide):
            layers, _, kv, _, size = block.shape
            grown = block.new_zeros(layers, want[0], kv, want[1], size)
            grown[:, :have, :, :wide] = self.trunk
            self.trunk = grown
        self.trunk[:, self._index([part]), :, : block.shape[3]] = block

    def _keep_prompts(
        self, trunks: Sequence[_Trunk], starts: np.ndarray, offsets: np.ndarray, pairs: Tensor
    ) -> None:
        """Keep the keys and values (N, layers, 2 kv_heads, D) of what was read."""
        places, picked = [], []
        for trunk, start, offset in zip(trunks, starts, offsets, strict=True):
            at, rows = self.cache.add(trunk.key, trunk.ids, int(start))
            places.append(rows)
            picked.append(np.arange(offset + at - start, offset + at - start + len(rows)))
        rows = np.concatenate(places)
        if len(rows):
            self.cache.write(rows, pairs[self._index(picked)])

    # -- one step ----------------------------------------------------------------------------------

    def _step(self, tokens: Tensor) -> None:
        """Read the token each row has drawn."""
        decoder, n = self.decoder, self.rows
        if self.column == self.own.shape[3]:
            self._widen()
        kv, size, column = decoder.kv_heads, decoder.head_dim, self.column
        masks = self._step_masks()

        def attend(at: int, queries: Tensor, pairs: Tensor) -> Tensor:
            own = self.own[at][:n]
            own[:, :, column] = pairs
            keys, values = (
                own[:, :kv, self.first : column + 1],
                own[:, kv:, self.first : column + 1],
            )
            asked = queries.reshape(n, kv, -1, size)
            own_mask, trunk_mask = masks[decoder.windows[at]]
            late, late_sum = decoder.look(asked, keys, values, own_mask)
            early, early_sum = self._look_at_trunks(at, asked, trunk_mask)
            share = torch.sigmoid(early_sum - late_sum).to(late.dtype)
            return torch.lerp(late, early, share[..., None]).reshape(n, -1)

        reach = self.longest + column - self.first + 1
        self.hidden[:n] = decoder.forward(
            decoder.embed(tokens), self.position[:n], reach, attend, self.adapters
        )
        self.position[:n] += 1
        self.column += 1
        self.stats.steps += 1

    def _look_at_trunks(self, at: int, asked: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attention of queries (n, kv_heads, G, D) to the prompts: rows of one prompt are one
        product."""
        n, kv, group, size = asked.shape
        trunks, most = len(self.trunks), self.most
        if self.even:
            grid = asked.view(trunks, most, kv, group, size)
        else:
            grid = asked.new_zeros(trunks, most, kv, group, size)
            grid[self.group, self.rank] = asked
        grid = grid.transpose(1, 2).reshape(trunks, kv, most * group, size)
        block = self.trunk[at][:trunks, :, : self.longest]
        found, total = self.decoder.look(grid, block[:, :kv], block[:, kv:], mask)
        found = found.reshape(trunks, kv, most, group, size).transpose(1, 2)
        total = total.view(trunks, kv, most, group).transpose(1, 2)
        if self.even:
            return found.reshape(n, kv, group, size), total.reshape(n, kv, group)
        return found[self.group, self.rank], total[self.group, self.rank]

    def _step_masks(self) -> dict[int | None, tuple[Tensor | None, Tensor | None]]:
        """For each window, what rows see of their own columns (n, 1, 1, T) and of the trunks
        (P, 1, 1 or M, T)."""
        dtype, n = self.decoder.dtype, self.rows
        columns = torch.arange(self.first, self.column + 1, device=self.device)
        own = None
        if self.late:
            own = (columns < self.since_own[:, None]).to(dtype).mul_(HIDDEN)[:, None, None]
        reach = self.longest + self.column - self.first + 1
        masks: dict[int | None, tuple[Tensor | None, Tensor | None]] = {}
        for window in set(self.decoder.windows):
            if window is None or reach <= window:
                masks[window] = own, self.trunk_mask
                continue
            hidden = (columns < self.since_own[:, None]) | (self.column - columns >= window)
            places = torch.arange(self.longest, device=self.device)
            far = self.position[:n, None] - places >= window
            far |= places >= self.trunk_length[self.group][:, None]
            grid = far.new_zeros(len(self.trunks), self.most, self.longest)
            grid[self.group, self.rank] = far
            group = self.decoder.heads // self.decoder.kv_heads
            grid = grid.repeat_interleave(group, 1).to(dtype).mul_(HIDDEN)[:, None]
            masks[window] = hidden.to(dtype).mul_(HIDDEN)[:, None, None], grid
        return masks

    def _widen(self) -> None:
        """Make room for more columns: those nobody sees go, or their number doubles."""
        room, first = self.own.shape[3], self.first
        if first * 2 >= room:
            left = self.column - first
            self.own[:, :, :, :left] = self.own[:, :, :, first : self.column].clone()
            self.since = (self.since - first).clip(min=0)
            self.since_own -= first
            self.column, self.first = left, 0
        else:
            self.own = torch.cat([self.own, torch.zeros_like(self.own)], 3)

    def _index(self, parts: Any) -> Tensor:
        joined = np.concatenate(parts) if len(parts) else np.empty(0, dtype=np.int64)
        return torch.as_tensor(joined, dtype=torch.int64, device=self.device)
