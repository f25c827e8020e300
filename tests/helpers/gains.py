"""How much was learned, and how sure that is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def gain(history: list[dict[str, Any]]) -> float:
    """Sampled reward of the last three steps over that of the first three."""
    rewards = [row["reward/mean"] for row in history if row.get("reward/mean") is not None]
    return float(np.mean(rewards[-3:]) - np.mean(rewards[:3]))


def lower_bound(gains: list[float]) -> float:
    """Lower 95 % bound of the mean of three gains."""
    return float(np.mean(gains) - 4.303 * np.std(gains, ddof=1) / math.sqrt(len(gains)))
