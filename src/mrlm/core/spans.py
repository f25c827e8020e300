"""Tokens of the assistant's messages in conversations that no engine sampled: within one sequence
where the template keeps what it rendered before, else in a sequence for every turn."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jinja2 import TemplateError

from mrlm.core.chat import Chat
from mrlm.core.control_tokens import GUARD, unguarded
from mrlm.core.errors import ChatTemplateError
from mrlm.core.prefixes import shared_prefix
from mrlm.core.template_messages import contains, plain, text_of
from mrlm.core.template_work import Rendering, unusable
from mrlm.core.types import Message

OPEN = re.compile(r"<think>\s*\Z")
CLOSED = re.compile(r"</think>\s*\Z")
CLOSE = re.compile(r"\s*(?:<think>\s*)?</think>\s*")
Dicts = list[dict[str, Any]]


@dataclass(slots=True)
class Span:
    """The tokens `ids[start:end]` of a transcript, which belong to message number `message`."""

    message: int
    start: int
    end: int


@dataclass(slots=True)
class TrainedMessage:
    """The tokens of message number `message`, and those before it."""

    message: int
    prompt: list[int]
    completion: list[int]


class Rewritten(Exception):
    """The template renders a message differently when others follow it."""


def samples(
    chat: Chat, messages: Sequence[Message], trained: Callable[[int], bool]
) -> list[TrainedMessage]:
    """The trained messages of a conversation with their prompts. Each prompt continues the tokens
    of the message before it, or is rendered by itself if the template rewrites earlier turns.
    Raises `ChatTemplateError`: the template leaves out a text, a call or a trained thought, or does
    not identify the assistant's tokens."""
    dicts, text, missing = chat.acceptable(messages, trained, generate=False, whole=True)
    if missing is not None:
        index, what = missing
        raise ChatTemplateError(_left_out(chat, dicts[index]["sources"][-1], what))
    try:
        ids, spans = _spans(chat, dicts, text, trained)
        for span in spans:
            thought = chat.thought(messages[span.message])
            if thought and not contains(chat.tokenizer.decode(ids[span.start : span.end]), thought):
                raise Rewritten(unusable("it removes thoughts"))
        return [TrainedMessage(s.message, ids[: s.start], ids[s.start : s.end]) for s in spans]
    except Rewritten:
        pass
    chat.say("the chat template rewrites earlier turns, so each turn becomes a sample of its own")
    return [_single(chat, dicts, index) for index in _chosen(dicts, trained)]


def transcript(
    chat: Chat, messages: Sequence[Message], trained: Callable[[int], bool] = lambda index: True
) -> tuple[list[int], list[Span]]:
    """Ids of a whole conversation, and the spans of its trained assistant messages. Raises
    `ChatTemplateError`: the template neither marks generations nor keeps its prefixes."""
    try:
        dicts, text, _ = chat.acceptable(messages, trained, generate=False)
        return _spans(chat, dicts, text, trained)
    except Rewritten as error:
        raise ChatTemplateError(str(error)) from None


def _chosen(dicts: Dicts, trained: Callable[[int], bool]) -> list[int]:
    """The numbers of the assistant messages that are trained on."""
    return [
        index
        for index, entry in enumerate(dicts)
        if entry["role"] == "assistant" and any(map(trained, entry["sources"]))
    ]


def _spans(
    chat: Chat, dicts: Dicts, text: str, trained: Callable[[int], bool]
) -> tuple[list[int], list[Span]]:
    chosen = _chosen(dicts, trained)
    spans: list[Span] | None = None
    if chat.marked and not any("prefill" in entry for entry in dicts):
        ids, spans = _marked_spans(chat, dicts, text)
    if spans is None:
        ids, spans = _prefix_spans(chat, dicts)
    spans = [span for span in spans if span.message in chosen and span.end > span.start]
    if any(text_of(dicts[i]) for i in chosen) and not spans:
        raise ChatTemplateError(unusable("it marks no token of any assistant message"))
    for span in spans:
        span.message = dicts[span.message]["sources"][-1]
    return ids, spans


# -- one turn --------------------------------------------------------------------------------------


def _single(chat: Chat, dicts: Dicts, index: int) -> TrainedMessage:
    """A message as the last one of its conversation, after the prompt that a policy would read."""
    before, until = _around(chat, dicts, index)
    head = _common(chat, before, until)
    bare = _rendered(chat, dicts[:index], False)
    if len(head) < len(_common(chat, before, bare)):
        raise ChatTemplateError(unusable(f"message {index} changes what was rendered before it"))
    rest, source = until[len(head) :], dicts[index]["sources"][-1]
    thought = dicts[index].get("thought", "").strip()
    if not contains(rest, thought):
        opened = OPEN.search(before) is not None
        if not (opened or (chat.strips_thoughts and not CLOSED.search(before))):
            raise ChatTemplateError(_left_out(chat, source, "thought"))
        text = f"{thought}\n</think>\n\n{CLOSE.sub('', rest, count=1).lstrip()}"
        head, rest = before, text if opened else f"<think>\n{text}"
    head, written = _parted(chat, dicts, index, head, rest, until)
    return TrainedMessage(source, chat.encode(head), chat.encode(written))


