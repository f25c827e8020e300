"""Conversations in the form of chat templates, and rewritten for strict templates."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import TemplateError

from mrlm.core.tool_calls import written

OWN = ("sources", "tools", "kwargs", "prefill", "thought")
"""Fields that are not the template's."""
THOUGHT = re.compile(r"<think>.*?</think>|\A.*?</think>", re.DOTALL)
Messages = list[dict[str, Any]]


def plain(messages: Messages) -> Messages:
    """Messages in the form of templates."""
    return [
        {key: value for key, value in message.items() if key not in OWN} for message in messages
    ]


def explained(messages: Messages) -> Messages:
    """A conversation with its tools in the system message, for a template that explains none."""
    tools = next((message["tools"] for message in messages if "tools" in message), None)
    if not tools:
        return messages
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    call = written("name", {"argument": "value"})
    text = f"You may call these tools:\n<tools>\n{lines}\n</tools>\nA call is written as\n{call}"
    rest = [{key: item for key, item in m.items() if key != "tools"} for m in messages]
    if rest[0]["role"] != "system":
        return [{"role": "system", "content": text, "sources": [0]}, *rest]
    return [{**rest[0], "content": f"{rest[0]['content']}\n\n{text}".lstrip()}, *rest[1:]]


def forms(messages: Messages, template: str, parts: bool) -> Iterator[Messages]:
    """The ways to write a conversation, the usual one first: calls beside a content of `None`,
    arguments as JSON text, or, for a template that knows no calls, in tags within the content.

    Args:
        parts: whether it reads contents as lists of parts only.
    """
    if parts:
        messages = [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            for message in messages
        ]
    if not any("tool_calls" in message for message in messages):
        yield messages
        return
    if "tool_calls" not in template:
        yield [_tagged(message) for message in messages]
        return
    yield messages
    null = [_null_content(message) for message in messages]
    yield null
    yield [_text_arguments(message) for message in messages]
    yield [_text_arguments(message) for message in null]


def alternating(messages: Messages, trained: Callable[[int], bool]) -> Messages:
    """Messages with no system message after the first and alternating roles; of consecutive
    assistant messages those that are not trained become user messages."""
    result: Messages = []
    for index, message in enumerate(messages):
        role = "user" if message["role"] == "system" and index else message["role"]
        crowded = (index and messages[index - 1]["role"] == "assistant") or (
            index + 1 < len(messages) and messages[index + 1]["role"] == "assistant"
        )
        if role == "assistant" and crowded and not any(trained(j) for j in message["sources"]):
            role = "user"
        if result and result[-1]["role"] == role:
            calls = [*result[-1].get("tool_calls", ()), *message.get("tool_calls", ())]
            result[-1] = {
                **result[-1],
                "content": f"{result[-1]['content']}\n\n{message['content']}",
                "sources": [*result[-1]["sources"], *message["sources"]],
                **({"tool_calls": calls} if calls else {}),
            }
        else:
            result.append({**message, "role": role})
    return result


def without_system(messages: Messages) -> Messages:
    """Messages with the system message merged into the first user message."""
    if not messages or messages[0]["role"] != "system":
        return messages
    if len(messages) > 1 and messages[1]["role"] == "user":
        first = {
            **{key: value for key, value in messages[0].items() if key in ("tools", "kwargs")},
            **messages[1],
            "content": f"{messages[0]['content']}\n\n{messages[1]['content']}",
            "sources": [0, *messages[1]["sources"]],
        }
        return [first, *messages[2:]]
    return [{**messages[0], "role": "user"}, *messages[1:]]


def lost(messages: Messages, apply: Callable[[Messages, bool], str]) -> tuple[int, str] | None:
    """The first message of which the template leaves out the text or a call, and which of them;
    thoughts are not looked for. A mark is put into each, and looked for in the rendered text.

    Args:
        messages: the conversation, in a form that the template accepts.
        apply: renders a conversation, with or without a generation prompt.
    """
    marked, marks = [], []
    for index, message in enumerate(messages):
        twin = dict(message)
        text = text_of(message)
        visible = THOUGHT.sub("", text).strip()
        if visible:
            mark = _mark(len(marks))
            middle = text.rindex(visible) + (len(visible) + 1) // 2
            twin["content"] = _with_text(message, text[:middle] + mark + text[middle:])
            marks.append((mark, index, "text", visible))
        calls = []
        for call in message.get("tool_calls", ()):
            mark, function = _mark(len(marks)), call["function"]
            calls.append({**call, "function": {**function, "name": function["name"] + mark}})
            marks.append((mark, index, f"call of {function['name']!r}", function["name"]))
        if calls:
            twin["tool_calls"] = calls
        marked.append(twin)
    if not marks:
        return None
    try:
        text = apply(marked, False)
    except TemplateError:  # the template reads the marks as part of a value
        text = ""
    missing = [entry for entry in marks if entry[0] not in text and _json(entry[0]) not in text]
    rendered = _squeezed(apply(messages, False)) if missing else ""
    for _, index, what, visible in missing:
        if text and what != "text":  # a name is rendered as it is
            return index, what
        if _squeezed(visible) not in rendered and _squeezed(_json(visible)) not in rendered:
            return index, what
    return None


def text_of(message: dict[str, Any]) -> str:
    """The content as one text."""
    content = message["content"]
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


def contains(text: str, part: str) -> bool:
    """Whether a text has a part, whatever the white space."""
    return _squeezed(part) in _squeezed(text)


def _with_text(message: dict[str, Any], text: str) -> Any:
    return [{"type": "text", "text": text}] if isinstance(message["content"], list) else text


def _null_content(message: dict[str, Any]) -> dict[str, Any]:
    empty = "tool_calls" in message and not message["content"]
    return {**message, "content": None} if empty else message


def _text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        text = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": text}})
    return {**message, "tool_calls": calls}


def _tagged(message: dict[str, Any]) -> dict[str, Any]:
    """Calls as `mrlm serve` and the tool environment parse them."""
    if "tool_calls" not in message:
        return message
    parts = [text_of(message)] if text_of(message) else []
    for call in message["tool_calls"]:
        parts.append(written(call["function"]["name"], call["function"]["arguments"]))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": _with_text(message, "\n".join(parts))}


def _mark(number: int) -> str:
    return f"\ue100{number}\ue101"


def _json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _squeezed(text: str) -> str:
    return "".join(text.split()).casefold()
