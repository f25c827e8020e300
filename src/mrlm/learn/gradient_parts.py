"""The gradient of a shared policy by agent: which agent moves the weights, and whether two agents
pull in the same direction (arXiv 2605.24202)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from mrlm.learn.data.batch import Batch, Loss, Outputs
from mrlm.learn.fast.double import double
from mrlm.learn.fast.packed_pass import LossOf
from mrlm.learn.meter import Mean, Meter

Gradient = Sequence[Tensor | None]
"""A gradient by parameter; `None` where it is zero."""


def part_of(agent: str, loss_of: LossOf) -> LossOf:
    """A loss of the same value whose gradient passes through the tokens of an agent only: the
    gradients of all agents' parts add up to that of the loss."""

    def part(batch: Batch, outputs: Outputs) -> Loss:
        mask = torch.zeros_like(batch.agent, dtype=torch.bool)
        if agent in batch.agents:
            mask = batch.agent == batch.agents.index(agent)
        values = outputs.values
        masked = replace(
            outputs,
            logprobs=_held(outputs.logprobs, mask),
            entropy=_held(outputs.entropy, mask),
            values=None if values is None else _held(values, mask),
        )
        return loss_of(batch, masked)

    return part


def _held(x: Tensor, mask: Tensor) -> Tensor:
    """`x` (N,) with a gradient at `mask` (N,) only."""
    return torch.where(mask, x, x.detach())


def gradient_numbers(parts: Mapping[str, Gradient | None]) -> Meter:
    """`gradient_share` of each agent, the norm of its part over the sum of the norms, and
    `gradient_cosine` of each pair; 0 for a zero gradient.

    Args:
        parts: agent -> its gradient; `None` if it has no tokens.
    """
    agents = sorted(parts)
    pairs = combinations_with_replacement(agents, 2)
    dots = {(one, two): _dot(parts[one], parts[two]) for one, two in pairs}
    norm = {agent: max(0.0, dots[agent, agent]) ** 0.5 for agent in agents}
    whole = sum(norm.values())
    numbers = Meter()
    for agent in agents:
        share = norm[agent] / whole if whole else 0.0
        numbers["gradient_share", agent] = Mean(share, 1.0)
    for (one, two), value in dots.items():
        if one != two:
            size = norm[one] * norm[two]
            numbers["gradient_cosine", f"{one}/{two}"] = Mean(value / size if size else 0.0, 1.0)
    return numbers


def _dot(one: Gradient | None, two: Gradient | None) -> float:
    """The inner product of two gradients."""
    if one is None or two is None:
        return 0.0
    pairs = [(a, b) for a, b in zip(one, two, strict=True) if a is not None and b is not None]
    products = [(a.float() * b.float()).sum() for a, b in pairs]
    return float(double(torch.stack(products)).sum()) if products else 0.0
