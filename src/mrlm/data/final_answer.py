r"""The answer in a worked solution: after `####`, or in a `\boxed{}`."""

import re

MAX_TEXT = 100_000
"""Number of characters at the end of a text that are searched for an answer."""
_BARE = re.compile(r"\\boxed\s{1,3}(-?[\w.]{1,40})(?![\s\S]*\\boxed\s{1,3}-?\w)")


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`; `None` without one or if its brace is not closed."""
    text = text[-MAX_TEXT:]
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position].strip()
    return None


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` or `\boxed 5` that is not empty; `None` without one,
    or if the last one is not closed."""
    text = text[-MAX_TEXT:]
    while True:
        bare = _BARE.search(text)
        start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
        if bare is not None and bare.start() > start:
            return bare[1]
        content = boxed(text)
        if content or start < 0 or content is None:
            return content
        text = text[:start]


def after_hashes(text: str) -> str | None:
    """The text after the last `####`, without thousands separators; `None` if there is none."""
    _, hashes, answer = text.rpartition("####")
    return answer.strip().replace(",", "") or None if hashes else None
