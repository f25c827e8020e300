"""Answers of several values: names and units are keys, so that `x = 2, y = 1` is not
`x = 1, y = 2`; values without keys are compared as a multiset. And multiple choice: a letter with
its text."""

from __future__ import annotations

import re
from collections.abc import Callable

from mrlm.environments.math.answers import number
from mrlm.environments.math.units import split

Entry = tuple[str, str]
"""The key of a part, empty without one, and its text."""
Same = Callable[[str, str], bool | None]

MAX_PARTS = 50
_SEPARATOR = re.compile(
    r"\s*(?:[;\n]|,(?!\d{3}(?!\d))|\\text\{\s*,?\s*(?:or|and)\s*\}|\b(?:or|and)\b)\s*"
)
_NAMED = re.compile(
    r"((?:\\?[A-Za-z][A-Za-z ]{0,30}(?:_\{?\w{1,5}\}?)?'?)(?:\s?\([^()=]{1,20}\))?)\s?[=:]\s?(.+)"
)
_NUMBERED = re.compile(r"(?:there are )?([-+]?[\d.,/]+) (?:of )?([A-Za-z][A-Za-z ]{0,30})")
_OUTER = re.compile(r"\(\s*(.*?)\s*\)|\[\s*(.*?)\s*\]|\\?\{\s*(.*?)\s*\\?\}")
_CHOICE = re.compile(
    r"\(?(?:\\(?:text|textbf|mathbf|mathrm|mbox|bf)\s?\{\s*)?\(?([A-J])\s?(\)|[.:])?\s?(\})?\s?\)?"
    r"(?:[.:]?~?\s*(.{1,300}))?"
)
_OTHER = re.compile(r"\([A-J]\)|\b(?:or|and)\b|[,;=+*/^<>-]\s*[A-J]\b")


def compared(said: str, gold: str, same: Same) -> bool | None:
    """Whether a cleaned list has the values of the right one.

    Args:
        said: the answer.
        gold: the right answer.
        same: comparison of two values; its verdict `None` is undecided.

    Returns:
        `None` if neither is a list that can be compared without computer algebra.
    """
    ours, theirs = entries(said), entries(gold)
    if theirs is not None and _keyed(theirs):
        ours = ours or entries(_inner(said))
        return ours is not None and _as_mapping(ours, theirs, same)
    if ours is not None and _keyed(ours) and (theirs := theirs or entries(_inner(gold))):
        return _as_mapping(ours, theirs, same)
    theirs = theirs or entries(_inner(gold, "{"))
    if theirs is None or not all(_numeric(part) for _, part in theirs):
        return None
    ours = ours or entries(_inner(said, "{"))
    if ours is None or not all(_numeric(part) for _, part in ours):
        return False if "\\" not in said and said[0] not in "([{" else None
    return _as_multiset(ours, theirs, same)


def entries(text: str) -> list[Entry] | None:
    """The parts of a list, each with its key: the name before `=`, the unit or noun after a number;
    `None` for fewer than two parts."""
    parts = _parts(text)
    return [_entry(part) for part in parts] if 2 <= len(parts) <= MAX_PARTS else None


def choice(text: str) -> tuple[str | None, str]:
    r"""The letter of an answer to a multiple choice and the text after it: `("B", "12")` for
    `\textbf{(B)}\ 12`; `(None, text)` if it begins with no letter."""
    match = _CHOICE.fullmatch(text)
    if match is None or len(text) > 400:
        return None, text
    letter, rest = match[1], (match[4] or "").strip()
    if not rest:
        return letter, ""
    marked = match[2] or match[3]
    return (letter, rest) if marked and not _OTHER.search(rest) else (None, text)


def _parts(text: str) -> list[str]:
    """The text between separators outside of brackets."""
    parts, start, depth, place = [], 0, 0, 0
    for match in _SEPARATOR.finditer(text):
        between = text[place : match.start()]
        depth += sum(map(between.count, "([{")) - sum(map(between.count, ")]}"))
        place = match.start()
        if depth == 0:
            parts.append(text[start : match.start()])
            start = place = match.end()
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _entry(part: str) -> Entry:
    named = _NAMED.fullmatch(part)
    if named:
        return "".join(named[1].split()).lstrip("\\"), named[2]
    unit = split(part)[1]
    if unit is not None and unit.powers:
        return repr(sorted(unit.powers)), part
    noun = _NUMBERED.fullmatch(part)
    if noun:
        return noun[2].strip().lower().removesuffix("s"), noun[1]
    return "", part


def _keyed(listed: list[Entry]) -> bool:
    """Whether every part has a key of its own."""
    keys = [key for key, _ in listed]
    return all(keys) and len(set(keys)) == len(keys)


def _as_mapping(ours: list[Entry], theirs: list[Entry], same: Same) -> bool:
    """Values with equal keys; without keys, or if only one side has them, values in order."""
    if len(ours) != len(theirs):
        return False
    keys = {key for key, _ in ours}, {key for key, _ in theirs}
    if all(map(any, keys)):
        if keys[0] != keys[1]:
            return False
        values = dict(ours)
        return all(same(values[key], value) for key, value in theirs)
    return all(same(a, b) for (_, a), (_, b) in zip(ours, theirs, strict=True))


def _as_multiset(ours: list[Entry], theirs: list[Entry], same: Same) -> bool:
    rest = [part for _, part in theirs]
    if len(ours) != len(rest):
        return False
    for _, part in ours:
        place = next((i for i, gold in enumerate(rest) if same(part, gold)), None)
        if place is None:
            return False
        del rest[place]
    return True


def _numeric(text: str) -> bool:
    value = number(text)
    return value is not None and not value.percent


def _inner(text: str, kinds: str = "([{") -> str:
    match = _OUTER.fullmatch(text)
    if match is None or text.lstrip("\\")[0] not in kinds:
        return text
    return match[1] or match[2] or match[3] or ""
