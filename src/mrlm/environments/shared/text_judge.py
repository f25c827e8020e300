"""A language model that grades one text: an agent of the environment, or a callable."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.sync_async import in_thread
from mrlm.core.thoughts import stated_text, without_thoughts
from mrlm.core.types import Message, Role
from mrlm.environments.shared.rows import SharedByCopies, built, whole_number

LONGEST = 4000
"""Maximum number of characters of a text shown to a judge."""
BEST = 10.0
"""The highest score a judge can give."""
ASKED = "How good is it, from 0 to 10? Answer with one line: Score: <number>"
UNREAD = "That could not be read. "
LONGEST_REPLY = 100_000
"""Number of characters at the end of a judge's reply that are read."""
NUMBER = r"([-+−<>~≈]{0,2}\s?\d{0,3}(?:[.,]\d{1,3})?)"
OUT_OF = r"(?:\s?(?:/|out of|of)\s?10(?:\.0)?)?"
_SCORE = re.compile(
    rf"\W*(?:(?:final|overall|my)\s)?(?:score|rating|grade)(?:\s?(?:is|of))?[\s:=*_|-]{{0,5}}?"
    rf"[\s:=*_|\[(]{{0,6}}{NUMBER}{OUT_OF}[\])\s*_.|]*"
    rf"|[\s*_]*\[\[{NUMBER}{OUT_OF}\]\][\s*_.]*|[\s*_]*{NUMBER}\s?(?:/|out of)\s?10[\s*_.]*",
    re.IGNORECASE,
)

Ask = Callable[[list[Message]], Any] | LLMEnvironment


async def answer_of(ask: Ask | None, conversation: list[Message]) -> str:
    """The answer of a callable, a coroutine function or an `LLMEnvironment` to a conversation."""
    call = ask.respond if isinstance(ask, LLMEnvironment) else ask
    assert call is not None
    blocking = not inspect.iscoroutinefunction(call)
    reply = await in_thread(lambda: call(list(conversation))) if blocking else call(conversation)
    reply = await reply if inspect.isawaitable(reply) else reply
    return stated_text(reply) if isinstance(reply, Message) else without_thoughts(str(reply))


def quoted(text: str) -> str:
    """A text with a bar before each of its lines, truncated to `LONGEST` characters."""
    text = text if len(text) <= LONGEST else text[:LONGEST] + " [cut]"
    return "\n".join(f"| {line}" for line in text.splitlines() or [""])


class TextJudge(SharedByCopies):
    """A judge that grades a text from 0 to 10. Every line of the text has a bar before it, so that
    the text cannot imitate an instruction or a verdict. A query whose answer cannot be parsed is
    repeated; after that there is no grade.

    Args:
        agent: name of the judging agent.
        ask: `ask(messages) -> text or Message`, possibly a coroutine function, or an
            `LLMEnvironment`, instead of an agent.
        retries: repetitions of a query whose answer cannot be parsed.
        instruction: text before the query.

    Raises:
        ConfigError: neither or both of `agent` and `ask` are given.
    """

    def __init__(
        self,
        agent: str | None = None,
        ask: Ask | None = None,
        *,
        retries: int = 1,
        instruction: str = "You grade a text strictly, by what it was asked to be.",
    ) -> None:
        if (agent is None) == (ask is None):
            raise ConfigError("judge: give either agent (the judging agent) or ask")
        whole_number(0, retries=retries)
        self.agent: str | None = agent
        self.retries: int = retries
        self.instruction: str = instruction
        self._ask = ask

    def question(self, prompt: str, text: str) -> str:
        """The query to the judge."""
        parts = [self.instruction, f"Somebody was asked:\n{quoted(prompt)}"]
        return "\n\n".join([*parts, f"and wrote:\n{quoted(text)}", ASKED])

    async def grade(self, prompt: str, text: str) -> float | None:
        """The grade from 0 to 1 by the callable; `None` if no answer could be parsed."""
        conversation = [Message(self.question(prompt, text))]
        for _ in range(1 + self.retries):
            reply = await answer_of(self._ask, conversation)
            score = read(reply)
            if score is not None:
                return score
            conversation += [Message(reply, Role.ASSISTANT), Message(UNREAD + ASKED)]
        return None


def reply_lines(text: str) -> Iterator[str]:
    """The short lines of a judge's reply, from the last to the first."""
    lines = text[-LONGEST_REPLY:].splitlines()
    return (line for line in reversed(lines) if len(line) <= 80)


def score_of(written: str) -> float | None:
    """A score from 0 to 1 as a judge wrote it (`8`, `.8`); `None` if it is a bound, or not from 0
    to 10."""
    try:
        value = float(written.strip().replace("−", "-").replace(",", "."))
    except ValueError:
        return None
    return value / BEST if 0 <= value <= BEST else None


def read(text: str) -> float | None:
    """The grade in an answer, from 0 to 1: the last line with one; `None` if there is none, or it
    is not a number from 0 to 10."""
    for line in reply_lines(text):
        if match := _SCORE.fullmatch(line):
            return score_of(next(part for part in match.groups() if part is not None))
    return None


def judge_of(setting: Any) -> TextJudge | None:
    """A judge from a user's setting: `None`, a judge, the name of an agent, a mapping of arguments,
    or a callable. Raises `ConfigError`: it is none of these, or has arguments that a judge does not
    accept."""
    if setting is None or isinstance(setting, TextJudge):
        return setting
    if isinstance(setting, str):
        return TextJudge(setting)
    if isinstance(setting, Mapping):
        return built(TextJudge, setting, "judge")
    if isinstance(setting, LLMEnvironment) or callable(setting):
        return TextJudge(ask=setting)
    raise ConfigError(f"judge={setting!r} is not a judge; name an agent, or give a function")
