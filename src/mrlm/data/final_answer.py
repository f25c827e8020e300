r"""The answer in a worked solution: after `####`, or in a `\boxed{}`."""

from __future__ import annotations

import re

MAX_TEXT = 100_000
"""Number of characters at the end of a text that are searched for an answer."""


_BRACE = re.compile(r"[{}]")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s{0,5}(?:(\{)|([-+]?[\w./]{1,200}))")


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` that is not empty (also `\boxed 5`); empty if all are;
    `None` without one, or if the brace of the last is not closed."""
    text = text[-MAX_TEXT:]
    if "box" not in text:
        return None
    inside = None
    for box in reversed([*_BOX.finditer(text)]):
        inside = _closed(text, box.end()) if box[1] else box[2].rstrip(".")
        if inside is None or inside:
            return inside
    return inside


def _closed(text: str, begin: int) -> str | None:
    """The text up to the brace that closes the one before `begin`."""
    depth = 1
    for brace in _BRACE.finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[begin : brace.start()].strip()
    return None


def after_hashes(text: str) -> str | None:
    """The text after the last `####`, without thousands separators; `None` if there is none."""
    _, hashes, answer = text.rpartition("####")
    return answer.strip().replace(",", "") or None if hashes else None
