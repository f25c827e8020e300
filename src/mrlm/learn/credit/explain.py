"""Sentences that explain advantages with their numbers, for turns that are traced for the record.

Credit assignment adds a clause where it computes something: `0.75 - mean of 8 siblings at this turn
0.41 = +0.34; / deviation 0.2 = +1.7`. The last number is the advantage (of per-token advantages,
their mean). Other turns cost nothing.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from mrlm.core.episodes import Group
from mrlm.core.types import Turn

SAME = 1e-9
"""Relative difference up to which two advantages are equal."""


class Shown:
    """A number, a word, or a column as its mean; the format `+` adds a sign."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, form: str) -> str:
        if isinstance(self.value, str | int):
            return str(self.value)
        mean = self.value if isinstance(self.value, float) else float(np.mean(self.value))
        return f"{mean:{form}.4g}"


def because(turn: Turn, clause: str, *numbers: Any) -> None:
    """Adds a clause to the explanation of a turn's advantage, if the turn is traced.

    Args:
        clause: text with a field for each number, `{}` or `{:+}`.
        numbers: numbers, words, or columns, of which the mean is shown.
    """
    if turn.trace is not None:
        text = clause.format(*map(Shown, numbers))
        turn.why = f"{turn.why}; {text}" if turn.why else text


def against(
    turns: Iterable[Turn], score: float, scores: Any, advantage: float, what: str = "siblings"
) -> None:
    """Explains an advantage from a comparison with the mean of `scores`, itself included, which is
    divided by a deviation if the result differs from the difference.

    Args:
        turns: the turns that get it.
        scores: the compared scores (n,).
        what: name of the compared scores.
    """
    for turn in turns:
        if turn.trace is None:
            continue
        mean = np.mean(scores)
        because(turn, "{} - mean of {} {} {} = {:+}", score, len(scores), what, mean, score - mean)
        explain_scale(turn, float(score - mean), advantage)


def explain_scale(turn: Turn, before: float, after: float) -> None:
    """Explains that an advantage was divided by a deviation, if it was."""
    if turn.trace is not None and abs(after - before) > SAME * (1 + abs(before)):
        because(turn, "/ deviation {} = {:+}", before / after if after else np.inf, after)


def explain_estimate(turn: Turn, target: Any, value: Any) -> None:
    """Explains a generalised advantage estimate that is already written: the target of the critic
    less the value, whitened over the batch if the advantage differs."""
    if turn.trace is None or turn.advantages is None:
        return
    before, after = float(np.mean(target)) - float(np.mean(value)), float(np.mean(turn.advantages))
    because(turn, "target {} - value {} = {:+}", target, value, before)
    if abs(after - before) > SAME * (1 + abs(before)):
        because(turn, "whitened over the batch = {:+}", after)


def explain_others(groups: Iterable[Group], algorithm: str) -> None:
    """Names the algorithm for traced turns whose advantage it did not explain."""
    for turn in (turn for group in groups for episode in group for turn in episode.turns):
        if turn.trace is not None and turn.why is None and turn.advantages is not None:
            because(turn, "{} gives {:+}", algorithm, turn.advantages)
