"""Parsing of messages: tool calls in three forms, or an answer, for environments and servers alike.
Runs no tool, and parses or rejects any text in time linear in its length."""

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mrlm.core.errors import ConfigError, no_constant
from mrlm.core.thoughts import without_thoughts

MAX_TEXT = 20_000
"""Maximum number of characters of a message."""
MAX_CALL = 8_000
"""Maximum number of characters of one call."""
MAX_DEPTH = 32
"""Maximum depth of brackets in a call."""
OPENS, CLOSES = "<tool_call>", "</tool_call>"
ANSWER_OPENS, ANSWER_CLOSES = "<answer>", "</answer>"
_BEGINS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}[ ]?\(")
_LINE = re.compile(_BEGINS.pattern + r".*\)")
_SPACE = re.compile(r"\s*")
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
"""A string of JSON, whole, or a bracket."""


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call, possibly of an unknown tool."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Malformed:
    """A call that cannot be parsed; `reason` is shown to the model."""

    reason: str


ParsedCalls = list[ToolCall | Malformed]


@dataclass(frozen=True)
class Block:
    """A call in tags: the text from `start` to `end`, closing tag included."""

    call: ToolCall | Malformed
    start: int
    end: int


class _Refused(ValueError):
    """A call cannot be parsed."""


def calls_in(text: str) -> ParsedCalls:
    """The calls of a message, in order, in the first of these forms that it has:

    - `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Qwen and Hermes write it;
    - one or more bare objects `{"name": ..., "parameters": {...}}`, as Llama writes them, or a list
      of such objects, as Mistral does;
    - lines `name(arg=value)`, whose values are Python literals.
    """
    if len(text) > MAX_TEXT:
        return [Malformed(f"the message is longer than {MAX_TEXT} characters")]
    text = without_thoughts(text)
    if OPENS in text:
        return [block.call for block in blocks_in(text)]
    stripped = text.strip().removeprefix("<|python_tag|>").removeprefix("[TOOL_CALLS]").strip()
    if stripped[:1] == "{" or re.match(r"\[\s*\{", stripped):
        return _bare(stripped)
    return _lines(stripped)


def blocks_in(text: str) -> Iterator[Block]:
    """The calls in tags, in order. A closing tag within a text of the JSON object is part of that
    text; a malformed call ends with the first closing tag, or before the next opening one."""
    start, last = text.find(OPENS), text.rfind(CLOSES)
    while start >= 0:
        inside = start + len(OPENS)
        following = text.find(OPENS, inside)
        if last < inside:
            yield Block(Malformed(f"{OPENS} without {CLOSES}"), start, len(text))
            return
        call, end = _tagged(text, inside)
        if end < 0:
            closing = text.find(CLOSES, inside)
            if 0 <= following < closing:
                end, call = following, Malformed(f"{OPENS} without {CLOSES}")
            else:
                end = closing + len(CLOSES)
        yield Block(call, start, end)
        start = text.find(OPENS, end)


def answer_in(text: str) -> str | None:
    """The answer of a message: the text in `<answer>`, else after `=` if the message is one line
    that begins with it; `None` if there is none. Two different answers are joined, so that a list
    of guesses equals none of them."""
    text = text[-MAX_TEXT:]
    answers = []
    for part in text.split(ANSWER_OPENS)[1:]:
        inside, closed, _ = part.partition(ANSWER_CLOSES)
        if closed:
            answers.append(inside.strip())
    if answers:
        return " or ".join(dict.fromkeys(answers))
    line = text.strip()
    return line[1:].strip() if line.startswith("=") and "\n" not in line else None


def written(name: str, arguments: dict[str, Any], form: str = "tool_call") -> str:
    """A call in the format of a model.

    Args:
        form: `tool_call`, `json` (Llama's), `python`, or `short`: `python` without the names.

    Raises:
        ConfigError: an unknown form.
    """
    if form in ("python", "short"):
        values = (f"{key}={value!r}" for key, value in arguments.items())
        plain = (_quoted(value) for value in arguments.values())
        return f"{name}({', '.join(plain if form == 'short' else values)})"
    if form == "json":
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)
    if form == "tool_call":
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{OPENS}\n{call}\n{CLOSES}"
    raise ConfigError(f"call_format must be one of tool_call, json, python, short, not {form!r}")


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


# -- the three forms -------------------------------------------------------------------------------


def _tagged(text: str, position: int) -> tuple[ToolCall | Malformed, int]:
    """The call after an opening tag, and the end of its closing tag; -1 if it is malformed."""
    try:
        value, end = _scanned(text, _SPACE.match(text, position).end())  # type: ignore[union-attr]
        end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        if not text.startswith(CLOSES, end):
            raise _Refused("there is something after the JSON object of the call")
    except _Refused as error:
        return Malformed(str(error)), -1
    return _read(lambda: _call_of(value)), end + len(CLOSES)


