"""The micro-batches of a rank, and exchange of columns between ranks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from torch import nn

from mrlm.core.process_group import Peers
from mrlm.core.types import Turn
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample, Totals, pack
from mrlm.learn.data.samples import parts, rounds
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy


class HasModules(Protocol):
    """A policy or a critic."""

    def modules(self) -> Iterable[nn.Module]: ...


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
