"""Control tokens that a template makes of the text of messages: by deleting a part, changing case,
or joining neighbours. They are found after rendering, by comparison with harmless messages."""

import re
from collections.abc import Callable
from functools import cached_property
from operator import add, sub
from typing import Any, Protocol

from jinja2 import TemplateError

from mrlm.core.control_tokens import Control
from mrlm.core.errors import ChatTemplateError

Messages = list[dict[str, Any]]
Counts = tuple[int, ...] | None
Shape = tuple[str, bool]
"""Roles and fields of messages, a line each, and whether a generation prompt is added."""
IDENTIFIER = re.compile(r"[A-Za-z_][\w.-]*")
TAG = re.compile(r"</?[a-zA-Z_]+>")
KEPT_FIELDS = ("role", "sources", "kwargs", "thought", "prefill")
"""Fields that are not text in the prompt."""
FILLING = "x"
KEPT = 4096
"""Size of the cache of the control tokens of harmless conversations."""
FORMS = (re.compile(r"(?=[<\[|])(.)", re.DOTALL), re.compile(r"([^\w\s])"))
"""Marks followed by a space where text would be a control token: those that begin one, then all."""


class Renderer(Protocol):
    """The part of a `Chat` that is used here."""

    template: str

    control: cached_property[Control]

    def apply(self, messages: Messages, generate: bool) -> str: ...
    def say(self, sentence: str) -> None: ...


class Confined:
    """Keeps control tokens of a rendered conversation where the template puts them.

    There must be as many as with the same roles and harmless contents, which are rendered once for
    every sequence of roles.

    Args:
        chat: renders messages. Markup that its template names may decide what it does, is kept.
    """

    def __init__(self, chat: Renderer) -> None:
        self._chat = chat
        self._counts: dict[Shape, Counts] = {}
        self._steps: dict[Shape, tuple[int, ...]] = {}

    @cached_property
    def _markup(self) -> re.Pattern[str] | None:
        chat = self._chat
        tags = {tag for tag in TAG.findall(chat.template) if not any(chat.control.count(tag))}
        markup = "|".join(map(re.escape, sorted(tags, key=len, reverse=True)))
        return re.compile(f"({markup})") if markup else None

    def holds(self, messages: Messages, text: str, generate: bool) -> bool:
        """Whether the control tokens of a rendered conversation are the template's own."""
        counts, shape = self._chat.control.count(text), (_shape(messages), generate)
        harmless = self._counts.get(shape)
        if harmless is None and self._extrapolated(*shape) == counts:
            self._counts[shape] = harmless = counts
        if harmless == counts:
            return True
        return any(
            counts == self._of(_changed(messages, filling), generate, key)
            for filling, key in ((_short, shape), (self._like, None))
        )

    def __call__(self, messages: Messages, text: str, generate: bool) -> tuple[Messages, str]:
        """A conversation that `holds`, and its text: the given one, or spelled out. Raises
        `ChatTemplateError`: the template makes control tokens of any spelling."""
        if self.holds(messages, text, generate):
            return messages, text
        for form in FORMS:
            spelled = _changed(messages, lambda part, form=form: form.sub(r"\1 ", part))
            try:
                text = self._chat.apply(spelled, generate)
            except TemplateError:
                continue
            if self.holds(spelled, text, generate):
                self._chat.say(
                    "the chat template makes a control token of a message's text; a space is put "
                    "into it"
                )
                return spelled, text
        raise ChatTemplateError(
            "the chat template makes control tokens of a message's text, however it is spelled; "
            "use another template"
        )

    def _of(self, harmless: Messages, generate: bool, shape: Shape | None) -> Counts:
        """The control tokens of a harmless conversation; kept for the short one of a shape."""
        try:
            counts = self._chat.control.count(self._chat.apply(harmless, generate))
        except TemplateError:
            counts = None
        if shape is not None:
            if len(self._counts) >= KEPT:
                self._counts.clear()
            self._counts[shape] = counts
            first, last = _before_last(shape[0])
            before = self._counts.get((first, generate))
            if counts is not None and before is not None:
                self._steps[last, generate] = tuple(map(sub, counts, before))
        return counts

    def _extrapolated(self, entries: str, generate: bool) -> Counts:
        """The control tokens of a longer conversation, from one without its last two messages and
        what two such messages added before: no second rendering in every turn."""
        first, last = _before_last(entries)
        before, step = self._counts.get((first, generate)), self._steps.get((last, generate))
        return None if before is None or step is None else tuple(map(add, before, step))

    def _like(self, text: str) -> str:
        """A harmless text with the white space and the markup of another."""
        parts = [text] if self._markup is None else self._markup.split(text)
        return "".join(
            part if index % 2 else re.sub(r"\S", FILLING, part) for index, part in enumerate(parts)
        )


def _short(text: str) -> str:
    return FILLING if text.strip() else ""


def _shape(messages: Messages) -> str:
    """All that the short harmless messages depend on, a line for each. A message of which the
    template reads role and content alone has no further fields."""
    return "\n".join(
        [
            f"{entry['role']} {not (text := entry['content']) or text.isspace()}"
            if len(entry) == 3 + ("thought" in entry) and isinstance(entry["content"], str)
            else repr(_changed([entry], _short))
            for entry in messages
        ]
    )


def _before_last(entries: str) -> tuple[str, str]:
    """A shape without its last two messages, and those."""
    if entries.count("\n") < 2:
        return "", entries
    first, one, two = entries.rsplit("\n", 2)
    return first, f"{one}\n{two}"


def _changed(messages: Messages, change: Callable[[str], str]) -> Messages:
    """Messages with their texts changed; roles, names and words of schemas stay."""

    def texts(value: Any, content: bool = False) -> Any:
        if isinstance(value, str):
            return value if not content and IDENTIFIER.fullmatch(value) else change(value)
        if isinstance(value, dict):
            return {texts(key): texts(item) for key, item in value.items()}
        return list(map(texts, value)) if isinstance(value, list | tuple) else value

    return [
        {
            key: value if key in KEPT_FIELDS else texts(value, key == "content")
            for key, value in message.items()
        }
        for message in messages
    ]
