"""The parameters of each kind of writing: lengths, ratios, and the writers' prompts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mrlm.core.content import content
from mrlm.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LengthSpan:
    """A trapezoidal score of a number: 1 between `low` and `high`, decreasing linearly to 0 at
    `none_below` and at `none_above`."""

    none_below: float
    low: float
    high: float = math.inf
    none_above: float = math.inf

    def __call__(self, value: float) -> float:
        """The score from 0 to 1."""
        if self.low <= value <= self.high:
            return 1.0
        if value < self.low:
            return max(0.0, (value - self.none_below) / (self.low - self.none_below))
        return max(0.0, (self.none_above - value) / (self.none_above - self.high))


@dataclass(frozen=True, slots=True)
class WritingRules:
    """The requirements for texts.

    Args:
        words: minimum and maximum number of words of every text.
        characters: span of the ratio of a text's number of characters to the previous text's.
        unique: span of the ratio of a text's number of different words to the previous text's.
        overlap: Jaccard index of the content words of two texts for the full score.
        first, step: score of the first category of transitions, and of each further one; at most 1
            in total.
        relevant: required fraction of a text's content words that are words of the source.
        covered: required number of different words of the source.
    """

    words: tuple[int, int]
    characters: LengthSpan
    unique: LengthSpan
    overlap: float
    first: float = 0.4
    step: float = 0.05
    relevant: float = 0.3
    covered: int = 4

    def changed(self, settings: Mapping[str, Any]) -> "WritingRules":
        """These rules with some of them replaced; a span is four numbers. Raises `ConfigError`: an
        unknown rule, or an invalid value."""
        names = {field.name for field in fields(self)}
        for name, value in settings.items():
            if name not in names:
                raise ConfigError(f"rules: unknown rule {name!r}; use {', '.join(sorted(names))}")
            if not _fits(name, value):
                raise ConfigError(f"rules.{name}: invalid value {value!r}")
        return replace(self, **_rules(settings))


def _rules(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rules as values of `WritingRules`."""
    read = {"words": tuple} | dict.fromkeys(("characters", "unique"), lambda v: LengthSpan(*v))
    return {name: read.get(name, lambda v: v)(value) for name, value in settings.items()}


@dataclass(frozen=True, slots=True)
class WritingPreset:
    """A kind of work.

    Args:
        asked: prompt of each writer, before the text; further writers get `more`.
        more: prompt of further writers; `{before}` is the name of the previous writer.
        columns: columns of a row that may contain its text, in order of precedence.
        piece: kind of built-in texts, in `pieces.yaml`.
    """

    rules: WritingRules
    agents: Sequence[str]
    asked: Sequence[str]
    more: str
    columns: Sequence[str]
    piece: str


PRESETS: dict[str, WritingPreset] = {
    name: WritingPreset(**{**row, "rules": WritingRules(**_rules(row["rules"]))})
    for name, row in content(__file__).items()
}
"""Summaries of posts, introductions of papers, and summaries that small models can write."""


def _fits(name: str, value: Any) -> bool:
    """Whether a value is valid for a rule."""
    many = name in ("words", "characters", "unique")
    numbers = list(value) if many and isinstance(value, list | tuple) else [value]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        return False
    if not many:
        return 0 <= numbers[0] < math.inf and (name != "overlap" or numbers[0] > 0)
    if name == "words":
        return len(numbers) == 2 and 1 <= numbers[0] <= numbers[1] < math.inf
    ordered = len(numbers) == 4 and numbers == sorted(numbers) and numbers[0] < numbers[1]
    return ordered and (numbers[2] < numbers[3] or math.isinf(numbers[2]))
