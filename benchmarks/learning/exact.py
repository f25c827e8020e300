"""Gradient ascent in `climbing` with the exact gradient: where a run ends that samples no noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.credit.exact import softmax
from benchmarks.credit.games import CLIMBING

RATE = 3.0


def ascent(steps: Sequence[int], divided: bool = False, rate: float = RATE) -> list[float]:
    """The expected reward after some steps of two agents that begin with equal probabilities.

    Args:
        steps: numbers of steps, ascending.
        divided: the gradient is divided by the deviation of the reward, as by an infinite group of
            `grpo`.
        rate: length of a step, as a multiple of the gradient.
    """
    row, column, found = np.zeros(3), np.zeros(3), []
    for step in range(max(steps) + 1):
        first, second = softmax(row), softmax(column)
        value = float(first @ CLIMBING @ second)
        if step in steps:
            found.append(value)
        scale = rate
        if divided:
            scale /= np.sqrt(first @ (CLIMBING - value) ** 2 @ second) + 1e-6
        row = row + scale * first * (CLIMBING @ second - value)
        column = column + scale * second * (first @ CLIMBING - value)
    return found


def better_alone(joint: tuple[int, int]) -> bool:
    """Whether an agent gains by another action while the other agent keeps its own."""
    row, column = joint
    best = max(CLIMBING[:, column].max(), CLIMBING[row].max())
    return bool(best > CLIMBING[joint])
