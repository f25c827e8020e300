"""Conversations and rows rendered with the templates of other projects, compared with what
transformers renders and what TRL's training templates mark."""

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from chat_templates import CONVERSATIONS, JSON, said, templates, tokenizer_for, user
from mrlm.core.chat import Chat
from mrlm.core.errors import ChatTemplateError
from mrlm.core.messages import read_message
from mrlm.core.spans import TrainedMessage, samples
from mrlm.core.types import Message, Role, SamplingParams, Turn
from mrlm.learn.bases.preference import row_pairs
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.rows import Grouping

TITLE = "Chat templates"
JUDGE = "transformers' apply_chat_template, and the marks of TRL's training templates"
DIFFERENCES = (
    "thoughts are written as <think>...</think> before the content if the template reads no field "
    "of thoughts, because it would drop them",
    "calls are written as <tool_call>...</tool_call> if the template reads no calls, and beside a "
    "content of null or with arguments as text if it renders them only so",
    "contents are parts of text if the template drops a content that is text",
    "tools are described in the system message if the template explains none, because it would "
    "drop them",
    "a row of which the template leaves out a call (DeepSeek-R1, GigaChat, gpt-oss: the second) or "
    "a thought (DeepSeek-V3, Gemma 4, Ministral: without a setting) is refused by row and message",
    "a row of several turns is refused by message if the template renders the end of a prompt in "
    "another way once an answer follows it (Command-R+ and R7B, Hermes after a tool's result)",
    "a conversation that the judge cannot render (tools in llama.cpp's DeepSeek-R1, calls in Kimi "
    "K2) is one error that names the template",
    "a trained message ends with its end token, not with the line break after it, and begins after "
    "the generation prompt, because that is what a policy samples",
)
NAMES = [name for name in templates() if not name.endswith("_training")]
TWINS = [name for name in templates() if f"{name}_training" in templates()]
THOUGHTS = ("reasoning_content", "thinking", "reasoning")


def read(messages: list[JSON], tools: list[JSON] | None) -> list[Message]:
    found = [read_message(each, "a row") for each in messages]
    if tools:
        found[0] = replace(found[0], metadata={"tools": tools})
    return found


def translated(messages: list[JSON], template: str) -> list[list[JSON]]:
    """The ways to write a conversation, by design, for the judge to render."""
    field = next((f for f in THOUGHTS if f".{f}" in template or f"'{f}'" in template), None)
    found = []
    for message in messages:
        twin = dict(message)
        thought = twin.pop("reasoning_content", None)
        if thought and field:
            twin[field] = thought
        elif thought:
            twin["content"] = f"<think>\n{thought}\n</think>\n\n{twin['content']}"
        if "tool_calls" not in template and (calls := twin.pop("tool_calls", None)):
            bodies = [
                json.dumps({k: c["function"][k] for k in ("name", "arguments")}) for c in calls
            ]
            twin["content"] = "\n".join(f"<tool_call>\n{b}\n</tool_call>" for b in bodies)
        if twin["role"] == "tool" and "tool" not in template:
            twin["role"] = "user"
        found.append(twin)
    null = [m | {"content": m["content"] or None} for m in found]
    parts = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in found]
    ways = [found, null]
    for way in (found, null):
        ways.append(
            [
                m
                if "tool_calls" not in m
                else m
                | {
                    "tool_calls": [
                        c
                        | {
                            "function": c["function"]
                            | {"arguments": json.dumps(c["function"]["arguments"])}
                        }
                        for c in m["tool_calls"]
                    ]
                }
                for m in way
            ]
        )
    return [*ways, parts]


def described(
    messages: list[JSON], tools: list[JSON] | None, chat: Chat
) -> tuple[list[JSON], list[JSON] | None]:
    """A conversation and its tools for the judge: in the system message, by design, if its template
    explains none."""
    if not tools or chat.takes_tools:
        return messages, tools
    text = (
        f"You may call these tools:\n<tools>\n{json.dumps(tools[0])}\n</tools>\nA call is written "
        'as\n<tool_call>\n{"name": "name", "arguments": {"argument": "value"}}\n</tool_call>'
    )
    return [{"role": "system", "content": text}, *messages], None


def whole(text: str, messages: list[JSON]) -> bool:
    """Whether a rendered text has every content and every city of a call."""
    contents = [m["content"].strip() for m in messages]
    cities = [c["function"]["arguments"]["city"] for m in messages for c in m.get("tool_calls", ())]
    return all(each in text for each in [*contents, *cities])


