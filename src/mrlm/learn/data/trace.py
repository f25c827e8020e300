"""Columns that an update computes for turns that are recorded with their tokens."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mrlm.core.types import Turn
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample
from mrlm.learn.fast.packed_pass import LossOf


class Trace:
    """Log-probs and entropies of one pass over samples, for their turns with a `trace`."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        turns = (turn for sample in samples for turn in sample.turns)
        self._turns: dict[int, Turn] = {id(t): t for t in turns if t.trace is not None}
        self._seen: dict[int, list[Tensor]] = {}

    def at(self, loss_of: LossOf) -> LossOf:
        """Wraps a loss function so that its inputs are traced; the loss itself if nothing is."""
        if not self._turns:
            return loss_of

        def traced(batch: Batch, outputs: Outputs) -> Loss:
            self._add(batch, outputs)
            return loss_of(batch, outputs)

        return traced

    @torch.no_grad()
    def _add(self, batch: Batch, outputs: Outputs) -> None:
        stop = 0
        for turn in batch.turns:
            start, stop = stop, stop + len(turn)
            if id(turn) in self._turns:
                own = slice(start, stop)
                columns = torch.stack([outputs.logprobs[own], outputs.entropy[own]])
                self._seen.setdefault(id(turn), []).append(columns.float())

    def write(self) -> None:
        """Writes `last_logprobs` and `entropies`, one number per token, to the turns' traces."""
        for key, parts in self._seen.items():
            logprobs, entropies = torch.cat(parts, dim=1).cpu().numpy()
            if len(logprobs) == len(self._turns[key]):  # of sharded updates, only the own part
                self._turns[key].trace = {"last_logprobs": logprobs, "entropies": entropies}
