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

from mrlm.engines.lean.decoder import Decoder
from mrlm.engines.lean.kv_blocks import Blocks
from mrlm.engines.lean.prefix_cache import PrefixCache
from mrlm.engines.shared.sampling import Columns, Draft, uniforms_of
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

COMPACT = 0.75
"""Finished rows are dropped when no more than this share is still running and nobody waits."""
REFILL = 8
"""Waiting rows come in when one row of so many is free."""
PREFILL = 8192
"""Prompt tokens that are read at once, padding included."""
WORTH = 16
"""Fewer sampled tokens than this are not kept: reading them again costs less."""
ALIKE = 32
"""Tokens that two new prompts have in common for one to be read before the other."""


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


class DecodingBatch:
    """The rows of one call that run, and those that wait.

    Args:
        decoder: computes.
        cache: what was read before, and is kept.
        policies: by name; they share the decoder's base.
        requests: what is asked.
        batch_size: most rows that run at once.
        stats: what is counted.
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
        self.device = decoder.device
        self.policies = policies
        self.drafts = [Draft(request, policies[request.policy]) for request in requests]
        stats.prompt += sum(len(request.prompt_ids) for request in requests)
        order = sorted(
            range(len(requests)),
            key=lambda i: (len(requests[i].prompt_ids), requests[i].policy, requests[i].prompt_ids),
        )
        self.queue = deque(order)
        self.names = sorted({request.policy for request in requests})
        rows = min(batch_size, len(requests))
        self.width = max(request.sampling.max_new_tokens for request in requests)
        self.blocks = Blocks(decoder, rows, self.width)
        self.who = np.full(rows, -1)  # draft of each row, -1 for none
        self.trunk_of = np.zeros(rows, dtype=np.int64)
        self.trunks: list[_Trunk | None] = []
        self.rows = self.running = 0
        self._tensors(rows)

    def _tensors(self, rows: int) -> None:
        """What is known of each row, in tensors."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        self.hidden = zeros(rows, self.decoder.anatomy.hidden, dtype=self.decoder.stream)
        self.position, self.count, self.limit = zeros(rows), zeros(rows), zeros(rows)
        self.policy = zeros(rows)
        self.uniforms = zeros(rows, self.width, dtype=torch.float64)
        self.tokens = zeros(rows, self.width)
        self.logprobs = zeros(rows, self.width, dtype=torch.float32)
        self.ends = zeros(len(self.names), len(self.decoder.anatomy.head), dtype=torch.bool)
        for number, name in enumerate(self.names):
            ends = [id for id in self.policies[name].eos_ids if id < self.ends.shape[1]]
            self.ends[number, ends] = True

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

    def _step(self, tokens: Tensor) -> None:
        n = self.rows
        self.hidden[:n] = self.blocks.step(tokens, self.position[:n], self.adapters)
        self.position[:n] += 1
        self.stats.steps += 1

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
            size = self.blocks.column - int(self.blocks.since[row]) + 1
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
            draft, trunk = self.drafts[self.who[row]], self._trunk(int(self.trunk_of[row]))
            if len(draft.token_ids) <= WORTH:
                continue
            ids = np.concatenate([trunk.ids, np.array(draft.token_ids[:-1])])
            known, found = self.cache.add(trunk.key, ids, len(trunk.ids))
            start = int(self.blocks.since[row]) + known - len(trunk.ids)
            places.append(found)
            at.append(np.full(len(found), row))
            columns.append(np.arange(start, start + len(found)))
        if sum(map(len, places)):
            pairs = self.blocks.gather(np.concatenate(at), np.concatenate(columns))
            self.cache.write(np.concatenate(places), pairs)

    # -- who comes in and who leaves ---------------------------------------------------------------

    def _admit(self, free: int) -> None:
        """Let waiting requests in: prompts that nobody in the batch has are read first."""
        chosen = [self.queue.popleft() for _ in range(min(free, len(self.queue)))]
        slots = np.flatnonzero(self.who < 0)[: len(chosen)]
        if not self.running:
            self.blocks.start()
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
        self._arrange()

    def _settle(self, slots: np.ndarray) -> None:
        """Set up the rows of those that came in."""
        at = torch.as_tensor(slots, device=self.device)
        requests = [self.drafts[self.who[slot]].request for slot in slots]

        def column(values: list[int]) -> Tensor:
            return torch.tensor(values, device=self.device)

        self.blocks.since[slots] = self.blocks.column
        last = [self._trunk(int(self.trunk_of[slot])).last for slot in slots]
        self.hidden[at] = torch.stack([each for each in last if each is not None])
        self.position[at] = column([len(request.prompt_ids) for request in requests])
        self.limit[at] = column([request.sampling.max_new_tokens for request in requests])
        self.policy[at] = column([self.names.index(request.policy) for request in requests])
        self.count[at] = 0
        uniforms = np.zeros((len(slots), self.width))
        for row, request in enumerate(requests):
            own = uniforms_of(request)
            uniforms[row, : len(own)] = own
        self.uniforms[at] = torch.as_tensor(uniforms, device=self.device)

    def _compact(self) -> Tensor:
        """Move the running rows together; returns which they were."""
        kept = np.flatnonzero(self.who[: self.rows] >= 0)
        at, n = torch.as_tensor(kept, device=self.device), len(kept)
        for name in ("position", "count", "limit", "policy", "uniforms", "tokens", "logprobs"):
            column = getattr(self, name)
            column[:n] = column[at]
        self.blocks.compact(kept)
        self.who[:n], self.trunk_of[:n] = self.who[kept], self.trunk_of[kept]
        self.who[n:] = -1
        self.rows = n
        self._leave_trunks()
        self._arrange()
        return at

    def _leave_trunks(self) -> None:
        """Forget prompts nobody continues; the rest move together if they are few."""
        used = np.unique(self.trunk_of[self.who >= 0])
        known = set(used.tolist())
        self.trunks = [t if i in known else None for i, t in enumerate(self.trunks)]
        if len(used) <= COMPACT * len(self.trunks):
            self.blocks.keep_trunks(used)
            self.trunks = [self.trunks[i] for i in used]
            self.trunk_of = np.searchsorted(used, self.trunk_of).clip(max=max(len(used) - 1, 0))

    def _vacant(self) -> int:
        """The number of a trunk that is free."""
        for number, trunk in enumerate(self.trunks):
            if trunk is None:
                return number
        self.trunks.append(None)
        return len(self.trunks) - 1

    def _trunk(self, number: int) -> _Trunk:
        trunk = self.trunks[number]
        assert trunk is not None
        return trunk

    def _arrange(self) -> None:
        """What follows from who runs in which row."""
        n = self.rows
        drafts = [self.drafts[max(index, 0)] for index in self.who[:n]]
        running = self.who[:n] >= 0
        self.columns = Columns([draft.request.sampling for draft in drafts], self.device)
        self.watched = [
            row for row, draft in enumerate(drafts) if running[row] and draft.request.sampling.stop
        ]
        self.adapters = self.decoder.adapter_mask([draft.policy.adapter for draft in drafts])
        lengths = np.array([len(trunk.ids) if trunk else 0 for trunk in self.trunks])
        self.blocks.arrange(self.trunk_of[:n], lengths, running)

    # -- reading prompts ---------------------------------------------------------------------------

    def _read(self, fresh: list[int]) -> None:
        """Put new prompts through the model, as many at once as fit. Of prompts that begin alike,
        one is read first."""
        leading, following = self._led(fresh)
        for numbers in (leading, following):
            part: list[int] = []
            for number in sorted(numbers, key=lambda i: len(self._trunk(i).ids)):
                if part and len(self._trunk(number).ids) * (len(part) + 1) > PREFILL:
                    self._prefill(part)
                    part = []
                part.append(number)
            if part:
                self._prefill(part)

    def _led(self, fresh: list[int]) -> tuple[list[int], list[int]]:
        """Prompts, and those that begin like one of them beyond what is kept already."""
        leading: list[int] = []
        following: list[int] = []
        before: _Trunk | None = None
        trunks = [(number, self._trunk(number)) for number in fresh]
        for number, trunk in sorted(trunks, key=lambda e: (str(e[1].key), e[1].ids.tobytes())):
            known = len(self.cache.match(trunk.key, trunk.ids[:-1]))
            alike = 0
            if before is not None and before.key == trunk.key and self.cache.limit:
                most = min(len(before.ids), len(trunk.ids) - 1)
                differs = np.flatnonzero(before.ids[:most] != trunk.ids[:most])
                alike = int(differs[0]) if len(differs) else most
            (following if alike >= known + ALIKE else leading).append(number)
            before = trunk
        return leading, following

    def _prefill(self, part: list[int]) -> None:
        """Read prompts, but for what is known of them, and keep what was read."""
        trunks = [self._trunk(number) for number in part]
        rows = [self.cache.match(trunk.key, trunk.ids[:-1]) for trunk in trunks]
        known = [self.cache.read(each) for each in rows]
        adapters = [self.policies[trunk.key[0]].adapter for trunk in trunks]
        mask = self.decoder.adapter_mask(adapters)
        last, pairs = self.blocks.read(part, [trunk.ids for trunk in trunks], known, mask)
        places, picked, offset = [], [], 0
        for trunk, hidden, each in zip(trunks, last, rows, strict=True):
            trunk.last = hidden
            start, found = self.cache.add(trunk.key, trunk.ids, len(each))
            places.append(found)
            picked.append(np.arange(len(found)) + offset + start - len(each))
            offset += len(trunk.ids) - len(each)
        if sum(map(len, places)):
            at = torch.as_tensor(np.concatenate(picked), device=self.device)
            self.cache.write(np.concatenate(places), pairs[at])
        self.stats.read += offset
        self.stats.cached += sum(map(len, rows))
