"""Learning numbers of an update by agent: agents with one policy are distinguished.

A loss gives numbers per trained token (`Loss.tokens`); they are summed by agent on the device. With
`n` the tokens of an optimiser step, an agent's mean is `sum_steps(x / n) / sum_steps(tokens / n)`,
so that the means weighted by the agents' shares of tokens are the policy's own number, for any
split into micro-batches, mini-batches and ranks.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mrlm.core.owners import agent_label
from mrlm.learn.data.batch import PART, Batch, Loss
from mrlm.learn.fast.double import double
from mrlm.learn.fast.prefix_tree import to_device
from mrlm.learn.meter import Key, Max, Mean, Measured, Meter, Number, Sum
from mrlm.learn.mismatch import MISMATCH

PEAKS = {"ratio_mean": "ratio_max"}
"""Numbers whose maximum is logged too -> its name."""


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
        divisors = np.array([[seen], *([1.0 if name == PART else seen] for name in columns)])
        stacked /= to_device(divisors, stacked.device)
        sums = stacked.new_zeros(len(stacked), len(agents)).index_add_(1, batch.agent, stacked)
        key = (tuple(columns), agents)
        self._sums[key] = self._sums[key] + sums if key in self._sums else sums
        for name in PEAKS.keys() & columns.keys():
            x = double(columns[name])
            none = x.new_full((len(agents),), -math.inf)
            peak = self._peaks.get((name, agents), none)
            self._peaks[name, agents] = peak.scatter_reduce(0, batch.agent, x, "amax")

    def table(self) -> Meter:
        """The numbers of this rank. A mean's weight is the agent's share of the tokens."""
        table = Meter()
        for (names, agents), sums in self._sums.items():
            shares, *rows = sums.tolist()
            for name, row in zip(names, rows, strict=True):
                for agent, value, share in zip(agents, row, shares, strict=True):
                    table.add(name, agent, Sum(value) if name == PART else Mean(value, share))
        for (name, agents), peaks in self._peaks.items():
            for agent, value in zip(agents, peaks.tolist(), strict=True):
                if math.isfinite(value):  # an agent without tokens has none
                    table.add(PEAKS[name], agent, Max(value))
        return table


def agent_means(sums: Mapping[Key, Number], steps: int) -> Measured:
    """The numbers of each agent from those of all ranks, and the policy's maxima. Parts of the loss
    are means over `steps` optimiser steps."""
    measured = Measured()
    for (name, agent), number in sums.items():
        value = float(number.value)
        if isinstance(number, Max):
            measured[name] = max(value, measured.get(name, value))
        elif isinstance(number, Sum):
            number = Sum(value / steps)
        if math.isfinite(value):
            measured.agents[name, agent] = number
    return measured


def agent_metrics(updates: Mapping[str, Measured]) -> dict[str, float]:
    """The numbers by agent of updates (policy -> update) as `<name>/<agent>`, with several agents.

    With several policies `<name>/<policy>` is the policy's number. An agent with a policy's name is
    left out where it alone has that policy; otherwise it is `<name>/<policy>/<agent>`. An agent of
    several policies has their mean, weighted by its tokens.
    """
    agents = {policy: {*update.tokens} for policy, update in updates.items()}
    if len(set().union(*agents.values())) < 2:
        return {}
    numbers, policy_of = Meter(), dict[Key, str]()
    for policy, update in updates.items():
        for (name, agent), number in update.agents.items():
            if isinstance(number, Mean):
                weight = float(update.tokens.get(agent, 1))
                number = Mean(number.value * weight, weight)
            if name != MISMATCH:
                numbers.add(name, agent, number)
                policy_of.setdefault((name, agent), policy)
    metrics: dict[str, float] = {}
    for (name, agent), number in numbers.items():
        label: str | None = agent
        if name in updates.get(agent, {}):  # a policy has this name, too
            label = agent_label(agent, policy_of[name, agent], agents)
        if label is not None:
            metrics[f"{name}/{label}"] = float(number.value)
    return metrics
