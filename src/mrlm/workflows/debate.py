"""Several agents answer one question, read each other, and answer again."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from mrlm.core.errors import ConfigError
from mrlm.core.matters import check_choices
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.workflow import Workflow, WorkflowSpec


@dataclass
class Debate(Workflow):
    """A debate about a question (arXiv 2305.14325): in the first round all agents answer it, in
    every further round all answer again after reading each other. The reward of an answer goes to
    the agent that gave it; any sharing of rewards is left to the algorithm (`maporl`) or the
    environment. Requires a single-agent environment in which one message is an answer; it is reset
    for every answer that it scores.

    Args:
        rounds: answers of every agent.
        order: `simultaneous`: all agents answer at once and read the previous round; `sequential`:
            they answer one by one and read the latest answer of each.
        topology: agents that an agent reads: `all` others; in a `ring` the previous agent; in a
            `star` the first agent, which reads all.
        score: `every` answer is rewarded, or only the `last` of each agent.
        template: format of another agent's answer; `{name}` and `{answer}` are replaced by its name
            and text.
        question: text appended after the other agents' answers.
    """

    rounds: int = 2
    order: Literal["simultaneous", "sequential"] = "simultaneous"
    topology: Literal["all", "ring", "star"] = "all"
    score: Literal["every", "last"] = "every"
    template: str = "{name} answered:\n{answer}"
    question: str = "Answer again, with the reasons of the others in mind."

    spec = WorkflowSpec(single_agent=True, repeats=True)

    def __post_init__(self) -> None:
        check_choices(self, "workflow debate")
        if self.rounds < 1 or "{answer}" not in self.template:
            raise ConfigError(
                "workflow debate: rounds must be at least 1, and template must contain {answer}"
            )

    def completions(self, agents: int, turns: int) -> int:
        return agents * self.rounds

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        names = list(agents)
        if len(env.environment.agents) != 1 or len(names) < 2:
            raise ConfigError(
                f"workflow debate requires a single-agent environment and a team of at least two; "
                f"environment {env.episode.environment!r} has {len(env.environment.agents)} "
                f"agents, and the team is {', '.join(names)}; for environments with a role for "
                "each agent use the workflow turns"
            )
        messages = (await env.reset()).messages
        seen = {name: list(messages) for name in names}
        latest: dict[str, Message] = {}
        together = [names] if self.order == "simultaneous" else [[name] for name in names]
        for number in range(self.rounds):
            for speakers in together:
                for name in speakers:
                    seen[name] += self._prompt(latest, self.read_by(name, names), number > 0)
                answers = await asyncio.gather(*(agents[name].act(seen[name]) for name in speakers))
                latest |= dict(zip(speakers, answers, strict=True))
                for name in speakers:
                    seen[name].append(latest[name])
                if self.score == "every" or number + 1 == self.rounds:
                    for name in speakers:  # each in a freshly reset environment
                        await env.reset()
                        await env.step({name: latest[name]})
        env.end(truncated=not env.result.done)

    def read_by(self, name: str, names: Sequence[str]) -> list[str]:
        """Agents whose answers an agent reads."""
        if self.topology == "ring":
            return [names[names.index(name) - 1]]
        if self.topology == "star" and name != names[0]:
            return [names[0]]
        return [other for other in names if other != name]

    def _prompt(
        self, latest: dict[str, Message], read: Iterable[str], again: bool
    ) -> list[Message]:
        answers = [
            self.template.replace("{name}", name).replace("{answer}", latest[name].content)
            for name in read
            if name in latest
        ]
        if again and self.question:
            answers.append(self.question)
        return [Message("\n\n".join(answers))] if answers else []


PLUGIN = Debate
