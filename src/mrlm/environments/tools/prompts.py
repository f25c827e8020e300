"""Prompts that describe tools, and comparison of answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, get_args

from mrlm.core.tool_calls import written
from mrlm.environments.tools.registry import ToolRegistry

CallFormat = Literal["tool_call", "json", "python", "short", "native"]
CALL_FORMATS: tuple[str, ...] = get_args(CallFormat)

ANSWER = (
    "When you know the answer, write it alone, as <answer>...</answer>, in a message without "
    "calls. Write a number with digits only. Several answers are a wrong answer."
)
_NUMBER = re.compile(r"[+-]?\d{1,300}(\.\d{1,300})?")


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
