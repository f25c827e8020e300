"""One agent poses a problem like the world's, and another solves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mrlm.core import registry
from mrlm.core.environment import validated_reward
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, Task
from mrlm.play.agent import Agent, Agents
from mrlm.play.world import EpisodeRunner, Share
from mrlm.workflows._posed import Checker, read_posed
from mrlm.workflows._team import Conference, ConferringTeam, Paid


@dataclass
class ProposeSolve(ConferringTeam):
    """The first agent reads the world's question and poses another one with its answer; the second
    reads the posed question alone and answers it `attempts` times, each time in the world begun
    anew with the posed task, whose pay it gets. The proposer is paid `1 - |2 p - 1|`, p being the
    share of attempts that were paid at least `solved` (component `learnable`): nothing for what is
    always or never solved. What is not a task, by the checker or because the world refuses it, or
    is the world's own question again, costs `penalty` (component `not_posed`), and the world's own
    is solved instead. The first two agents play. The team's reward is the sum of what all are paid.

    Args:
        reward: who gets what the world pays for the solver's answers.
        attempts: of the solver; with one of them nothing can be learnable.
        solved: pay of an attempt from which on it counts as solved.
        penalty: what a task that cannot be used costs the proposer.
        ask: what the proposer is asked after the world's question.
        checker: `checker(task, text)`, or its name as `module:function`: makes of the world's own
            task and the proposer's words the task to be solved, or says in words what is wrong.
            When `None`, `Problem: ...` and, on the last line, `Answer: ...` are read.
    """

    reward: Paid = "last"
    attempts: int = 2
    solved: float = 1.0
    penalty: float = 0.1
    ask: str = "Write another problem like this one, as `Problem: ...`, then a line `Answer: ...`."
    checker: Checker | str | None = None

    matters: ClassVar[Mapping[str, Matters]] = {
        "template": Matters(
            lambda s, run: False, "no agent is shown here what another one said; remove it"
        ),
    }

    least: ClassVar[int] = 2
    replays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least("attempts", 2)
        self.at_least("penalty", 0)

    def completions(self, agents: int, turns: int) -> int:
        return 1 + self.attempts * turns

    def sequences(self, agents: int, turns: int) -> int:
        """Into how many sequences these fall: every attempt begins anew."""
        return 1 + self.attempts

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        share = self.check(agents, env)
        proposer, solver = list(agents.values())[:2]
        talk = Conference(agents, self.template)
        for observation in (await env.reset()).observations.values():
            talk.show(proposer.name, observation.messages)
        talk.show(proposer.name, self.ask)
        posed = self._checked(task, (await talk.say(proposer.name)).content)
        if isinstance(posed, Task):
            try:
                await env.reset(posed)
            except ConfigError as error:
                posed = str(error)
        given = posed if isinstance(posed, Task) else None
        paid = [await self._attempt(solver, env, given, share) for _ in range(self.attempts)]
        if isinstance(posed, Task):
            rate = sum(value >= self.solved for value in paid) / len(paid)
            env.pay(proposer.name, 1 - abs(2 * rate - 1), "learnable")
        else:
            env.pay(proposer.name, -self.penalty, "not_posed")
            proposer.shown([Message(f"That cannot be solved: {posed}.")])
        env.end(truncated=not env.result.done)

    async def _attempt(
        self, solver: Agent, env: EpisodeRunner, posed: Task | None, share: Share
    ) -> float:
        """The solver plays the world from its beginning; what the world paid."""
        limit = env.num_steps + (self.max_turns or env.environment.max_turns or 64)
        result, seen, paid = await env.reset(posed), [], 0.0
        while True:
            seen += [message for each in result.observations.values() for message in each.messages]
            message = await solver.act(seen)
            seen.append(message)
            result = await env.step({solver.name: message}, share)
            paid += sum(validated_reward(r, self.title).value for r in result.rewards.values())
            if result.done or result.truncated or env.num_steps >= limit:
                return paid

    def _checked(self, task: Task, text: str) -> Task | str:
        checker = self.checker or read_posed
        if isinstance(checker, str):
            checker = registry.load("workflows", checker)
        found = checker(task, text)
        if not isinstance(found, Task | str):
            raise ConfigError(
                f"{self.title}: the checker returned {type(found).__name__}; it returns the Task "
                "to be solved, or a str that says what is wrong"
            )
        return found


PLUGIN = ProposeSolve
