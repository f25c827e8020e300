"""Messages <-> token ids. The only file that uses chat templates.

Two guarantees. A continued conversation keeps its tokens: the next prompt is the last prompt, the
sampled ids and the ids of later messages, unless the template rewrites earlier turns, in which case
the prompt is rendered again (and becomes a separate sample). And text that no engine sampled is
trained on exactly where the assistant wrote it.

Messages are text: a control token spelled in a message is tokenised as ordinary characters
(`core/control_tokens.py`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import add
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from mrlm.core.additive_templates import is_additive
from mrlm.core.control_tokens import Control, end_of_answer
from mrlm.core.errors import ChatTemplateError
from mrlm.core.forged_control import Confined
from mrlm.core.log import log
from mrlm.core.messages import REASONING
from mrlm.core.template_messages import alternating, explained, forms, lost, plain, without_system
from mrlm.core.template_work import Rendering, place_of
from mrlm.core.thoughts import ThoughtMarks
from mrlm.core.types import Message, Role, Turn

PLAIN_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ 'Assistant:\n' }}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['role'] | capitalize + ':\n' + message['content'] + '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)
"""Default template for a tokenizer without one, used with a warning."""

MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
TAKES_TOOLS = re.compile(r"\{[%{][^%}]*\btools\b")
PROBE = "\ue0003"
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


class Chat:
    """A renderer of conversations for one tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer.
        template_kwargs: variables for the template, such as `{"enable_thinking": False}`.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.template_kwargs: dict[str, Any] = dict(template_kwargs or {})
        self._said: set[str] = set()
        templates = tokenizer.chat_template
        named: dict[str, str] = templates if isinstance(templates, dict) else {"default": templates}
        template = named.get("default") or next(iter(named.values()))
        if not template:
            self.say("the tokenizer has no chat template; a plain 'Role: text' one is used")
            template = PLAIN_TEMPLATE
        self.template: str = template
        # marks are found by characters, which tokenizers in plain Python do not count
        self.marked: bool = bool(MARKED.search(template)) and tokenizer.is_fast
        self._knows_tools = "tool" in template or "tool_use" in named
        self._with_tools: str = named.get("tool_use", template)
        self.takes_tools: bool = bool(TAKES_TOOLS.search(self._with_tools))
        """Whether it explains tools."""
        self._reasoning = next((name for name in REASONING if _read(template, name)), None)
        self._ids = lru_cache(KEPT)(lambda text: tuple(self.control.encode(text)))
        self.thoughts: ThoughtMarks = ThoughtMarks(tokenizer, template)
        self._words = lru_cache(KEPT)(self.thoughts.decode)
        self._texts = lru_cache(KEPT)(
            lambda pairs: self.render([Message(content, role) for role, content in pairs])
        )
        self.confined: Confined = Confined(self)
        self._frames = lru_cache(KEPT)(lambda first: _frame(self, first))
        self._additive = "tools" not in self.template_kwargs and is_additive(template)

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text, which already contains all special tokens."""
        return [*self._ids(text)]

    def encode_text(self, text: str, whole: bool = False) -> list[int]:
        """Ids of a text not rendered by a template: none of them is a control token, but the one
        that ends a `whole` message of the assistant."""
        ids = self.encode(self.control.guard(text))
        return ids if not whole or self.control.end_id is None else [*ids, self.control.end_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without special tokens other than marks of thoughts."""
        return self._words(tuple(ids))

    def render(self, messages: Sequence[Message], generate: bool = True) -> str:
        """Text of a conversation, for `encode`: control tokens spelled in messages are guarded.
        Messages that a strict template rejects (a system message in the middle, two of one role in
        a row) are merged or given another role, with one log message."""
        return self.acceptable(messages, lambda index: True, generate)[1]

    def _text(self, messages: Sequence[Message], previous: Prompt | None) -> tuple[str, Said]:
        """Like `render`, with a cache for conversations determined by roles and contents alone, and
        those. After a `previous` prompt only the new messages are rendered, if the template renders
        each message by itself."""
        more = [
            m.tool_calls or m.reasoning or m.name or m.tool_call_id or m.metadata for m in messages
        ]
        if any(more) and any(map(_has_more, messages)):
            return self.render(messages), ()
        pairs = tuple([(message.role, message.content) for message in messages])
        if previous is not None and self._additive and previous.said:
            length = len(previous.said)
            if pairs[:length] == previous.said:
                text = _continued(self, previous, [messages[0], *messages[length:]])
                return (self._texts(pairs) if text is None else text), pairs
        return self._texts(pairs), pairs

    def prompt(
        self, messages: Sequence[Message], after: tuple[Prompt, Turn] | None = None
    ) -> Prompt:
        """The prompt for the next turn.

        Args:
            messages: the agent's whole conversation.
            after: the agent's last prompt and turn, if any; its sampled tokens are kept unchanged.
        """
        text, pairs = self._text(messages, after and after[0])
        if after is None:
            return Prompt(text, self.encode(text), said=pairs)
        previous, turn = after
        written = self.control.guard(turn.message.content) if turn.message else ""
        tail = _tail(text, previous.text, written)
        if tail is None:
            self.say(
                "the chat template rewrites earlier turns, so each turn becomes a sample of its own"
            )
            return Prompt(text, self.encode(text), forked=True, said=pairs)
        if turn.completion_ids and turn.finish_reason == "stop":
            end = self.tokenizer.decode(turn.completion_ids[-1:])
            if tail.lstrip().startswith(end):  # some templates put white space before it
                tail = tail.lstrip().removeprefix(end)
        ids = [*turn.prompt_ids, *turn.completion_ids, *self.encode(tail)]
        return Prompt(text, ids, said=pairs)

    @cached_property
    def longest_token(self) -> int:
        """Number of characters of the longest token: a text of more than n times as many has more
        than n tokens."""
        return max(map(len, self.tokenizer.get_vocab()))

    @cached_property
    def title(self) -> str:
        """The template and its file, for messages."""
        return place_of(self.tokenizer)

    @property
    def strips_thoughts(self) -> bool:
        """Whether the template removes thoughts from the text of messages."""
        return self._reasoning is None and "</think>" in self.template

    @cached_property
    def _parts(self) -> bool:
        """Whether the template drops contents that are text, and reads lists of parts."""
        if "type" not in self.template:
            return False
        seen = [_probe(self, content) for content in (PROBE, [{"type": "text", "text": PROBE}])]
        return seen == [False, True]

    # -- control tokens ----------------------------------------------------------------------------

    @cached_property
    def control(self) -> Control:
        """The control tokens, which messages must not write into a prompt."""
        user, reply = "\ue0001", "\ue0002"
        talk = [(user, "user"), (reply, "assistant"), (user, "user")]
        messages = [{"role": role, "content": text} for text, role in talk]
        openings: dict[str, list[str]] = {}
        # the text of the template before a message, by role
        try:
            parts = re.split(f"{user}|{reply}", self.apply(messages, generate=True))
            openings = {"user": parts[0:3:2], "assistant": parts[1:4:2]}
        except TemplateError:
            pass
        control = Control(self.tokenizer, openings, self.say)
        control.end_id = end_of_answer(self.apply, control)
        return control

    # -- input of the template ---------------------------------------------------------------------

    def apply(self, messages: list[dict[str, Any]], generate: bool) -> str:
        """The text of a conversation in the form of the template. Raises `TemplateError`: the
        template refuses it, or cannot render it."""
        variables = self.variables(messages)
        with Rendering():
            return self.tokenizer.apply_chat_template(
                plain(messages),
                chat_template=self.template_for(messages),
                tokenize=False,
                add_generation_prompt=generate,
                **variables,
            )

    def template_for(self, messages: list[dict[str, Any]]) -> str:
        """The template of a conversation: the one named `tool_use` if it has tools."""
        has_tools = any("tools" in message for message in messages)
        return self._with_tools if has_tools else self.template

    def variables(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The template's variables, including those in a message's metadata."""
        more: dict[str, Any] = {}
        for message in messages:
            more |= message.get("kwargs", {})
        tools = next((message["tools"] for message in messages if "tools" in message), None)
        return {**({} if tools is None else {"tools": tools}), **self.template_kwargs, **more}

    def acceptable(
        self,
        messages: Sequence[Message],
        trained: Callable[[int], bool],
        generate: bool,
        whole: bool = False,
    ) -> tuple[list[dict[str, Any]], str, tuple[int, str] | None]:
        """The first form of the conversation that the template accepts without leaving out a call
        (or, if it is to be `whole`, a text), its text, and what is left out nevertheless."""
        conversation = [self._as_dict(message, index) for index, message in enumerate(messages)]
        if not self.takes_tools and (named := explained(conversation)) is not conversation:
            self.say(f"{self.title} explains no tools; they are described in the system message")
            conversation, whole = named, True
        refused: TemplateError | None = None
        partial: tuple[list[dict[str, Any]], str, tuple[int, str]] | None = None
        for rewrite in (
            list,
            lambda conversation: alternating(conversation, trained),
            without_system,
        ):
            conversation = rewrite(conversation)
            for form in forms(conversation, self.template_for(conversation), self._parts):
                try:
                    text = self.apply(form, generate)
                except TemplateError as error:
                    refused = refused or error
                    continue
                called = any("tool_calls" in item for item in form)
                missing = lost(form, self.apply) if called or whole else None
                if missing is not None:
                    partial = partial or (form, text, missing)
                    continue
                if rewrite is not list:
                    self.say(
                        f"the chat template refused the conversation ({refused or 'in part'}); "
                        "messages were merged or given another role"
                    )
                return *self.confined(form, text, generate), None
        if partial is not None:
            self.say(f"{self.title} leaves out a message or a tool call of a conversation")
            return *self.confined(*partial[:2], generate), partial[2]
        raise ChatTemplateError(f"{self.title} refuses the conversation: {refused}") from refused

    def check(self) -> None:
        """Check that the template can be parsed. Raises `ChatTemplateError`: it cannot; the message
        names its file and the line."""
        try:
            self.apply([{"role": "user", "content": "x"}], True)
        except TemplateSyntaxError as error:
            location = f"{place_of(self.tokenizer)}, line {error.lineno}"
            text = f"{location}: it is not a valid template: {error.message}"
            raise ChatTemplateError(text) from error
        except TemplateError:
            return  # it may reject this conversation; actual ones are checked when rendered

    def _as_dict(self, message: Message, index: int) -> dict[str, Any]:
        role = str(message.role)
        if message.role is Role.ENVIRONMENT or (
            message.role is Role.TOOL and not self._knows_tools
        ):
            role = "user"
        guard, content, more = self.control.guard, message.content, message.metadata
        calls = message.tool_calls
        entry: dict[str, Any] = {"role": role}
        if message.reasoning:
            if self._reasoning:
                entry[self._reasoning] = guard(message.reasoning)
            else:
                content = f"<think>\n{message.reasoning.strip()}\n</think>\n\n{content}"
        entry["content"] = guard(content)
        if calls or message.name or message.tool_call_id or more:
            named = (("name", message.name), ("tool_call_id", message.tool_call_id))
            shown = (("tools", more.get("tools")), ("kwargs", more.get("template_kwargs")))
            for name, value in (("tool_calls", calls), *named, *shown):
                if value:
                    entry[name] = self.control.guard_all(value)
        if role == "assistant":
            thought = self.thought(message)
            entry["thought"] = guard(thought) if thought else ""
            if more.get("prefill"):
                entry["prefill"] = guard(message.content[: more["prefill"]])
        entry["sources"] = [index]
        return entry

    def thought(self, message: Message) -> str:
        """The thoughts of a message, in its text or apart from it."""
        if message.reasoning:
            return message.reasoning
        if "</think>" not in message.content:
            return ""
        return message.content.rpartition("</think>")[0].rpartition("<think>")[2]

    def say(self, sentence: str) -> None:
        """Logs a warning, once."""
        if sentence not in self._said:
            self._said.add(sentence)
            log.warning(sentence)


def _has_more(message: Message) -> Any:
    """Whether the text of a message depends on more than its role and content."""
    named = message.name or message.tool_call_id or message.reasoning
    return (
        message.tool_calls or named or not {"tools", "template_kwargs"}.isdisjoint(message.metadata)
    )


def _probe(chat: Chat, content: Any) -> bool:
    """Whether the template renders a content."""
    try:
        return PROBE in chat.apply([{"role": "user", "content": content}], False)
    except TemplateError:
        return False


def _continued(chat: Chat, previous: Prompt, messages: Sequence[Message]) -> str | None:
    """The text of a conversation from that of its first messages, of which `messages` has the first
    one and all that are new; `None` if texts in it would become control tokens, which the whole
    conversation is rendered for."""
    opening, end = chat._frames(previous.said[0])
    entries = [chat._as_dict(message, index) for index, message in enumerate(messages)]
    later, count = chat.apply(entries, True), chat.control.count
    before, after = previous.text[: len(previous.text) - len(end)], later[len(opening) :]
    reach = chat.control.longest  # around the end of the prompt, a control token could be made
    tail, begin = before[-reach:], after[:reach]
    joined = count(tail + begin) != (*map(add, count(tail), count(begin)),)
    return None if joined or not chat.confined.holds(entries, later, True) else before + after


def _frame(chat: Chat, first: tuple[Role, str]) -> tuple[str, str]:
    """The text of a first message alone, and that after the last message of any conversation."""
    messages = [chat._as_dict(Message(first[1], first[0]), 0)]
    opening = chat.apply(messages, False)
    return opening, chat.apply(messages, True)[len(opening) :]


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


def _read(template: str, name: str) -> bool:
    """Whether a template reads a field."""
    return bool(re.search(rf"\.{name}\b|['\"]{name}['\"]", template))
