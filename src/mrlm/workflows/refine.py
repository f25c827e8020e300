"""One agent answers, others criticise, and it revises its answer, for a number of rounds."""

from dataclasses import dataclass
from typing import ClassVar

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.workflows._team import Conference, ConferringTeam


@dataclass
class Refine(ConferringTeam):
    """A workflow in which the first agent writes a draft. In every round all other agents read the
    question and the draft and criticise it concurrently; the first agent reads the critiques and
    writes the next draft. The last draft is the answer. A team of one agent criticises itself.

    Args:
        rounds: critiques and revisions after the first draft.
        critique: prompt for a critic after the draft.
        revise: prompt for the writer after the critiques.
    """

    rounds: int = 1
    critique: str = "What is wrong with this answer?"
    revise: str = "Answer again."

    lowest: ClassVar[tuple[tuple[str, float], ...]] = (("rounds", 1),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.critique and self.revise):
            raise ConfigError(
                f"{self.title}: critique and revise are prompts and may not be empty; set both"
            )

    def completions(self, agents: int, turns: int) -> int:
        return turns * (1 + self.rounds * (max(1, agents - 1) + 1))

    async def answer(self, talk: Conference) -> Message:
        writer, *others = talk.names
        critics = others or [writer]
        draft = await talk.say(writer)
        for _ in range(self.rounds):
            for name in critics:
                talk.tell(name, [draft])
                talk.show(name, self.critique)
            talk.tell(writer, await talk.all_say(critics))
            talk.show(writer, self.revise)
            draft = await talk.say(writer)
        return draft


PLUGIN = Refine
