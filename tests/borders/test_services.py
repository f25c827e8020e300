"""Policies over HTTP, as the `openai` client and its typed responses see them; and replies of other
servers, as that client delivers them."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import openai
import pytest
import torch
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from chat_server import completion, serving
from mrlm.build.served_policies import house_of
from mrlm.core.errors import EngineError
from mrlm.core.types import Message, Role, SamplingParams
from mrlm.engines.openai import OpenAIEngine
from mrlm.serving.policies.hub import PolicyHub
from policy_server import Doors

TITLE = "Policies served over the OpenAI protocol"
JUDGE = "the `openai` client and its types"
DIFFERENCES = (
    "fields of vLLM that change an answer are refused with 400, as they are not supported",
)

SAID = [{"role": "user", "content": "Say something."}]
REFUSED: dict[str, Any] = {
    "guided_json": {"type": "object"}, "guided_regex": "a+", "guided_choice": ["a"],
    "structured_outputs": {"regex": "a"}, "chat_template_kwargs": {"enable_thinking": False},
    "stop_token_ids": [3], "continue_final_message": True, "bad_words": ["a"],
    "reasoning_effort": "low", "parallel_tool_calls": False, "function_call": "auto",
    "functions": [{"name": "f"}], "logit_bias": {"3": 5}, "top_logprobs": 2, "top_a": 0.1,
    "response_format": {"type": "json_object"}, "ignore_eos": True, "min_tokens": 3,
    "frequency_penalty": 0.5, "truncate_prompt_tokens": 5, "chat_template": "x", "verbosity": "low",
    "modalities": ["audio"], "prediction": {"type": "content", "content": "x"}, "store": True,
    "allowed_token_ids": [1], "logits_processors": ["x"], "add_generation_prompt": False,
    "tool_choice": "required", "temprature": 0.1, "best_of": True, "echo": 0, "prompt": "x",
    "return_token_ids": True, "max_completion_tokens": 5, "stream_options": {}, "tools": [{}],
}  # fmt: skip
OF_CHAT = {"messages": SAID, "tools": [{}], "tool_choice": "auto", "max_completion_tokens": 2}
HARMLESS: dict[str, Any] = {
    "user": "me", "metadata": {"a": "b"}, "parallel_tool_calls": True, "frequency_penalty": 0.0,
    "guided_json": None, "stop_token_ids": [], "response_format": {"type": "text"}, "store": False,
    "chat_template_kwargs": {}, "skip_special_tokens": True, "top_k": -1, "service_tier": "auto",
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


@pytest.fixture(scope="module")
def doors(tiny_path: str) -> Iterator[Doors]:
    torch.set_num_threads(1)
    opened = Doors(PolicyHub(house_of({"base": tiny_path}).served()))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def client(doors: Doors) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url=f"{doors.url}/v1", max_retries=0, timeout=None)


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked = {"model": "base", "messages": SAID, "max_tokens": 4, "seed": 1} | more
    return client.chat.completions.create(**asked)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_an_answer_is_refused_by_name(client: openai.OpenAI, name: str) -> None:
    key = "extra_body" if name != "tool_choice" else ""
    more = {key: {name: REFUSED[name]}} if key else {name: REFUSED[name], "tools": [TOOL]}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **more)
    assert caught.value.param == name and name in str(caught.value)


@pytest.mark.parametrize("name", OF_CHAT)
def test_a_completion_has_no_field_of_a_chat(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="base", prompt="x", extra_body={name: OF_CHAT[name]})
    assert caught.value.param == name and name in str(caught.value)


def test_what_changes_nothing_is_accepted(
    client: openai.OpenAI, record_property: Callable[[str, object], None]
) -> None:
    plain = chat(client).choices[0].message.content
    for name, value in HARMLESS.items():
        assert chat(client, extra_body={name: value}).choices[0].message.content == plain, name
    record_property("cases", len(HARMLESS))


def test_answers_are_those_of_the_clients_types(client: openai.OpenAI, doors: Doors) -> None:
    body = {
        "model": "base",
        "messages": SAID,
        "max_tokens": 40,
        "logprobs": True,
        "seed": 3,
        "n": 2,
    }
    raw = httpx.post(f"{doors.url}/v1/chat/completions", json=body, timeout=None).json()
    found = ChatCompletion.model_validate(raw, strict=True)
    assert not found.model_extra
    for choice in found.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        parts = [each.bytes or [] for each in choice.logprobs.content]
        data = b"".join(map(bytes, parts)).split(b"<|im_end|>")[0]
        assert data.decode("utf-8", "replace") == choice.message.content
        tokens = [each.token for each in choice.logprobs.content]
        for text, own in zip(tokens, parts, strict=True):
            assert list(text.encode()) == own or "\ufffd" in text
    halves = [
        each
        for c in found.choices
        for each in c.logprobs.content
        if "\ufffd" in each.token  # type: ignore[union-attr]
    ]
    assert halves and all(len(each.bytes or []) == 1 for each in halves)
    for chunk in chat(client, stream=True):
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)


def test_a_conversation_with_tools(client: openai.OpenAI) -> None:
    talk = [
        *SAID,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    count = chat(client, messages=SAID, tools=[TOOL]).usage.prompt_tokens
    assert count > chat(client, messages=SAID).usage.prompt_tokens + len(TOOL["function"]["name"])
    assert chat(client, messages=talk).choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "base", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "base", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        b'{"model": "base", "prompt": "\\uDFFF"}',
        b'{"model": "\\ud83d", "messages": []}',
    ],
)
def test_half_a_character_is_the_clients_error(doors: Doors, body: bytes) -> None:
    path = "completions" if b"prompt" in body else "chat/completions"
    reply = httpx.post(f"{doors.url}/v1/{path}", content=body)
    assert reply.status_code == 400 and "surrogate" in reply.json()["error"]["message"]
    whole = body.replace(b"\\ud800", b"\\ud83d\\ude00").replace(b"\\uDFFF", b"x")
    if whole != body:
        whole = whole.replace(b'"model"', b'"max_tokens": 2, "model"')
        assert httpx.post(f"{doors.url}/v1/{path}", content=whole).status_code == 200


def test_a_request_has_one_length(doors: Doors) -> None:
    host, port = doors.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as link:
        link.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n"
            b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        )
        assert link.recv(4096).startswith(b"HTTP/1.1 400")
        while link.recv(4096):  # the connection ends: what follows is no request
            pass


def reply(**message: Any) -> Callable[[Any, int], Any]:
    def answer(body: Any, number: int) -> Any:
        found = completion("", body)
        found["choices"][0]["message"] = {"role": "assistant", "content": None, **message}
        return found

    return answer


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"refusal": "I will not."}, "I will not."),
        ({"content": "yes", "reasoning_content": "hm"}, "yes"),
        ({"content": ""}, ""),
        ({"tool_calls": [CALL]},
         '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'),
        ({"reasoning_content": "so far"}, EngineError("reasoning and no answer")),
        ({"reasoning": "so far"}, EngineError("reasoning and no answer")),
        ({"content": "a\ud800"}, EngineError("half of a surrogate pair")),
    ],
)  # fmt: skip
def test_a_reply_without_an_answer_is_not_an_empty_answer(
    message: dict[str, Any], expected: str | Exception
) -> None:
    with serving(reply(**message)) as server:
        engine = OpenAIEngine("p", server.url, "m", max_retries=0)
        if isinstance(expected, str):
            assert engine.respond([Message("hi")], SamplingParams(4)).content == expected
            return
        with pytest.raises(EngineError, match=str(expected)):
            engine.respond([Message("hi")], SamplingParams(4))


def test_calls_in_the_history_are_sent_as_calls() -> None:
    calls = tuple({"function": {"name": "add", "arguments": {"a": n}}} for n in (1, 2))
    asked, called = Message("hi"), Message("", Role.ASSISTANT, tool_calls=calls)
    results = [Message("1", Role.TOOL), Message("2", Role.TOOL)]
    with serving(lambda body, number: reply(content="done")(body, number)) as server:
        engine = OpenAIEngine("p", server.url, "m")
        engine.respond([asked, called, *results], SamplingParams(4))
        engine.respond([asked, called, asked], SamplingParams(4))
    whole, cut = (body["messages"] for body in server.bodies)
    sent = whole[1]["tool_calls"]
    assert [json.loads(each["function"]["arguments"]) for each in sent] == [{"a": 1}, {"a": 2}]
    assert [each["tool_call_id"] for each in whole[2:]] == [each["id"] for each in sent]
    assert "tool_calls" not in cut[1] and cut[1]["content"].count("<tool_call>") == 2
