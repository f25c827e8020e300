"""A line of a check-up before a run: what was looked at, and whether it is as it should be."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check.

    Args:
        name: what was looked at.
        verdict: `ok`; `warn`: it may be a mistake; `fail`: a run would fail, or train on nothing.
        text: the numbers, and what to do unless it is `ok`.
    """

    name: str
    verdict: Literal["ok", "warn", "fail"]
    text: str