@pytest.mark.parametrize("name", NAMES)
def test_conversations_have_the_ids_of_the_judge(
    tokenizer: Any, name: str, record_property: Any
) -> None:
    template = templates()[name]
    own = tokenizer_for(tokenizer, template)
    chat = Chat(own)
    record_property("cases", len(CONVERSATIONS))
    for case, (messages, tools) in CONVERSATIONS.items():
        asked, named = described(messages, tools, chat)
        expected = []
        for way in translated(asked, template):
            try:
                text = own.apply_chat_template(way, tools=named, tokenize=False)
            except Exception:
                continue
            if whole(text, asked):
                expected = own.apply_chat_template(way, tools=named, return_dict=True)["input_ids"]
                break
        found = read(messages, tools)
        if expected:
            assert chat.encode(chat.render(found, generate=False)) == expected, case
            continue
        try:  # the judge refuses it, or drops a part of it, however it is written
            found = rows_of(chat, messages, tools)
        except ChatTemplateError:
            continue
        text = "".join(own.decode([*sample.prompt, *sample.completion]) for sample in found)
        assert whole(text, messages), case


def rows_of(chat: Chat, messages: list[JSON], tools: Any = None) -> list[TrainedMessage]:
    found = read(messages, tools)
    return samples(chat, found, lambda index: found[index].role == "assistant")


