"""Data parallelism: the split of samples over ranks, and the exchange of computed columns. The
split never changes results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from mrlm.core.process_group import Peers, shares
from mrlm.core.types import Turn
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample, new_tokens, split, units_of


class ReadsSamples(Protocol):
    """The part of a policy that decides how samples are split."""

    shards: Any

    @property
    def packed(self) -> bool:
        """Whether it takes packed prefix trees instead of padded grids."""
        ...


class HasModules(Protocol):
    """A policy or a critic."""

    def modules(self) -> Iterable[nn.Module]:
        """All modules with weights."""
        ...


def parts(samples: Sequence[Sample], size: int, packed: bool) -> list[list[Sample]]:
    """Splits samples into `size` parts of about equal cost without splitting units; a part may be
    empty.

    Args:
        samples: of one minibatch, or those to annotate.
        size: number of parts.
        packed: for packed input: samples with a common prefix stay together and cost their new
            tokens. Otherwise a sample costs its length.
    """
    if size == 1:
        return [list(samples)]
    units = units_of(samples)
    if not packed:
        loads = [float(sum(len(sample.ids) for sample in unit)) for unit in units]
        places = shares(loads, size)
    else:
        order = sorted(range(len(units)), key=lambda place: units[place][0].ids)
        before = [None, *(np.asarray(units[place][-1].ids) for place in order)]
        costs = [new_tokens(units[place], last) for place, last in zip(order, before, strict=False)]
        places = _stretches(order, costs, size)
    return [[sample for place in chosen for sample in units[place]] for chosen in places]


def _stretches(order: Sequence[int], costs: Sequence[int], size: int) -> list[list[int]]:
    """Cuts an order into `size` contiguous runs of about equal cost; returns the sorted indices of
    each."""
    found: list[list[int]] = [[] for _ in range(size)]
    total = max(1, sum(costs))
    for place, cost, end in zip(order, costs, accumulate(costs), strict=True):
        middle = end - cost / 2
        found[min(size - 1, int(middle * size / total))].append(place)
    return [sorted(places) for places in found]


def rounds(
    policy: ReadsSamples,
    peers: Peers,
    shared: Sequence[Sequence[Sample]],
    max_tokens: int,
    least: int = 1,
) -> list[list[Sample]]:
    """The micro-batches of this rank. With a sharded model every rank has the same number, padded
    with empty ones.

    Args:
        policy: the model that computes them.
        peers: the process group.
        shared: the samples of each rank.
        max_tokens, least: as in `split`.
    """

    def cut(rank: int) -> list[list[Sample]]:
        return split(shared[rank], max_tokens, least, policy.packed)

    own = cut(peers.rank)
    if policy.shards is None:
        return own
    most = max(len(cut(rank)) for rank in range(peers.size))
    return own + [[] for _ in range(most - len(own))]


def nothing(batch: Batch, outputs: Outputs) -> Loss:
    """A zero loss connected to every output, so that all ranks run backward."""
    total = (outputs.logprobs.sum() + outputs.entropy.sum()) * 0.0
    return Loss(total if outputs.values is None else total + outputs.values.sum() * 0.0)


def write_column(batch: Batch, name: str, numbers: Tensor) -> None:
    """Writes a column to the turns of a batch.

    Args:
        batch: a micro-batch.
        name: of the column.
        numbers: (N,) one per trained token.
    """
    pieces = numbers.float().cpu().numpy()
    end = 0
    for turn in batch.turns:
        start, end = end, end + len(turn)
        setattr(turn, name, pieces[start:end])


def exchange_columns(
    peers: Peers, shared: Sequence[Sequence[Sample]], names: Sequence[str]
) -> None:
    """Exchanges columns between ranks, so that every turn has those computed elsewhere.

    Args:
        peers: the process group.
        shared: the samples of each rank; the turns of this rank's have the columns.
        names: columns with one number per completion token.
    """
    if peers.size == 1:
        return

    def turns_of(rank: int) -> list[Turn]:
        return [turn for sample in shared[rank] for turn in sample.turns]

    own = {name: flat(getattr(turn, name) for turn in turns_of(peers.rank)) for name in names}
    for rank, table in enumerate(peers.gather(own)):
        if rank == peers.rank:
            continue
        for name, numbers in table.items():
            end = 0
            for turn in turns_of(rank):
                start, end = end, end + len(turn)
                setattr(turn, name, numbers[start:end])


def flat(columns: object) -> np.ndarray:
    """Concatenates columns as float32, the type of model outputs."""
    found = list(columns)  # type: ignore[call-overload]
    return np.concatenate(found).astype(np.float32) if found else np.zeros(0, np.float32)


def weights_of(policies: Sequence[HasModules], critics: Sequence[HasModules]) -> Iterator[Any]:
    """Tensors that must be equal on all ranks before training: those of policies, references, heads
    and critics, each once."""
    seen: set[int] = set()
    modules = [module for policy in policies for module in policy.modules()]
    modules += [module for critic in critics for module in critic.modules()]
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor
