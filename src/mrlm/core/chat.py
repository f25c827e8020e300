"""Messages <-> token ids. The only file that uses chat templates.

Two guarantees. A continued conversation keeps its tokens: the next prompt is the last prompt, the
sampled ids and the ids of later messages, unless the template rewrites earlier turns, in which case
the prompt is rendered again (and becomes a separate sample). And text that no engine sampled is
trained on exactly where the assistant wrote it.

Messages are text: a control token spelled in a message is tokenised as ordinary characters
(`core/control_tokens.py`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import add
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from mrlm.core.additive_templates import is_additive
from mrlm.core.control_tokens import GUARD, Control, unguarded
from mrlm.core.errors import ChatTemplateError
from mrlm.core.forged_control import Confined
from mrlm.core.template_messages import alternating, plain, without_system
from mrlm.core.template_work import place_of, rendering, unusable
from mrlm.core.types import Message, Role, Turn

log: logging.Logger = logging.getLogger("mrlm")

PLAIN_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ 'Assistant:\n' }}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['role'] | capitalize + ':\n' + message['content'] + '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)
"""Default template for a tokenizer without one, used with a warning."""

MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
TAKES_TOOLS = re.compile(r"\{[%{][^%}]*\btools\b")
JOINT = 256
"""Characters around the end of a prompt in which a control token could be made."""
KEPT = 256
"""Size of the caches of tokenised texts and rendered conversations, which siblings share."""


Said = tuple[tuple[Role, str], ...]


@dataclass(slots=True)
class Prompt:
    """The input of a policy: the rendered text, with guards where a message spells a control token,
    and its ids. `forked`: the template rewrote earlier turns. `said`: roles and contents of the
    conversation, if they determine the text."""

    text: str
    ids: list[int]
    forked: bool = False
    said: Said = ()


@dataclass(slots=True)
class Span:
    """The tokens `ids[start:end]` of a transcript, which belong to message number `message`."""

    message: int
    start: int
    end: int


class Chat:
    """A renderer of conversations for one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer.
        template_kwargs: additional variables for the template, such as `{"enable_thinking":
            False}`.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs: dict[str, Any] = dict(template_kwargs or {})
        self._said: set[str] = set()
        template = tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        if not template:
            self._say("the tokenizer has no chat template; a plain 'Role: text' one is used")
            template = PLAIN_TEMPLATE
        self.template: str = template
        # marks are found by characters, which tokenizers in plain Python do not count
        self.marked: bool = bool(MARKED.search(template)) and tokenizer.is_fast
        self._knows_tools = "tool" in template
        self._takes_tools = bool(TAKES_TOOLS.search(template))
        self._ids = lru_cache(KEPT)(lambda text: tuple(self.control.encode(text)))
        self._words = lru_cache(KEPT)(
            lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)
        )
        self._texts = lru_cache(KEPT)(
            lambda said: self.render([Message(content, role) for role, content in said])
        )
        self._frames = lru_cache(KEPT)(lambda first: _frame(self, first))
        self.confined: Confined = Confined(self)
        self._additive = "tools" not in self.template_kwargs and is_additive(template)

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text, which already contains all special tokens."""
        return [*self._ids(text)]

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text not rendered by a template: none of them is a control token."""
        return self.encode(self.control.guard(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without special tokens."""
        return self._words(tuple(ids))

    def render(self, messages: Sequence[Message], generate: bool = True) -> str:
        """Text of a conversation, for `encode`: control tokens spelled in messages are guarded.
        Messages that a strict template rejects (a system message in the middle, two of one role in
        a row) are merged or given another role, with one log message."""
        return self._acceptable(messages, lambda index: True, generate)[1]

    def _text(self, messages: Sequence[Message], previous: Prompt | None) -> tuple[str, Said]:
        """Like `render`, with a cache for conversations determined by roles and contents alone, and
        those. After a `previous` prompt only the new messages are rendered, if the template renders
        each message by itself."""
        if any(message.tool_calls or message.metadata.get("tools") for message in messages):
            return self.render(messages), ()
        said = tuple([(message.role, message.content) for message in messages])
        if previous is not None and self._additive and previous.said:
            known = len(previous.said)
            if said[:known] == previous.said:
                text = _continued(self, previous, said[known:])
                return (self._texts(said) if text is None else text), said
        return self._texts(said), said

    def prompt(
        self, messages: Sequence[Message], after: tuple[Prompt, Turn] | None = None
    ) -> Prompt:
        """The prompt for the next turn.

        Args:
            messages: the agent's whole conversation.
            after: the agent's last prompt and turn, if any; its sampled tokens are kept unchanged.
        """
        text, said = self._text(messages, after and after[0])
        if after is None:
            return Prompt(text, self.encode(text), said=said)
        previous, turn = after
        written = self.control.guard(turn.message.content) if turn.message else ""
        tail = _tail(text, previous.text, written)
        if tail is None:
            self._say(
                "the chat template rewrites earlier turns, so each turn becomes a sample of its own"
            )
            return Prompt(text, self.encode(text), forked=True, said=said)
        if turn.completion_ids and turn.finish_reason == "stop":
            tail = tail.removeprefix(self.tokenizer.decode(turn.completion_ids[-1:]))
        ids = [*turn.prompt_ids, *turn.completion_ids, *self.encode(tail)]
        return Prompt(text, ids, said=said)

    def transcript(
        self, messages: Sequence[Message], trained: Callable[[int], bool] = lambda index: True
    ) -> tuple[list[int], list[Span]]:
        """Ids of a whole conversation, and the spans of its assistant messages.

        Args:
            messages: the conversation; it need not have been sampled.
            trained: selects assistant messages by index.

        Raises:
            ChatTemplateError: the template neither marks generations nor keeps its prefixes.
        """
        acceptable, text = self._acceptable(messages, trained, generate=False)
        wanted = [
            i
            for i, m in enumerate(acceptable)
            if m["role"] == "assistant" and any(trained(j) for j in m["sources"])
        ]
        spans: list[Span] | None = None
        if self.marked:
            ids, spans = self._marked_spans(acceptable, text)
        if spans is None:
            ids, spans = self._prefix_spans(acceptable)
        spans = [span for span in spans if span.message in wanted and span.end > span.start]
        if any(acceptable[i]["content"] for i in wanted) and not spans:
            raise ChatTemplateError(unusable("it marks no token of any assistant message"))
        for span in spans:
            span.message = acceptable[span.message]["sources"][-1]
        return ids, spans

    @cached_property
    def longest_token(self) -> int:
        """Number of characters of the longest token: a text of more than n times as many has more
        than n tokens."""
        return max(map(len, self.tokenizer.get_vocab()))

    # -- control tokens ----------------------------------------------------------------------------

    @cached_property
    def control(self) -> Control:
        """The control tokens, which messages must not write into a prompt."""
        user, said = "\ue0001", "\ue0002"
        talk = [(user, "user"), (said, "assistant"), (user, "user")]
        messages = [{"role": role, "content": text} for text, role in talk]
        openings: dict[str, list[str]] = {}
        # the text of the template before a message, by role
        try:
            parts = re.split(f"{user}|{said}", self._apply(messages, generate=True))
            openings = {"user": parts[0:3:2], "assistant": parts[1:4:2]}
        except TemplateError:
            pass
        return Control(self.tokenizer, openings, self._say)

    # -- input of the template ---------------------------------------------------------------------

    def _apply(self, messages: list[dict[str, Any]], generate: bool) -> str:
        variables = self._variables(messages)
        with rendering():
            return self.tokenizer.apply_chat_template(
                plain(messages),
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=generate,
                **variables,
            )

    def _variables(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The template's variables, including the tools in a message's metadata."""
        tools = next((message["tools"] for message in messages if "tools" in message), None)
        if tools is None:
            return self.template_kwargs
        if not self._takes_tools:
            raise ChatTemplateError(
                "the conversation has tools to be explained by the chat template, and this "
                "template takes none; describe them in a message instead (call_format: tool_call)"
            )
        return {"tools": tools, **self.template_kwargs}

    def _acceptable(
        self, messages: Sequence[Message], trained: Callable[[int], bool], generate: bool
    ) -> tuple[list[dict[str, Any]], str]:
        """The first of three forms of the conversation that the template accepts, and its text."""
        found = [self._as_dict(message, index) for index, message in enumerate(messages)]
        refused: TemplateError | None = None
        for rewrite in (list, lambda found: alternating(found, trained), without_system):
            found = rewrite(found)
            try:
                text = self._apply(found, generate)
            except TemplateError as error:
                refused = error
                continue
            if refused is not None:
                self._say(
                    f"the chat template refused the conversation ({refused}); messages were merged "
                    "or given another role"
                )
            return self.confined(found, text, generate)
        place = place_of(self.tokenizer)
        raise ChatTemplateError(f"{place} refuses the conversation: {refused}") from refused

    def check(self) -> None:
        """Check that the template can be parsed.

        Raises:
            ChatTemplateError: it cannot; the message names its file and the line.
        """
        try:
            self._apply([{"role": "user", "content": "x"}], True)
        except TemplateSyntaxError as error:
            place = f"{place_of(self.tokenizer)}, line {error.lineno}"
            text = f"{place}: it is not a valid template: {error.message}"
            raise ChatTemplateError(text) from error
        except TemplateError:
            return  # it may reject this conversation; actual ones are checked when rendered

    def _as_dict(self, message: Message, index: int) -> dict[str, Any]:
        role = str(message.role)
        if message.role is Role.ENVIRONMENT or (
            message.role is Role.TOOL and not self._knows_tools
        ):
            role = "user"
        entry: dict[str, Any] = {"role": role, "content": self.control.guard(message.content)}
        tools = message.metadata.get("tools")
        for name, value in (("tool_calls", message.tool_calls), ("tools", tools)):
            if value:
                entry[name] = self.control.guard_all(value)
        return entry | {"sources": [index]}

    # -- assistant messages ------------------------------------------------------------------------

    def _marked(self, messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
        """Ids of a conversation, and a mask of those that the template marks as generated."""
        variables = self._variables(messages)
        with rendering():
            encoded = self.tokenizer.apply_chat_template(
                plain(messages),
                chat_template=self.template,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
                **variables,
            )
        return list(encoded["input_ids"]), list(encoded["assistant_masks"])

    def _marked_spans(
        self, messages: list[dict[str, Any]], text: str
    ) -> tuple[list[int], list[Span] | None]:
        ids, mask = self._marked(messages if GUARD not in text else unguarded(messages))
        if GUARD in text:
            parts = self.control.spelled(ids, text)
            if parts is None:
                ids, mask = self._marked(self.control.escape(messages))
            else:
                ids = [each for part in parts for each in part]
                mask = [bit for bit, part in zip(mask, parts, strict=True) for _ in part]
        edges = [i for i, (a, b) in enumerate(pairwise([0, *mask, 0])) if a != b]
        writers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if len(edges) != 2 * len(writers):
            return ids, None
        return ids, [*map(Span, writers, edges[::2], edges[1::2])]

    def _prefix_spans(self, messages: list[dict[str, Any]]) -> tuple[list[int], list[Span]]:
        ids: list[int] = []
        spans: list[Span] = []
        text = ""
        whole = self._apply(messages, generate=False)
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._apply(messages[:index], generate=True)
            until = self._apply(messages[: index + 1], generate=False)
            if not (
                before.startswith(text) and until.startswith(before) and whole.startswith(until)
            ):
                raise ChatTemplateError(
                    unusable(f"message {index} changes what was rendered before it")
                )
            ids += self.encode(before[len(text) :])
            written = self._up_to_end(until[len(before) :], message["content"])
            own = self.encode(written)
            spans.append(Span(index, len(ids), len(ids) + len(own)))
            ids += own
            text = before + written
        return ids + self.encode(whole[len(text) :]), spans

    def _up_to_end(self, written: str, content: str) -> str:
        """The part of a rendered assistant message that a policy writes: the text and the end
        token, without the line break after it."""
        eos = self.tokenizer.eos_token or ""
        after = written.find(content) + len(content) if content in written else 0
        at = written.find(eos, after) if eos else -1
        return written[: at + len(eos)] if at >= 0 else written.rstrip("\n")

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            log.warning(sentence)


def _continued(chat: Chat, previous: Prompt, new: Said) -> str | None:
    """The text of a conversation from that of its first messages; `None` if texts in it would
    become control tokens, which the whole conversation is rendered for."""
    opening, end = chat._frames(previous.said[0])
    found = [Message(content, role) for role, content in (previous.said[0], *new)]
    entries = [chat._as_dict(m, i) for i, m in enumerate(found)]
    later, count = chat._apply(entries, True), chat.control.count
    before, after = previous.text[: len(previous.text) - len(end)], later[len(opening) :]
    tail, begin = before[-JOINT:], after[:JOINT]
    joined = count(tail + begin) != (*map(add, count(tail), count(begin)),)
    return None if joined or not chat.confined.holds(entries, later, True) else before + after


def _frame(chat: Chat, first: tuple[Role, str]) -> tuple[str, str]:
    """The text of a first message alone, and the text after the last message of any
    conversation."""
    messages = [chat._as_dict(Message(first[1], first[0]), 0)]
    opening = chat._apply(messages, False)
    return opening, chat._apply(messages, True)[len(opening) :]


def _tail(text: str, previous: str, content: str) -> str | None:
    """The text after the last completion; `None` if the template rewrote earlier turns."""
    if not text.startswith(previous):
        return None
    rest = text[len(previous) :]
    for written in (content, content.strip()):
        if rest.startswith(written):
            return rest[len(written) :]
    if rest.lstrip().startswith(content.strip()):  # the template puts a space before it
        return rest.lstrip()[len(content.strip()) :]
    return None
