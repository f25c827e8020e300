"""Tasks of the tool environment: from a generator, or from rows of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.data.tasks import OnBadRow
from mrlm.environments.shared.questions import QuestionTable
from mrlm.environments.tools.generator import KINDS, ToolProblem, ToolTaskGenerator

ANSWERS = ("answer", "answers", "final_answer")
GROUPS = ("calculator", "search", "files")
"""Default groups of built-in tools for rows."""


class ToolTasks:
    """A source of tasks whose prompt is the original question.

    Args:
        tasks: a kind of generated problems, a generator, or rows.
        eval_tasks: held-out rows; a tenth of the prompts when `None`.
        levels, seed, terse: settings of generated problems.
        split, columns, on_bad_row: settings of rows.

    Raises:
        ConfigError: an unknown kind, or invalid rows.
    """

    def __init__(
        self,
        tasks: Any,
        *,
        eval_tasks: Any = None,
        levels: Sequence[int] = (1, 2),
        seed: int = 0,
        terse: bool = False,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
    ) -> None:
        self.generator: ToolTaskGenerator | None = None
        self._table: QuestionTable | None = None
        kinds = (*KINDS, "mixed")
        if isinstance(tasks, ToolTaskGenerator):
            self.generator = tasks
        elif isinstance(tasks, str) and tasks in kinds:
            self.generator = ToolTaskGenerator(tasks, levels, seed, terse)
        elif isinstance(tasks, str) and (near := get_close_matches(tasks, kinds, 1)):
            raise ConfigError(f"tasks: unknown kind {tasks!r}; did you mean {near[0]!r}?")
        else:
            held = None if eval_tasks is None else _rows(eval_tasks)
            self._table = QuestionTable(
                "tool tasks", ANSWERS, _rows(tasks), held, split, columns, on_bad_row, seed
            )

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of built-in tools that the tasks need, or may need."""
        return GROUPS if self.generator is None else self.generator.groups

    def count(self, split: Split) -> int | None:
        """Number of tasks; `None` if unlimited."""
        return None if self._table is None else self._table.count(split)

    def task(self, seed: int, split: Split) -> Task:
        """The task of a seed or an index."""
        if self.generator is not None:
            return _generated(self.generator.problem(seed, split), seed, split)
        assert self._table is not None
        found = self._table.question(seed, split)
        name = f"tools-{split}-{found.index}"
        return Task(name, found.messages, found.gold, seed, found.info)

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolTasks:
        return self


def required_of(task: Task) -> list[str] | None:
    """The tools that a task requires; `None` if not specified.

    Raises:
        ConfigError: they are not names.
    """
    given = task.info.get("required", task.info.get("required_tools"))
    if given is None:
        return None
    names = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"task {task.id!r}: required must be names of tools, not {given!r}")
    return list(dict.fromkeys(names))


def _generated(problem: ToolProblem, seed: int, split: Split) -> Task:
    info = _columns(problem)
    answer = info.pop("answer")
    name = f"tools-{problem.kind}-{split}-{seed}"
    return Task(name, [Message(problem.question)], answer, seed, info)


def _columns(problem: ToolProblem) -> dict[str, Any]:
    plan = [list(step) for step in problem.plan]
    return asdict(problem) | {"required": list(problem.required), "plan": plan}


def _rows(tasks: Any) -> Any:
    """Rows from rows, tasks or problems."""
    return [_row(one) for one in tasks] if isinstance(tasks, list | tuple) else tasks


def _row(one: Any) -> Any:
    if isinstance(one, ToolProblem):
        return _columns(one)
    if isinstance(one, Task):
        return {**one.info, "prompt": list(one.prompt), "answer": one.answer}
    return one
