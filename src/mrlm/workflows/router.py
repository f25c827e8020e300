"""One agent reads the question and selects the agent that answers it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Router(ConferringTeam):
    """A workflow in which the first agent routes: it reads the environment's question and names one
    of the other agents, which reads only the question and answers. Names are matched as whole
    words, ignoring case. A completion that names no agent, or several, costs `penalty` (component
    `no_route`), the router is shown a notice, and `fallback` answers.

    Args:
        ask: prompt for the router after the question; `{agents}` is replaced by the other agents'
            names.
        penalty: reward subtracted from the router, and the team, when it does not name one agent.
        fallback: agent that answers in that case; the second agent when `None`.
    """

    ask: str = "Who answers: {agents}?"
    penalty: float = 0.1
    fallback: str | None = None

    least = 2
    lowest: ClassVar[tuple[tuple[str, float], ...]] = (("penalty", 0),)

    def completions(self, agents: int, turns: int) -> int:
        return turns * 2

    async def answer(self, talk: Conference) -> Message:
        router, *others = talk.names
        if self.fallback is not None and self.fallback not in others:
            raise ConfigError(
                f"{self.title}: fallback={self.fallback!r} is not one of {', '.join(others)}"
            )
        talk.show(router, self.ask.replace("{agents}", ", ".join(others)))
        named = names_in((await talk.say(router)).content, others)
        chosen = named[0] if len(named) == 1 else self.fallback or others[0]
        if len(named) != 1:
            talk.penalize(router, self.penalty, "no_route")
            talk.show(router, f"That names {'nobody' if not named else 'several'}; {chosen} does.")
        return await talk.say(chosen)


def names_in(text: str, names: Sequence[str]) -> list[str]:
    """Those of `names` that occur in a text as whole words, ignoring case."""
    return [
        name
        for name in names
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE)
    ]


PLUGIN = Router
