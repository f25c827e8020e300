"""Continuous batching in one call of the lean engine: shared prompts are stored once, and finished
rows are replaced by waiting ones."""

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.decoder import Decoder
from mrlm.engines.lean.kv_blocks import Blocks
from mrlm.engines.lean.memory import Fresh
from mrlm.engines.lean.places import Places, key_of
from mrlm.engines.lean.prefix_cache import PrefixCache
from mrlm.engines.shared.sampling import Columns, Draft, uniforms_of
from mrlm.learn.fast.double import double_dtype
from mrlm.learn.fast.prefix_tree import to_device
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

COMPACT = 0.75
"""Finished rows are dropped when at most this share is still running and no request waits."""
REFILL = 8
"""Waiting rows are admitted when one row in this many is free."""
PREFILL = 8192
"""Prompt tokens that are prefilled at once, padding included."""
WORTH = 16
"""Completions shorter than this are not cached: prefilling them again costs less."""


@dataclass(slots=True)
class Stats:
    """Token counts of the engine so far."""

    prompt: int = 0
    """Tokens of the prompts of all requests."""
    shared: int = 0
    """Of these, run through the model once for several requests of one call."""
    cached: int = 0
    """Of these, found in the prefix cache."""
    read: int = 0
    """Of these, run through the model."""
    steps: int = 0
    """Decode steps."""


@dataclass(slots=True, eq=False)
class _Prefix:
    key: tuple[Any, ...]
    ids: np.ndarray
    last: Tensor | None = None


