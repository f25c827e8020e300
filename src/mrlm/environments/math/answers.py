"""Answers as text, and their comparison without computer algebra. Starts no process and evaluates
no model-written text."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from mrlm.data.final_answer import boxed
from mrlm.environments.math.units import Unit, factor, split

MAX_ANSWER = 400
"""Maximum number of characters of an answer that is checked."""
MAX_DEPTH = 30
MAX_EXPONENT = 10_000

_DIGITS = r"\d{1,200}"
_DECIMAL = re.compile(rf"[+-]?(?:\d{{1,3}}(?:,\d{{3}}){{1,60}}|{_DIGITS})?(?:\.{_DIGITS})?")
_SLASH = re.compile(rf"(?:([+-]?{_DIGITS})\s+)?([+-]?{_DIGITS})\s*/\s*({_DIGITS})")
_FRAC = re.compile(rf"([+-]?)({_DIGITS})?\\frac\{{([+-]?{_DIGITS})\}}\{{({_DIGITS})\}}")
_NO_UNITS = re.compile(
    r"\b(or|and|to|not|times|plus|minus|over|squared|cubed|dozen|hundred|thousand|[mbtr]+illion)\b",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"^\(?\s*[A-Za-z]\s*=\s*([^=<>]+)$")
_UNWORKED = re.compile(
    r"[\d)}\]]\s*(?:[+\-*/^!×÷·]|\\(?:times|cdot|div|pm|mp|over)\b)"
    r"|\\(?:sqrt|max|min|int|sum|prod|lim|binom|log|ln)|sqrt"
    r"|[,;]|\bor\b|\band\b|\\text\{\s*(?:or|and)\s*\}"
)
_SCIENTIFIC = re.compile(
    r"([+-]?\d{1,50}(?:\.\d{1,50})?)"
    r"\s*(?:(?:\\times|\\cdot|[*×])\s*10\s*(?:\^|\*\*)\s*|[eE])\{?([+-]?\d{1,3})\}?"
)
_REPEATING = re.compile(r"([+-]?)(\d{0,50})\.(\d{0,50})\\overline\{(\d{1,50})\}")
_SEPARATOR = re.compile(r"\s*(?:,|;|\bor\b|\band\b|\\text\{\s*(?:or|and)\s*\})\s*")
_LONG = re.compile(r"\d{201}")
_GROWS = re.compile(r"[({\[!^*]")
"""Characters of nesting, factorials and powers."""
_NAME = re.compile(r"[A-Za-z]\w{0,20}(?:\(\s*[\w.,\s-]{1,20}\))?")
_LABEL = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{[^{}]{0,100}[:=]\s*\}\s*")
_MARKED = re.compile(r"[\\${]")
_SHORT = re.compile(r"\\frac\s*(\d|\{[^{}]{0,200}\})\s*(\d|\{[^{}]{0,200}\})")
_DEGREES = re.compile(r"\^\{?\\circ\}?|°")
_RELATION = re.compile(r"(.+?)\s*(<=|>=|<|>)\s*(.+)")
_MIRROR = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_SPELLINGS = {
    "−": "-", "–": "-", "\\dfrac": "\\frac", "\\tfrac": "\\frac", "{,}": ",", "\\%": "%",
    "≤": "<=", "\\leq": "<=", "\\le": "<=", "\\lt": "<", "π": "\\pi", "∞": "\\infty",
    "≥": ">=", "\\geq": ">=", "\\ge": ">=", "\\gt": ">", "\\displaystyle": "",
    "\\left": "", "\\right": "", "\\!": "", "\\,": "", "\\;": "",
    "\\$": "", "$": "", "€": "", "£": "",
}  # fmt: skip
_SPELLING = re.compile(
    "|".join(re.escape(s) + (r"(?![a-z])" if s[-1].isalpha() else "") for s in _SPELLINGS)
)
_IRRATIONAL = re.compile(
    r"\\(?:pi|sqrt|log|ln|exp|sin|cos|tan|e)(?![A-Za-z])|(?<![A-Za-z])(?:pi|sqrt|log|ln|exp|sin|cos"
    r"|tan|e)(?![A-Za-z])|√"
)
LONE_SIGN = re.compile(r"(?:(?<=[=:(,])|(?<=\bis)|^)(\s{0,3})([-+])\s{1,3}(?=[$£€]?\d)")
"""A sign with a space after it, which belongs to the number that follows."""
_ABOUT = re.compile(r"^\s*(?:[A-Za-z]\s*)?(?:≈|~|\\(?:approx|sim|simeq)(?![A-Za-z]))\s*")
LETTER: re.Pattern[str] = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mbox)\{)?"
    r"(?:\((?P<inside>[A-J])\)|(?P<marked>[A-J])[.:)]|(?P<alone>[A-J])(?=\}|$))\}?(?:\\?\s.{0,200})?"
)
"""The letter of a choice, as in `B`, `(B)` or `\\textbf{(B)}\\ 12`."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written."""

    value: Fraction
    decimal: bool = False
    ratio: bool = False
    percent: bool = False
    unit: Unit | None = None


