"""Comparison of a solution's value with the expected one. Both are compared as packed by
`plain.pack`: no value from outside becomes an object here whose `==` or `hash` could run code."""

import cmath
import itertools
import math
from typing import Any

from mrlm.sandbox.grading.plain import DEPTH, NotPlain, integer, pack

SHOWN = 200
"""Characters of a value that feedback shows."""

_SELF: dict[type, str] = {
    **{type(None): "none", bool: "bool", int: "number", float: "number"},
    **{str: "text", list: "list"},
}
"""Type that is packed as itself -> its name."""
_NAMES = {"t": "tuple", "s": "set", "z": "set", "b": "bytes"}
_nan = itertools.count()


def same(got: Any, expected: Any, rel_tol: float = 0.0) -> bool:
    """Whether two values are equal, with the `==` of built-in types; but a boolean never equals a
    number, and NaN never equals anything. Keys of dictionaries are compared like values.

    Args:
        rel_tol: relative tolerance of floats (absolute if 0 is expected); not in sets and keys, and
            not between integers.

    Examples:
        >>> same((1, 2.0), [1, 2]), same([1], (1,)), same(True, 1)
        (True, False, False)
    """
    try:
        return same_packed(pack(got), pack(expected), rel_tol)
    except NotPlain:
        return False


def same_packed(got: Any, expected: Any, rel_tol: float = 0.0) -> bool:
    """`same` for packed values. Raises `NotPlain`: the solution's value is malformed."""
    return _same(got, expected, rel_tol, DEPTH)


def show(packed: Any) -> str:
    """A packed value in Python syntax, at most `SHOWN` characters and without control codes."""
    parts: list[str] = []
    try:
        _write(packed, parts, DEPTH)
    except NotPlain:
        return "a value that is not plain data"
    text = "".join(parts)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _same(got: Any, expected: Any, rel_tol: float, depth: int) -> bool:
    if depth < 0:
        raise NotPlain("too deep")
    (kind, one), (target, other) = _opened(got), _opened(expected)
    if kind == "tuple" and target == "list":
        kind = "list"
    if kind != target or kind == "object":
        return False
    if kind == "number":
        return _close(one, other, rel_tol)
    if kind in ("list", "tuple"):
        return len(one) == len(other) and all(
            _same(a, b, rel_tol, depth - 1) for a, b in zip(one, other, strict=True)
        )
    if kind == "set":
        return {_key(item, depth - 1) for item in one} == {_key(item, depth - 1) for item in other}
    if kind == "dict":
        mine, theirs = _table(one, depth - 1), _table(other, depth - 1)
        return mine.keys() == theirs.keys() and all(
            _same(item, theirs[key], rel_tol, depth - 1) for key, item in mine.items()
        )
    return one == other


def _close(got: Any, expected: Any, rel_tol: float) -> bool:
    if got == expected:
        return True
    if rel_tol <= 0 or (type(got) is int and type(expected) is int):
        return False
    try:
        near = cmath.isclose if complex in (type(got), type(expected)) else math.isclose
        return near(got, expected, rel_tol=rel_tol, abs_tol=0.0 if expected else rel_tol)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _opened(packed: Any) -> tuple[str, Any]:
    """The type of a packed value, and its content: a Python value, or packed values."""
    kind = type(packed)
    if kind in _SELF:
        return _SELF[kind], packed
    if kind is not dict or len(packed) != 1:
        raise NotPlain("not a packed value")
    ((tag, content),) = packed.items()
    if tag == "i":
        return "number", integer(content)
    if tag == "f" and content in ("nan", "inf", "-inf"):
        return "number", float(content)
    if tag == "c" and _are(content, 2):
        real, imaginary = (_opened(part) for part in content)
        if type(real[1]) is float and type(imaginary[1]) is float:
            return "number", complex(real[1], imaginary[1])
    if tag == "u" and type(content) is str:
        return "broken text", content
    if tag == "r" and _are(content, 3):
        bounds = [_opened(part)[1] for part in content]
        if all(type(part) is int and part.bit_length() < 64 for part in bounds) and bounds[2]:
            return "range", range(*bounds)
    if (tag in ("t", "s", "z") and _are(content)) or (tag == "b" and type(content) is str):
        return _NAMES[tag], content
    if tag == "d" and _are(content) and all(_are(pair, 2) for pair in content):
        return "dict", content
    if (tag == "o" and type(content) is int) or tag == "x":
        return "object", content
    raise NotPlain("not a packed value")


def _are(content: Any, size: int | None = None) -> bool:
    return type(content) is list and size in (None, len(content))


def _table(pairs: list[Any], depth: int) -> dict[str, Any]:
    table = {_key(key, depth): value for key, value in pairs}
    if len(table) != len(pairs):
        raise NotPlain("a dictionary with a duplicate key")
    return table


def _key(packed: Any, depth: int) -> str:
    """Text that is the same for equal hashable values. Text, since a set of numbers can be chosen
    with one hash for all of them, which takes quadratic time."""
    if depth < 0:
        raise NotPlain("too deep")
    kind, content = _opened(packed)
    if kind == "number":
        return _number(content)
    if kind == "tuple":
        return f"({','.join(_key(item, depth - 1) for item in content)})"
    if kind == "set" and "z" in packed:
        return f"{{{','.join(sorted({_key(item, depth - 1) for item in content}))}}}"
    if kind in ("none", "bool", "text", "broken text", "bytes"):
        return f"{kind} {content!r}"
    raise NotPlain(f"a {kind} cannot be a key")


def _number(number: Any) -> str:
    if type(number) is complex:
        if number.imag:
            return f"{_number(number.real)}+{_number(number.imag)}j"
        number = number.real
    if type(number) is float:
        if math.isnan(number):
            return f"nan {next(_nan)}"  # never equal to another
        if not number.is_integer():
            return number.hex()
        number = int(number)
    return f"{number:x}"


def _write(packed: Any, parts: list[str], depth: int) -> None:
    kind, content = _opened(packed)
    if depth < 0 or kind not in ("list", "tuple", "set", "dict") or (kind == "set" and not content):
        parts.append(_brief(kind, content))
        return
    left, right = {"list": "[]", "tuple": "()"}.get(kind, "{}")
    parts.append(left)
    for index, item in enumerate(content):
        if sum(map(len, parts)) > SHOWN:
            break
        parts.append(", " if index else "")
        if kind == "dict":
            _write(item[0], parts, depth - 1)
            parts.append(": ")
        _write(item[1] if kind == "dict" else item, parts, depth - 1)
    parts.append("," + right if kind == "tuple" and len(content) == 1 else right)


def _brief(kind: str, content: Any) -> str:
    if kind == "text":
        return repr(content[: SHOWN + 1])
    if kind == "bytes":
        return f"<bytes {content[:SHOWN]}>"
    if kind == "number" and type(content) is int and content.bit_length() > 4 * SHOWN:
        return f"<an integer of {content.bit_length()} bits>"
    if kind in ("none", "bool", "number", "range"):
        return repr(content)
    return "set()" if kind == "set" else f"<{kind}>"
