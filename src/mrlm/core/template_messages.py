"""Conversations in the form of chat templates, and rewritten for strict templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages in the form of templates."""
    return [
        {key: value for key, value in message.items() if key not in ("sources", "tools")}
        for message in messages
    ]


def alternating(
    messages: list[dict[str, Any]], trained: Callable[[int], bool]
) -> list[dict[str, Any]]:
    """Messages with no system message after the first and alternating roles; of consecutive
    assistant messages those that are not trained become user messages."""
    result: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        role = "user" if message["role"] == "system" and index else message["role"]
        crowded = (index and messages[index - 1]["role"] == "assistant") or (
            index + 1 < len(messages) and messages[index + 1]["role"] == "assistant"
        )
        if role == "assistant" and crowded and not any(trained(j) for j in message["sources"]):
            role = "user"
        if result and result[-1]["role"] == role:
            result[-1] = {
                **result[-1],
                "content": f"{result[-1]['content']}\n\n{message['content']}",
                "sources": [*result[-1]["sources"], *message["sources"]],
            }
        else:
            result.append({**message, "role": role})
    return result


def without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the system message merged into the first user message."""
    if not messages or messages[0]["role"] != "system":
        return messages
    if len(messages) > 1 and messages[1]["role"] == "user":
        first = {
            **{key: value for key, value in messages[0].items() if key == "tools"},
            **messages[1],
            "content": f"{messages[0]['content']}\n\n{messages[1]['content']}",
            "sources": [0, *messages[1]["sources"]],
        }
        return [first, *messages[2:]]
    return [{**messages[0], "role": "user"}, *messages[1:]]