# -- reading without computer algebra --------------------------------------------------------------


@lru_cache(1024)
def cleaned(text: str) -> str:
    """A text with normalised signs, spaces, dollar marks and final full stop."""
    text = text.strip()
    if _MARKED.search(text) or not text.isascii():  # most answers are plain
        text = _DEGREES.sub(" degrees", _LABEL.sub("", text))
        text = _SPELLING.sub(lambda match: _SPELLINGS[match[0]], text)
        if "\\frac" in text:
            text = _SHORT.sub(_braced, text)
        inner = boxed(text)
        if inner is not None and text.startswith("\\boxed{") and text.endswith("}"):
            text = inner
        text = text.strip()
    if "- " in text or "+ " in text:
        text = LONE_SIGN.sub(r"\1\2", text)
    return " ".join(text.split()).rstrip(".").strip("*` ")


def _braced(match: re.Match[str]) -> str:
    r"""`\frac12` and `\frac1{20}` with all of their braces."""
    above, below = (part.strip("{}") for part in match.groups())
    return f"\\frac{{{above}}}{{{below}}}"


def number(text: str) -> Number | None:
    """The number written in a cleaned text (integer, decimal, fraction, mixed number, percentage,
    optionally with a unit or a leading `x =`); `None` if it is anything else."""
    assigned = _ASSIGNED.match(text)
    text = assigned[1].strip() if assigned else text
    text, unit = _without_unit(text)
    percent = text.endswith("%")
    text = text.removesuffix("%").strip()
    if len(text) > 2 and text[0] + text[-1] in ("()", "{}", "[]"):
        text = text[1:-1].strip()
    match = _SCIENTIFIC.fullmatch(text)
    if match:
        value = Fraction(match[1]) * Fraction(10) ** int(match[2])
        return Number(value, decimal=True, percent=percent, unit=unit)
    if any(map(str.isdigit, text)) and _DECIMAL.fullmatch(text):
        value = Fraction(text.replace(",", ""))
        return Number(value, decimal="." in text, percent=percent, unit=unit)
    match = _REPEATING.fullmatch(text)
    if match:
        sign, whole, fixed, repeated = match.groups()
        return _repeating(sign, whole, fixed, repeated, percent, unit)
    match = _SLASH.fullmatch(text)
    if match:
        whole, above, below = match.groups()
        sign = -1 if (whole or "").startswith("-") else 1
        return _ratio(sign, abs(int(whole or 0)), int(above), int(below), percent, unit)
    match = _FRAC.fullmatch(text.replace(" ", ""))
    if match:
        sign = -1 if match[1] == "-" else 1
        return _ratio(sign, int(match[2] or 0), int(match[3]), int(match[4]), percent, unit)
    return None


def _without_unit(text: str) -> tuple[str, Unit | None]:
    """A cleaned text without the unit after its number; `percent` becomes a sign."""
    bare, unit = split(text)
    if unit is None or _NO_UNITS.search(unit.words):
        return text, None
    if unit.words.lower() in ("percent", "per cent"):
        return bare + "%", None
    if unit.powers or len(unit.words) > 1 or text.endswith("}"):
        return bare, unit
    return text, None


def several(text: str) -> list[tuple[str, Fraction]] | None:
    r"""The items of a cleaned list such as `2, 5`, `x = 2, y = 5`, `3 boys, 2 girls` or `\{2, 5\}`:
    the name or unit of each, and its number, in base units; `None` if it is not a list of two or
    more numbers."""
    text = re.sub(r"^\\?\{(.*?)\\?\}$", r"\1", text)
    parts = _SEPARATOR.split(text)
    items = [_item(part) for part in parts if part]
    if len(items) < 2 or any(item is None for item in items):
        return None
    return [item for item in items if item is not None]


def _item(part: str) -> tuple[str, Fraction] | None:
    name, equals, rest = part.rpartition("=")
    if equals and not _NAME.fullmatch(name.strip()):
        return None
    one = number(rest.strip())
    if one is None or one.percent:
        return None
    if equals or one.unit is None:
        return "".join(name.split()), one.value
    if one.unit.powers:
        return str(sorted(one.unit.powers)), one.value * one.unit.factor
    return one.unit.words.lower().removesuffix("s"), one.value


def same_list(
    answer: Sequence[tuple[str, Fraction]] | None, gold: Sequence[tuple[str, Fraction]]
) -> bool:
    """Whether two lists have the same items as often. Names and units that tell the items of the
    right answer apart belong to them; an answer without any is in the same order."""
    if answer is None or len(answer) != len(gold):
        return False
    names, others = {name for name, _ in gold}, {name for name, _ in answer}
    if len(names) == 1:  # numbers only, or several values of one variable
        return sorted(value for _, value in answer) == sorted(value for _, value in gold)
    if others == {""}:
        return [value for _, value in answer] == [value for _, value in gold]
    return sorted(answer) == sorted(gold)