@pytest.mark.parametrize("name", TWINS)
def test_trained_tokens_are_those_that_training_templates_mark(
    tokenizer: Any, name: str, record_property: Any
) -> None:
    """Up to the white space after the end token and what the generation prompt has already."""
    template, twin = templates()[name], templates()[f"{name}_training"]
    own = tokenizer_for(tokenizer, template)
    chat, count = Chat(own), 0
    for case, (messages, tools) in CONVERSATIONS.items():
        dropped = "tool_calls" not in template or not chat._reasoning or chat._parts
        asked, named = described(messages, tools, chat)
        if (case in ("call", "parallel", "results", "reasoning") and dropped) or chat._parts:
            continue  # by design, see DIFFERENCES
        try:
            encoded = own.apply_chat_template(
                *(asked, named),
                chat_template=twin,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
        except Exception:
            continue  # it takes no arguments as objects
        if not whole(own.decode(encoded["input_ids"]), messages):
            continue  # it drops the second call; such a row is refused
        pairs = zip(encoded["assistant_masks"], encoded["input_ids"], strict=True)
        marked = [
            own.decode([token for _, token in run]).rstrip()
            for bit, run in groupby(pairs, lambda pair: pair[0])
            if bit
        ]
        found = rows_of(chat, messages, tools)
        assert len(found) == len(marked), case
        for sample, text in zip(found, marked, strict=True):
            written = own.decode(sample.completion)
            assert text.endswith(written), case
            assert own.decode(sample.prompt).endswith(text[: len(text) - len(written)]), case
            count += 1
    record_property("cases", count)


FAMILIES = {
    "trl/qwen3": {},
    "trl/qwen3_5_think": {},
    "trl/gptoss": {},
    "trl/deepseek_r1_distill": {},
    "trl/deepseekv3": {},
    "trl/phi3": {},
    "llama.cpp/deepseek-ai-DeepSeek-V3.1": {"thinking": True},
}
TALK = [
    *(user("Is it warm?"), said("Quite warm.", reasoning_content="Think of July here.")),
    *(user("And later?"), said("Colder then.", reasoning_content="Wind turns north.")),
]


def agent(chat: Chat) -> AgentSettings:
    return AgentSettings("a", "p", chat, SamplingParams(max_new_tokens=64), max_prompt_tokens=9999)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_and_pairs_of_several_turns_train_every_answer(tokenizer: Any, name: str) -> None:
    """SFT and DPO, without a change of the template: each answer with its thoughts and its end."""
    own = tokenizer_for(tokenizer, templates()[name])
    chat = Chat(own, FAMILIES[name])
    grouping = Grouping({"a": agent(chat)})
    (episode,) = grouping.group({"messages": TALK}, 0)
    texts = [own.decode(turn.completion_ids) for turn in episode.rollouts["a"].turns]
    assert len(texts) == 2
    for text, message in zip(texts, (TALK[1], TALK[3]), strict=True):
        assert message["content"] in text and message["reasoning_content"] in text
        assert chat.control.ends(text)
    worse = [*TALK[:3], said("Warmer then.", reasoning_content="Wind turns south.")]
    group = grouping.group({"chosen": TALK, "rejected": worse}, 1)
    (pair,) = row_pairs(group)
    assert [len(side) for side in (pair.chosen, pair.rejected)] == [1, 1]
    assert pair.chosen[0].prompt_ids == pair.rejected[0].prompt_ids
    assert "Quite warm." not in own.decode(pair.chosen[0].completion_ids)


@pytest.mark.parametrize("name", ["nemotron_3_nano", "nemotron_3_5_lightning", "lfm2_v2", "llama3"])
def test_other_templates_of_trl_train_every_answer(tokenizer: Any, name: str) -> None:
    trl = pytest.importorskip("trl")
    folder = Path(trl.__file__).parent / "chat_templates"
    own = tokenizer_for(tokenizer, (folder / f"{name}.jinja").read_text())
    found = rows_of(Chat(own), TALK)
    texts = [own.decode(sample.completion) for sample in found]
    assert len(texts) == 2
    assert all(message["content"] in text for message, text in zip(TALK[1::2], texts, strict=True))


@pytest.mark.parametrize("name", ["llama.cpp/GLM-4.6", "llama.cpp/Apertus-8B-Instruct"])
def test_an_end_token_before_the_next_message_is_trained(tokenizer: Any, name: str) -> None:
    own = tokenizer_for(tokenizer, templates()[name])
    chat = Chat(own)
    for sample in rows_of(chat, CONVERSATIONS["turns"][0]):
        assert chat.control.ends(own.decode(sample.completion))


@pytest.mark.parametrize(
    ("name", "messages", "sentence"),
    [
        (
            "trl/deepseek_r1_distill",
            CONVERSATIONS["parallel"][0],
            r"the data set, row 8: message 2: .*leaves out its call of 'weather'",
        ),
        (
            "llama.cpp/deepseek-ai-DeepSeek-V3.1",
            TALK,
            r"row 8: message 2: .*leaves out its thought; .*chat_template_kwargs",
        ),
    ],
)
def test_what_is_left_out_is_named(
    tokenizer: Any, name: str, messages: list[JSON], sentence: str
) -> None:
    chat = Chat(tokenizer_for(tokenizer, templates()[name]))
    with pytest.raises(ChatTemplateError, match=sentence):
        Grouping({"a": agent(chat)}).group({"messages": messages}, 7)


def test_a_template_that_drops_a_text_is_named(tokenizer: Any) -> None:
    own = tokenizer_for(tokenizer, "{% for m in messages %}<|{{ m.role }}|>{% endfor %}")
    with pytest.raises(ChatTemplateError, match=r"row 1: message 1: .*leaves out its text"):
        Grouping({"a": agent(Chat(own))}).group({"messages": TALK}, 0)


def test_the_template_named_tool_use_explains_tools(tokenizer: Any) -> None:
    own = tokenizer_for(tokenizer, templates()["trl/qwen3"])
    qwen = own.chat_template
    own.chat_template = {"default": "{{ messages[0].content }}", "tool_use": qwen}
    messages, tools = CONVERSATIONS["call"]
    chat = Chat(own)
    expected = own.apply_chat_template(messages, tools=tools, return_dict=True)["input_ids"]
    assert chat.encode(chat.render(read(messages, tools), generate=False)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_second_turns_read_as_the_judge_writes_them(tokenizer: Any, name: str) -> None:
    """After a sampled answer with thoughts, white space and an end token: the tokens are kept, or
    the prompt is rendered again where the template rewrites the answer."""
    own = tokenizer_for(tokenizer, templates()[name])
    chat = Chat(own)
    for text in ("Quite warm.", "<think>\nIn July.\n</think>\n\nQuite warm.", "Quite warm. \n"):
        first = chat.prompt([Message("Is it warm?")])
        ids = [*chat.encode(text), own.eos_token_id]
        turn = Turn("a", "p", first.ids, ids, finish_reason="stop")
        turn.message = Message(chat.decode(ids), Role.ASSISTANT, turn=turn)
        talk = [Message("Is it warm?"), turn.message, Message("And later?")]
        second = chat.prompt(talk, after=(first, turn))
        plain = [user("Is it warm?"), said(turn.message.content), user("And later?")]
        parts = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in plain]
        ways = [parts] if chat._parts else [plain]
        expected = own.apply_chat_template(*ways, add_generation_prompt=True, tokenize=False)
        read = own.decode(second.ids)
        if second.forked:
            assert second.ids == chat.encode(expected)
        else:
            assert second.ids[: len(first.ids) + len(ids)] == [*first.ids, *ids]
            once = own.decode([own.eos_token_id])
            assert f"{once}{once}" not in "".join(read.split())
            assert second.text == expected
