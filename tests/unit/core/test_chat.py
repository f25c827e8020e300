"""Templates of every style: conversations keep the tokens they have, and text that nobody sampled
is trained on exactly where the assistant wrote it."""

import copy
import logging
from typing import Any

import pytest

from mrlm import Message, Role
from mrlm.core.chat import Chat
from mrlm.core.errors import ChatTemplateError
from mrlm.core.spans import transcript
from mrlm.core.transcripts import transcript_turns
from mrlm.core.types import Turn

TURN = "{{ '<|im_start|>' + m['role'] + '\\n' }}"
ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
PLAIN = "{% for m in messages %}" + TURN + "{{ m['content'] + '<|im_end|>\\n' }}{% endfor %}" + ASK
MARKS = (
    "{% for m in messages %}" + TURN + "{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}" + ASK
)
HEADERS = (
    "{{ '<|begin|>' }}{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '<|end|>\\n\\n' + m['content'] | trim + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}"
)
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}"
    "{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
THINKS = (
    "{% for m in messages %}" + TURN + "{% set said = m['content'] %}"
    "{% if m['role'] == 'assistant' and not loop.last and '</think>' in said %}"
    "{% set said = said.split('</think>')[-1] | trim %}{% endif %}"
    "{{ said + '<|im_end|>\\n' }}{% endfor %}" + ASK
)
TRIMS = (
    "{% for m in messages %}"
    + TURN
    + "{{ m['content'] | trim + '<|im_end|>\\n' }}{% endfor %}"
    + ASK
)
UNSTABLE = (
    "{{ messages | length }}{% for m in messages %}"
    + TURN
    + "{{ m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    + ASK
)
EMPTY_MARKS = PLAIN + "{% if false %}{% generation %}{% endgeneration %}{% endif %}"
KEEPING = {
    "plain": PLAIN, "marks": MARKS, "headers": HEADERS, "strict": STRICT, "trims": TRIMS,
    "none": None,
}  # fmt: skip


def chat_of(tokenizer: Any, template: str | None) -> Chat:
    own = copy.deepcopy(tokenizer)
    own.chat_template = template
    return Chat(own)


def user(text: str) -> Message:
    return Message(text)


def said(text: str, agent: str | None = None) -> Message:
    return Message(text, Role.ASSISTANT, agent=agent)


def sampled(chat: Chat, prompt: Any, text: str, finish: str = "stop") -> Turn:
    """A turn as an engine leaves it, of tokens that no tokenizer would choose for the text."""
    ids = chat.encode(text)
    if finish == "stop":
        ids = [*ids, chat.tokenizer.eos_token_id]
    turn = Turn("a", "p", prompt.ids, ids, [-1.0] * len(ids), finish_reason=finish)
    turn.message = Message(chat.decode(ids), Role.ASSISTANT, turn=turn)
    return turn


ENDS = {  # the template, the tokenizer's end token, and the token that ends a message
    "the tokenizer's": (PLAIN, "<|im_end|>", "<|im_end|>"),
    "the template's": (PLAIN, "<|pad|>", "<|im_end|>"),
    "a token that opens messages": (PLAIN, "<|im_start|>", "<|im_end|>"),
    "of the conversation": (PLAIN + "{{ '<|pad|>' }}", "<|pad|>", "<|im_end|>"),
    "none": ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "<|pad|>", "<|pad|>"),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_text_that_was_not_sampled_ends_as_the_template_ends_it(
    tokenizer: Any, case: str
) -> None:
    """Also where the tokenizer names another end token, as those of many base models do."""
    template, eos, end = ENDS[case]
    own = copy.deepcopy(tokenizer)
    own.chat_template, own.eos_token = template, eos
    chat = Chat(own)
    ids = chat.encode_text("it is 5", whole=True)
    assert own.convert_ids_to_tokens(ids[-1]) == end
    assert ids[:-1] == chat.encode_text("it is 5")
    if case not in ("none", "of the conversation"):  # the tokens that a data set is trained on
        whole, (span,) = transcript(chat, [user("2+3?"), said("it is 5")])
        assert whole[span.start : span.end] == ids


# -- prompts ---------------------------------------------------------------------------------------


