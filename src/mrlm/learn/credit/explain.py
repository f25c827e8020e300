"""Sentences that explain advantages with their numbers, for turns that are traced for the record.

Credit assignment adds a clause where it computes something: `0.75 - mean of 8 siblings at this turn
0.41 = +0.34; / deviation 0.2 = +1.7`. The last number is the advantage (of per-token advantages,
their mean). Nothing is written for other turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mrlm.core.types import Turn


def because(turn: Turn, clause: str, *numbers: Any) -> None:
    """Adds a clause to the explanation of a turn's advantage, if the turn is traced.

    Args:
        turn: the turn.
        clause: text with a field for each number; a column stands for its mean.
        numbers: numbers, columns or words.
    """
    if turn.trace is not None:
        shown = clause.format(*map(_number, numbers))
        turn.why = f"{turn.why}; {shown}" if turn.why else shown


def against(
    turns: Iterable[Turn], score: float, scores: Any, advantage: float, what: str = "siblings"
) -> None:
    """Explains an advantage from a comparison with the mean of `scores`, itself included, which is
    divided by a deviation if the result differs from the difference.

    Args:
        turns: the turns that get it.
        score: their score.
        scores: the compared scores (n,).
        advantage: the result.
        what: name of what is compared.
    """
    for turn in turns:
        if turn.trace is None:
            continue
        mean = float(np.mean(scores))
        difference = _signed(score - mean)
        because(turn, "{} - mean of {} {} {} = {}", score, len(scores), what, mean, difference)
        explain_scale(turn, score - mean, advantage)


def explain_scale(turn: Turn, before: float, after: float) -> None:
    """Explains that an advantage was divided by a deviation, if it was."""
    if abs(after - before) > 1e-9 * (1 + abs(before)):
        scale = before / after if after else float("inf")
        because(turn, "/ deviation {} = {}", scale, _signed(after))


def signed(value: Any) -> str:
    """A number, or the mean of a column, with its sign."""
    return _signed(float(np.mean(value)))


def _signed(value: float) -> str:
    return f"{value:+.4g}"


def _number(value: Any) -> str:
    if isinstance(value, str | int):
        return str(value)
    return f"{float(np.mean(value)):.4g}"


def explain_estimate(turn: Turn, target: Any, value: Any) -> None:
    """Explains a generalised advantage estimate that is already written: the target of the critic
    less the value, whitened over the batch if the advantage differs."""
    if turn.trace is None or turn.advantages is None:
        return
    before = float(np.mean(target)) - float(np.mean(value))
    because(turn, "target {} - value {} = {}", target, value, _signed(before))
    after = float(np.mean(turn.advantages))
    if abs(after - before) > 1e-9 * (1 + abs(before)):
        because(turn, "whitened over the batch = {}", _signed(after))
