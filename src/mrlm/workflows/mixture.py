"""Layers of agents: each reads all answers of the layer before, and the last is one agent."""

from __future__ import annotations

from dataclasses import dataclass

from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Mixture(ConferringTeam):
    """A mixture of agents (arXiv 2406.04692). All agents but the last answer at once in every layer
    but the last; from the second layer on they have read what all of them said in the layer before.
    The last agent is the last layer: it reads the question and the answers of the layer before it,
    and its words are the answer. An agent that is alone is every layer.

    Args:
        layers: how many there are, the last agent's included; at least 2.
    """

    layers: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least("layers", 2)

    def completions(self, agents: int, turns: int) -> int:
        return turns * ((self.layers - 1) * max(1, agents - 1) + 1)

    async def answer(self, talk: Conference) -> Message:
        *others, last = talk.names
        proposers = others or [last]
        said = await talk.all_say(proposers)
        for _ in range(self.layers - 2):
            for name in proposers:
                talk.tell(name, said)
            said = await talk.all_say(proposers)
        talk.tell(last, said)
        return await talk.say(last)


PLUGIN = Mixture
