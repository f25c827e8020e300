"""Extraction of code from a completion, and checks before it is run. Works on text only."""

from __future__ import annotations

import re

MAX_CODE = 100_000
"""Maximum number of characters of code; longer code is refused without being run."""

_PYTHON = re.compile(r"```[ \t]{0,9}(?:python3?|py)\b", re.IGNORECASE)
_ANY = re.compile(r"```[^\n`]{0,99}$", re.MULTILINE)
_END = re.compile(r"^[ \t]*```", re.MULTILINE)
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def extract_code(text: str) -> str:
    """The code of a completion: its first ```` ```python ```` block, else its first fenced block,
    else the whole text. An unclosed block ends with the text."""
    text = text.replace("\r\n", "\n")
    opening = _PYTHON.search(text) or _ANY.search(text)
    first = text.find("\n", opening.end()) if opening else -1
    if first < 0:
        return text.strip("\n").rstrip()
    body = text[first + 1 :]
    closing = _END.search(body)
    end = closing.start() if closing else body.find("```")
    return (body if end < 0 else body[:end]).strip("\n").rstrip()


def refusal(code: str) -> str:
    """The reason why code is not run; empty if it is."""
    if not code.strip():
        return "there is no code in it"
    if len(code) > MAX_CODE:
        return f"it is longer than {MAX_CODE} characters"
    if _UNWRITABLE.search(code):
        return "it holds characters that cannot stand in a program"
    return ""


def fenced(code: str) -> str:
    """Code in a fenced block, as an expert submits it."""
    return f"```python\n{code.rstrip()}\n```"
