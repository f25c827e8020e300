"""What one update of a policy measures beside its loss."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch import nn

from mrlm.learn import weight_change
from mrlm.learn.agent_numbers import TOKENS, AgentNumbers, agent_means, read_skipped
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample, Totals
from mrlm.learn.data.trace import Trace
from mrlm.learn.gradient_parts import Gradient, gradient_numbers
from mrlm.learn.meter import Key, Mean, Measured, Meter, Number, Sum
from mrlm.learn.mismatch import first_look
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy

log: logging.Logger = logging.getLogger("mrlm")

SKIPPED = {"loss": 0.0, "grad_norm": 0.0, "nonfinite_steps": 0.0}
"""Metrics of an optimiser step without a gradient."""


class UpdateMeter:
    """The measurements of an update from its start to its metrics.

    Args:
        policy: the trained policy.
        weights: its trained parameters on this rank.
        samples: those of the update.
        algorithm: credit and loss.
        settings: of the learner.
        version: of the weights at the start.
    """

    def __init__(
        self,
        policy: Policy,
        weights: Sequence[nn.Parameter],
        samples: Sequence[Sample],
        algorithm: Algorithm,
        settings: LearnerSettings,
        version: int,
    ) -> None:
        self.policy, self.samples, self.algorithm = policy, samples, algorithm
        self.tokens = Totals.of(samples).tokens_by_agent
        self.look = first_look(policy, samples, version)
        self.numbers = AgentNumbers()
        self.trace = Trace(samples)
        self.change = weight_change.WeightChange(weights, settings.peers.size)
        self.measured = read_skipped(policy, samples, algorithm, self.look, settings.peers.main)
        self.steps: list[dict[str, float]] = []
        self.epochs = 0

    @property
    def records(self) -> tuple[object, ...]:
        """What passes over micro-batches write to."""
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
        self.measured.agents |= gradient_numbers(parts, self.tokens)

    def add_step(self, metrics: dict[str, float]) -> None:
        """Adds an optimiser step."""
        self.steps.append(metrics)
        self.look.done |= metrics is not SKIPPED

    def end_epoch(self) -> bool:
        """Ends an epoch; whether it is the last one because of `target_kl`."""
        self.trace.write()
        self.trace = Trace(self.samples)
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
        means = agent_means(table, len(self.steps), self.tokens)
        over_all = _mean(self.steps)
        metrics = (
            self.measured
            | _mean([row for row in self.steps if row is not SKIPPED])
            | {name: over_all[name] for name in SKIPPED if name in over_all}
            | means
            | weight_change.relative(change)
            | {"learning_rate": learning_rate, "optimizer_steps": float(len(self.steps))}
        )
        tokens = {(TOKENS, agent): Sum(float(count)) for agent, count in self.tokens.items()}
        return Measured(metrics, self.measured.agents | means.agents | tokens)


def _mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means by name over optimiser steps; where a name is missing it counts as 0."""
    names = {name for row in rows for name in row}
    return {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}