def letter(text: str) -> str | None:
    """The letter of a choice that a cleaned text names; `None` if it names none."""
    match = LETTER.fullmatch(text)
    return match and (match["inside"] or match["marked"] or match["alone"])


def relation(text: str) -> tuple[str, str, Fraction] | None:
    """`x > 3` or `3 < x` as `("x", ">", 3)`; `None` if a cleaned text does not compare a variable
    with a number."""
    match = _RELATION.fullmatch(text)
    if not match:
        return None
    left, sign, right = match[1].strip(), match[2], match[3].strip()
    if len(left) != 1 or not left.isalpha():
        left, sign, right = right, _MIRROR[sign], left
    value = number(right)
    if len(left) != 1 or not left.isalpha() or value is None or value.percent:
        return None
    return left, sign, value.value


def same_number(answer: Number, gold: Number, percents: bool = False) -> bool:
    """Whether an answer is the right number in evaluated form: `84/4` is not accepted for 21, and a
    decimal is accepted for a fraction if it agrees to six places. If both have a unit of measure,
    the quantities must be equal: 3000 m are 3 km, and 3 mm are not. 5% is 0.05; it is 5 only if the
    right answer is a percentage, or with `percents`, for a question about percentages."""
    scale = factor(answer.unit, gold.unit)
    if scale is None:
        return False
    if scale != 1:
        answer = replace(answer, value=answer.value * scale)
    whole = gold.value.denominator == answer.value.denominator == 1
    if answer.ratio and not gold.ratio and whole:
        return False
    if answer.percent != gold.percent:
        scaled = answer.value / 100 if answer.percent else answer.value * 100
        return scaled == gold.value or (answer.value == gold.value and (gold.percent or percents))
    if answer.value == gold.value:
        return True
    close = abs(answer.value - gold.value) <= abs(gold.value) / 10**6
    return close and answer.decimal and gold.value.denominator > 1


def approximates(text: str, gold: str) -> bool:
    r"""Whether a cleaned text is a decimal approximation of an exact right answer that is not a
    fraction (`1.5708` for `\pi/2`)."""
    if not _IRRATIONAL.search(gold) or re.search(r"\d\.\d", gold):
        return False
    answer = number(_ABOUT.sub("", text))
    return answer is not None and answer.decimal and answer.value.denominator > 1


def unworked(text: str) -> bool:
    """Whether a cleaned text that `number` cannot parse is a calculation, a choice or plain words,
    in contrast to a number in LaTeX that requires computer algebra."""
    return bool(_UNWORKED.search(text)) or "\\" not in text


def repeats(text: str, question: str) -> bool:
    """Whether an expression only copies a part of the question."""
    bare = re.sub(r"\s+", "", text)
    operators = any(not (character.isalnum() or character in ".,") for character in bare)
    return operators and len(bare) > 2 and bare in re.sub(r"\s+", "", cleaned(question))


def costly(text: str) -> bool:
    """Whether a text is rejected before parsing: too long, too deeply nested, or with numbers too
    large for an answer."""
    if len(text) > MAX_ANSWER or _LONG.search(text):
        return True
    if not _GROWS.search(text):
        return False
    depth = deepest = 0
    for character in text:
        depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(character, 0)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH or re.search(r"\d{4,}\s*!|!\s*!|\)\s*!", text):
        return True
    plain = re.sub(r"[\s{}()]", "", text.replace("**", "^"))
    return any(
        _power_too_big(chain[0])
        for chain in re.finditer(r"\d+(?:\.\d+)?(?:\^-?\d+)+|\^-?\d{5,}", plain)
    )


def _power_too_big(chain: str) -> bool:
    """Whether a tower such as `9^9^9`, read from the top, has an exponent above `MAX_EXPONENT`."""
    exponents = [abs(int(part)) for part in chain.split("^")[1:]]
    top = exponents[-1]
    for base in reversed(exponents[:-1]):
        if top > MAX_EXPONENT or top * math.log10(max(base, 1) + 1) > math.log10(MAX_EXPONENT) + 1:
            return True
        top = base**top
    return top > MAX_EXPONENT


def _repeating(
    sign: str, whole: str, fixed: str, repeated: str, percent: bool, unit: Unit | None
) -> Number:
    r"""`0.1\overline{6}` as the exact number that it is."""
    scale = 10 ** len(fixed)
    value = Fraction(int(whole + fixed or 0), scale)
    value += Fraction(int(repeated), scale * (10 ** len(repeated) - 1))
    return Number(-value if sign == "-" else value, percent=percent, unit=unit)


def _ratio(
    sign: int, whole: int, above: int, below: int, percent: bool, unit: Unit | None
) -> Number | None:
    if below == 0 or (whole and (above < 0 or above >= below)):
        return None
    return Number(sign * (whole + Fraction(above, below)), ratio=True, percent=percent, unit=unit)
