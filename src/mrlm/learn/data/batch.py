"""Turns -> samples -> packed tensors: the only module that turns token ids into tensors.

Turns of a rollout whose prompts extend one another are merged into one *sample*, so that a
conversation is computed once. Losses never see the padded grid: they work on flat columns `(N,)`,
one entry per trained token of the micro-batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from types import NoneType
from typing import Any, cast

import numpy as np
from torch import Tensor

from mrlm.core.types import COLUMNS, Column, Turn
from mrlm.learn.data.sample import Sample, Totals
from mrlm.learn.fast.lm_head import Distributions, TopTokens
from mrlm.learn.fast.prefix_tree import PrefixTree, plant, ranges, to_device


@dataclass(slots=True)
class Grid:
    """Samples as the rows of a padded grid, for models that take rectangular input.

    Args:
        input_ids, attention_mask, position_ids: (B, T). Rows are shifted so that their first
            trained tokens share a column: both sides are padded and logits are computed for few
            columns. The mask marks padding, never the token id.
        keep: (K,) columns whose outputs predict a trained token of some row.
        column: (N,) index into `keep` of the column that predicts each trained token.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    keep: Tensor
    column: Tensor


@dataclass
class Batch:
    """A micro-batch: samples and flat columns over their N trained tokens. A model reads the
    samples as a `grid` or as a `tree`; each is built on first use.

    Args:
        pad_id: token id that pads the grid.
        sequence, turn, rollout, unit, agent: (N,) index of the sample, turn, rollout, unit and
            agent of a token; sequences and turns count from 0 within this micro-batch, rollouts and
            units within the optimiser batch; `agents[i]` is the name.
        place: (N,) index in its sample of the position that predicts the token.
        tokens: (N,) the trained tokens.
        temperature: (N,) sampling temperature of the token.
        behaviour_logprobs: (N,) log-probs under the sampling distribution.
        old_logprobs: (N,) log-probs at the start of the update.
        advantages, returns, values, ref_logprobs: (N,) credit columns; zeros where not computed.
        turns: the turns, in order of `turn`.
        totals: denominators over the whole optimiser batch.
        host: (N,) columns in `HOST` as arrays of the host, so that it need not wait for a device.
        reference: distributions of the reference at the trained tokens, if the loss compares them.
    """

    samples: list[Sample]
    pad_id: int
    sequence: Tensor
    turn: Tensor
    rollout: Tensor
    unit: Tensor
    agent: Tensor
    place: Tensor
    tokens: Tensor
    temperature: Tensor
    behaviour_logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    returns: Tensor
    values: Tensor
    ref_logprobs: Tensor
    turns: list[Turn]
    agents: list[str]
    totals: Totals
    host: dict[str, np.ndarray]
    reference: Distributions | TopTokens | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_sequences(self) -> int:
        return len(self.samples)

    @property
    def num_turns(self) -> int:
        return len(self.turns)

    def of_rollout(self, which: int) -> list[float]:
        """For each turn the tokens (`which` is 0) or turns (1) of its whole rollout."""
        counts = self.totals.by_rollout
        return [float(counts[s.rollout][which]) for s in self.samples for _ in s.turns]

    @cached_property
    def whole(self) -> tuple[Tensor, int]:
        """(N,) index of a token's rollout among those of this micro-batch, and their number."""
        names, index = np.unique(self.host["rollout"], return_inverse=True)
        return to_device(index, self.tokens.device), len(names)

    @cached_property
    def grid(self) -> Grid:
        """The samples as a grid padded on both sides."""
        first = max(sample.starts[0] for sample in self.samples)
        return self._grid(np.array([first - sample.starts[0] for sample in self.samples]))

    @cached_property
    def right_padded(self) -> Grid:
        """The samples as a right-padded grid, for models that take no attention mask."""
        return self._grid(np.zeros(len(self.samples), dtype=np.int64))

    def _grid(self, shifts: np.ndarray) -> Grid:
        """The samples as rows shifted to the right by `shifts`."""
        width = max(int(s) + len(x.ids) for s, x in zip(shifts, self.samples, strict=True))
        ids = np.full((len(self.samples), width), self.pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        positions = np.zeros_like(ids)
        for row, (sample, shift) in enumerate(zip(self.samples, shifts, strict=True)):
            here = slice(shift, shift + len(sample.ids))
            ids[row, here] = sample.ids
            mask[row, here] = 1
            positions[row, here] = np.arange(len(sample.ids))
        at = self.host["place"] + shifts[self.host["sequence"]]
        keep, column = np.unique(at, return_inverse=True)
        device = self.tokens.device
        return Grid(*(to_device(x, device) for x in (ids, mask, positions, keep, column)))

    @cached_property
    def tree(self) -> PrefixTree:
        """The samples packed without padding, with each shared prefix stored once."""
        ids = [sample.ids for sample in self.samples]
        return plant(ids, self.host["sequence"], self.host["place"], self.tokens.device)

    @cached_property
    def as_taught(self) -> "Batch":
        """The same tokens after the prompts of a teacher that reads more than the policy."""
        if all(turn.teacher_ids is None for turn in self.turns):
            return self
        samples: list[Sample] = []
        for sample in self.samples:
            turns = [
                turn if turn.teacher_ids is None else replace(turn, prompt_ids=turn.teacher_ids)
                for turn in sample.turns
            ]
            samples += merge(turns, sample.unit, sample.rollout)
        return pack(samples, self.totals, self.pad_id, self.tokens.device)

    @property
    def divisors(self) -> Tensor | None:
        """The temperatures, if one of them is not 1."""
        return None if bool((self.host["temperature"] == 1.0).all()) else self.temperature

    def parts(self, size: int) -> "Iterator[tuple[slice, Batch]]":
        """Splits the batch into parts of about `size` trained tokens without splitting units;
        yields the token slice and the part. The losses of the parts sum to that of the batch."""
        ends = np.flatnonzero(np.diff(self.host["unit"], append=-1)) + 1
        start = 0
        for end, after in zip(ends, [*ends[1:], None], strict=True):
            if after is None or after - start > size:
                yield slice(start, int(end)), self._part(start, int(end))
                start = int(end)

    def _part(self, start: int, end: int) -> "Batch":
        if (start, end) == (0, len(self)):
            return self
        here = slice(start, end)
        columns: dict[str, Any] = {name: getattr(self, name)[here] for name in _COLUMNS}
        host = {name: column[here] for name, column in self.host.items()}
        (first, last), (opening, closing) = (
            (int(host[name][0]), int(host[name][-1]) + 1) for name in ("sequence", "turn")
        )
        for name, begin in (("sequence", first), ("turn", opening)):
            columns[name] = columns[name] - begin
            host[name] = host[name] - begin
        columns |= {"turns": self.turns[opening:closing], "samples": self.samples[first:last]}
        reference = None if self.reference is None else self.reference[here]
        return replace(self, host=host, reference=reference, **columns)

    def trained_token_ids(self) -> list[list[int]]:
        """The trained token ids, one list per turn."""
        return [list(turn.completion_ids) for turn in self.turns]


@dataclass(slots=True)
class Outputs:
    """A policy's outputs for the N trained tokens of a batch: `logprobs`, `entropy` (in nats, at
    the sampling temperature) and `values`, each (N,). `entropy` has a gradient only if the
    algorithm requests it; `values` is `None` for a policy without a value head. `distributions` are
    those over the whole vocabulary, with a gradient, for losses that compare them."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None
    distributions: Distributions | None = None


PART = "loss"
"""Name in `Loss.tokens` of the parts (N,) of the loss, which add up to it."""


@dataclass(slots=True)
class Loss:
    """A loss and metrics to log.

    Args:
        total: the loss of this micro-batch, a scalar; those of an optimiser batch add up.
        metrics: name -> this micro-batch's share of the metric over the optimiser batch.
        tokens: name -> numbers (N,) of each trained token, which are logged by agent: their means,
            or for `PART` their sum, the agent's part of the loss.
    """

    total: Tensor
    metrics: dict[str, Tensor | float] = field(default_factory=dict)
    tokens: dict[str, Tensor] = field(default_factory=dict)

    def backward(self) -> None:
        """Backpropagates the loss."""
        self.total.backward()

    def item(self) -> float:
        """The loss as a number."""
        return float(self.total.detach())


def merge(turns: Sequence[Turn], unit: int = 0, rollout: int = 0) -> list[Sample]:
    """Merges turns of one rollout into samples: a turn extends one that its prompt starts with."""
    samples: list[Sample] = []
    for turn in turns:
        if not turn.trained or not turn.completion_ids:
            continue
        history = samples[-1].ids if samples else []
        if samples and turn.prompt_ids[: len(history)] == history:
            sample = samples[-1]
            sample.ids = [*turn.prompt_ids, *turn.completion_ids]
        else:
            sample = Sample([*turn.prompt_ids, *turn.completion_ids], [], [], unit, rollout)
            samples.append(sample)
        sample.turns.append(turn)
        sample.starts.append(len(turn.prompt_ids))
    return samples


def pack(
    samples: Sequence[Sample], totals: Totals | None = None, pad_id: int = 0, device: Any = "cpu"
) -> Batch:
    """Packs samples of a micro-batch into a batch. `totals` are the denominators of the whole
    optimiser batch, counted from `samples` by default; `pad_id` is any valid token id."""
    turns = [turn for sample in samples for turn in sample.turns]
    starts = [start - 1 for sample in samples for start in sample.starts]
    roles = [turn.role for turn in turns]
    agents = {name: number for number, name in enumerate(dict.fromkeys(roles))}
    counts = np.array([len(turn.completion_ids) for turn in turns], dtype=np.int64)
    per_turn: dict[str, Sequence[float]] = {
        "sequence": [row for row, sample in enumerate(samples) for _ in sample.turns],
        "turn": range(len(turns)),
        "rollout": [sample.rollout for sample in samples for _ in sample.turns],
        "unit": [sample.unit for sample in samples for _ in sample.turns],
        "agent": [agents[role] for role in roles],
        "temperature": [1.0 if t.sampling.greedy else t.sampling.temperature for t in turns],
    }
    columns: dict[str, list[Column | None]] = {
        "behaviour_logprobs": [t.old_logprobs if t.logprobs is None else t.logprobs for t in turns],
        "old_logprobs": [t.logprobs if t.old_logprobs is None else t.old_logprobs for t in turns],
    }
    columns |= {n: [getattr(t, n) for t in turns] for n in COLUMNS if n in _FLOATS[3:]}
    flat = {name: np.repeat(np.asarray(column), counts) for name, column in per_turn.items()}
    flat |= {name: joined(column, counts) for name, column in columns.items()}
    flat["place"] = ranges(starts, counts)
    flat["tokens"] = np.array([*chain.from_iterable(t.completion_ids for t in turns)], np.int64)
    tensors = {name: to_device(array, device) for name, array in flat.items()}
    floats = {name: tensors.pop(name).float() for name in _FLOATS}
    return Batch(
        samples=list(samples),
        pad_id=pad_id,
        turns=turns,
        agents=list(agents),
        totals=totals or Totals.of(samples),
        host={name: flat[name] for name in HOST},
        reference=None,
        **tensors,
        **floats,
    )


_COLUMNS = tuple(f.name for f in fields(Batch) if f.type is Tensor)
_FLOATS = _COLUMNS[_COLUMNS.index("temperature") :]
HOST = ("sequence", "turn", "rollout", "unit", "agent", "place", "temperature")


def joined(columns: Sequence[Column | None], counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """`as_column` of the turns of a batch, one after the other, with `counts` tokens each."""
    kinds = {type(column) for column in columns}
    if kinds == {NoneType}:
        return np.zeros(np.sum(counts))
    if kinds == {float}:
        return np.repeat(np.array(columns, dtype=np.float64), counts)
    if kinds == {list}:
        lists = cast("Sequence[list[float]]", columns)
        return np.array([*chain.from_iterable(lists)], dtype=np.float64)
    return np.concatenate([as_column(*pair) for pair in zip(columns, counts, strict=True)])


def as_column(value: Column | None, count: int) -> np.ndarray:
    """A credit column as `count` numbers: a scalar is repeated, `None` gives zeros."""
    if value is None:
        return np.zeros(count)
    column = np.asarray(value, dtype=np.float64)
    return np.full(count, column) if column.ndim == 0 else column
