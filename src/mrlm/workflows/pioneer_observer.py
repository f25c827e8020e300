"""One agent answers, and another answers the same question after reading that answer.

Any world with one seat can be played so: it is begun anew for the second agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, StepResult, Task
from mrlm.play.agent import Agent, Agents
from mrlm.play.world import EpisodeRunner


@dataclass
class PioneerObserver:
    """The pioneer plays the world to its end. Then it is reset to the same task, and the observer
    plays it, with the pioneer's last answer after the question (arXiv 2410.06101). Each is paid
    what the world pays it; who shares in what is the algorithm's to say (`cory`: both, the sum).

    Args:
        pioneer: name of the agent that goes first.
        observer: name of the one that reads its answer.
        template: how the observer is told; `{answer}` stands for the answer.
        max_turns: turns of each until it is cut short; `None`: the world's own limit.
    """

    pioneer: str = "pioneer"
    observer: str = "observer"
    template: str = "Another answer:\n{answer}"
    max_turns: int | None = None

    replays = True

    def __post_init__(self) -> None:
        if "{answer}" not in self.template:
            raise ConfigError(
                f"workflow pioneer_observer: template={self.template!r} does not say where the "
                "answer goes; put {answer} into it"
            )
        if self.pioneer == self.observer:
            raise ConfigError(
                f"workflow pioneer_observer: pioneer and observer are both {self.pioneer!r}; "
                "name two agents (they may share a policy)"
            )

    @property
    def agents(self) -> tuple[str, ...]:
        """Who plays, in order."""
        return (self.pioneer, self.observer)

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        first, whole = await self._play(agents[self.pioneer], env, [])
        told = Message(self.template.replace("{answer}", first.content))
        _, over = await self._play(agents[self.observer], env, [told])
        env.end(truncated=not (whole and over))

    async def _play(
        self, agent: Agent, env: EpisodeRunner, told: Sequence[Message]
    ) -> tuple[Message, bool]:
        """One agent in the world from its beginning: the last thing it said, and whether the world
        was over by then."""
        limit = env.num_steps + (self.max_turns or env.environment.max_turns or 64)
        result = await env.reset()
        seen = [*_shown(result), *told]
        while True:
            message = await agent.act(seen)
            result = await env.step({agent.name: message})
            if result.done or result.truncated or env.num_steps >= limit:
                return message, result.done
            seen += [message, *_shown(result)]


def _shown(result: StepResult) -> list[Message]:
    return [message for each in result.observations.values() for message in each.messages]


PLUGIN = PioneerObserver
