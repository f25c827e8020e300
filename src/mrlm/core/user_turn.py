"""A user's turn that a policy writes itself: the tokens it reads, up to where the text of the turn
begins, and what ends that text. Everything follows from how `Chat` renders such a turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrlm.core.chat import Chat, Prompt
from mrlm.core.errors import ChatTemplateError
from mrlm.core.types import Message, Turn

PROBES = ("a", "Z", "7", "-", "\nb", " c", "  e", "d\n", "é.")
"""Texts of a turn: what is rendered alike for all of them does not depend on the text. They begin
and end with what tokenizers join with their neighbours in different ways."""


@dataclass(frozen=True, slots=True)
class UserTurnOpening:
    """A user's turn that has begun.

    Args:
        ids: what is read: the tokens that the next prompt begins with, whatever the text is.
        lead: what the template writes between them and the text.
        trail: what it writes between the text and its end.
        end: the control token that ends the text; `None` where the template has none there.
        stop: the text that ends it instead.
    """

    ids: list[int]
    lead: str
    trail: str
    end: int | None
    stop: str

    def text(self, written: str) -> str:
        """The turn's text in what was sampled, decoded without control tokens."""
        if self.stop:
            written = written.partition(self.stop)[0]
        return written.removeprefix(self.lead).removesuffix(self.trail)


def open_user_turn(
    chat: Chat, messages: Sequence[Message], after: tuple[Prompt, Turn] | None = None
) -> UserTurnOpening:
    """The turn of the user that comes next in a conversation.

    Args:
        chat: renders it.
        messages: everything before the turn.
        after: the last prompt of the assistant and the turn that it took, whose tokens are kept.

    Raises:
        ChatTemplateError: the turn's text cannot be told from the template's.
    """
    rows = [chat.prompt([*messages, Message(text)], after).ids for text in PROBES]
    start, stop = _common(rows), _common([row[::-1] for row in rows])
    if start + stop >= min(map(len, rows)):
        raise ChatTemplateError(
            "the chat template or its tokenizer renders different messages of a user as the same "
            "tokens, so a model cannot write them; use another one for the world model"
        )
    first = rows[0]
    closing = first[len(first) - stop :]
    known = chat.control.ids
    at = next((place for place, each in enumerate(closing) if each in known), None)
    decode = chat.tokenizer.decode
    inner = decode(first[start : len(first) - stop + (stop if at is None else at)])
    lead, found, rest = inner.partition(PROBES[0])
    if not found:
        raise ChatTemplateError(
            "the chat template does not show a user's message after the assistant's, so a model "
            "cannot write it; use another template for the world model"
        )
    ends = (None, rest) if at is None else (closing[at], "")
    if ends == (None, ""):
        raise ChatTemplateError(
            "the chat template writes nothing after a user's message, so its end cannot be told; "
            "use another template for the world model"
        )
    return UserTurnOpening(first[:start], lead, "" if at is None else rest, *ends)


def _common(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows begin with."""
    return next(
        (place for place, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1),
        min(map(len, rows)),
    )
