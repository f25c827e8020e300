"""Messages of the chat completions protocol: those that are sent, and the text of a reply."""

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from mrlm.core.errors import EngineError
from mrlm.core.types import Message, Role


def as_sent(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for a server. Calls whose results follow are sent as calls, each result with its
    call's id; any others as text, which servers accept."""
    sent: list[dict[str, Any]] = []
    ids: list[str] = []
    for index, message in enumerate(messages):
        if message.role is Role.TOOL and ids:
            sent.append({"role": "tool", "content": message.content, "tool_call_id": ids.pop(0)})
            continue
        keeps_role = message.role in (Role.SYSTEM, Role.ASSISTANT)
        entry: dict[str, Any] = {"role": str(message.role) if keeps_role else "user"}
        entry["content"] = message.content
        calls = [_call(item, f"call_{index}_{n}") for n, item in enumerate(message.tool_calls)]
        results = takewhile(lambda item: item.role is Role.TOOL, messages[index + 1 :])
        if calls and len(list(results)) >= len(calls):
            entry["tool_calls"] = calls
            ids = [item["id"] for item in calls]
        elif calls:
            entry["content"] = "\n".join([*filter(None, [message.content]), *map(_text, calls)])
        sent.append(entry)
    return sent


def answer_of(message: Mapping[str, Any], title: str) -> str | None:
    """The text of a reply: its content, else its refusal; calls in it as text, in the form that
    environments read. `None` without any; `title` names the policy in messages. Raises
    `EngineError`: the reply has only reasoning, or half of a character."""
    content = message.get("content") or message.get("refusal") or ""
    calls = message.get("tool_calls") or []
    if not isinstance(content, str) or not isinstance(calls, list):
        return None
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not content and not calls and reasoning:
        raise EngineError(
            f"{title}: the reply has reasoning and no answer; raise generation.max_new_tokens, or "
            "let the model reason less"
        )
    parts = [content] if content else []
    try:
        text = "\n".join([*parts, *(_text(_call(call, "")) for call in calls)])
        text.encode()
    except UnicodeEncodeError:
        raise EngineError(f"{title}: the reply has half of a surrogate pair, no text") from None
    except (TypeError, KeyError, AttributeError):
        return None
    return text if parts or calls or "content" in message else None


def _call(call: Mapping[str, Any], id: str) -> dict[str, Any]:
    """A call in the form of the protocol: its arguments are JSON text."""
    function = call.get("function") or call
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    named = {"name": function["name"], "arguments": text}
    return {"id": str(call.get("id") or id), "type": "function", "function": named}


def _text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = function["arguments"]
    body = json.dumps({"name": function["name"], "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"
