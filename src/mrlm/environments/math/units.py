"""Units of answers: extraction and comparison. Units of measure are converted (3000 m are 3 km);
other words after a number are nouns, which are ignored."""

import re
from dataclasses import dataclass
from fractions import Fraction

from mrlm.core.content import content

_KNOWN: dict[str, tuple[str, Fraction]] = {
    name: (dimension, Fraction(factor))
    for dimension, table in content(__file__, "units.json").items()
    for names, factor in table.items()
    for name in names.split()
}
"""Name of a unit -> its dimension, and its size in base units."""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_WORDS = re.compile(r"[A-Za-z°]+|/|\^\{?\d\}?|[²³]")
_POWER = r"(?:\s?\^\{?[23]\}?|[²³])?"
_END = re.compile(
    r"\s*\\(?:text|mbox|mathrm)\{(?P<text>[^{}]*)\}(?P<power>" + _POWER + r")$"
    r"|\s+(?P<bare>[A-Za-z°](?:[A-Za-z° ]|" + _POWER[:-1] + r"|\s?/\s?[A-Za-z])*)$"
)
_NAMED = "|".join(sorted(map(re.escape, _KNOWN), key=len, reverse=True))
_LONGER = "|".join(name for name in _NAMED.split("|") if len(name) > 1)  # 5m may be a product
_GLUED = re.compile(rf"(?<=\d)(?:{_LONGER})(?:s\b)?{_POWER}$")
LEADING: re.Pattern[str] = re.compile(
    rf"(?:\s(?!in\b)(?:(?:square|cubic) )?(?:{_NAMED})|(?:{_LONGER}))s?{_POWER}(?![\w/])"
)
"""A unit of measure at the beginning of a text, directly after a number."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The words after a number.

    Args:
        factor: size in base units of its dimension.
        powers: dimension -> power; empty for words that are not a unit of measure.
    """

    words: str
    factor: Fraction = Fraction(1)
    powers: frozenset[tuple[str, int]] = frozenset()


def split(text: str) -> tuple[str, Unit | None]:
    """A cleaned text without the unit at its end, and the unit; `None` if there is none."""
    glued = _GLUED.search(text)
    match = glued or _END.search(text)
    if match is None:
        return text, None
    words = match[0] if glued else (match["text"] or match["bare"] or "") + (match["power"] or "")
    return text[: match.start()], read(words.strip())


def read(words: str) -> Unit:
    """The unit at the beginning of a text (`km`, `square meters`, `miles per hour`, `m/s^2`);
    without a dimension if the text begins with none, or contains another one later."""
    tokens = _WORDS.findall(words)
    powers: dict[str, int] = {}
    factor, index, sign = Fraction(1), 0, 1
    while index < len(tokens):
        power = _POWERS.get(tokens[index].lower(), 1)
        index += power > 1
        unit = _named(tokens[index]) if index < len(tokens) else None
        if unit is None:
            return Unit(words)
        index += 1
        if index < len(tokens) and tokens[index][0] in "^²³":
            power = 2 if "2" in tokens[index] or "²" in tokens[index] else 3
            index += 1
        factor *= unit[1] ** (sign * power)
        powers[unit[0]] = powers.get(unit[0], 0) + sign * power
        if index == len(tokens) or tokens[index].lower() not in ("per", "/"):
            break
        index, sign = index + 1, -1
    rest = [token for token in tokens[index:] if token != "in" and _named(token)]
    if rest:
        return Unit(words)
    return Unit(words, factor, frozenset((name, power) for name, power in powers.items() if power))


def factor(answer: Unit | None, gold: Unit | None) -> Fraction | None:
    """The answer's unit in multiples of the gold answer's; `None` if their dimensions differ. An
    answer without a unit is assumed to have the gold answer's, and nouns are not compared."""
    if answer is None or gold is None or not (answer.powers or gold.powers):
        return Fraction(1)
    if answer.powers != gold.powers:
        return None
    return answer.factor / gold.factor


def _named(token: str) -> tuple[str, Fraction] | None:
    unit = _KNOWN.get(token)
    if unit is None and len(token) > 2:
        lower = token.lower()
        unit = _KNOWN.get(lower) or _KNOWN.get(lower.removesuffix("s"))
    return unit
