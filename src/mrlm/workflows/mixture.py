"""Layers of agents: each reads all answers of the layer before, and the last is one agent."""

from dataclasses import dataclass
from typing import ClassVar

from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Mixture(ConferringTeam):
    """A mixture of agents (arXiv 2406.04692). In every layer except the last, all agents but the
    last answer concurrently; from the second layer on they read the answers of the previous layer.
    The last layer is the last agent: it reads the question and the answers of the previous layer,
    and its completion is the team's answer. A team of one agent uses it in every layer.

    Args:
        layers: number of layers, including the last agent's; at least 2.
    """

    layers: int = 3

    lowest: ClassVar[tuple[tuple[str, float], ...]] = (("layers", 2),)

    def completions(self, agents: int, turns: int) -> int:
        return turns * ((self.layers - 1) * max(1, agents - 1) + 1)

    async def answer(self, talk: Conference) -> Message:
        *others, last = talk.names
        proposers = others or [last]
        answers = await talk.all_say(proposers)
        for _ in range(self.layers - 2):
            for name in proposers:
                talk.tell(name, answers)
            answers = await talk.all_say(proposers)
        talk.tell(last, answers)
        return await talk.say(last)


PLUGIN = Mixture
