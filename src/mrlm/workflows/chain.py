"""Agents in a row: each goes on from what the one before it said, and the last one answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Chain(ConferringTeam):
    """The first agent reads the world's question, and every further one the question and what was
    said before it. The last one's words are the answer.

    Args:
        sees: what of it: only what the `last` agent said, or what `all` before it said.
    """

    sees: Literal["last", "all"] = "last"

    least: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sees not in ("last", "all"):
            raise ConfigError(f"{self.title}: sees={self.sees!r} is not known; use 'last' or 'all'")

    async def answer(self, talk: Conference) -> Message:
        said: list[Message] = []
        for name in talk.names:
            talk.tell(name, said if self.sees == "all" else said[-1:])
            said.append(await talk.say(name))
        return said[-1]


PLUGIN = Chain
