"""User turns written by a policy: the input tokens up to the beginning of the turn's text, and the
end of that text, both derived from `Chat`'s rendering of such a turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from mrlm.core.chat import Chat, Prompt
from mrlm.core.errors import ChatTemplateError
from mrlm.core.prefixes import shared_prefix
from mrlm.core.types import Message, Turn

PROBES = ("a", "Z", "7", "-", "\nb", " c", "  e", "d\n", "é.")
"""Sample texts of a turn: the common part of their renderings does not depend on the text. They
begin and end with characters that tokenizers merge differently with their neighbours."""


@dataclass(frozen=True, slots=True)
class UserTurnOpening:
    """The beginning of a user turn.

    Args:
        ids: input tokens: the prefix of the next prompt, independent of the text.
        lead: the template's text between them and the turn's text.
        trail: the template's text between the turn's text and its end.
        end: the control token that ends the text; `None` if the template has none.
        stop: the stop string instead.
    """

    ids: list[int]
    lead: str
    trail: str
    end: int | None
    stop: str

    def text(self, written: str) -> str:
        """The turn's text in a sampled text decoded without control tokens."""
        if self.stop:
            written = written.partition(self.stop)[0]
        return written.removeprefix(self.lead).removesuffix(self.trail)


def open_user_turn(
    chat: Chat, messages: Sequence[Message], after: tuple[Prompt, Turn] | None = None
) -> UserTurnOpening:
    """The beginning of the next user turn in a conversation.

    Args:
        chat: its renderer.
        messages: all messages before the turn.
        after: the last prompt of the assistant and its turn, whose tokens are kept.

    Raises:
        ChatTemplateError: the turn's text cannot be separated from the template's.
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
    control_ids = chat.control.ids
    at = next((index for index, token in enumerate(closing) if token in control_ids), None)
    decode = chat.tokenizer.decode
    inner = decode(first[start : len(first) - stop + (stop if at is None else at)])
    lead, separator, rest = inner.partition(PROBES[0])
    if not separator:
        raise ChatTemplateError(
            "the chat template does not show a user's message after the assistant's, so a model "
            "cannot write it; use another template for the world model"
        )
    ends = (None, rest) if at is None else (closing[at], "")
    if ends == (None, ""):
        raise ChatTemplateError(
            "the chat template writes nothing after a user's message, so its end is unknown; "
            "use another template for the world model"
        )
    return UserTurnOpening(first[:start], lead, "" if at is None else rest, *ends)


def _common(rows: Sequence[list[int]]) -> int:
    """Length of the common prefix of all rows: that of the first and the last one in order."""
    return shared_prefix(min(rows), max(rows))
