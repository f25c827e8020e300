"""Turns -> samples -> packed tensors: the one place where tokens become tensors.

Turns of a rollout whose prompts continue one another become one *sample*, so that a conversation is
read once. Losses never see the padded grid: they work on flat columns `(N,)`, one entry per trained
token of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mrlm.core.types import Column, Turn


@dataclass(slots=True)
class Sample:
    """One sequence: turns of one rollout that continue one another. `starts[k]` is where turn `k`'s
    completion begins; `unit` is what packing keeps together, `rollout` tells which rollout of the
    batch it comes from."""

    ids: list[int]
    turns: list[Turn]
    starts: list[int]
    unit: int = 0
    rollout: int = 0


@dataclass(slots=True)
class Totals:
    """Counts over the whole optimiser batch, on every process: the denominators of a loss. Each
    micro-batch contributes its part, so that the sum does not depend on how the batch was cut."""

    tokens: int = 0
    sequences: int = 0
    turns: int = 0
    units: int = 0
    tokens_by_agent: dict[str, int] = field(default_factory=dict)
    seen: int = 0
    """Tokens that really go through the model: those of samples without any advantage may be left
    out. Metrics are means over these."""

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Totals:
        """Count what is trained on in `samples`."""
        totals, units = cls(), set()
        for sample in samples:
            totals.sequences += 1
            units.add(sample.unit)
            for turn in sample.turns:
                totals.turns += 1
                totals.tokens += len(turn)
                totals.tokens_by_agent[turn.agent] = totals.tokens_by_agent.get(
                    turn.agent, 0
                ) + len(turn)
        totals.units = len(units)
        totals.seen = totals.tokens
        return totals


@dataclass(slots=True)
class Batch:
    """A micro-batch: the grid `(B, T)` that a model reads, and columns of its N trained tokens.

    Args:
        input_ids, attention_mask, position_ids: (B, T).
        keep: (K,) columns of the grid whose outputs predict a trained token of some row.
        row, column: (N,) where in `(B, K)` the prediction of each trained token stands.
        tokens: (N,) the trained tokens.
        sequence, turn, rollout, unit, agent: (N,) which sample, turn, rollout, unit and agent a
            token belongs to; sequences and turns count from 0 within this micro-batch, rollouts and
            units within the optimiser batch; `agents[i]` is the name.
        temperature: (N,) what the logits were divided by when the token was drawn.
        behaviour_logprobs: (N,) log-probs under the distribution the token was drawn from.
        old_logprobs: (N,) log-probs at the start of the update.
        advantages, returns, values, ref_logprobs: (N,) credit columns; zeros where not asked for.
        turns: the turns, in order of `turn`.
        truncated_sampling: whether any token came from a cut distribution (top-p, top-k, min-p).
        totals: denominators over the whole optimiser batch.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    keep: Tensor
    row: Tensor
    column: Tensor
    tokens: Tensor
    sequence: Tensor
    turn: Tensor
    rollout: Tensor
    unit: Tensor
    agent: Tensor
    temperature: Tensor
    behaviour_logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    returns: Tensor
    values: Tensor
    ref_logprobs: Tensor
    turns: list[Turn]
    agents: list[str]
    truncated_sampling: bool
    totals: Totals

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_turns(self) -> int:
        return len(self.turns)

    def trained_token_ids(self) -> list[list[int]]:
        """The ids that are trained on, one list per turn."""
        return [list(turn.completion_ids) for turn in self.turns]


@dataclass(slots=True)
class Outputs:
    """What a policy says about the trained tokens of a batch: `logprobs`, `entropy` and `values`,
    each (N,). `entropy` carries a gradient only if the algorithm asked for it; `values` is `None`
    for a policy without a critic."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None = None


@dataclass(slots=True)
class Loss:
    """A scalar to minimise, and numbers to log. Each metric is this micro-batch's share: the shares
    of all micro-batches of an optimiser batch add up to the number."""

    total: Tensor
    metrics: dict[str, Tensor | float] = field(default_factory=dict)

    def backward(self) -> None:
        """Add the gradient of the loss to the parameters'."""
        self.total.backward()

    def item(self) -> float:
        """The loss as a number."""
        return float(self.total.detach())


def merge(turns: Sequence[Turn], unit: int = 0, rollout: int = 0) -> list[Sample]:
    """The turns of one rollout as the fewest samples: a turn whose prompt begins with everything so
    far continues the sample."""
    samples: list[Sample] = []
    for turn in turns:
        if not turn.trained or not turn.completion_ids:
            continue
        known = samples[-1].ids if samples else []
        if samples and turn.prompt_ids[: len(known)] == known:
            sample = samples[-1]
            sample.ids = [*turn.prompt_ids, *turn.completion_ids]
        else:
            sample = Sample([*turn.prompt_ids, *turn.completion_ids], [], [], unit, rollout)
            samples.append(sample)
        sample.turns.append(turn)
        sample.starts.append(len(turn.prompt_ids))
    return samples


