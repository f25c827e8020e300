"""Robust statistics of short series: levels, slopes and differences with their errors."""

import math

import numpy as np


def spread(values: np.ndarray) -> float:
    """The standard deviation of the noise of a series, from the median of its successive
    differences, so that neither a trend nor single outliers count."""
    if len(values) < 3:
        return 0.0
    return 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)


def slope(values: np.ndarray) -> tuple[float, float]:
    """Slope per step of a least-squares line, and its t statistic; an exact line has infinite t.
    Errors are widened for autocorrelation of the residuals at lag 1."""
    count = len(values)
    if count < 4:
        return 0.0, 0.0
    x = np.arange(count) - (count - 1) / 2
    rise = float(x @ values / (x @ x))
    rest = values - values.mean() - rise * x
    square = float(rest @ rest)
    if square <= 1e-24 * max(1.0, float(values @ values)):
        return rise, math.copysign(math.inf, rise) if abs(rise) > 1e-12 else 0.0
    lagged = min(0.9, max(0.0, float(rest[1:] @ rest[:-1]) / square))
    error = math.sqrt(square / (count - 2) / float(x @ x) * (1 + lagged) / (1 - lagged))
    return rise, rise / error


def difference(late: np.ndarray, early: np.ndarray) -> tuple[float, float]:
    """Difference of the means of two windows, and its standard error."""
    error = math.sqrt(_square_error(late) + _square_error(early))
    return float(late.mean() - early.mean()), error


def _square_error(values: np.ndarray) -> float:
    return float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