@dataclass(eq=False, repr=False)
class DecodingBatch:
    """The running and the waiting rows of one call, of which `batch_size` run at once; the policies
    share the decoder's base."""

    decoder: Decoder
    cache: PrefixCache
    policies: Mapping[str, Policy]
    requests: Sequence[Request]
    batch_size: int
    stats: Stats
    memory: Fresh
    budget: int
    """Bytes that keys and values may take; rows wait for a place in them."""

    kind: ClassVar[type[Blocks]] = Blocks
    moved: ClassVar[tuple[str, ...]] = (
        *("position", "count", "limit", "policy", "uniforms", "tokens", "logprobs"),
    )

    def __post_init__(self) -> None:
        requests = self.requests
        self.device: torch.device = self.decoder.device
        self.names: list[str] = sorted({request.policy for request in requests})
        chosen = {name: self.policies[name] for name in self.names}
        self.ends_of: dict[str, frozenset[int]] = {
            n: policy.eos_ids for n, policy in chosen.items()
        }
        self.drafts: list[Draft] = [
            Draft(request, chosen[request.policy], self.ends_of[request.policy])
            for request in requests
        ]
        self.stats.prompt += sum(len(request.prompt_ids) for request in requests)
        keys = [(len(item.prompt_ids), item.policy, item.prompt_ids) for item in requests]
        self.queue: deque[int] = deque(sorted(range(len(requests)), key=keys.__getitem__))
        self.width: int = max(request.sampling.max_new_tokens for request in requests)
        self.places: Places = Places(self.decoder, self.width, self.budget)
        self._start()

    def _start(self) -> None:
        """Open blocks for as many of the waiting rows as fit into the memory."""
        waiting = itertools.islice(self.queue, self.batch_size)
        rows = self.places.fitting([self.drafts[index].request for index in waiting])
        self.blocks = self.kind(self.decoder, rows, self.width, self.memory)
        self.who: np.ndarray = np.full(rows, -1)  # draft of each row, -1 for none
        self.prefix_of: np.ndarray = np.zeros(rows, dtype=np.int64)
        self.prefixes: list[_Prefix | None] = []
        self.rows = self.running = 0
        self._refused = -1
        """Number of running rows when there was no memory for another."""
        self._tensors(rows)

    def _tensors(self, rows: int) -> None:
        zeros, anatomy = partial(self.memory.zeros, dtype=torch.int64), self.decoder.anatomy
        wide, vocabulary = self._columns, len(anatomy.head)
        self.hidden: Tensor = zeros("hidden", rows, anatomy.hidden, dtype=self.decoder.stream)
        self.position, self.count = zeros("position", rows), zeros("count", rows)
        self.limit, self.policy = zeros("limit", rows), zeros("policy", rows)
        widest = double_dtype(self.memory.device)
        self.uniforms: Tensor = zeros("uniforms", rows, wide, dtype=widest)
        self.tokens: Tensor = zeros("tokens", rows, wide)
        self.logprobs: Tensor = zeros("logprobs", rows, wide, dtype=torch.float32)
        self.ends: Tensor = zeros("ends", len(self.names), vocabulary, dtype=torch.bool)
        for number, name in enumerate(self.names):
            ends = [id for id in self.ends_of[name] if id < self.ends.shape[1]]
            self.ends[number, self.decoder.index(ends)] = True

    @property
    def _columns(self) -> int:
        """Tokens of a row that have a place."""
        return self.width

    @property
    def _extent(self) -> int:
        """Rows of a step."""
        return self.rows

    def _admitted(self, free: int) -> list[int]:
        """Take requests from the queue, as many as there are free rows and memory for their
        prompts."""
        prompts: dict[Any, int] = {(t.key, t.ids.tobytes()): len(t.ids) for t in self.prefixes if t}
        waiting = [self.drafts[index].request for index in itertools.islice(self.queue, free)]
        count = self.places.admitted(waiting, len(self.who), prompts, len(self.prefixes))
        return [self.queue.popleft() for _ in range(count)]

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Decode until all requests are finished."""
        while self.queue or self.running:
            free = len(self.who) - self.running
            ready = self.queue and free * REFILL >= len(self.who)
            if ready and self.running != self._refused:
                self._admit(free)
            tokens = self._draw()
            if self.running and not self.queue and self.running <= COMPACT * self.rows:
                tokens = tokens[self._compact()]
            if self.running:
                n = self.rows
                self.hidden[:n] = self.blocks.step(tokens, self.position[:n])
                self.position[:n] += 1
                self.stats.steps += 1

    def _draw(self) -> Tensor:
        """Sample the next token of every row, and release the rows that end with it."""
        n, count = self.rows, self.count[: self.rows, None]
        logits = self.decoder.logits(self.hidden[:n])
        tokens, logprobs = self.columns.draw(logits, self.uniforms[:n].gather(1, count)[:, 0])
        self.tokens[:n].scatter_(1, count, tokens[:, None])
        self.logprobs[:n].scatter_(1, count, logprobs[:, None])
        count += 1
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
            rows = sorted(done)
            sizes = self.blocks.column - self.blocks.since[rows] + 1
            self._finish(rows, sizes.tolist())
        return tokens

    def _finish(self, rows: list[int], sizes: list[int]) -> None:
        """Release rows after so many tokens."""
        at = self.decoder.index(rows)
        drawn, scores = self.tokens[at].tolist(), self.logprobs[at].tolist()
        for row, size, ids, logprobs in zip(rows, sizes, drawn, scores, strict=True):
            draft = self.drafts[self.who[row]]
            draft.token_ids, draft.logprobs = ids[:size], logprobs[:size]
            if draft.finish_reason is None:
                draft.judge()
        self._keep(rows)
        self.who[rows] = -1
        self.running -= len(rows)
        self.watched = [row for row in self.watched if self.who[row] >= 0]

    def _keep(self, rows: list[int]) -> None:
        """Cache the keys and values of finished rows; the last token was never read."""
        places, at, columns = [], [], []
        for row in rows:
            draft = self.drafts[self.who[row]]
            if len(draft.token_ids) <= WORTH:
                continue
            prefix = self._prefix(int(self.prefix_of[row]))
            ids = np.concatenate([prefix.ids, np.array(draft.token_ids[:-1])])
            cached, cache_rows = self.cache.add(prefix.key, ids, len(prefix.ids))
            start = int(self.blocks.since[row]) + cached - len(prefix.ids)
            places.append(cache_rows)
            at.append(np.full(len(cache_rows), row))
            columns.append(np.arange(start, start + len(cache_rows)))
        self.cache.copy(places, at, columns, self.blocks.gather)

    # -- admission and release ---------------------------------------------------------------------

    def _admit(self, free: int) -> None:
        """Admit waiting requests; prompts that are not in the batch yet are prefilled first."""
        if not self.running:
            self.blocks.start()
        self._drop_prefixes()
        chosen = self._admitted(free)
        if not chosen and self.running:  # until one ends
            self._refused = self.running
            self._arrange()
            return
        self._refused = -1
        if not chosen:  # fewer rows, with more memory for longer prompts
            self._start()
            chosen = self._admitted(len(self.who))
        slots = np.flatnonzero(self.who < 0)[: len(chosen)]
        places = {(t.key, t.ids.tobytes()): i for i, t in enumerate(self.prefixes) if t}
        fresh: list[int] = []
        for slot, index in zip(slots, chosen, strict=True):
            request = self.drafts[index].request
            ids = np.array(request.prompt_ids, dtype=np.int64)
            key = (key_of(request), ids.tobytes())
            if key not in places:
                places[key] = self._vacant()
                self.prefixes[places[key]] = _Prefix(key[0], ids)
                fresh.append(places[key])
            else:
                self.stats.shared += len(ids)
            self.who[slot], self.prefix_of[slot] = index, places[key]
        self._read(fresh)
        self.running += len(chosen)
        self.rows = int(np.flatnonzero(self.who >= 0).max()) + 1
        self._settle(slots)
        self._arrange()

    def _settle(self, slots: np.ndarray) -> None:
        at = self.decoder.index(slots)
        requests = [self.drafts[self.who[slot]].request for slot in slots]

        self.blocks.begin(slots, self.prefix_of[slots])
        used, prefix_index = np.unique(self.prefix_of[slots], return_inverse=True)
        last = [self._prefix(number).last for number in used.tolist()]
        states = torch.stack([state for state in last if state is not None])
        self.hidden[at] = states[self.decoder.index(prefix_index)]
        lengths = [len(request.prompt_ids) for request in requests]
        limits = [request.sampling.max_new_tokens for request in requests]
        numbers = np.array([lengths, limits, [self.names.index(x.policy) for x in requests]])
        self.position[at], self.limit[at], self.policy[at] = self.decoder.index(numbers)
        self.count[at] = 0
        uniforms = uniforms_of(requests, self._columns)
        self.uniforms[at] = to_device(uniforms, self.device)

    def _compact(self) -> Tensor:
        """Move the running rows to the front; returns their old indices."""
        running_rows = np.flatnonzero(self.who[: self.rows] >= 0)
        at, n = self.decoder.index(running_rows), len(running_rows)
        for name in self.moved:
            column = getattr(self, name)
            column[:n] = column[at]
        self.blocks.compact(running_rows)
        self.who[:n], self.prefix_of[:n] = self.who[running_rows], self.prefix_of[running_rows]
        self.who[n:] = -1
        self.rows: int = n
        self._drop_prefixes()
        self._arrange()
        return at

    def _drop_prefixes(self) -> None:
        """Release shared prompts without rows; the others are compacted if they are few."""
        used = np.unique(self.prefix_of[self.who >= 0])
        used_numbers = set(used.tolist())
        self.prefixes = [t if i in used_numbers else None for i, t in enumerate(self.prefixes)]
        if len(used) <= COMPACT * len(self.prefixes):
            self.blocks.prompts.keep(used)
            self.prefixes = [self.prefixes[i] for i in used]
            self.prefix_of = np.searchsorted(used, self.prefix_of).clip(max=max(len(used) - 1, 0))

    def _vacant(self) -> int:
        if None in self.prefixes:
            return self.prefixes.index(None)
        self.prefixes.append(None)
        return len(self.prefixes) - 1

    def _prefix(self, number: int) -> _Prefix:
        prefix = self.prefixes[number]
        assert prefix is not None
        return prefix

    def _arrange(self) -> np.ndarray | None:
        """Update the indices that depend on the assignment of rows; returns the adapters of the
        rows as `Decoder.owners` does."""
        n = self._extent
        drafts = [self.drafts[max(index, 0)] for index in self.who[:n]]
        running = self.who[:n] >= 0
        self.columns: Columns = Columns([draft.request.sampling for draft in drafts], self.device)
        self.watched: list[int] = [
            row for row, draft in enumerate(drafts) if running[row] and draft.request.sampling.stop
        ]
        owners = self.decoder.owners([draft.policy.adapter for draft in drafts])
        lengths = np.array([len(prefix.ids) if prefix else 0 for prefix in self.prefixes])
        self.blocks.arrange(self.prefix_of[:n], lengths, running, owners)
        return owners

    # -- prefill -----------------------------------------------------------------------------------

    def _read(self, fresh: list[int]) -> None:
        """Prefill new prompts, as many at once as fit."""
        part: list[int] = []
        for number in sorted(fresh, key=lambda i: len(self._prefix(i).ids)):
            if part and len(self._prefix(number).ids) * (len(part) + 1) > PREFILL:
                self._prefill(part)
                part = []
            part.append(number)
        if part:
            self._prefill(part)

    def _prefill(self, part: list[int]) -> None:
        """Prefill prompts except for their cached prefixes, and cache the result."""
        prefixes = [self._prefix(number) for number in part]
        kinds = {key: at for at, key in enumerate(sorted({t.key for t in prefixes}, key=str))}
        part = sorted(part, key=lambda i: (kinds[self._prefix(i).key], _order(self._prefix(i).ids)))
        prefixes = [self._prefix(number) for number in part]
        rows = [self.cache.match(prefix.key, prefix.ids[:-1]) for prefix in prefixes]
        adapters = [self.policies[prefix.key[0]].adapter for prefix in prefixes]
        owners = self.decoder.owners(adapters)
        texts = [prefix.ids for prefix in prefixes]
        kind = np.array([kinds[prefix.key] for prefix in prefixes])
        last, read = self.blocks.prompts.read(part, texts, kind, rows, self.cache.pool, owners)
        places, numbers, columns = [], [], []
        for number, prefix, state, cached_rows in zip(part, prefixes, last, rows, strict=True):
            prefix.last = state
            start, cache_rows = self.cache.add(prefix.key, prefix.ids, len(cached_rows))
            places.append(cache_rows)
            numbers.append(np.full(len(cache_rows), number))
            columns.append(np.arange(start, start + len(cache_rows)))
        self.cache.copy(places, numbers, columns, self.blocks.prompts.gather)
        self.stats.read += read
        self.stats.shared += sum(map(len, texts)) - sum(map(len, rows)) - read
        self.stats.cached += sum(map(len, rows))


def _order(ids: np.ndarray) -> bytes:
    """Sorts texts so that those that begin alike are neighbours."""
    return ids.byteswap().tobytes()
