"""Agents in sequence: each continues from the previous agents' messages, and the last answers."""

from dataclasses import dataclass
from typing import Literal

from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Chain(ConferringTeam):
    """A workflow in which the first agent reads the environment's question, and every further agent
    the question and earlier completions. The last completion is the answer.

    Args:
        sees: earlier completions that an agent reads: of the `last` agent before it, or of `all`.
        alone: the last agent reads the question only: it learns to answer without the others, whose
            messages only its teacher reads (`distill.privileged: [partners]`).
    """

    sees: Literal["last", "all"] = "last"
    alone: bool = False

    least = 2

    async def answer(self, talk: Conference) -> Message:
        messages: list[Message] = []
        for name in talk.names:
            if not (self.alone and name == talk.names[-1]):
                talk.tell(name, messages if self.sees == "all" else messages[-1:])
            messages.append(await talk.say(name))
        return messages[-1]


PLUGIN = Chain
