"""One agent reads the question and says which of the others answers it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Router(ConferringTeam):
    """The first agent routes: it reads the world's question and names one of the others, who reads
    the question alone and answers. Names count as whole words, whatever their case. A message that
    names none of them, or more than one, costs `penalty` (component `no_route`), the router is told
    so, and `fallback` answers.

    Args:
        ask: what the router is asked after the question; `{agents}` stands for the others' names.
        penalty: what a route that names nobody costs the router, and the team.
        fallback: who answers then; the second agent when `None`.
    """

    ask: str = "Who answers: {agents}?"
    penalty: float = 0.1
    fallback: str | None = None

    least: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least("penalty", 0)

    def completions(self, agents: int, turns: int) -> int:
        return turns * 2

    async def answer(self, talk: Conference) -> Message:
        router, *others = talk.names
        if self.fallback is not None and self.fallback not in others:
            raise ConfigError(
                f"{self.title}: fallback={self.fallback!r} is none of {', '.join(others)}"
            )
        talk.show(router, self.ask.replace("{agents}", ", ".join(others)))
        named = names_in((await talk.say(router)).content, others)
        chosen = named[0] if len(named) == 1 else self.fallback or others[0]
        if len(named) != 1:
            talk.fine(router, self.penalty, "no_route")
            talk.show(router, f"That names {'nobody' if not named else 'several'}; {chosen} does.")
        return await talk.say(chosen)


def names_in(text: str, names: Sequence[str]) -> list[str]:
    """Those of `names` that stand in a text as whole words, whatever their case."""
    return [
        name
        for name in names
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE)
    ]


PLUGIN = Router
