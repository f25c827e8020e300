"""Fields of rows and messages: used, refused by name, or named as unused."""

import logging
from typing import Any

import pytest

from chat_templates import TOOLS, templates, tokenizer_for
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError
from mrlm.core.messages import read_message, write_message
from mrlm.core.types import Message, SamplingParams
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.rows import Grouping
from mrlm.serving.protocol.codec import message_of, to_message

SHOTS = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+3?"},
]
BEGUN = {"role": "assistant", "content": "It is "}
ANSWER = [{"role": "assistant", "content": "5"}]


def turns(tokenizer: Any, row: dict[str, Any], template: str | None = None) -> list[list[Any]]:
    """Each side of a row: the prompts and completions that are trained on."""
    own = tokenizer_for(tokenizer, template or tokenizer.chat_template)
    settings = AgentSettings(
        "a", "p", Chat(own), SamplingParams(max_new_tokens=64), max_prompt_tokens=9999
    )
    group = Grouping({"a": settings}).group(row, 0)
    return [
        [
            (own.decode(t.prompt_ids), own.decode(t.completion_ids))
            for t in episode.rollouts["a"].turns
        ]
        for episode in group
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": SHOTS, "completion": "5"}, ["5"]),
        ({"prompt": SHOTS, "completion": ANSWER}, ["5"]),
        ({"messages": [*SHOTS, *ANSWER]}, ["2", "5"]),
        ({"messages": [SHOTS[0], {**SHOTS[1], "weight": 0}, SHOTS[2], *ANSWER]}, ["5"]),
        ({"messages": [SHOTS[0], {**SHOTS[1], "train": False}, SHOTS[2], *ANSWER]}, ["5"]),
        ({"messages": [*SHOTS, *ANSWER], "loss_mask": [0, 1, 0, 0]}, ["2"]),
        ({"prompt": [*SHOTS, BEGUN], "completion": "5"}, ["5"]),
    ],
)
def test_only_what_is_to_be_trained_is(
    tokenizer: Any, row: dict[str, Any], expected: list[str]
) -> None:
    (side,) = turns(tokenizer, row)
    assert [text for _, text in side] == [f"{text}<|im_end|>" for text in expected]


def test_a_pair_trains_its_answers_only(tokenizer: Any) -> None:
    for row in (
        {"prompt": SHOTS, "chosen": ANSWER, "rejected": "4"},
        {"chosen": [*SHOTS, *ANSWER], "rejected": [*SHOTS, {"role": "assistant", "content": "4"}]},
    ):
        sides = turns(tokenizer, row)
        assert [[text for _, text in side] for side in sides] == [["5<|im_end|>"], ["4<|im_end|>"]]


def test_a_begun_answer_is_continued(tokenizer: Any) -> None:
    row = {"prompt": [*SHOTS, BEGUN], "completion": "5"}
    ((prompt, _),) = turns(tokenizer, row)[0]
    assert prompt.endswith("assistant\nIt is ") and prompt.count("<|im_start|>assistant") == 2


def test_system_and_json_text_stay_what_they_are(tokenizer: Any) -> None:
    text = '[{"role": "user", "content": "x"}]'
    row = {"system": "Be brief.", "prompt": text, "completion": "5"}
    ((prompt, _),) = turns(tokenizer, row)[0]
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>") and text in prompt


def test_columns_for_the_template_reach_it(tokenizer: Any) -> None:
    qwen = templates()["trl/qwen3"]
    row = {
        "messages": [*SHOTS, *ANSWER],
        "tools": TOOLS,
        "chat_template_kwargs": {"enable_thinking": False, "other": None},
    }
    prompt, text = turns(tokenizer, row, qwen)[0][-1]
    assert '"name": "weather"' in prompt and "null" not in prompt
    assert (prompt + text).endswith("<think>\n\n</think>\n\n5<|im_end|>")


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"images": ["a.png"]}, "'images' cannot be used"),
        ({"content": [{"type": "image_url", "image_url": {}}]}, "parts of text only"),
        ({"weight": 0.5}, "'weight' must be 0 or 1"),
        ({"role": "narrator"}, "unknown role 'narrator'"),
        ({"tool_calls": ["f"]}, "must be a list of objects"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    tokenizer: Any, message: dict[str, Any], sentence: str
) -> None:
    row = {"messages": [SHOTS[0], {**ANSWER[0], **message}]}
    with pytest.raises(ConfigError, match=rf"row 1, column 'messages', message 1.*{sentence}"):
        turns(tokenizer, row)


def test_unused_columns_are_named_once(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mrlm"):
        turns(tokenizer, {"prompt": "?", "completion": "5", "score": 3, "empty": None})
    assert "row 1: not used in training: score" in caplog.text and "empty" not in caplog.text


WHOLE = Message(
    "text",
    role="assistant",  # type: ignore[arg-type]
    tool_calls=({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},),
    tool_call_id="2",
    name="f",
    reasoning="thought",
    weight=0.0,
)


def test_a_message_survives_records_and_grpc() -> None:
    assert read_message(write_message(WHOLE), "a record") == WHOLE
    assert message_of(to_message(WHOLE)) == WHOLE
    plain = Message("text")
    assert message_of(to_message(plain)) == read_message(write_message(plain), "a record") == plain
    assert set(write_message(plain)) == {"role", "content", "agent"}
