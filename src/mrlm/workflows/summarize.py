"""Workers answer independently, and a summariser reads their answers and gives the final one."""

from dataclasses import dataclass

from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Summarize(ConferringTeam):
    """A workflow in which all agents but the last are workers: they answer the environment's
    question concurrently, without reading each other. The last agent reads the question and every
    worker's answer; its completion is the team's answer.

    Args:
        ask: prompt for the summariser after the workers' answers; nothing if empty.
    """

    ask: str = ""

    least = 2

    async def answer(self, talk: Conference) -> Message:
        *workers, summarizer = talk.names
        talk.tell(summarizer, await talk.all_say(workers))
        talk.show(summarizer, self.ask)
        return await talk.say(summarizer)


PLUGIN = Summarize
