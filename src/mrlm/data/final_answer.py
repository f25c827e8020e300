r"""Where the answer stands in a worked solution: after `####`, or in a `\boxed{}`. It does not know
what makes an answer right."""

from __future__ import annotations

MAX_TEXT = 100_000
"""Longest text, in characters, that is searched for an answer; of a longer one the end is
searched."""


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds; `None` if there is none or its brace is never closed."""
    text = text[-MAX_TEXT:]
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place].strip()
    return None


def after_hashes(text: str) -> str | None:
    """What follows the last `####`, without the commas of thousands; `None` if nothing does."""
    _, hashes, answer = text.rpartition("####")
    return answer.strip().replace(",", "") or None if hashes else None
