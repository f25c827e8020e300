"""Continuous batching on an accelerator: sampling is part of a step, a step is recorded as a graph,
and the host looks at the results of several steps at once, while the next ones run."""

from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mrlm.engines.lean.batch import REFILL, DecodingBatch
from mrlm.engines.lean.decoder import Decoder
from mrlm.engines.lean.fixed_blocks import FixedBlocks, bucket
from mrlm.engines.lean.kv_blocks import Blocks
from mrlm.engines.lean.low_rank import Adapted
from mrlm.engines.lean.memory import Fresh
from mrlm.engines.shared.transfer import Transfer, on
from mrlm.learn.policy.randomness import GENERATORS

CHUNK = 8
"""Steps between two looks at the results."""
BEFORE_GRAPH = 2
"""Steps of one form before it is recorded."""


class Graphs:
    """Recorded steps by their form. They are dropped when memory that they use has moved."""

    def __init__(self, decoder: Decoder, memory: Fresh) -> None:
        self.decoder, self.memory = decoder, memory
        self._graphs: dict[Hashable, Any] = {}
        self._seen: Counter[Hashable] = Counter()
        self._layout = (-1, -1)
        self._pool: Any = None
        self._stream: Any = None

    def run(self, form: Hashable, step: Callable[[], None]) -> None:
        """Run a step, or replay it if one of its form was recorded. On devices without graphs, it
        is always run."""
        if self.decoder.device.type != "cuda":
            step()
            return
        layout = self.decoder.layout, self.memory.layout
        if layout != self._layout:
            self.drop()
            self._layout = layout
        graph = self._graphs.get(form)
        if graph is None:
            self._seen[form] += 1
            if self._seen[form] <= BEFORE_GRAPH:
                step()
                return
            with GENERATORS.recording() as free:
                if free:
                    graph = self._graphs[form] = self._recorded(step)
            if graph is None:  # another thread records or draws; the next step may be free
                step()
                return
        graph.replay()

    def drop(self) -> None:
        """Forget all recorded steps."""
        self._graphs.clear()
        self._seen.clear()
        self._pool = None

    def _recorded(self, step: Callable[[], None]) -> Any:
        """Record a step. Other threads may allocate meanwhile, as a learner does."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        if self._stream is None:  # torch's own is on the device that was recorded on first
            self._stream = torch.cuda.Stream(self.decoder.device)
        graph, how = torch.cuda.CUDAGraph(), {"pool": self._pool, "stream": self._stream}
        with torch.cuda.graph(graph, **how, capture_error_mode="thread_local"):
            step()
        return graph


@dataclass(eq=False, repr=False)
class FixedBatch(DecodingBatch):
    """A batch whose steps are functions of memory at fixed addresses."""

    graphs: Graphs

    kind: ClassVar[type[Blocks]] = FixedBlocks
    moved: ClassVar[tuple[str, ...]] = (*DecodingBatch.moved, "hidden", "alive")

    @property
    def _columns(self) -> int:
        return bucket(self.width) + 1  # the last one takes what rows sample after their end

    @property
    def _extent(self) -> int:
        return min(bucket(self.rows), len(self.who))

    def _tensors(self, rows: int) -> None:
        super()._tensors(rows)
        self.alive: Tensor = self.memory.zeros("alive", rows, dtype=torch.bool)
        self.status: Tensor = self.memory.zeros("status", CHUNK + 2, rows, dtype=torch.int64)
        """A row of tokens for each step of a chunk, then the number of tokens of every row so far,
        and whether it runs."""
        self.slot: Tensor = self.memory.zeros("slot", 1, dtype=torch.int64)
        self.started: np.ndarray = np.zeros(rows, dtype=np.int64)
        """Steps of each row that were started."""
        self.most: np.ndarray = np.zeros(rows, dtype=np.int64)
        """Most tokens of each row."""
        self.looked: np.ndarray = np.zeros(rows, dtype=np.int64)
        """Tokens of each row that were looked at."""
        self.results: deque[Transfer] = deque()

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        with on(self.device):
            self._run()

    def _run(self) -> None:
        while self.queue or self.running:
            self._refill()
            left = (self.most - self.started)[self.who >= 0]
            if left.size and left.max() > 0:
                self._launch(min(CHUNK, int(left.max())))
                self._look(keep=1)
            else:
                self._look()

    def _refill(self) -> None:
        """Admit and drop rows."""
        ready = self.queue and (len(self.who) - self.running) * REFILL >= len(self.who)
        if ready and self.running != self._refused:
            self._look()
            self._admit(len(self.who) - self.running)
        elif self.running and not self.queue and bucket(self.running) < self._extent:
            self._look()
            if self.running:
                self._compact()

    def _launch(self, steps: int) -> None:
        """Start steps, and the copy of their results."""
        blocks: Any = self.blocks
        blocks.make_room(steps)
        self.slot.zero_()
        form = (*blocks.form, self._columns, *self._sampling)
        for _ in range(steps):
            self.graphs.run(form, self.step)
        self.blocks.column += steps
        self.started[self.who >= 0] += steps
        self.stats.steps += steps
        self.status[CHUNK].copy_(self.count)
        self.status[CHUNK + 1].copy_(self.alive)
        self.results.append(Transfer.of(self.status))

    def step(self) -> None:
        """One token of every row. Reads and writes memory at fixed addresses only, and never waits
        for the device."""
        n, last = self._extent, self._columns - 1
        count, alive = self.count[:n], self.alive[:n]
        numbers = self.uniforms[:n].gather(1, count[:, None])[:, 0]
        tokens, logprobs = self.columns.draw(self.decoder.logits(self.hidden[:n]), numbers)
        self.status[:, :n].index_copy_(0, self.slot, tokens[None])
        at = torch.where(alive, count, last)[:, None]
        self.tokens[:n].scatter_(1, at, tokens[:, None])
        self.logprobs[:n].scatter_(1, at, logprobs[:, None])
        count += alive
        ended = self.ends[self.policy[:n], tokens] | (count >= self.limit[:n])
        blocks: Any = self.blocks
        self.hidden[:n] = blocks.fixed_step(tokens, self.position[:n], self.adapters)
        self.position[:n] += alive
        alive &= ~ended
        self.slot += 1

    def _look(self, keep: int = 0) -> None:
        """Look at the results of all steps but the last `keep` chunks, and release the rows that
        have ended."""
        while len(self.results) > keep:
            numbers = self.results.popleft().read().numpy()
            done: dict[int, int] = {}
            for row in np.flatnonzero(self.who >= 0).tolist():
                now, before = int(numbers[CHUNK, row]), int(self.looked[row])
                self.looked[row] = now
                if row in self.watched:
                    now = self._judged(row, numbers[: now - before, row].tolist())
                if not numbers[CHUNK + 1, row] or self.drafts[self.who[row]].finish_reason:
                    done[row] = now
            if done:
                self._finish(list(done), list(done.values()))

    def _judged(self, row: int, tokens: list[int]) -> int:
        """Look for stop strings in new tokens of a row; returns its number of tokens."""
        draft = self.drafts[self.who[row]]
        for token in tokens:
            draft.token_ids.append(token)
            draft.judge()
            if draft.finish_reason:
                break
        return len(draft.token_ids)

    # -- admission and release ---------------------------------------------------------------------

    def _finish(self, rows: list[int], sizes: list[int]) -> None:
        super()._finish(rows, sizes)
        self.alive[self.decoder.index(rows)] = False  # those that a stop string has ended run on

    def _settle(self, slots: np.ndarray) -> None:
        super()._settle(slots)
        self.alive[self.decoder.index(slots)] = True
        self.started[slots] = self.looked[slots] = 0
        requests = [self.drafts[self.who[slot]].request for slot in slots]
        self.most[slots] = [request.sampling.max_new_tokens for request in requests]

    def _compact(self) -> Tensor:
        running_rows = np.flatnonzero(self.who[: self.rows] >= 0)
        for numbers in (self.started, self.most, self.looked):
            numbers[: len(running_rows)] = numbers[running_rows]
        self.alive[self.rows :] = False
        old_indices = super()._compact()
        self.alive[len(running_rows) :] = False
        return old_indices

    def _arrange(self) -> np.ndarray | None:
        owners = super()._arrange()
        self.adapters: Adapted | None = self.decoder.adapted(owners)
        self._sampling: tuple[Any, ...] = (
            *(len(self.who), len(self.names), self.columns.plain, self.columns.truncates),
            *(self.columns.greedy is None, self.adapters is None),
        )
        self.columns.keep(self._lasting)
        if isinstance(self.adapters, Tensor):  # a mask, on all accelerators
            self._sampling += (self.adapters.shape[1],)
            self.adapters = self._lasting("adapters", self.adapters)
        return owners

    def _lasting(self, name: str, numbers: Tensor | None) -> Tensor | None:
        """Numbers at a fixed address."""
        if numbers is None:
            return None
        return self.memory.take(name, *numbers.shape, dtype=numbers.dtype).copy_(numbers)