def test_siblings_are_rendered_once_and_share_no_list(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chat_of(tokenizer, tokenizer.chat_template)
    assert chat.control, "how the template opens roles is looked up once"
    applied = chat.apply
    rendered: list[Any] = []

    def noted(messages: Any, generate: bool) -> str:
        rendered.append(messages)
        return applied(messages, generate)

    monkeypatch.setattr(chat, "apply", noted)
    one, two = (chat.prompt([user("2+3=")]) for _ in range(2))
    rendered[:] = [each for each in rendered if each[0]["content"] != "x"]  # harmless ones
    assert len(rendered) == 1 and one == two
    one.ids.clear()
    assert chat.prompt([user("2+3=")]).ids == two.ids != []
    calls = ({"function": {"name": "add", "arguments": {}}},)
    talks = [
        [Message("2+3=", Role.SYSTEM)],
        [user("2+3="), said("")],
        [user("2+3="), Message("", Role.ASSISTANT, tool_calls=calls)],
    ]
    assert len({chat.prompt(talk).text for talk in talks}) >= 2
    rendered[:] = [each for each in rendered if each[0]["content"] != "x"]
    assert len(rendered) == 4, "another role is another conversation, and so is a call"


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("style", KEEPING)
def test_a_conversation_keeps_the_tokens_it_has(tokenizer: Any, style: str, finish: str) -> None:
    """Three turns: each prompt begins with the last one and what was sampled, and reads as the
    template writes the whole."""
    chat = chat_of(tokenizer, KEEPING[style])
    messages = [user("2+3?")]
    prompt = chat.prompt(messages)
    for text in ("it is 5", "still 5", "yes, 5"):
        turn = sampled(chat, prompt, text, finish)
        assert turn.message is not None
        messages += [turn.message, user("sure?")]
        following = chat.prompt(messages, after=(prompt, turn))
        known = [*turn.prompt_ids, *turn.completion_ids]
        assert not following.forked and following.ids[: len(known)] == known
        assert following.text == chat.render(messages)
        written, read = following.text, chat.tokenizer.decode(following.ids)
        if style == "strict":  # a space that the template puts before an answer was not sampled
            written, read = written.replace("] ", "]"), read.replace("] ", "]")
        assert read == written
        prompt = following


@pytest.mark.parametrize("text", ["  spaces around ", "\n\nlines\n", ""])
@pytest.mark.parametrize("style", ["trims", "headers", "plain", "marks"])
def test_what_a_template_trims_stays_as_it_was_sampled(
    tokenizer: Any, style: str, text: str
) -> None:
    chat = chat_of(tokenizer, KEEPING[style])
    first = chat.prompt([user("2+3?")])
    turn = sampled(chat, first, text)
    assert turn.message is not None
    second = chat.prompt([user("2+3?"), turn.message, user("sure?")], after=(first, turn))
    known = [*turn.prompt_ids, *turn.completion_ids]
    assert not second.forked and second.ids[: len(known)] == known
    rest = chat.tokenizer.decode(second.ids[len(known) :])
    assert "<|im_end|>" not in rest.split("sure?")[0] and rest.count("sure?") == 1


def test_a_template_that_rewrites_the_past_forks_and_says_so_once(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    chat = chat_of(tokenizer, THINKS)
    messages = [user("2+3?")]
    prompt = chat.prompt(messages)
    with caplog.at_level(logging.WARNING, "mrlm"):
        for _ in range(3):
            turn = sampled(chat, prompt, "<think>two and three</think>5")
            assert turn.message is not None
            messages += [turn.message, user("sure?")]
            prompt = chat.prompt(messages, after=(prompt, turn))
            assert prompt.forked and prompt.ids == chat.encode(chat.render(messages))
            assert "two and three" not in prompt.text
    assert [r.message for r in caplog.records if "sample of its own" in r.message] == [
        caplog.records[0].message
    ]


def test_a_turn_without_thoughts_does_not_fork(tokenizer: Any) -> None:
    chat = chat_of(tokenizer, THINKS)
    first = chat.prompt([user("2+3?")])
    turn = sampled(chat, first, "5")
    assert turn.message is not None
    assert not chat.prompt([user("2+3?"), turn.message, user("?")], after=(first, turn)).forked


def test_no_template_is_said_once_and_can_be_trained(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mrlm"):
        chat = chat_of(tokenizer, None)
        for _ in range(3):
            chat.prompt([user("2+3?")])
            (turn,) = transcript_turns(chat, [user("2+3?"), said("5")], "a", "p")
    assert len(caplog.records) == 1 and "no chat template" in caplog.records[0].message
    assert chat.tokenizer.decode(turn.completion_ids) == "5<|im_end|>"
    assert chat.render([user("2+3?")]) == "User:\n2+3?\nAssistant:\n"


def test_a_dictionary_of_templates_uses_its_default(tokenizer: Any) -> None:
    own = copy.deepcopy(tokenizer)
    own.chat_template = {"default": TRIMS, "tool_use": PLAIN}
    assert Chat(own).template == TRIMS


def test_template_variables_are_passed_on(tokenizer: Any) -> None:
    own = copy.deepcopy(tokenizer)
    own.chat_template = "{% if loud %}{{ 'LOUD ' }}{% endif %}" + PLAIN
    assert Chat(own, {"loud": True}).render([user("hi")]).startswith("LOUD ")
    assert not Chat(own).render([user("hi")]).startswith("LOUD ")


# -- transcripts -----------------------------------------------------------------------------------

CONVERSATION = [user("2+3?"), said("it is 5"), user("sure?"), said("yes, 5")]


def spans_of(chat: Chat, messages: list[Message], **more: Any) -> list[tuple[int, str]]:
    ids, spans = transcript(chat, messages, **more)
    return [(span.message, chat.tokenizer.decode(ids[span.start : span.end])) for span in spans]


@pytest.mark.parametrize("style", [*KEEPING, "empty_marks"])
def test_spans_cover_the_words_and_their_end_exactly(tokenizer: Any, style: str) -> None:
    template = EMPTY_MARKS if style == "empty_marks" else KEEPING[style]
    chat = chat_of(tokenizer, template)
    lead = " " if style == "strict" else ""
    assert spans_of(chat, CONVERSATION) == [
        (1, f"{lead}it is 5<|im_end|>"),
        (3, f"{lead}yes, 5<|im_end|>"),
    ]
    ids, _ = transcript(chat, CONVERSATION)
    assert chat.tokenizer.decode(ids) == chat.render(CONVERSATION, generate=False)
    assert ids == chat.encode(chat.render(CONVERSATION, generate=False))


@pytest.mark.parametrize("style", KEEPING)
def test_a_wanted_message_alone_is_covered(tokenizer: Any, style: str) -> None:
    chat = chat_of(tokenizer, KEEPING[style])
    ((message, text),) = spans_of(chat, CONVERSATION, trained=lambda index: index == 3)
    assert message == 3 and text.strip() == "yes, 5<|im_end|>"


@pytest.mark.parametrize("style", KEEPING)
@pytest.mark.parametrize("text", ["a<b>", "日本 🙂", "x\ny", "no. no", "assistant"])
def test_spans_of_awkward_words(tokenizer: Any, style: str, text: str) -> None:
    chat = chat_of(tokenizer, KEEPING[style])
    ((_, found),) = spans_of(chat, [user(text), said(text)])
    assert found.strip() == f"{text}<|im_end|>"


@pytest.mark.parametrize("style", ["plain", "marks", "headers", "none"])
def test_two_assistants_in_a_row_have_a_span_each(tokenizer: Any, style: str) -> None:
    chat = chat_of(tokenizer, KEEPING[style])
    messages = [user("2+3?"), said("four", "a"), said("five", "b")]
    assert spans_of(chat, messages) == [(1, "four<|im_end|>"), (2, "five<|im_end|>")]


def test_a_template_that_cannot_say_is_refused(tokenizer: Any) -> None:
    chat = chat_of(tokenizer, UNSTABLE)
    with pytest.raises(ChatTemplateError, match=r"changes what was rendered.*% generation %"):
        transcript(chat, CONVERSATION)
    with pytest.raises(ChatTemplateError, match="generation"):
        transcript_turns(chat, CONVERSATION, "a", "p")


def test_thoughts_stripped_from_the_past_are_no_silent_gap(tokenizer: Any) -> None:
    """A row whose earlier thoughts the template removes is refused by name, not masked away; one
    with thoughts at the end only is trained on with them."""
    chat = chat_of(tokenizer, THINKS)
    ((_, text),) = spans_of(chat, [user("2+3?"), said("<think>hm</think>5")])
    assert text == "<think>hm</think>5<|im_end|>"
    with pytest.raises(ChatTemplateError, match="changes what was rendered"):
        transcript(chat, [user("?"), said("<think>hm</think>5"), user("?"), said("5")])


@pytest.mark.parametrize("style", KEEPING)
def test_no_pad_token_is_no_matter(tokenizer: Any, style: str) -> None:
    chat = chat_of(tokenizer, KEEPING[style])
    expected = transcript(chat, CONVERSATION)
    chat.tokenizer.pad_token = None
    assert transcript(chat, CONVERSATION) == expected


# -- conversations that strict templates refuse ----------------------------------------------------

ODD: dict[str, list[Message]] = {
    "system in the middle": [user("2+3?"), Message("hint", Role.SYSTEM), said("5")],
    "system first": [Message("be brief", Role.SYSTEM), user("2+3?"), said("5")],
    "system alone": [Message("be brief", Role.SYSTEM), said("5")],
    "two assistants": [user("2+3?"), said("4", "a"), said("5", "b")],
    "two users": [user("2+3?"), user("quick"), said("5")],
    "tool": [user("2+3?"), said("calc"), Message("result", Role.TOOL), said("5")],
    "environment": [user("2+3?"), said("calc"), Message("result", Role.ENVIRONMENT), said("5")],
    "two systems": [Message("a", Role.SYSTEM), Message("b", Role.SYSTEM), user("?"), said("5")],
}


@pytest.mark.parametrize("style", KEEPING)
@pytest.mark.parametrize("case", ODD)
def test_no_conversation_is_refused_and_no_word_is_lost(
    tokenizer: Any, style: str, case: str
) -> None:
    chat = chat_of(tokenizer, KEEPING[style])
    text = chat.render(ODD[case], generate=False)
    for message in ODD[case]:
        assert message.content in text
    found = spans_of(chat, ODD[case])
    assert found and found[-1][0] == len(ODD[case]) - 1 and "5<|im_end|>" in found[-1][1]
    for message in ODD[case]:
        if message.role is not Role.ASSISTANT:
            assert all(message.content not in words for _, words in found)


def test_a_refused_conversation_is_said_once(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    chat = chat_of(tokenizer, STRICT)
    with caplog.at_level(logging.WARNING, "mrlm"):
        for _ in range(3):
            chat.render(ODD["system first"])
    assert len(caplog.records) == 1 and "merged" in caplog.records[0].message


def test_of_two_assistants_under_a_strict_template_only_the_trained_one_has_a_span(
    tokenizer: Any,
) -> None:
    chat = chat_of(tokenizer, STRICT)
    messages = [user("2+3?"), said("four", "a"), said("five", "b"), user("sure?"), said("5", "a")]
    turns = transcript_turns(chat, messages, "x", "p", agents=["b"])
    assert [chat.decode(turn.completion_ids).strip() for turn in turns] == ["five"]
    assert "four" in chat.decode(turns[0].prompt_ids)
    turns = transcript_turns(chat, messages, "x", "p", agents=["a"])
    assert chat.decode(turns[-1].completion_ids).strip() == "5"
    assert all("five" not in chat.decode(turn.completion_ids) for turn in turns)


def test_tools_keep_their_role_where_the_template_knows_it(tokenizer: Any) -> None:
    messages = [user("?"), Message("result", Role.TOOL), Message("seen", Role.ENVIRONMENT)]
    knows = chat_of(tokenizer, "{% if tools %}{% endif %}" + PLAIN).render(messages)
    assert "<|im_start|>tool\nresult" in knows and "<|im_start|>user\nseen" in knows
    plain = chat_of(tokenizer, PLAIN).render(messages)
    assert "<|im_start|>user\nresult" in plain and "tool" not in plain


# -- turns of transcripts --------------------------------------------------------------------------


@pytest.mark.parametrize("style", KEEPING)
def test_turns_of_wanted_agents_follow_one_another(tokenizer: Any, style: str) -> None:
    chat = chat_of(tokenizer, KEEPING[style])
    messages = [user("2+3?"), said("4", "a"), user("and?"), said("5", "b"), user("so?"), said("6")]
    turns = transcript_turns(chat, messages, "b", "p", agents=["b"])
    assert [turn.agent for turn in turns] == ["b", "b"]
    assert [chat.decode(turn.completion_ids).strip() for turn in turns] == ["5", "6"]
    first, second = turns
    known = [*first.prompt_ids, *first.completion_ids]
    assert second.prompt_ids[: len(known)] == known
    assert all(turn.logprobs is None and turn.message in messages for turn in turns)
    assert transcript_turns(chat, messages, "b", "p", agents=["c"]) == []
    assert len(transcript_turns(chat, messages, "b", "p")) == 3
    assert transcript_turns(chat, messages[:1], "b", "p") == []