def _parted(
    chat: Chat, dicts: Dicts, index: int, before: str, rest: str, until: str
) -> tuple[str, str]:
    """The text before what a policy writes of a message, and that."""
    written = _up_to_end(chat, dicts, index, rest, until)
    prefill = dicts[index].get("prefill")
    if prefill:
        at = written.find(prefill)
        if at < 0:
            raise ChatTemplateError(unusable("it changes the beginning of an answer"))
        at += len(prefill)
        before, written = before + written[:at], written[at:]
    return before, written


def _around(chat: Chat, dicts: Dicts, index: int) -> tuple[str, str]:
    """The prompt of a message, and the conversation up to its end."""
    return _rendered(chat, dicts[:index], True), _rendered(chat, dicts[: index + 1], False)


def _common(chat: Chat, one: str, other: str) -> str:
    """The common beginning of two rendered texts, up to a whole control token."""
    end = shared_prefix(one, other)
    return one[: chat.control.boundary(other, chat.control.boundary(one, end))]


def _rendered(chat: Chat, dicts: Dicts, generate: bool) -> str:
    try:
        return chat.apply(dicts, generate)
    except TemplateError as error:
        text = f"it refuses the first {len(dicts)} messages ({error})"
        raise ChatTemplateError(unusable(text)) from error


def _up_to_end(chat: Chat, dicts: Dicts, index: int, written: str, until: str) -> str:
    """The part of a rendered assistant message that a policy writes: the text and the end token,
    without the line break after it. A template may write the end before the next message only."""
    eos, content = chat.tokenizer.eos_token or "", text_of(dicts[index])
    after = written.find(content) + len(content) if content in written else 0
    at = written.find(eos, after) if eos else -1
    if at >= 0:
        return written[: at + len(eos)]
    written = written.rstrip("\n")
    if chat.control.ends(written):
        return written
    role = "tool" if "tool_calls" in dicts[index] else "user"
    following = {"role": role, "content": "x", "sources": [-1]}
    try:
        longer = chat.apply([*dicts[: index + 1], following], False)
    except TemplateError:
        longer = ""
    last = content.strip() or written[-16:]
    if last in longer and (end := chat.control.begins(longer[longer.rindex(last) + len(last) :])):
        return written + end
    chat.say(
        "the chat template writes no end token after a message of the assistant, so that no policy "
        "learns to stop (masked stop token)"
    )
    return written


# -- whole conversations ---------------------------------------------------------------------------


def _marked(chat: Chat, messages: Dicts) -> tuple[list[int], list[int]]:
    """Ids of a conversation, and a mask of those that the template marks as generated."""
    variables = chat.variables(messages)
    with Rendering():
        encoded = chat.tokenizer.apply_chat_template(
            plain(messages),
            chat_template=chat.template_for(messages),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            **variables,
        )
    return list(encoded["input_ids"]), list(encoded["assistant_masks"])


def _marked_spans(chat: Chat, messages: Dicts, text: str) -> tuple[list[int], list[Span] | None]:
    ids, mask = _marked(chat, messages if GUARD not in text else unguarded(messages))
    if GUARD in text:
        parts = chat.control.spelled(ids, text)
        if parts is None:
            ids, mask = _marked(chat, chat.control.escape(messages))
        else:
            ids = [token for part in parts for token in part]
            mask = [bit for bit, part in zip(mask, parts, strict=True) for _ in part]
    edges = [i for i, (a, b) in enumerate(pairwise([0, *mask, 0])) if a != b]
    writers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if len(edges) != 2 * len(writers):
        return ids, None
    return ids, [*map(Span, writers, edges[::2], edges[1::2])]


def _prefix_spans(chat: Chat, messages: Dicts) -> tuple[list[int], list[Span]]:
    ids: list[int] = []
    spans: list[Span] = []
    text, eos = "", chat.tokenizer.eos_token or ""
    whole = chat.apply(messages, False)
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, until = _around(chat, messages, index)
        if eos and not whole.startswith(until):  # it ends every conversation, not every turn
            until = until.removesuffix(eos)
        if not (before.startswith(text) and until.startswith(before) and whole.startswith(until)):
            raise Rewritten(unusable(f"message {index} changes what was rendered before it"))
        before, written = _parted(chat, messages, index, before, until[len(before) :], until)
        ids += chat.encode(before[len(text) :])
        ids_written = chat.encode(written)
        spans.append(Span(index, len(ids), len(ids) + len(ids_written)))
        ids += ids_written
        text = before + written
    return ids + chat.encode(whole[len(text) :]), spans


def _left_out(chat: Chat, index: int, what: str) -> str:
    fix = {
        "thought": "remove the thoughts, or turn them on with model.chat_template_kwargs",
        "text": "use a template that renders it, or drop the row",
    }.get(what, "use a template that renders calls, or write the call into the content")
    return f"message {index + 1}: {chat.title} leaves out its {what}; {fix}"
