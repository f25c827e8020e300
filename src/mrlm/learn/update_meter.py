"""The measurements of an update beside its loss."""

from collections.abc import Generator, Mapping, Sequence
from itertools import compress

import numpy as np
import torch
from torch import Tensor, nn

from mrlm.core.log import log
from mrlm.core.process_group import Peers
from mrlm.core.types import Turn
from mrlm.learn import weight_change
from mrlm.learn.agent_numbers import AgentNumbers, agent_means
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample, Totals
from mrlm.learn.data.samples import FEW, without_gradient
from mrlm.learn.fast.prefix_tree import to_device
from mrlm.learn.gradient_parts import Gradient, gradient_numbers
from mrlm.learn.joint_update import ScoringPass
from mrlm.learn.meter import Key, Mean, Measured, Meter, Number
from mrlm.learn.mismatch import FirstLook
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy, random_forward

SKIPPED = {"loss": 0.0, "grad_norm": 0.0, "nonfinite_steps": 0.0}
"""Metrics of an optimiser step without a gradient."""


class Trace:
    """Log-probs and entropies of one pass over samples, for their turns with a `trace`."""

    def __init__(self) -> None:
        self._seen: list[tuple[list[Turn], Tensor]] = []

    @torch.no_grad()
    def add(self, batch: Batch, outputs: Outputs) -> None:
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


class UpdateMeter:
    """The measurements of an update from its start to its metrics.

    Args:
        policy: the trained policy.
        weights: its trained parameters on this rank.
        algorithm: credit and loss.
        settings: those of the learner.
        version: of the weights at the start.
    """

    def __init__(
        self,
        policy: Policy,
        weights: Sequence[nn.Parameter],
        algorithm: Algorithm,
        settings: LearnerSettings,
        version: int,
        step: int,
    ) -> None:
        self.policy: Policy = policy
        self.algorithm: Algorithm = algorithm
        self.peers: Peers = settings.peers
        self.look: FirstLook = FirstLook(version)
        self.numbers: AgentNumbers = AgentNumbers()
        self.trace: Trace = Trace()
        self.change = weight_change.WeightChange(weights, settings.peers.size)
        self.measured: Measured = Measured()
        self.steps: list[dict[str, float]] = []
        self.epochs: int = 0
        every = settings.gradient_shares
        self.split: bool = bool(every) and step % every == 0
        """Whether the gradient by agent is still to be measured."""

    def read(
        self, samples: Sequence[Sample]
    ) -> Generator[ScoringPass, tuple[Batch, Outputs], None]:
        """Before the update, passes over a few samples: for the mismatch where there is dropout,
        and for agents without a gradient, of which every rank reads the same samples."""
        self.measured.tokens = Totals.of(samples).tokens_by_agent
        self.split &= len(self.measured.tokens) > 1
        if random_forward(self.policy):
            batch, outputs = yield ScoringPass(self.policy, samples[:FEW])
            self.look.add(batch, outputs.logprobs)
            self.look.done = True
        rest = without_gradient(samples, self.algorithm.spec.ignores_zero)
        if rest:
            batch, outputs = yield ScoringPass(self.policy, rest)
            loss, numbers = self.algorithm.loss(batch, outputs), AgentNumbers()
            numbers.add(batch, loss)
            if self.peers.main and not self.look.done:
                self.look.add(batch, outputs.logprobs)
            means = agent_means(numbers.table(), 1)
            self.measured |= {name: float(value) for name, value in loss.metrics.items()} | means
            self.measured.agents |= means.agents

    @property
    def records(self) -> tuple[object, ...]:
        """The parts that passes over micro-batches write to."""
        return self.look, self.numbers, self.trace

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """The algorithm's loss, whose inputs and numbers are noted."""
        self.trace.add(batch, outputs)
        if not self.look.done:
            self.look.add(batch, outputs.logprobs)
        loss = self.algorithm.loss(batch, outputs)
        self.numbers.add(batch, loss)
        return loss

    def add_gradients(self, parts: Mapping[str, Gradient | None]) -> None:
        """Adds the gradient by agent."""
        self.split = False
        self.measured.agents |= gradient_numbers(parts)

    def add_step(self, metrics: dict[str, float]) -> None:
        self.steps.append(metrics)
        self.look.done |= metrics is not SKIPPED

    def end_epoch(self) -> bool:
        """Ends an epoch; whether it is the last one because of `target_kl`."""
        self.trace.write()
        self.trace = Trace()
        self.epochs += 1
        moved, limit = self.steps[-1].get("approx_kl", 0.0), self.algorithm.target_kl
        if limit is None or moved <= limit:
            return False
        text = "%s: stopped after %d epochs, approx_kl %.4f"
        log.info(text, self.policy.name, self.epochs, moved)
        return True

    def table(self) -> Meter:
        """The numbers of this rank; those of all ranks are added."""
        change = {(weight_change.NAME, ""): self.change.square()}
        return Meter(self.look.table() | self.numbers.table() | change)

    def metrics(self, sums: Mapping[Key, Number], learning_rate: float) -> Measured:
        """The metrics of the update, from the numbers of all ranks."""
        table = dict(sums)
        change = table.pop((weight_change.NAME, ""))
        assert isinstance(change, Mean)
        if self.split:  # all advantages were 0
            self.add_gradients(dict.fromkeys(self.measured.tokens))
        means, over_all = agent_means(table, len(self.steps)), _mean(self.steps)
        self.measured |= _mean([row for row in self.steps if row is not SKIPPED])
        self.measured |= {name: over_all[name] for name in SKIPPED if name in over_all}
        self.measured |= means | weight_change.relative(change)
        self.measured |= {"learning_rate": learning_rate, "optimizer_steps": float(len(self.steps))}
        self.measured.agents |= means.agents
        return self.measured


def _mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means by name over optimiser steps; where a name is missing it counts as 0."""
    names = {name for row in rows for name in row}
    return {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}
