"""Extraction of code from a completion, and checks before it is run. Works on text only."""

import re

MAX_CODE = 100_000
"""Maximum number of characters of code; longer code is refused without being run."""

_MARKER = re.compile(r"[-*+]|\d{1,9}[.)]")
_PYTHON = re.compile(r"[ \t]*(?:python3?|py)\b", re.IGNORECASE)
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def extract_code(text: str) -> str:
    """The code of a completion: its first ```` ```python ```` block, else its first fenced block,
    else the whole text. An unclosed block ends with the text; text that only ends with a fence, as
    where the prompt has opened the block, is the code before it."""
    blocks = _blocks(text.replace("\r\n", "\n"))
    python = [code for info, code in blocks if _PYTHON.match(info)]
    return (python or [code for _, code in blocks] or [text])[0].strip("\n").rstrip()


def _blocks(completion: str) -> list[tuple[str, str]]:
    """The fenced blocks of a text: the words after the opening fence, and the lines inside, without
    the indentation of the block (that of a list)."""
    blocks: list[tuple[str, str]] = []
    lines = completion.split("\n")
    opening: tuple[int, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(lines):
        if opening is not None and not opening[2].strip():
            _, again, info = _fence(line)
            if again == opening[1] and _PYTHON.match(info):
                opening = None  # that fence closed a block which began before the text
        if opening is None:
            before, marks, info = _fence(line)
            if marks:
                alone = not info.strip() and not blocks
                if alone and not "".join(lines[number + 1 :]).strip():
                    code = "\n".join([*lines[:number], before])
                    return [("", code)] if code.strip() else []
                listed = not before.strip() or _MARKER.fullmatch(before.strip())
                column = len(before) if listed else 0
                opening, inside = (column, marks, info), []
            continue
        column, marks, info = opening
        text = line.lstrip(" \t")
        indent = len(line) - len(text)
        if text.startswith(marks) and indent < column + 4:  # further in, it belongs to the code
            blocks.append((info, "\n".join(inside)))
            opening = None
            continue
        inside.append(line[min(indent, column) :])
    if opening is not None:
        body = "\n".join(inside)
        end = body.find(opening[1])  # a fence behind the last line of code
        blocks.append((opening[2], body if end < 0 else body[:end]))
    return blocks


def _fence(line: str) -> tuple[str, str, str]:
    """A line that may open a block: the text before the fence, the fence, and the words after
    it. Without a fence, the second is empty."""
    tilde = line.lstrip(" \t").startswith("~~~")
    mark = "~" if tilde else "`"
    end = len(line) - len(line.lstrip(" \t~")) if tilde else line.rfind(mark) + 1
    before = line[:end].rstrip(mark)
    if end - len(before) < 3 or "```" in before:  # no fence, or code inside a line
        return "", "", ""
    return before, line[len(before) : end], line[end:]


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
