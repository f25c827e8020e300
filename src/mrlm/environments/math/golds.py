"""The right answers of a data set's answer column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrlm.core.errors import DataError
from mrlm.data.final_answer import after_hashes, boxed
from mrlm.environments.math.answers import cleaned, costly
from mrlm.environments.math.stated import is_expression, stated

LONGEST = 120
"""Maximum number of characters of a right answer that is a text, not an expression."""


def gold_of(value: Any) -> str:
    """The answer in an answer column: after `####` (GSM8K), in the last box (MATH), or the text
    itself; of a sentence (`The answer is 3.`) the answer that it states."""
    text = str(value).strip()
    marked = after_hashes(text) if "####" in text else boxed(text)
    if marked:
        return marked
    return text if is_expression(cleaned(text)) or " is " not in text else stated(text) or text


def golds_of(value: Any, where: str) -> list[str]:
    """The right answers in an answer column: a text, a number, or a list of which any is right.

    Args:
        value: the value of the column.
        where: its place, for errors.

    Raises:
        DataError: no reply can reach it: it is empty, a mapping, a whole solution without a
            marked answer, or too large to be compared.
    """
    listed = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not listed:
        raise DataError(f"{where}: its answer is an empty list; give an answer, or drop the row")
    return [_reachable(one, where) for one in listed]


def _reachable(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(
            f"{where}: its answer is of type {type(value).__name__}; give text, a number, or a "
            "list of which any is right"
        )
    gold = gold_of(value)
    if not cleaned(gold):
        raise DataError(f"{where}: its answer is empty; give an answer, or drop the row")
    if costly(gold):
        raise DataError(
            f"{where}: its answer {gold[:60]!r} is too large to be compared; write the answer alone"
        )
    if not is_expression(cleaned(gold)) and ("\n" in gold or len(gold) > LONGEST):
        raise DataError(
            f"{where}: its answer is a whole solution, which marks no answer; "
            "put the answer alone into the column, after '####', or in \\boxed{}"
        )
    return gold
