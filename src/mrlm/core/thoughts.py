"""Thoughts in a completion: the part of a text that is thought, and the part that others read.

Everything up to the last mark that closes a thought is neither an answer nor a tool call, and while
a thought is open there is no answer yet. A prompt that ends in an opening mark, as some chat
templates write it, counts as opened. All graders, parsers of tool calls and servers read a message
through this module.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from mrlm.core.types import Message

MARKS: dict[str, str] = {
    "<think>": "</think>",  # DeepSeek-R1, Qwen3, GLM, Kimi K2, MiniMax, Nemotron, SmolLM3
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "[THINK]": "[/THINK]",  # Magistral, Ministral
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command A
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
    "◁think▷": "◁/think▷",  # Kimi-VL
    "<|channel|>analysis": "<|channel|>final<|message|>",  # gpt-oss
    "Here are my reasoning steps:": "[BEGIN FINAL RESPONSE]",  # Apriel
}
"""The mark that opens a thought -> the mark that closes it."""
CUT = "finish_reason"
OPENED = "opened_thought"
"""Keys of a message's metadata: `length` for a completion that was cut off; the opening mark at the
end of its prompt."""

END = 16
"""Tokens at the end of a prompt that may open a thought."""
_OPENS = re.compile("|".join(map(re.escape, MARKS)))
_BEGINNINGS = sorted({mark[:3] for pair in MARKS.items() for mark in pair})
_ANY = re.compile(
    "|".join(
        re.escape(first) + "(?:" + "|".join(re.escape(rest[1:]) for rest in group) + ")"
        for first, group in itertools.groupby(_BEGINNINGS, key=itemgetter(0))
    )
)
"""The beginning of any mark: most texts have none."""


def opened_by(prompt: str) -> str | None:
    r"""The mark of a thought that the end of a prompt leaves open; `None` if it leaves none.

    Example:
        >>> opened_by("<|im_start|>assistant\n<think>\n")
        '<think>'
    """
    marks = [*_OPENS.finditer(prompt)]
    if not marks or MARKS[marks[-1][0]] in prompt[marks[-1].end() :]:
        return None
    return marks[-1][0] if not prompt[marks[-1].end() :].strip() else None


class ThoughtMarks:
    """The marks of thoughts of one tokenizer and template.

    Args:
        tokenizer: a Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:
        self.tokenizer = tokenizer
        marks = [*MARKS, *MARKS.values()]
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {number: token.content for number, token in added.items() if token.special}
        self._silent = {
            number
            for number, text in special.items()
            if len(text) <= 3 or not any(text in mark for mark in marks)
        }
        self._spoken = special.keys() - self._silent
        self._opens = any(mark in template for mark in MARKS)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids without special tokens, but with the marks of thoughts."""
        if self._spoken.isdisjoint(ids):
            return self.tokenizer.decode(list(ids), skip_special_tokens=True)
        spoken = [token for token in ids if token not in self._silent]
        return self.tokenizer.decode(spoken, skip_special_tokens=False)

    def opened(self, prompt: Sequence[int]) -> str | None:
        """The mark that the end of a prompt leaves open; `None` if it leaves none."""
        return opened_by(self.tokenizer.decode(list(prompt[-END:]))) if self._opens else None


def without_thoughts(text: str, opened: bool = False) -> str:
    """The part of a completion that follows its thoughts; empty while a thought is open.

    Args:
        opened: whether its prompt ends in a mark that opens a thought.

    Example:
        >>> without_thoughts("<think>2 or 3?</think> It is 2.")
        ' It is 2.'
    """
    if _ANY.search(text) is None:
        return "" if opened else text
    ends = (text.rfind(mark) + len(mark) for mark in MARKS.values() if mark in text)
    end = max(ends, default=0)
    if (opened and not end) or any(text.find(mark, end) >= 0 for mark in MARKS):
        return ""
    return text[end:]


def stated_text(message: Message | None) -> str:
    """The text of a message without its thoughts; empty for no message."""
    if message is None:
        return ""
    text, opened = message.content, OPENED in message.metadata
    return without_thoughts(text, opened) if opened or _ANY.search(text) else text


def stated_by(actions: Mapping[str, Message], agent: str | None) -> str:
    """The text of an agent's message without its thoughts; empty if it wrote none."""
    return "" if agent is None else stated_text(actions.get(agent))


def is_cut(message: Message) -> bool:
    """Whether a completion ended at its limit of tokens."""
    return message.metadata.get(CUT) == "length"
