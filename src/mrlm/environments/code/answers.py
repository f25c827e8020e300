"""Extraction of code from a completion, and checks before it is run. Works on text only."""

from __future__ import annotations

import re

MAX_CODE = 100_000
"""Maximum number of characters of code; longer code is refused without being run."""

_FENCE = re.compile(r"(.*?)(`{3,}|~{3,})([^`]*)")
_CLOSING = re.compile(r"([ \t]*)(`{3,}|~{3,})(.*)")
_PYTHON = re.compile(r"[ \t]*(?:python3?|py)\b", re.IGNORECASE)
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def extract_code(text: str) -> str:
    """The code of a completion: its first ```` ```python ```` block, else its first fenced block,
    else the whole text. An unclosed block ends with the text; text that only ends with a fence, as
    where the prompt has opened the block, is the code before it."""
    blocks = _blocks(text.replace("\r\n", "\n"))
    python = [code for info, code in blocks if _PYTHON.match(info)]
    return (python or [code for _, code in blocks] or [text])[0].strip("\n").rstrip()


def _blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a text: the words after the opening fence, and the lines inside, without
    the indentation of the block (that of a list)."""
    blocks: list[tuple[str, str]] = []
    lines = text.split("\n")
    opening: tuple[int, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(lines):
        if opening is None:
            if fence := _FENCE.fullmatch(line):
                before, marks, info = fence.groups()
                last = not info.strip() and not "".join(lines[number + 1 :]).strip()
                if last and not blocks:
                    code = "\n".join([*lines[:number], before])
                    return [("", code)] if code.strip() else []
                column = len(before) if re.fullmatch(r"\s*(?:[-*+]|\d+[.)])?\s*", before) else 0
                opening, inside = (column, marks, info), []
            continue
        column, marks, info = opening
        if _closes(line, column, marks):
            blocks.append((info, "\n".join(inside)))
            opening = None
            continue
        indent = len(line) - len(line.lstrip(" \t"))
        inside.append(line[min(indent, column) :])
    if opening is not None:
        body = "\n".join(inside)
        end = body.find(opening[1])  # a fence behind the last line of code
        blocks.append((opening[2], body if end < 0 else body[:end]))
    return blocks


def _closes(line: str, column: int, marks: str) -> bool:
    """Whether a line closes a block: one that is indented further belongs to the code."""
    fence = _CLOSING.fullmatch(line)
    return fence is not None and fence[2].startswith(marks) and len(fence[1]) < column + 4


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
