"""What each of several processes computes of the samples that all of them hold, and how the others
learn of it. Which process computes something changes nothing but when it is known."""

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
    """A policy, as far as it matters to how samples are cut."""

    shards: Any

    @property
    def packed(self) -> bool:
        """Whether it reads trees of samples that begin alike."""
        ...


class HasModules(Protocol):
    """A policy or a critic."""

    def modules(self) -> Iterable[nn.Module]:
        """Everything of it that has weights."""
        ...


def parts(samples: Sequence[Sample], size: int, packed: bool) -> list[list[Sample]]:
    """The samples in `size` parts that cost about the same, units whole; a part may be empty.

    Args:
        samples: of one minibatch, or whatever is to be annotated.
        size: how many parts.
        packed: for a model that reads trees: samples that begin alike stay together, and count by
            what is new in them. Otherwise they count by their length.
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
    """An order cut into `size` stretches of about the same cost; the places of each in order."""
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
    """The micro-batches of this process. Where a model is cut over the processes all have the same
    number of them, the last ones empty.

    Args:
        policy: what reads them.
        peers: the processes.
        shared: the part of each process.
        max_tokens, least: those of `split`.
    """

    def cut(rank: int) -> list[list[Sample]]:
        return split(shared[rank], max_tokens, least, policy.packed)

    own = cut(peers.rank)
    if policy.shards is None:
        return own
    most = max(len(cut(rank)) for rank in range(peers.size))
    return own + [[] for _ in range(most - len(own))]


def nothing(batch: Batch, outputs: Outputs) -> Loss:
    """A loss that teaches nothing, of all that the outputs depend on."""
    total = (outputs.logprobs.sum() + outputs.entropy.sum()) * 0.0
    return Loss(total if outputs.values is None else total + outputs.values.sum() * 0.0)


def write_column(batch: Batch, name: str, numbers: Tensor) -> None:
    """Write a column on the turns of a batch.

    Args:
        batch: some samples.
        name: of the column.
        numbers: (N,) one for each trained token.
    """
    pieces = numbers.float().cpu().numpy()
    end = 0
    for turn in batch.turns:
        start, end = end, end + len(turn)
        setattr(turn, name, pieces[start:end])


def exchange_columns(
    peers: Peers, shared: Sequence[Sequence[Sample]], names: Sequence[str]
) -> None:
    """Write the columns on every turn that others have computed.

    Args:
        peers: the processes.
        shared: the part of each process; the turns of this one's have the columns.
        names: of columns, each one number per completion token.
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
    """Columns one after the other, as float32 (which is what models say)."""
    found = list(columns)  # type: ignore[call-overload]
    return np.concatenate(found).astype(np.float32) if found else np.zeros(0, np.float32)


def weights_of(policies: Sequence[HasModules], critics: Sequence[HasModules]) -> Iterator[Any]:
    """Everything that must be the same in all processes before a run begins: the tensors of
    policies, references, heads and critics, each once."""
    seen: set[int] = set()
    modules = [module for policy in policies for module in policy.modules()]
    modules += [module for critic in critics for module in critic.modules()]
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor
