"""Several agents answer one question, read each other, and answer again.

Any world with one seat can be played so: it is begun anew for every answer that it scores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.world import EpisodeRunner

Order = Literal["simultaneous", "sequential"]
Topology = Literal["all", "ring", "star"]


@dataclass
class Debate:
    """A debate about a question (arXiv 2305.14325): in the first round everybody answers it, in
    every further one everybody answers anew, having read the others. Each answer is paid what the
    world pays it, to the agent that gave it; how agents share in that is the algorithm's to say
    (`maporl`), or the world's. It plays worlds with one seat, in which one message is an answer.

    Args:
        rounds: answers of every agent.
        order: `simultaneous`: all answer at once, and read the last round; `sequential`: one by
            one, and read the latest of everybody.
        topology: whom an agent reads: `all` others, in a `ring` the one before it, in a `star` the
            first agent, which reads all.
        score: `every` answer is paid, or the `last` of each agent.
        template: how an agent is told; `{name}` and `{answer}` stand for who said what.
        question: what is said after the others' answers.
    """

    rounds: int = 2
    order: Order = "simultaneous"
    topology: Topology = "all"
    score: Literal["every", "last"] = "every"
    template: str = "{name} answered:\n{answer}"
    question: str = "Answer again, with the reasons of the others in mind."

    replays = True

    def __post_init__(self) -> None:
        known = {"order": Order, "topology": Topology, "score": Literal["every", "last"]}
        for name, choices in known.items():
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(
                    f"workflow debate: {name} must be one of {', '.join(get_args(choices))}, not "
                    f"{getattr(self, name)!r}"
                )
        if self.rounds < 1 or "{answer}" not in self.template:
            raise ConfigError(
                "workflow debate: rounds must be at least 1, and template must contain {answer}"
            )

    def completions(self, agents: int, turns: int) -> int:
        """How often models are asked in an episode."""
        return agents * self.rounds

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        names = list(agents)
        if len(env.environment.agents) != 1 or len(names) < 2:
            raise ConfigError(
                f"workflow debate plays worlds with one seat and at least two agents; environment "
                f"{env.episode.environment!r} has {len(env.environment.agents)} seats, and the "
                f"agents are {', '.join(names)}; worlds with seats for everybody go with 'turns'"
            )
        (observation,) = (await env.reset()).observations.values()
        seen = {name: list(observation.messages) for name in names}
        said: dict[str, Message] = {}
        together = [names] if self.order == "simultaneous" else [[name] for name in names]
        for number in range(self.rounds):
            for speakers in together:
                for name in speakers:
                    seen[name] += self._told(said, self.read_by(name, names), number > 0)
                answers = await asyncio.gather(*(agents[name].act(seen[name]) for name in speakers))
                said |= dict(zip(speakers, answers, strict=True))
                for name in speakers:
                    seen[name].append(said[name])
                if self.score == "every" or number + 1 == self.rounds:
                    await self._score(env, {name: said[name] for name in speakers})
        env.end(truncated=not env.result.done)

    def read_by(self, name: str, names: Sequence[str]) -> list[str]:
        """Whose answers an agent reads."""
        if self.topology == "ring":
            return [names[names.index(name) - 1]]
        if self.topology == "star" and name != names[0]:
            return [names[0]]
        return [other for other in names if other != name]

    def _told(self, said: dict[str, Message], read: Iterable[str], again: bool) -> list[Message]:
        shown = [
            self.template.replace("{name}", name).replace("{answer}", said[name].content)
            for name in read
            if name in said
        ]
        asked = [self.question] if again and self.question else []
        return [Message("\n\n".join([*shown, *asked]))] if shown or asked else []

    async def _score(self, env: EpisodeRunner, answers: dict[str, Message]) -> None:
        """Pay each answer in the world as it was in the beginning."""
        for name, message in answers.items():
            await env.reset()
            await env.step({name: message})


PLUGIN = Debate
