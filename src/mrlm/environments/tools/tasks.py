"""Tasks of the tool environment, from a generator or from rows of a data set, the prompts that
describe tools, and the comparison of answers."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Literal

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.tool_calls import written
from mrlm.core.types import Message, Task
from mrlm.environments.tools.generator import KINDS, ToolProblem, ToolTaskGenerator
from mrlm.environments.tools.registry import ToolRegistry

ANSWERS = ("answer", "answers", "final_answer")
GROUPS = ("calculator", "search", "files")
"""Default groups of built-in tools for rows."""
CallFormat = Literal["tool_call", "json", "python", "short", "native"]

ANSWER = (
    "When you know the answer, write it alone, as <answer>...</answer>, in a message without "
    "calls. Write a number with digits only. Several answers are a wrong answer."
)
_NUMBER = re.compile(r"[+-]?\d{1,300}(\.\d{1,300})?")


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


def instructions(registry: ToolRegistry, call_format: CallFormat, max_turns: int) -> str:
    """The system prompt: the tools, the call format, and the answer format. With `native` the tools
    are described by the chat template."""
    parts = []
    if call_format != "native":
        example = {"tool_call": "tool_call", "json": "json"}.get(call_format, "python")
        call = written("name", {"argument": "value"}, example)
        lines = []
        for tool in registry:
            lines.append(f"- {tool.usage}: {tool.description}")
            lines += [
                f"    {name}: {one['description']}"
                for name, one in tool.parameters["properties"].items()
                if "description" in one
            ]
        parts += ["You may call these tools:", *lines, "", f"A call is written as\n{call}", ""]
    parts.append(f"You have {max_turns} messages. {ANSWER}")
    return "\n".join(parts)


def stated(answer: str, call_format: CallFormat) -> str:
    """An answer in the expected format."""
    return f"={answer}" if call_format == "short" else f"<answer>{answer}</answer>"


def same_answer(answer: str, accepted: Sequence[Any]) -> bool:
    """Whether an answer is one of the accepted ones: numbers are compared by value, texts up to
    case, spaces, and surrounding quotes or full stops. A list of guesses equals none of them."""
    return any(_same(answer, str(one)) for one in accepted)


def _same(answer: str, gold: str) -> bool:
    answer, gold = answer.strip(), gold.strip()
    if _NUMBER.fullmatch(gold):
        return bool(
            answer.isascii() and _NUMBER.fullmatch(answer) and Fraction(answer) == Fraction(gold)
        )
    return bool(answer) and _plain(answer) == _plain(gold)


def _plain(text: str) -> str:
    return " ".join(text.split()).strip(" .\"'").casefold()