def split(samples: Sequence[Sample], max_tokens: int, parts: int = 1) -> list[list[Sample]]:
    """Cut samples into micro-batches of similar length that hold at most `max_tokens` grid cells
    (one unit may exceed it) and number at least `parts`, never cutting a unit."""
    by_unit: dict[int, list[Sample]] = {}
    for sample in samples:
        by_unit.setdefault(sample.unit, []).append(sample)
    units = sorted(by_unit.values(), key=lambda unit: -max(len(sample.ids) for sample in unit))
    most = -(-len(units) // parts)
    batches: list[list[Sample]] = []
    longest = count = 0
    for unit in units:
        length = max(len(sample.ids) for sample in unit)
        rows = len(batches[-1]) + len(unit) if batches else 0
        if not batches or rows * max(longest, length) > max_tokens or count >= most:
            batches.append([])
            longest = count = 0
        batches[-1].extend(unit)
        longest, count = max(longest, length), count + 1
    return batches


def pack(
    samples: Sequence[Sample], totals: Totals | None = None, pad_id: int = 0, device: Any = "cpu"
) -> Batch:
    """Samples -> tensors. Rows are shifted so that their first trained tokens stand in one column:
    padding goes to either side and the model computes outputs for few columns. Padding is known by
    the mask, never by its id.

    Args:
        samples: what the micro-batch holds.
        totals: denominators of the whole optimiser batch; counted from `samples` when `None`.
        pad_id: any valid token id.
        device: where the tensors live.
    """
    first = max(sample.starts[0] for sample in samples)
    shifts = [first - sample.starts[0] for sample in samples]
    width = max(shift + len(sample.ids) for shift, sample in zip(shifts, samples, strict=True))
    ids = np.full((len(samples), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(samples), width), dtype=np.int64)
    positions = np.zeros((len(samples), width), dtype=np.int64)
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in _FLAT}
    turns: list[Turn] = []
    agents: dict[str, int] = {}
    for row, (sample, shift) in enumerate(zip(samples, shifts, strict=True)):
        length = len(sample.ids)
        ids[row, shift : shift + length] = sample.ids
        mask[row, shift : shift + length] = 1
        positions[row, shift : shift + length] = np.arange(length)
        for turn, start in zip(sample.turns, sample.starts, strict=True):
            count = len(turn)
            agent = agents.setdefault(turn.agent, len(agents))
            numbers = {
                "row": row,
                "turn": len(turns),
                "rollout": sample.rollout,
                "unit": sample.unit,
                "agent": agent,
            }
            for name, number in numbers.items():
                pieces[name].append(np.full(count, number, dtype=np.int64))
            pieces["at"].append(np.arange(shift + start - 1, shift + start - 1 + count))
            pieces["tokens"].append(np.asarray(turn.completion_ids, dtype=np.int64))
            pieces["temperature"].append(
                np.full(count, 1.0 if turn.sampling.greedy else turn.sampling.temperature)
            )
            old = turn.logprobs if turn.old_logprobs is None else turn.old_logprobs
            pieces["behaviour_logprobs"].append(
                as_column(old if turn.logprobs is None else turn.logprobs, count)
            )
            pieces["old_logprobs"].append(as_column(old, count))
            for name in ("advantages", "returns", "values", "ref_logprobs"):
                pieces[name].append(as_column(getattr(turn, name), count))
            turns.append(turn)
    flat = {name: np.concatenate(parts) for name, parts in pieces.items()}
    keep, column = np.unique(flat.pop("at"), return_inverse=True)
    tensors = {name: torch.as_tensor(array, device=device) for name, array in flat.items()}
    floats = {name: tensors.pop(name).float() for name in _FLOATS}
    return Batch(
        input_ids=torch.as_tensor(ids, device=device),
        attention_mask=torch.as_tensor(mask, device=device),
        position_ids=torch.as_tensor(positions, device=device),
        keep=torch.as_tensor(keep, device=device),
        column=torch.as_tensor(column, device=device),
        sequence=tensors["row"],
        turns=turns,
        agents=list(agents),
        truncated_sampling=any(turn.sampling.truncates for turn in turns),
        totals=totals or Totals.of(samples),
        **tensors,
        **floats,
    )


_FLOATS = (
    "temperature",
    "behaviour_logprobs",
    "old_logprobs",
    "advantages",
    "returns",
    "values",
    "ref_logprobs",
)
_FLAT = ("row", "at", "tokens", "turn", "rollout", "unit", "agent", *_FLOATS)


def as_column(value: Column | None, count: int) -> np.ndarray:
    """A credit column as `count` numbers: one number stands for all, `None` for zeros."""
    if value is None:
        return np.zeros(count)
    column = np.asarray(value, dtype=np.float64)
    return np.broadcast_to(column, (count,)) if column.ndim == 0 else column
