"""The split of samples over ranks, which never changes results, and exchange of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from torch import nn

from mrlm.core.process_group import Peers, shares
from mrlm.core.types import Turn
from mrlm.learn.data.batch import (
    Batch,
    Loss,
    Outputs,
    Sample,
    Totals,
    new_tokens,
    pack,
    split,
    units_of,
)
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy


class HasModules(Protocol):
    """A policy or a critic."""

    def modules(self) -> Iterable[nn.Module]: ...


def parts(samples: Sequence[Sample], size: int, packed: bool) -> list[list[Sample]]:
    """Splits samples into `size` parts of about equal cost without splitting units; some may be
    empty. With `packed`, shared prefixes stay together and cost once."""
    if size == 1:
        return [list(samples)]
    units = units_of(samples)
    if not packed:
        loads = [float(sum(len(sample.ids) for sample in unit)) for unit in units]
        places = shares(loads, size)
    else:
        order = sorted(range(len(units)), key=lambda index: units[index][0].ids)
        before = [[], *(units[index][-1].ids for index in order)]
        costs = [new_tokens(units[index], last) for index, last in zip(order, before, strict=False)]
        places = _stretches(order, costs, size)
    return [[sample for index in chosen for sample in units[index]] for chosen in places]


def _stretches(order: Sequence[int], costs: Sequence[int], size: int) -> list[list[int]]:
    """Cuts an order into `size` contiguous runs of about equal cost, as sorted indices."""
    runs: list[list[int]] = [[] for _ in range(size)]
    total = max(1, sum(costs))
    for index, cost, end in zip(order, costs, accumulate(costs), strict=True):
        middle = end - cost / 2
        runs[min(size - 1, int(middle * size / total))].append(index)
    return [sorted(places) for places in runs]


def rounds(
    policy: Policy,
    peers: Peers,
    shared: Sequence[Sequence[Sample]],
    max_tokens: int,
    least: int = 1,
) -> list[list[Sample]]:
    """The micro-batches of this rank, from the samples of each rank; limits as in `split`. With a
    sharded model every rank has the same number, padded with empty ones."""
    batches = split(shared[peers.rank], max_tokens, least, policy.packed)
    if not policy.storage.sharded:
        return batches
    most = max(len(split(part, max_tokens, least, policy.packed)) for part in shared)
    return batches + [[] for _ in range(most - len(batches))]


def micro_batches(
    policy: Policy,
    settings: LearnerSettings,
    samples: Sequence[Sample],
    totals: Totals | None = None,
    least: int = 1,
) -> Iterator[tuple[Batch, bool, bool]]:
    """The packed micro-batches of this rank; whether each has data of its own (a sharded model
    needs equally many per rank, so that some reuse a sample); and whether it is the last."""
    shared = parts(samples, settings.peers.size, policy.packed)
    micros = rounds(policy, settings.peers, shared, settings.max_tokens, least)
    for number, micro in enumerate(micros, 1):
        batch = pack(micro or samples[:1], totals, policy.pad_id, policy.device)
        yield batch, bool(micro), number == len(micros)


def nothing(batch: Batch, outputs: Outputs) -> Loss:
    """A zero loss connected to every output, so that all ranks run backward."""
    total = (outputs.logprobs.sum() + outputs.entropy.sum()) * 0.0
    return Loss(total if outputs.values is None else total + outputs.values.sum() * 0.0)


def write_column(turns: Iterable[Turn], name: str, numbers: np.ndarray) -> None:
    """Writes a column (N,), one number per trained token, to turns."""
    end = 0
    for turn in turns:
        start, end = end, end + len(turn)
        setattr(turn, name, numbers[start:end])


def exchange_columns(
    peers: Peers, shared: Sequence[Sequence[Sample]], names: Sequence[str]
) -> None:
    """Exchanges columns with one number per completion token between ranks, from the samples of
    each, so that every turn has those computed elsewhere."""
    if peers.size == 1:
        return

    def turns_of(rank: int) -> list[Turn]:
        return [turn for sample in shared[rank] for turn in sample.turns]

    columns = {name: flat(getattr(turn, name) for turn in turns_of(peers.rank)) for name in names}
    for rank, table in enumerate(peers.from_all(columns)):
        for name, numbers in table.items() if rank != peers.rank else ():
            write_column(turns_of(rank), name, numbers)


def flat(columns: object) -> np.ndarray:
    """Concatenates columns as float32, the type of model outputs."""
    arrays = list(columns)  # type: ignore[call-overload]
    return np.concatenate(arrays).astype(np.float32) if arrays else np.zeros(0, np.float32)


def weights_of(policies: Sequence[HasModules], critics: Sequence[HasModules]) -> Iterator[Any]:
    """The tensors of policies and critics, each once: equal on all ranks before training."""
    seen: set[int] = set()
    for module in (module for owner in (*policies, *critics) for module in owner.modules()):
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor
