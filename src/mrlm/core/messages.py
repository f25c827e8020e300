"""Messages as plain data: the one reader and the one writer of the chat protocol's fields, for rows
of data sets, requests, replies of servers and records."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core.errors import DataError, well_formed
from mrlm.core.log import log
from mrlm.core.types import Message, Role

ROLES: dict[str, Role] = {
    **{str(role): role for role in Role},
    "developer": Role.SYSTEM,
    "function": Role.TOOL,
}
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the thoughts before a text."""
WEIGHTS = ("weight", "loss_mask", "loss", "train")
"""Names of the mark of messages that are not trained on."""
FIELDS = {
    *("role", "content", "agent", "tool_calls", "function_call", "tool_call_id", "name"),
    *REASONING,
    *WEIGHTS,
}
CONTENT = {"images", "image", "audio", "video", "videos", "documents", "refusal"}
"""Fields that are part of what a message says, and that no text model reads."""
_noted: set[str] = set()


def read_message(item: Any, where: str) -> Message:
    """The message in a dictionary of the chat protocol. Missing values (`None`) are left out, as
    files of columns fill them in; arguments of calls that are JSON text are decoded once.

    Args:
        item: the dictionary, or a message.
        where: its location, for errors.

    Raises:
        DataError: it is not a message, or a field cannot be read.
    """
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping) or "role" not in item:
        raise DataError(f"{where}: expected an object with 'role' and 'content', not {short(item)}")
    if item["role"] not in ROLES:
        raise DataError(f"{where}: unknown role {item['role']!r}; use {', '.join(ROLES)}")
    calls = _calls(item, where)
    reasoning = next((item[name] for name in REASONING if item.get(name) is not None), None)
    for name, value in (("reasoning", reasoning), ("name", item.get("name"))):
        if value is not None and not isinstance(value, str):
            raise DataError(f"{where}: {name!r} must be text, not {short(value)}")
        well_formed(value or "", f"{where}: {name!r}")
    _other_fields(item, where)
    return Message(
        _content(item, where, optional=bool(calls or reasoning)),
        ROLES[item["role"]],
        item.get("agent"),
        calls,
        tool_call_id=None if item.get("tool_call_id") is None else str(item["tool_call_id"]),
        name=item.get("name"),
        reasoning=reasoning,
        weight=_weight(item, where),
    )


def write_message(message: Message) -> dict[str, Any]:
    """A message as in a row of a data set; fields without a value are left out."""
    row = {"role": str(message.role), "content": message.content, "agent": message.agent}
    more = {
        "tool_calls": list(message.tool_calls) or None,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "reasoning_content": message.reasoning,
        "weight": message.weight,
    }
    return row | {name: value for name, value in more.items() if value is not None}


def read_tools(value: Any, where: str) -> list[dict[str, Any]]:
    """The descriptions of tools in a column: a list of objects, or the JSON text of one. Raises
    `DataError`: it is neither."""
    if isinstance(value, str):
        value = _decoded(value, f"{where}: tools")
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise DataError(f"{where}: tools must be a list of objects, not {short(value)}")
    return [without_nulls(tool) for tool in value]


def without_nulls(value: Any) -> Any:
    """Plain data without the keys whose value is `None`."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def short(value: Any) -> str:
    """A value in an error message."""
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}{'...' if len(text) > 60 else ''}"


def _content(item: Mapping[str, Any], where: str, optional: bool) -> str:
    """The text; parts of text are joined."""
    content = item.get("content")
    if content is None and optional:
        return ""
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [piece.get("text") if isinstance(piece, Mapping) else piece for piece in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise DataError(f"{where}: 'content' may have parts of text only, not {short(content)}")
        content = "".join(texts)
    if not isinstance(content, str):
        raise DataError(f"{where}: 'content' must be text, not {short(content)}")
    return well_formed(content, f"{where}: 'content'")


def _calls(item: Mapping[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    calls = item.get("tool_calls") or []
    if item.get("function_call"):
        calls = [*calls, {"type": "function", "function": item["function_call"]}]
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise DataError(f"{where}: 'tool_calls' must be a list of objects, not {short(calls)}")
    return tuple(_call(call, f"{where}, call {number}") for number, call in enumerate(calls))


def _call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A call in the form of chat templates: its arguments as an object."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        call = {"type": "function", "function": call}
        function = call["function"]
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise DataError(f"{where}: it has no name; a call is {{'function': {{'name': ...}}}}")
    if isinstance(arguments, str):
        arguments = _decoded(arguments, f"{where}: the arguments") if arguments.strip() else {}
    else:
        arguments = {} if arguments is None else without_nulls(arguments)
    if not isinstance(arguments, dict):
        raise DataError(f"{where}: the arguments must be an object, not {short(arguments)}")
    rest = {key: item for key, item in call.items() if item is not None}
    return {**rest, "function": {**without_nulls(function), "arguments": arguments}}


def _decoded(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} are not JSON ({str(error)[:80]}): {short(text)}") from error


def _weight(item: Mapping[str, Any], where: str) -> float | None:
    for name in WEIGHTS:
        if (value := item.get(name)) is not None:
            if not isinstance(value, bool | int | float) or value not in (0, 1):
                raise DataError(f"{where}: {name!r} must be 0 or 1, not {short(value)}")
            return float(value)
    return None


def _other_fields(item: Mapping[str, Any], where: str) -> None:
    """Refuse content that would be lost, and name other fields once."""
    unknown = [key for key, value in item.items() if key not in FIELDS and value not in (None, [])]
    for key in unknown:
        if key in CONTENT:
            raise DataError(f"{where}: {key!r} cannot be used: messages are text; remove it")
        if key not in _noted:
            _noted.add(key)
            log.warning("%s: the field %r of messages is not used", where, key)
