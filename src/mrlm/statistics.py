"""Means, shares and pass@k with 95 % intervals, over tasks. Plain numbers in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Z = 1.959963984540054
"""97.5 % point of the normal distribution."""


def mean_interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """Mean with a 95 % bootstrap interval (percentiles of resampled means, seeded)."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(0)
    picked = rng.integers(0, len(array), size=(draws, len(array)))
    low, high = np.percentile(array[picked].mean(axis=1), [2.5, 97.5])
    return float(array.mean()), float(low), float(high)


def wilson_interval(passed: int, total: int) -> tuple[float, float, float]:
    """A share with its 95 % Wilson interval (Wilson 1927)."""
    if total == 0:
        return math.nan, math.nan, math.nan
    share, square = passed / total, Z * Z
    centre = (share + square / (2 * total)) / (1 + square / total)
    spread = math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    half = Z * spread / (1 + square / total)
    low = 0.0 if passed == 0 else centre - half
    high = 1.0 if passed == total else centre + half
    return share, low, high


def pass_at_k(passed: int, total: int, k: int) -> float:
    """Chance that at least one of `k` of the `total` plays passes, without replacement (Chen et al.
    2021, arXiv 2107.03374, eq. 1)."""
    if not 1 <= k <= total:
        raise ValueError(f"k={k} plays cannot be drawn from {total}")
    if total - passed < k:
        return 1.0
    return 1.0 - math.prod((total - passed - i) / (total - i) for i in range(k))


def summarize(
    tasks: Sequence[Sequence[float]], k: int, success: float
) -> dict[str, dict[str, float]]:
    """avg@k of the reward and pass@k, each with its interval over tasks.

    Args:
        tasks: rewards of each task's plays.
        k: plays per task that were asked for.
        success: reward from which a play counts as passed.
    """
    whole = [rewards for rewards in tasks if rewards]
    rows = {f"reward avg@{k}": mean_interval([float(np.mean(rewards)) for rewards in whole])}
    passed = [sum(reward >= success for reward in rewards) for rewards in whole]
    for n in sorted({1, k}):
        known = [(c, len(r)) for c, r in zip(passed, whole, strict=True) if len(r) >= n]
        if n == 1 and k == 1:
            rows["pass@1"] = wilson_interval(sum(c for c, _ in known), len(known))
        else:
            rows[f"pass@{n}"] = mean_interval([pass_at_k(c, total, n) for c, total in known])
    names = ("value", "low", "high")
    return {title: dict(zip(names, row, strict=True)) for title, row in rows.items()}
