"""Columns that an update computes for turns that are recorded with their tokens."""

from __future__ import annotations

from itertools import compress

import numpy as np
import torch
from torch import Tensor

from mrlm.core.types import Turn
from mrlm.learn.data.batch import Batch, Outputs
from mrlm.learn.fast.prefix_tree import to_device


class Trace:
    """Log-probs and entropies of one pass over samples, for their turns with a `trace`."""

    def __init__(self) -> None:
        self._seen: list[tuple[list[Turn], Tensor]] = []

    @torch.no_grad()
    def add(self, batch: Batch, outputs: Outputs) -> None:
        """Adds a batch."""
        traced = np.array([turn.trace is not None for turn in batch.turns])
        (indices,) = np.nonzero(traced[batch.host["turn"]])
        if len(indices):
            here = to_device(indices, outputs.logprobs.device)
            columns = torch.stack([outputs.logprobs[here], outputs.entropy[here]]).float()
            self._seen.append(([*compress(batch.turns, traced)], columns))

    def write(self) -> None:
        """Writes `last_logprobs` and `entropies`, one number per token, to the turns' traces."""
        by_turn: dict[int, tuple[Turn, list[np.ndarray]]] = {}
        for turns, columns in self._seen:
            ends = np.cumsum([len(turn) for turn in turns])
            parts = np.split(columns.cpu().numpy(), ends[:-1], axis=1)
            for turn, part in zip(turns, parts, strict=True):
                by_turn.setdefault(id(turn), (turn, []))[1].append(part)
        for turn, several in by_turn.values():
            logprobs, entropies = np.concatenate(several, axis=1)
            if len(logprobs) == len(turn):  # of sharded updates, only the own part
                turn.trace = {"last_logprobs": logprobs, "entropies": entropies}