def _bare(text: str) -> ParsedCalls:
    calls: ParsedCalls = []
    position = 0
    while position < len(text):
        try:
            value, position = _scanned(text, position)
        except _Refused as error:
            return [*calls, Malformed(str(error))]
        for one in value if isinstance(value, list) else [value]:
            calls.append(_read(lambda one=one: _call_of(one)))
        while position < len(text) and text[position] in " \t\r\n;,":
            position += 1
    return calls


def _lines(text: str) -> ParsedCalls:
    if "\n" in text and _BEGINS.match(text) and text.endswith(")"):
        call = _read(lambda: _python_call(text))
        if isinstance(call, ToolCall):
            return [call]
    calls: ParsedCalls = []
    for line in text.splitlines():
        line = line.strip().strip("`")
        if line and _LINE.fullmatch(line):
            calls.append(_read(lambda line=line: _python_call(line)))
    return calls


def _read(parse: Callable[[], ToolCall]) -> ToolCall | Malformed:
    try:
        return parse()
    except _Refused as error:
        return Malformed(str(error))


# -- JSON ------------------------------------------------------------------------------------------


def _value(text: str) -> Any:
    value, end = _scanned(text, 0)
    if text[end:].strip():
        raise _Refused("there is something after the JSON object of the call")
    return value


def _scanned(text: str, position: int) -> tuple[Any, int]:
    """The JSON value that begins at a position, and the position of its end."""
    if text[position : position + 1] in ("", "<"):
        raise _Refused("the call is empty")
    if text[position] in "{[":
        _bounded_value(text, position)
    try:
        return _STRICT.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise _Refused(f"not valid JSON: {error.msg} at character {error.pos + 1}") from error
    except (ValueError, RecursionError) as error:
        raise _Refused(f"not valid JSON: {str(error)[:80]}") from error


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"the key {key[:40]!r} is there twice")
        mapping[key] = value
    return mapping


def _finite(digits: str) -> float:
    value = float(digits)
    if value - value != 0.0:
        raise ValueError("a number is too large")
    return value


_STRICT = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=no_constant, parse_float=_finite
)


def _call_of(value: Any) -> ToolCall:
    expected = 'a call is {"name": ..., "arguments": {...}}'
    if not isinstance(value, dict):
        raise _Refused(expected)
    if isinstance(value.get("function"), dict) and "name" not in value:
        value = value["function"]
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise _Refused(f"the call has no name; {expected}")
    keys = [key for key in ("arguments", "parameters") if key in value]
    if len(keys) > 1:
        raise _Refused("a call has arguments or parameters, not both")
    arguments = value[keys[0]] if keys else None
    if isinstance(arguments, str):
        arguments = _value(arguments) if arguments.strip() else None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise _Refused(f"the arguments of {name[:40]!r} must be an object")
    return ToolCall(name, arguments)


# -- Python literals -------------------------------------------------------------------------------


def _python_call(text: str) -> ToolCall:
    _bounded(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise _Refused(f"the call cannot be read: {str(reason)[:80]}") from error
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise _Refused("a call is name(argument=value)")
    arguments: dict[str, Any] = {}
    for keyword in tree.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise _Refused("every argument has a name of its own, each once")
        arguments[keyword.arg] = _literal(keyword.value)
    return ToolCall(tree.func.id, arguments, tuple(_literal(one) for one in tree.args))


def _literal(node: ast.expr) -> Any:
    try:
        return _plain(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise _Refused("arguments must be plain values, such as 3, 'text' or [1, 2]") from error


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if value - value != 0.0:
            raise ValueError("not finite")
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(one) for key, one in value.items()}
    raise ValueError("not plain data")


def _bounded_value(text: str, position: int) -> None:
    """Like `_bounded`, for the JSON value that begins at a position, so that a message with many
    values is scanned only once."""
    depth = 0
    for match in _STRUCTURE.finditer(text, position, position + MAX_CALL + 1):
        if match.end() - position > MAX_CALL:
            break
        if match[0][0] in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise _Refused(f"a call is nested at most {MAX_DEPTH} levels deep")
        elif match[0][0] in "}]":
            depth -= 1
        if depth <= 0:
            return
    if len(text) - position > MAX_CALL:
        raise _Refused(f"a call is at most {MAX_CALL} characters long")


def _bounded(text: str) -> None:
    """Reject text that is too long or too deeply nested. Brackets within strings count as well."""
    if len(text) > MAX_CALL:
        raise _Refused(f"a call is at most {MAX_CALL} characters long")
    if "\x00" in text:
        raise _Refused("a call must not hold the character NUL")
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _Refused(f"a call is nested at most {MAX_DEPTH} levels deep")
        elif character in ")]}":
            depth = max(0, depth - 1)
