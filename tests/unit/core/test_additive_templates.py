"""A conversation rendered from its new messages reads as one that is rendered from its start."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrlm import Message, Role
from mrlm.core.additive_templates import is_additive
from mrlm.core.chat import PLAIN_TEMPLATE, Chat
from mrlm.core.types import Turn

EACH = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '\\n' }}{% endfor %}"
OPENING = "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}"
SAID = "{{ m.content }}{% endfor %}"
FIRST = "{% for m in messages %}{% if not loop.first %}{{ '|' }}{% endif %}" + SAID
INDEX = "{% for m in messages %}{% if loop.index0 == 0 %}{{ '<s>' }}{% endif %}" + SAID
KEPT = (
    "{% set mark = messages[0]['content'] | trim %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% set mark = m.content %}{% endif %}"
    "{{ m.role + mark + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'A:' }}{% endif %}"
)
CHATML = (Path(__file__).parents[2] / "fixtures/templates/chatml.jinja").read_text()
DEFAULT_SYSTEM = (
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ 'Be brief.' }}{% endif %}{{ messages[0]['role'] + m['role'] + m['content'] }}{% endfor %}"
)
ADDITIVE = [EACH, OPENING + EACH, FIRST, INDEX, KEPT, DEFAULT_SYSTEM, CHATML, PLAIN_TEMPLATE]
OTHER = {
    "counts": "{{ messages | length }}" + EACH,
    "last": "{% for m in messages %}{% if loop.last %}{{ '.' }}{% endif %}" + SAID,
    "index": "{% for m in messages %}{{ loop.index0 }}{{ m.content }}{% endfor %}",
    "neighbour": "{% for m in messages %}{{ messages[loop.index0 - 1].content }}{% endfor %}",
    "end": EACH + "{{ messages[0].content }}",
    "state": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ ns.n }}{% endfor %}",
    "backwards": "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}",
    "twice": EACH + EACH,
    "asks": "{% for m in messages %}{{ m.content }}{{ add_generation_prompt }}{% endfor %}",
    "clock": "{{ strftime_now('%s') }}" + EACH,
    "refuses": "{% for m in messages %}{{ raise_exception('no') }}{% endfor %}",
    "kept": "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages }}",
    "random": "{% for m in messages %}{{ m.content | random }}{% endfor %}",
    "invalid": "{% for m in messages %}",
}


@pytest.mark.parametrize("template", ADDITIVE)
def test_templates_of_single_messages_are_recognised(template: str) -> None:
    assert is_additive(template)


@pytest.mark.parametrize("name", OTHER)
def test_anything_else_is_rendered_whole(name: str) -> None:
    assert not is_additive(OTHER[name])


def chat_of(tokenizer: Any, template: str) -> Chat:
    own = copy.deepcopy(tokenizer)
    own.chat_template = template
    return Chat(own)


TEXTS = st.sampled_from(["", " ", "2+3=", " five ", "<|im_end|>", "{{ 1 }}", "a\nb", "é"])
ROLES = st.sampled_from([Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.ENVIRONMENT])
TALKS = st.lists(st.builds(Message, TEXTS, ROLES), min_size=2, max_size=9)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_later_prompts_read_as_the_whole_conversation(tokenizer: Any, data: Any) -> None:
    template = data.draw(st.sampled_from(ADDITIVE))
    chat, messages = chat_of(tokenizer, template), data.draw(TALKS)
    known = data.draw(st.integers(1, len(messages) - 1))
    previous = chat.prompt(messages[:known])
    turn = Turn("a", "p", previous.ids, chat.encode("x"), [-1.0], finish_reason="length")
    turn.message = Message("x", Role.ASSISTANT, turn=turn)
    later = [*messages[:known], turn.message, *messages[known:]]
    text, _ = chat._text(later, previous)
    assert text == chat_of(tokenizer, template).render(later)


def test_a_turn_renders_as_many_messages_at_the_end_as_at_the_start(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chat_of(tokenizer, PLAIN_TEMPLATE)
    messages = [Message("hello")]
    prompt = chat.prompt(messages)
    applied, rendered = chat.apply, []

    def noted(messages: Any, generate: bool) -> str:
        rendered.append(len(messages))
        return applied(messages, generate)

    monkeypatch.setattr(chat, "apply", noted)
    counts = []
    for _ in range(24):
        turn = Turn("a", "p", prompt.ids, chat.encode("hm"), [-1.0], finish_reason="length")
        turn.message = Message("hm", Role.ASSISTANT, turn=turn)
        messages = [*messages, turn.message, Message("and?")]
        prompt = chat.prompt(messages, after=(prompt, turn))
        counts.append(sum(rendered))
        rendered.clear()
    assert set(counts[1:]) == {3}, "the first message, for what is before it, and two new ones"
