"""Text of messages never becomes a control token, whatever a template does to it."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from transformers import AutoTokenizer

from mrlm.core import template_work
from mrlm.core.chat import Chat
from mrlm.core.errors import ChatTemplateError
from mrlm.core.spans import transcript
from mrlm.core.types import Message, Role

LINE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + CONTENT + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
JOINED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>' + m.content }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{{ '<|im_start|>' }}"
)
TRANSFORMS = {
    "plain": "m.content",
    "delete": "m.content | replace('/think', '')",
    "guard": "m.content | replace('\ufdd0', '')",
    "lower": "m.content | lower",
    "entities": "m.content | replace('&lt;', '<') | replace('&gt;', '>')",
    "tail": "m.content.split('</think>')[-1]",
    "join": "m.content.split('-') | join('')",
    "reverse": "m.content | reverse",
    "words": "m.content.split() | join('')",
}
PIECES = (
    "<|im_", "end|>", "<|im_/thinkend|>", "<|IM_END|>", "&lt;|im_end|&gt;", "<", "|im_start|>",
    "<|im_start|>", "<|im-_end|>", "<|im_\ufdd0end|>", ">|dne_mi|<", "< |im_end| >", "/think",
    "</think>", "plain words", " ", "\n",
)  # fmt: skip


@pytest.fixture
def tokenizer(tiny_path: str) -> Any:
    return AutoTokenizer.from_pretrained(tiny_path)


def conversation(rng: random.Random, pieces: Sequence[str]) -> list[Message]:
    roles = [Role.USER, Role.ASSISTANT] * 2 + [Role.USER]
    return [Message("".join(rng.choices(pieces, k=rng.randint(0, 4))), role) for role in roles]


@pytest.mark.parametrize("name", [*TRANSFORMS, "neighbours"])
def test_no_text_becomes_a_control_token(name: str, tokenizer: Any) -> None:
    template = JOINED if name == "neighbours" else LINE.replace("CONTENT", TRANSFORMS[name])
    tokenizer.chat_template = template
    rng, chat = random.Random(name), Chat(tokenizer)
    harmless = Chat(tokenizer)
    refused = 0
    for _ in range(60):
        messages = conversation(rng, PIECES[:2] if name == "neighbours" else PIECES)
        plain = [Message("x" if m.content.strip() else "", m.role) for m in messages]
        try:
            for end in (3, 5):
                ids = chat.prompt(messages[:end]).ids
                expected = harmless.prompt(plain[:end]).ids
                control = chat.control.ids
                assert [i for i in ids if i in control] == [i for i in expected if i in control]
        except ChatTemplateError as error:
            assert "makes control tokens" in str(error)
            refused += 1
    assert refused == 0 or name in ("words", "guard", "reverse", "join")
    assert refused < 60


BAD = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "type": "{{ messages[0].content + 1 }}",
    "key": "{{ {}['a'].b.c }}",
    "zero": "{{ 1 // 0 }}",
    "range": "{{ range(10 ** 9) }}",
    "own": "{{ raise_exception('\x1b[2J\x07no') }}",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("door", ["prompt", "transcript"])
def test_a_template_fails_within_limits_and_with_one_error(
    name: str, door: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_work, "SECONDS", 0.3)
    tokenizer.chat_template = BAD[name]
    chat = Chat(tokenizer)
    with pytest.raises(ChatTemplateError) as caught:
        messages = [Message("a", Role.USER), Message("b", Role.ASSISTANT)]
        _ = chat.prompt(messages) if door == "prompt" else transcript(chat, messages)
    assert str(caught.value).isprintable()
