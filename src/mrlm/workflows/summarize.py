"""Workers answer side by side, and a summariser who has read that answers the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Summarize(ConferringTeam):
    """All agents but the last are workers: they answer the world's question at once, without
    hearing each other. The last one reads the question and every answer; what it says is the
    answer.

    Args:
        ask: what the summariser is told after the workers' answers; nothing if empty.
    """

    ask: str = ""

    least: ClassVar[int] = 2

    async def answer(self, talk: Conference) -> Message:
        *workers, summarizer = talk.names
        talk.tell(summarizer, await talk.all_say(workers))
        talk.show(summarizer, self.ask)
        return await talk.say(summarizer)


PLUGIN = Summarize
