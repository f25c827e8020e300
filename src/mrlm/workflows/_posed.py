"""Parsing of tasks that an agent poses, used when no checker is configured."""

from __future__ import annotations

import re
from collections.abc import Callable

from mrlm.core.types import Message, Task

Checker = Callable[[Task, str], Task | str]
"""Turns the environment's own task and an agent's completion into the posed task, or returns the
reason why it is not usable."""


def read_posed(task: Task, text: str) -> Task | str:
    """The task posed by a text as `Problem: ...`, then `Answer: ...`; or the reason of refusal."""
    *lines, last = text[:20_000].strip().splitlines() or [""]
    stated = re.match(r"answer\s*:(.*)", last.strip(), re.IGNORECASE)
    answer = stated[1].strip() if stated else ""
    problem = re.sub(r"\Aproblem\s*:", "", "\n".join(lines).strip(), flags=re.IGNORECASE).strip()
    if not (problem and answer):
        return "there is no `Problem: ...` with an `Answer: ...` on the last line"
    own = " ".join("\n".join(message.content for message in task.prompt).split()).casefold()
    if " ".join(problem.split()).casefold() in own:
        return "it is the question that was shown"
    info = {"question": problem}
    return Task(f"{task.id}/posed", [Message(problem)], answer, task.seed, info)
