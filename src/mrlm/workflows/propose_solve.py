"""One agent poses a problem like the environment's, and another solves it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from mrlm.core import registry
from mrlm.core.environment import validated_reward
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agent, Agents
from mrlm.play.episode_runner import EpisodeRunner, Share
from mrlm.play.workflow import WorkflowSpec
from mrlm.workflows._team import Conference, ConferringTeam, Paid, play_alone

Checker = Callable[[Task, str], Task | str]
"""Turns the environment's own task and an agent's completion into the posed task, or returns the
reason why it is not usable."""


@dataclass
class ProposeSolve(ConferringTeam):
    """A workflow in which the first agent (proposer) reads the environment's question and poses
    another one with its answer; the second agent (solver) reads only the posed question and answers
    it `attempts` times, each time in the environment reset to the posed task, whose reward it
    receives. The proposer's reward is `1 - |2 p - 1|`, where p is the fraction of attempts with a
    reward of at least `solved` (component `learnable`): 0 for a task that is always or never
    solved. A completion that is not a valid task, according to the checker or the environment, or
    that repeats the environment's own question, costs `penalty` (component `not_posed`), and the
    environment's own question is solved instead. Only the first two agents play. The team's reward
    is the sum of all agents' rewards.

    Args:
        reward: assignment of the environment's reward for the solver's answers.
        attempts: attempts of the solver; at least 2, as with one `learnable` is always 0.
        solved: reward from which an attempt counts as solved.
        penalty: reward subtracted from the proposer for an unusable task.
        ask: prompt for the proposer after the environment's question.
        checker: `checker(task, text)`, or its name as `module:function`: turns the environment's
            own task and the proposer's completion into the task to be solved, or returns a text
            with the reason of refusal. `None` parses `Problem: ...` and, on the last line,
            `Answer: ...`.
    """

    reward: Paid = "last"
    attempts: int = 2
    solved: float = 1.0
    penalty: float = 0.1
    ask: str = "Write another problem like this one, as `Problem: ...`, then a line `Answer: ...`."
    checker: Checker | str | None = None

    matters: ClassVar[Mapping[str, Matters]] = {
        "template": Matters(
            lambda s, run: False, "no agent reads another agent's messages here; remove it"
        )
    }

    least = 2
    lowest: ClassVar[tuple[tuple[str, float], ...]] = (("attempts", 2), ("penalty", 0))
    spec = WorkflowSpec(single_agent=True, repeats=True)

    def completions(self, agents: int, turns: int) -> int:
        return 1 + self.attempts * turns

    def sequences(self, agents: int, turns: int) -> int:
        """Number of separate sequences: every attempt starts a new one."""
        return 1 + self.attempts

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        share = self.check(agents, env)
        proposer, solver = list(agents.values())[:2]
        talk = Conference(agents, self.template)
        talk.show(proposer.name, (await env.reset()).messages)
        talk.show(proposer.name, self.ask)
        posed = self._checked(task, (await talk.say(proposer.name)).content)
        if isinstance(posed, Task):
            try:
                await env.reset(posed)
            except ConfigError as error:
                posed = str(error)
        posed_task = posed if isinstance(posed, Task) else None
        rewards = [
            await self._attempt(solver, env, posed_task, share) for _ in range(self.attempts)
        ]
        if isinstance(posed, Task):
            rate = sum(value >= self.solved for value in rewards) / len(rewards)
            env.pay(proposer.name, 1 - abs(2 * rate - 1), "learnable")
        else:
            env.pay(proposer.name, -self.penalty, "not_posed")
            proposer.shown([Message(f"That cannot be solved: {posed}.")])
        env.end(truncated=not env.result.done)

    async def _attempt(
        self, solver: Agent, env: EpisodeRunner, posed: Task | None, share: Share
    ) -> float:
        """Let the solver play the environment from its start; returns its total reward."""
        _, results = await play_alone(solver, env, self.max_turns, task=posed, share=share)
        rewards = [reward for result in results for reward in result.rewards.values()]
        return sum(validated_reward(reward, self.title).value for reward in rewards)

    def _checked(self, task: Task, text: str) -> Task | str:
        checker = self.checker or read_posed
        if isinstance(checker, str):
            checker = registry.load("workflows", checker)
        result = checker(task, text)
        if not isinstance(result, Task | str):
            raise ConfigError(
                f"{self.title}: the checker returned {type(result).__name__}; return the Task to "
                "be solved, or a str with the reason of refusal"
            )
        return result


def read_posed(task: Task, text: str) -> Task | str:
    """The task posed by a text as `Problem: ...`, then `Answer: ...`; or the reason of refusal."""
    *lines, last = text[:20_000].strip().splitlines() or [""]
    stated = re.match(r"answer\s*:(.*)", last.strip(), re.IGNORECASE)
    answer = stated[1].strip() if stated else ""
    problem = re.sub(r"\Aproblem\s*:", "", "\n".join(lines).strip(), flags=re.IGNORECASE).strip()
    if not (problem and answer):
        return "there is no `Problem: ...` with an `Answer: ...` on the last line"
    prompt_text = " ".join("\n".join(message.content for message in task.prompt).split()).casefold()
    if " ".join(problem.split()).casefold() in prompt_text:
        return "it is the question that was shown"
    info = {"question": problem}
    return Task(f"{task.id}/posed", [Message(problem)], answer, task.seed, info)


PLUGIN = ProposeSolve
