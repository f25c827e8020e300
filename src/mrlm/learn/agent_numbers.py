"""Learning numbers of an update by agent: agents with one policy are distinguished.

A loss gives numbers per trained token (`Loss.tokens`); they are summed by agent on the device. With
`n` the tokens of an optimiser step, an agent's mean is `sum_steps(x / n) / sum_steps(tokens / n)`,
so that the means weighted by the agents' shares of tokens are the policy's own number, for any
split into micro-batches, mini-batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mrlm.core.owners import agent_label, role_of
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import PART, Batch, Loss, Sample, Totals, pack
from mrlm.learn.data.samples import effective
from mrlm.learn.fast.double import double
from mrlm.learn.fast.prefix_tree import to_device
from mrlm.learn.mismatch import FEW, FirstLook
from mrlm.learn.policy.policy import Policy

BY_AGENT = "by_agent:"
"""Prefix of entries in the metrics of an update; a name and an agent follow."""
TOKENS = "tokens"
"""The entry with an agent's number of tokens."""
PEAKS = {"ratio_mean": "ratio_max"}
"""Numbers whose maximum is logged too -> its name."""
_SHARE = "share"


class AgentNumbers:
    """Sums of the per-token numbers of losses by agent, over the steps of an update."""

    def __init__(self) -> None:
        self._sums: dict[tuple[tuple[str, ...], tuple[str, ...]], Tensor] = {}
        self._peaks: dict[tuple[str, tuple[str, ...]], Tensor] = {}

    @torch.no_grad()
    def add(self, batch: Batch, loss: Loss) -> None:
        """Adds the numbers of a loss of a batch."""
        if not loss.tokens:
            return
        agents, seen = tuple(batch.agents), max(1, batch.totals.seen)
        columns = {name: x.detach() for name, x in loss.tokens.items()}
        ones = torch.ones_like(next(iter(columns.values())))
        stacked = double(torch.stack([ones, *columns.values()]))
        divisors = np.array([[1.0 if x == PART else seen] for x in (_SHARE, *columns)])
        stacked /= to_device(divisors, stacked.device)
        sums = stacked.new_zeros(len(stacked), len(agents)).index_add_(1, batch.agent, stacked)
        key = ((_SHARE, *columns), agents)
        self._sums[key] = self._sums[key] + sums if key in self._sums else sums
        for name in PEAKS.keys() & columns.keys():
            x = double(columns[name])
            peak = x.new_full((len(agents),), -math.inf)
            peak = peak.scatter_reduce_(0, batch.agent, x, "amax")
            previous = self._peaks.get((name, agents))
            self._peaks[name, agents] = peak if previous is None else torch.maximum(previous, peak)

    def table(self, rank: int = 0) -> dict[str, float]:
        """Sums that can be added over ranks; maxima are kept apart by `rank`."""
        totals: dict[str, float] = {}
        for (names, agents), sums in self._sums.items():
            for name, row in zip(names, sums.tolist(), strict=True):
                for agent, value in zip(agents, row, strict=True):
                    key = f"{BY_AGENT}{name}:{agent}"
                    totals[key] = totals.get(key, 0.0) + value
        for (name, agents), peaks in self._peaks.items():
            for agent, value in zip(agents, peaks.tolist(), strict=True):
                key = f"{BY_AGENT}{PEAKS[name]}@{rank}:{agent}"
                if math.isfinite(value):  # an agent without tokens has none
                    totals[key] = max(totals.get(key, -math.inf), value)
        return totals


def _entries(table: Mapping[str, float]) -> list[tuple[str, str, float]]:
    """Names, agents and numbers."""
    rows = [(*key.split(":", 2), value) for key, value in table.items() if key.startswith(BY_AGENT)]
    return [(name, agent, value) for _, name, agent, value in rows]


def agent_means(table: Mapping[str, float], steps: int) -> dict[str, float]:
    """The numbers of each agent from the sums of `AgentNumbers.table` over all ranks: means over
    its tokens, maxima, and its part of the loss (the mean over optimiser steps); and the maxima of
    the policy."""
    entries = _entries(table)
    share = {agent: value for name, agent, value in entries if name == _SHARE}
    means: dict[str, float] = {}
    for name, agent, value in entries:
        name, _, rank = name.partition("@")
        key = f"{BY_AGENT}{name}:{agent}"
        if rank:
            value = max(value, means.get(key, value))
            means[name] = max(value, means.get(name, value))
        elif name == PART:
            value /= steps
        elif share[agent]:
            value /= share[agent]
        if name != _SHARE and math.isfinite(value):
            means[key] = value
    return means


def taken_by_agent(updates: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """The numbers by agent in the metrics of updates (policy -> metrics) under their names, and
    removed from there: `<name>/<agent>`, with several agents.

    With several policies `<name>/<policy>` is the policy's number. An agent with a policy's name is
    left out where it alone has that policy; otherwise it is `<name>/<policy>/<agent>`. An agent of
    several policies has their mean, weighted by its tokens.
    """
    rows: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
    agents: dict[str, set[str]] = {}
    for policy, metrics in updates.items():
        entries = _entries(metrics)
        for name, agent, _ in entries:
            del metrics[f"{BY_AGENT}{name}:{agent}"]
        tokens = {agent: value for name, agent, value in entries if name == TOKENS}
        agents[policy] = set(tokens)
        for name, agent, value in entries:
            if name != TOKENS:
                part = (policy, value, tokens.get(agent, 1.0))
                rows.setdefault((name, agent), []).append(part)
    if len(set().union(*agents.values())) < 2:
        return {}
    numbers: dict[str, float] = {}
    for (name, agent), parts in rows.items():
        label: str | None = agent
        if name in updates.get(agent, {}):  # a policy has this name, too
            label = agent_label(agent, parts[0][0], agents)
        if label is None:
            continue
        if name == PART:
            value = sum(value for _, value, _ in parts)
        elif name in PEAKS.values():
            value = max(value for _, value, _ in parts)
        else:
            weight = sum(tokens for _, _, tokens in parts)
            value = sum(value * tokens for _, value, tokens in parts) / max(1.0, weight)
        numbers[f"{name}/{label}"] = value
    return numbers


def read_skipped(
    policy: Policy, samples: Sequence[Sample], algorithm: Algorithm, look: FirstLook, main: bool
) -> dict[str, float]:
    """The metrics of agents without a gradient, from a pass over a few of their samples before the
    update. Every rank reads the same ones; empty if each agent has a gradient.

    Args:
        policy: the policy.
        samples: all samples of the update.
        algorithm: its loss gives the numbers.
        look: gets their log-probs on the main rank, unless it is done.
        main: whether this is the main rank.
    """
    with_gradient = effective(samples, algorithm.spec.ignores_zero)
    if len(with_gradient) == len(samples):
        return {}
    read = Totals.of(with_gradient).tokens_by_agent
    few: dict[str, list[Sample]] = {}
    for sample in samples:
        agent = role_of(sample.turns[0].agent)
        if agent not in read and len(few.setdefault(agent, [])) < FEW:
            few[agent].append(sample)
    chosen = [sample for agent_samples in few.values() for sample in agent_samples]
    if not chosen:
        return {}
    numbers = AgentNumbers()
    with policy.scoring():
        batch = pack(chosen, None, policy.pad_id, policy.device)
        outputs = policy.forward(batch)
        loss = algorithm.loss(batch, outputs)
        numbers.add(batch, loss)
    if main and not look.done:
        look.add(batch, outputs.logprobs)
    metrics = {name: float(value) for name, value in loss.metrics.items()}
    return metrics | agent_means(numbers.table(), 1)
