"""Base class of the workflows in which a team of agents gives one answer to a single-agent
environment. Subclasses decide which agents act, and in which order, before that answer."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from mrlm.core.errors import ConfigError
from mrlm.core.matters import check_choices
from mrlm.core.types import Message, StepResult, Task
from mrlm.play.agent import Agent, Agents
from mrlm.play.episode_runner import EpisodeRunner, Share
from mrlm.play.workflow import Workflow, WorkflowSpec
from mrlm.workflows.turns import hear

Paid = Literal["team", "last"] | dict[str, float]


class Conference:
    """The conversations of a team, one per agent: its prompts and completions so far, in order.
    Completions of other agents are inserted as user messages formatted by `template`: they are
    context, and never trained on."""

    def __init__(self, agents: Agents, template: str) -> None:
        self.agents = agents
        self.names: list[str] = list(agents)
        self.template = template
        self.seen: dict[str, list[Message]] = {name: [] for name in agents}
        self.penalties: list[tuple[str, float, str]] = []

    def show(self, name: str, words: str | Iterable[Message]) -> None:
        """Append messages that no agent wrote to an agent's conversation; empty text is skipped."""
        if words:
            self.seen[name] += [Message(words)] if isinstance(words, str) else words

    def tell(self, name: str, messages: Iterable[Message]) -> None:
        """Append completions to an agent's conversation; its own remain its own messages."""
        conversation = self.seen[name]
        for message in messages:
            if message.agent == name:
                if not any(earlier.turn is message.turn for earlier in conversation):
                    conversation.append(message)
                continue
            text = self.template.replace("{agent}", message.agent or "")
            text = text.replace("{answer}", message.content)
            conversation.append(Message(text, agent=message.agent))

    async def say(self, name: str) -> Message:
        """Sample a completion of one agent and append it to that agent's conversation."""
        message = await self.agents[name].act(self.seen[name])
        self.seen[name].append(message)
        return message

    async def all_say(self, names: Iterable[str]) -> list[Message]:
        """Sample a completion of each agent concurrently, without showing them to each other."""
        return list(await asyncio.gather(*(self.say(name) for name in names)))

    def penalize(self, name: str, amount: float, component: str) -> None:
        """Subtract a penalty from an agent's reward after the next environment step."""
        if amount:
            self.penalties.append((name, -amount, component))


@dataclass
class ConferringTeam(Workflow):
    """A workflow in which several agents confer, and the completion of one of them is the answer to
    a single-agent environment. In environments with several attempts the agents confer before each
    attempt; all of them see the submitted answer and the environment's response.

    Args:
        reward: assignment of the environment's reward: `team`: all of it to every agent that has
            acted; `last`: only to the agent that gave the answer; or a mapping agent -> share.
        max_turns: answers after which the episode is truncated; `None`: the environment's own
            limit.
        template: format of another agent's completion; `{agent}` and `{answer}` are replaced by
            its name and text.

    Raises:
        ConfigError: a setting is out of range, the environment has several agents, or the team is
            too small.
    """

    reward: Paid = "team"
    max_turns: int | None = None
    template: str = "{agent}: {answer}"

    spec = WorkflowSpec(single_agent=True)
    least: ClassVar[int] = 1
    """Minimum number of agents."""
    lowest: ClassVar[tuple[tuple[str, float], ...]] = ()
    """Settings with their minimum."""

    @property
    def title(self) -> str:
        """Name of the workflow in error messages."""
        return f"workflow {type(self).__module__.rsplit('.', 1)[-1]}"

    def __post_init__(self) -> None:
        check_choices(self, self.title)
        if self.reward not in ("team", "last") and not isinstance(self.reward, Mapping):
            raise ConfigError(
                f"{self.title}: reward={self.reward!r} is not known; use 'team', 'last', or a "
                "mapping agent -> share"
            )
        if "{answer}" not in self.template:
            raise ConfigError(
                f"{self.title}: template={self.template!r} has no placeholder for the answer; "
                "put {answer} into it"
            )
        for name, lowest in self.lowest:
            value = getattr(self, name)
            if value < lowest:
                raise ConfigError(f"{self.title}: {name}={value} must be at least {lowest}")

    def completions(self, agents: int, turns: int) -> int:
        return turns * agents

    def check(self, agents: Agents, env: EpisodeRunner) -> Share:
        """Validate the environment and the team; returns the assignment of the reward."""
        check_single_agent(env, self.title)
        if len(agents) < self.least:
            raise ConfigError(
                f"{self.title} needs at least {self.least} agents, but {len(agents)} "
                f"({', '.join(agents)}) are configured; set agents:"
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
            for penalty in talk.penalties:
                env.pay(*penalty)
            talk.penalties.clear()
        env.end(truncated=not result.done)

    async def answer(self, talk: Conference) -> Message:
        """Let the agents act; returns the completion that is the team's answer."""
        raise NotImplementedError

    def action(self, message: Message) -> Message:
        """The part of the answer that the environment receives: by default all of it."""
        return message


def check_single_agent(env: EpisodeRunner, title: str) -> None:
    """Raise `ConfigError` for an environment with several agents."""
    agents = env.environment.agents
    if len(agents) != 1:
        raise ConfigError(
            f"{title} requires a single-agent environment, and environment "
            f"{env.episode.environment!r} has {len(agents)} agents; use the workflow tree, or turns"
        )


async def play_alone(
    agent: Agent,
    env: EpisodeRunner,
    max_turns: int | None,
    hints: Iterable[Message] = (),
    task: Task | None = None,
    share: Share = "own",
) -> tuple[Message, list[StepResult]]:
    """Let one agent play a single-agent environment from its start.

    Args:
        max_turns: messages after which it stops; `None`: the environment's own limit.
        hints: messages that it reads after the first observation.
        task: the task; that of the episode when `None`.

    Returns:
        The agent's last message, and the result of every step.
    """
    limit = env.num_steps + (max_turns or env.environment.max_turns or 64)
    seen, results = [*(await env.reset(task)).messages, *hints], list[StepResult]()
    while True:
        message = await agent.act(seen)
        results.append(await env.step({agent.name: message}, share))
        if results[-1].done or results[-1].truncated or env.num_steps >= limit:
            return message, results
        seen += [message, *results[-1].messages]
