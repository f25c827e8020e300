"""Tasks of the tool environment: from a generator, or from rows of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.environments.tools.generator import KINDS, ToolProblem, ToolTaskGenerator

ANSWERS = ("answer", "answers", "final_answer")
GROUPS = ("calculator", "search", "files")
"""Default groups of built-in tools for rows."""


def generator_of(
    tasks: Any, levels: Sequence[int], seed: int, terse: bool
) -> ToolTaskGenerator | None:
    """The generator of a user's setting; `None` for rows. Raises `ConfigError` for an unknown
    kind."""
    kinds = (*KINDS, "mixed")
    if isinstance(tasks, ToolTaskGenerator):
        return tasks
    if not isinstance(tasks, str):
        return None
    if tasks in kinds:
        return ToolTaskGenerator(tasks, levels, seed, terse)
    if near := get_close_matches(tasks, kinds, 1):
        raise ConfigError(f"tasks: unknown kind {tasks!r}; did you mean {near[0]!r}?")
    return None


def required_of(task: Task) -> list[str] | None:
    """The tools that a task requires; `None` if not specified. Raises `ConfigError`: they are not
    names."""
    value = task.info.get("required", task.info.get("required_tools"))
    if value is None:
        return None
    names = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"task {task.id!r}: required must be names of tools, not {value!r}")
    return list(dict.fromkeys(names))


def accepted_of(answer: Any) -> Sequence[Any]:
    """The accepted answers of a task."""
    return answer if isinstance(answer, list | tuple) else [answer]


def problem_of(answer: Any) -> str:
    """The problem of an answer column; empty for nothing."""
    return "" if any(str(one).strip() for one in accepted_of(answer)) else "its answer is empty"


def generated(problem: ToolProblem, seed: int, split: Split) -> Task:
    """The task of a generated problem."""
    info = _columns(problem)
    answer = info.pop("answer")
    name = f"tools-{problem.kind}-{split}-{seed}"
    return Task(name, [Message(problem.question)], answer, seed, info)


def _columns(problem: ToolProblem) -> dict[str, Any]:
    plan = [list(step) for step in problem.plan]
    return asdict(problem) | {"required": list(problem.required), "plan": plan}


def rows_of(tasks: Any) -> Any:
    """Rows from rows, tasks or problems."""
    return [_row(one) for one in tasks] if isinstance(tasks, list | tuple) else tasks


def _row(one: Any) -> Any:
    if isinstance(one, ToolProblem):
        return _columns(one)
    if isinstance(one, Task):
        return {**one.info, "prompt": list(one.prompt), "answer": one.answer}
    return one
