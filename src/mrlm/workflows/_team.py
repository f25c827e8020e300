"""A team that answers a world with one seat: what the workflows of teams share. They differ in who
speaks to whom before somebody's words are the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.world import EpisodeRunner, Share
from mrlm.workflows._between import hear

Paid = Literal["team", "last"] | dict[str, float]


class Conference:
    """What each agent of a team has been shown and has said so far, in its order. Words of others
    are shown by `template`, as a user's: they are context, and never trained on.

    Args:
        agents: the team.
        template: how an agent reads what another one said.
    """

    def __init__(self, agents: Agents, template: str) -> None:
        self.agents = agents
        self.names: list[str] = list(agents)
        self.template = template
        self.seen: dict[str, list[Message]] = {name: [] for name in agents}
        self.fines: list[tuple[str, float, str]] = []

    def show(self, name: str, words: str | Iterable[Message]) -> None:
        """Show an agent what no agent said; an empty text is not shown."""
        messages = [Message(words)] * bool(words) if isinstance(words, str) else words
        self.seen[name].extend(messages)

    def tell(self, name: str, said: Iterable[Message]) -> None:
        """Show an agent what agents said; what it said itself stands there as its own words."""
        known = self.seen[name]
        for message in said:
            if message.agent == name:
                if not any(each.turn is message.turn for each in known):
                    known.append(message)
                continue
            text = self.template.replace("{agent}", message.agent or "")
            known.append(Message(text.replace("{answer}", message.content), agent=message.agent))

    async def say(self, name: str) -> Message:
        """What an agent says now; it stays in its own conversation."""
        message = await self.agents[name].act(self.seen[name])
        self.seen[name].append(message)
        return message

    async def all_say(self, names: Iterable[str]) -> list[Message]:
        """What several agents say at once, none of them hearing the others."""
        return list(await asyncio.gather(*(self.say(name) for name in names)))

    def fine(self, name: str, amount: float, what: str) -> None:
        """Charge an agent for what it said, once the world has answered; 0 is no fine."""
        if amount:
            self.fines.append((name, -amount, what))


@dataclass
class ConferringTeam:
    """Several agents confer, and what one of them says is the answer to a world with one seat. In
    worlds of several attempts they confer before each; everybody is shown the answer that was given
    and what the world said to it.

    Args:
        reward: who gets what the world pays: `team`: everybody who has spoken, the whole of it;
            `last`: only the one whose words were the answer; or a mapping agent -> share of it.
        max_turns: answers until the episode is cut short; `None`: the world's own limit.
        template: how an agent reads what another one said; `{agent}` and `{answer}` stand for who
            and what.

    Raises:
        ConfigError: a setting is out of range, the world has several seats, or there are too few
            agents.
    """

    reward: Paid = "team"
    max_turns: int | None = None
    template: str = "{agent}: {answer}"

    least: ClassVar[int] = 1
    """Fewest agents it can be played with."""

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"workflow {type(self).__module__.rsplit('.', 1)[-1]}"

    def __post_init__(self) -> None:
        if self.reward not in ("team", "last") and not isinstance(self.reward, Mapping):
            raise ConfigError(
                f"{self.title}: reward={self.reward!r} is not known; use 'team', 'last', or a "
                "mapping agent -> share"
            )
        if "{answer}" not in self.template:
            raise ConfigError(
                f"{self.title}: template={self.template!r} does not say where the answer goes; "
                "put {answer} into it"
            )

    def at_least(self, name: str, least: int) -> None:
        """Refuse a setting that is below `least`."""
        value = getattr(self, name)
        if value < least:
            raise ConfigError(f"{self.title}: {name}={value}, and it needs at least {least}")

    def completions(self, agents: int, turns: int) -> int:
        """How often models are asked in an episode of `turns` answers, at most."""
        return turns * agents

    def check(self, agents: Agents, env: EpisodeRunner) -> Share:
        """Refuse a world or a team that does not fit; who shares in the reward."""
        check_seat(env, self.title)
        if len(agents) < self.least:
            raise ConfigError(
                f"{self.title} needs at least {self.least} agents, and there are {len(agents)} "
                f"({', '.join(agents)}); set agents:"
            )
        if isinstance(self.reward, Mapping):
            unknown = [name for name in self.reward if name not in agents]
            if unknown:
                raise ConfigError(
                    f"{self.title}: reward names {unknown[0]!r}; the agents are {', '.join(agents)}"
                )
            return self.reward
        return "team" if self.reward == "team" else "own"

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        share = self.check(agents, env)
        limit = self.max_turns or env.environment.max_turns or 64
        talk = Conference(agents, self.template)
        result = await env.reset()
        while not (result.done or result.truncated) and env.num_steps < limit:
            for observation in result.observations.values():
                for name in talk.names:
                    hear(talk.seen[name], observation)
            message = await self.answer(talk)
            for name in talk.names:
                talk.tell(name, [message])
            result = await env.step({message.agent or "": self.action(message)}, share)
            for fine in talk.fines:
                env.pay(*fine)
            talk.fines.clear()
        env.end(truncated=not result.done)

    async def answer(self, talk: Conference) -> Message:
        """Let agents speak; whose words are the answer."""
        raise NotImplementedError

    def action(self, message: Message) -> Message:
        """What the world is given of the answer: all of it."""
        return message


def check_seat(env: EpisodeRunner, title: str) -> None:
    """Refuse a world with several seats."""
    seats = env.environment.agents
    if len(seats) != 1:
        raise ConfigError(
            f"{title} plays worlds with one seat, and environment {env.episode.environment!r} has "
            f"{len(seats)}; use the workflow tree, or turns"
        )
