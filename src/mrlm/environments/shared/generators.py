"""Settings common to generators of problems: difficulty range, families, and number of attempts."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.registry import unknown
from mrlm.environments.shared.rows import is_held_out, whole_number

T = TypeVar("T")


def difficulties(
    levels: Sequence[int], lowest: int, highest: int, name: str = "difficulty_range"
) -> tuple[int, int]:
    """The lowest and the highest requested difficulty. Raises `ConfigError`: not two whole numbers
    between `lowest` and `highest`, the lower first."""
    bounds = tuple(levels)
    whole = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds)
    if len(bounds) != 2 or not whole or not lowest <= bounds[0] <= bounds[1] <= highest:
        raise ConfigError(
            f"{name} must be two whole numbers from {lowest} to {highest}, the "
            f"lower first, not {levels!r}"
        )
    return bounds


def chosen(
    selection: str | Sequence[str] | None, options: Collection[str], what: str
) -> tuple[str, ...]:
    """Names out of `options`; all of them if none are given.

    Args:
        what: name of the setting in errors, such as `families`.

    Raises:
        ConfigError: an empty list, or an unknown name.
    """
    selected = options if selection is None else selection
    names = (selected,) if isinstance(selected, str) else tuple(selected)
    for name in names:
        if name not in options:
            raise ConfigError(unknown(str(name), list(options), what))
    if not names:
        raise ConfigError(f"{what} must name at least one of {', '.join(options)}")
    return names


def attempts(max_attempts: int | None, max_turns: int | None, default: int = 1) -> int:
    """Maximum number of answers, from either name of this setting. Raises `ConfigError`: the two
    differ, or it is not a whole number above 0."""
    if max_attempts is not None and max_turns is not None and max_attempts != max_turns:
        raise ConfigError(
            f"max_turns={max_turns} and max_attempts={max_attempts} are the same setting; remove "
            "one of them"
        )
    number = next((value for value in (max_attempts, max_turns) if value is not None), default)
    whole_number(1, max_attempts=number)
    return number


def first_of(split: Split, sample: Callable[[], T], key: Callable[[T], str]) -> T:
    """The first sample that belongs to a split by its key. What is held out never occurs in
    training, for any seed."""
    while True:
        candidate = sample()
        if is_held_out(key(candidate)) == (split == "eval"):
            return candidate


def unordered(text: str) -> str:
    """A key equal for texts that differ only in the order of their parts, so that `3 + 5` cannot
    leak through `5 + 3`."""
    return " ".join(sorted(re.findall(r"\w+|[^\w\s]", text.lower())))
