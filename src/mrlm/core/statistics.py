"""Means, shares and pass@k with 95 % intervals, over tasks. Plain numbers in, plain numbers out."""

import math
from collections.abc import Sequence

import numpy as np

Z = 1.959963984540054
"""97.5 % point of the normal distribution."""

Interval = tuple[float, float, float]
"""Value, lower and upper end of its 95 % interval; NaN if unknown."""

NOTHING: Interval = (math.nan, math.nan, math.nan)


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean with a 95 % interval by Student's t; a single value has none.

    The values are one per task, so that the correlated episodes of one task are not counted as
    independent.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        return NOTHING
    mean = float(array.mean())
    if len(array) == 1:
        return mean, math.nan, math.nan
    half = t_point(len(array) - 1) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return mean, mean - half, mean + half


def wilson_interval(passed: int, total: int) -> Interval:
    """A share with its 95 % Wilson interval (Wilson 1927)."""
    if total == 0:
        return NOTHING
    share, square = passed / total, Z * Z
    centre = (share + square / (2 * total)) / (1 + square / total)
    spread = math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    half = Z * spread / (1 + square / total)
    low = 0.0 if passed == 0 else centre - half  # equals the formula, without rounding errors
    return share, low, 1.0 if passed == total else centre + half


def share_interval(shares: Sequence[float]) -> Interval:
    """Mean of shares, one per task, with its 95 % interval: Wilson's where every task passed or
    failed outright (Student's would have no width if all did the same), else Student's, kept within
    0 and 1."""
    if all(share in (0.0, 1.0) for share in shares):
        return wilson_interval(round(sum(shares)), len(shares))
    mean, low, high = mean_interval(shares)
    return mean, max(0.0, low), min(1.0, high)


def pass_at_k(passed: int, total: int, k: int) -> float:
    """Probability that at least one of `k` of the `total` episodes passes, without replacement
    (Chen et al. 2021, arXiv 2107.03374, eq. 1). Raises `ValueError`: fewer than `k` episodes."""
    if not 1 <= k <= total:
        raise ValueError(f"k={k} episodes cannot be drawn from {total}")
    if total - passed < k:
        return 1.0
    return 1.0 - math.prod((total - passed - i) / (total - i) for i in range(k))


def t_point(freedom: int) -> float:
    """97.5 % point of Student's t distribution with a whole number of degrees of freedom."""
    low, high = 0.0, 13.0  # 12.7 at one degree
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, freedom) < 0.95 else (low, middle)
    return high


def _t_inside(t: float, freedom: int) -> float:
    """Probability of `-t..t` (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for i in range(2 + odd, freedom - 1, 2):
        term *= square * (i - 1) / i
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def summarize(
    tasks: Sequence[Sequence[float]], k: int, success: float
) -> dict[str, dict[str, float | None]]:
    """avg@k of the reward and pass@k, each with its interval over tasks.

    Args:
        tasks: rewards of each task's episodes, without failed ones.
        k: requested episodes per task.
        success: reward from which an episode counts as passed.

    Returns:
        Title -> `value`, `low`, `high` (`None` with too few episodes) and `tasks`, their number.
    """
    whole = [rewards for rewards in tasks if rewards]
    means = [float(np.mean(rewards)) for rewards in whole]
    both = share_interval if all(mean in (0.0, 1.0) for mean in means) else mean_interval
    rows = {f"reward avg@{k}": (both(means), len(means))}
    passed = [(sum(reward >= success for reward in rewards), len(rewards)) for rewards in whole]
    for n in sorted({1, k}):
        shares = [pass_at_k(count, total, n) for count, total in passed if total >= n]
        rows[f"pass@{n}"] = (share_interval(shares), len(shares))
    summary: dict[str, dict[str, float | None]] = {}
    for title, (interval, count) in rows.items():
        values = [None if math.isnan(number) else number for number in interval]
        summary[title] = dict(zip(("value", "low", "high"), values, strict=True)) | {"tasks": count}
    return summary
