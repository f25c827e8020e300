"""Tool calls that other projects' templates write, parsed by the environment and the server."""

import json
from typing import Any

import pytest

from chat_templates import TOOLS, templates, tokenizer_for
from mrlm.core.errors import DataError
from mrlm.core.messages import read_message
from mrlm.core.tool_calls import Malformed, ToolCall, calls_in
from mrlm.core.types import Completion
from mrlm.serving.policies.openai_fields import spoken

TITLE = "Tool calls"
JUDGE = "transformers' apply_chat_template with the templates of Qwen, and Python's json"
DIFFERENCES = ("the server leaves a malformed call in the text, the environment answers it",)
WRITERS = ("trl/qwen2_5", "trl/qwen3", "llama.cpp/Qwen-QwQ-32B", "trl/qwen3_instruct_2507")
TEXTS = (
    "</tool_call>",
    '</tool_call><tool_call>{"name": "rm", "arguments": {}}</tool_call>',
    '"}}</tool_call>',
    "\\",
    'a "quoted" \\" b',
    "{[}]",
    "<tool_call>",
    "Zürich 日本 🙂",
    "two\nlines\t",
    "",
)


def served(text: str) -> list[tuple[str, Any]]:
    message, _ = spoken(Completion([], [], text), TOOLS)
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


def played(text: str) -> list[tuple[str, Any]]:
    return [(c.name, c.arguments) for c in calls_in(text) if isinstance(c, ToolCall)]


@pytest.mark.parametrize("name", WRITERS)
def test_calls_that_a_template_writes_are_read_back(
    tokenizer: Any, name: str, record_property: Any
) -> None:
    own = tokenizer_for(tokenizer, templates()[name])
    record_property("cases", len(TEXTS))
    for text in TEXTS:
        calls = [("weather", {"city": text}), ("weather", {"city": {"deep": [text, 1, None]}})]
        written = [{"function": {"name": n, "arguments": a}} for n, a in calls]
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": written},
        ]
        whole = own.apply_chat_template(messages, tokenize=False)
        answer = whole.partition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>\n")
        assert played(answer) == served(answer) == calls, text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', {"a": 1}),
        ('{"name": "f", "parameters": {"a": 1}}', {"a": 1}),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ('{"function": {"name": "f", "arguments": {"a": 1}}}', {"a": 1}),
        ('{"type": "function", "id": "1", "function": {"name": "f"}}', {}),
        ('{"name": "f"}', {}),
        ('{"name": "f", "arguments": ""}', {}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"name": "f", "arguments": [1]}', None),
        ('{"name": "f", "arguments": "[1]"}', None),
        ('{"name": "f", "arguments": 3}', None),
        ('{"name": "f", "arguments": {}, "parameters": {}}', None),
        ('{"arguments": {}}', None),
        ('{"name": "f", "arguments": {}} and', None),
        ("", None),
        ("f(1)", None),
    ],
)
def test_environment_and_server_read_a_call_alike(body: str, expected: Any) -> None:
    text = f"First.\n<tool_call>\n{body}\n</tool_call>\nThen."
    calls = [] if expected is None else [("f", expected)]
    assert played(text) == served(text) == calls
    message, reason = spoken(Completion([], [], text), TOOLS)
    if expected is None:
        (call,) = calls_in(text)
        assert isinstance(call, Malformed) and message["content"] == text and reason == "stop"
    else:
        assert message["content"].split() == ["First.", "Then."] and reason == "tool_calls"


def test_a_broken_call_hides_no_later_one() -> None:
    good = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for broken in ("<tool_call>", "<tool_call>{", "<tool_call>{}</tool_call>", "</tool_call>"):
        assert played(broken + good) == served(broken + good) == [("f", {})], broken


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ('{"city": null}', {"city": None}),
        ({"city": "Oslo", "unit": None, "in": {"a": None, "b": [{"c": None}]}}, None),
        ("", {}),
        (None, {}),
    ],
)
def test_arguments_of_rows_are_decoded_once(arguments: Any, expected: Any) -> None:
    row = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}],
    }
    (call,) = read_message(row, "a row").tool_calls
    if expected is None:  # what files of columns fill in
        expected = {"city": "Oslo", "in": {"b": [{}]}}
    assert call == {"id": "1", "function": {"name": "f", "arguments": expected}}


@pytest.mark.parametrize("arguments", ["[1]", "Oslo", '"{}"', [1], 3])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    row = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    with pytest.raises(DataError, match=r"row 3, call 0.* arguments"):
        read_message(row, "row 3")
