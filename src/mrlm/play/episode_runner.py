"""The runner of one episode, as seen by a workflow: it steps the environment under a deadline,
books the rewards, and ends the episode. Independent of how agents answer."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mrlm.core.environment import Environment, contract_problem
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.stepping import is_async, is_pending
from mrlm.core.sync_async import in_thread
from mrlm.core.timing import span
from mrlm.core.types import Message, StepResult, Task, Turn
from mrlm.core.user_errors import explain
from mrlm.play.agent import Agent, Agents, PromptTooLong
from mrlm.play.board_recorder import BoardRecorder
from mrlm.play.engine import ExternalCalls
from mrlm.play.reward_booking import Share, book, summed


@dataclass(eq=False, repr=False)
class EpisodeRunner:
    """Runs the environment of one episode.

    Args:
        environment: an instance for this episode alone.
        episode: the episode that is recorded.
        agents: the agents that play.
        timeout: seconds one `reset` or `step` may take.
        pulse: counts the calls of the environment in progress.
        opening: the result of an earlier reset (for siblings in an environment without seeds).
        watched: record the environment's state before every joint step.
        forking: let workflows continue from one state in several ways.
        siblings: episodes of the group that the workflow opens by itself.
        on_step: called after every joint step.
        follow: the branches of one path (`Episode.path`): where a workflow continues in several
            ways, this one alone is continued, with the random numbers it had; the first branch
            after its end. `None`: all branches.
        on_reset: called after the reset.
        boards: records the environment's boards.
    """

    environment: Environment
    episode: Episode
    agents: Agents
    timeout: float | None
    pulse: ExternalCalls
    opening: StepResult | None = None
    watched: bool = False
    forking: bool = True
    siblings: int = 1
    on_step: Callable[[EpisodeRunner], None] | None = None
    follow: tuple[int, ...] | None = None
    on_reset: Callable[[EpisodeRunner], None] | None = None
    boards: BoardRecorder | None = None
    result: StepResult = field(default_factory=StepResult, init=False)
    failure: Exception | None = field(default=None, init=False)
    """The error of a failed episode."""
    _forks: list[EpisodeRunner] = field(default_factory=list, init=False)
    _forked: list[int] = field(default_factory=list, init=False)
    """The joint step of each fork so far."""

    def __post_init__(self) -> None:
        self._agent_of = {name: name for name in self.environment.agents}
        """Role in the environment -> the agent that plays it."""
        self.working: Callable[[], AbstractAsyncContextManager[None]] = self.pulse.working
        """A context for a call of the user's code outside the environment: batches of requests wait
        for it, as they do for the environment."""

    @property
    def family(self) -> list[EpisodeRunner]:
        """This runner and all of its forks."""
        family: list[EpisodeRunner] = [self]
        for fork in self._forks:
            family += fork.family
        return family

    def fork(self, count: int) -> Sequence[EpisodeRunner]:
        """Fork the episode `count` ways from the current state: this runner and copies of it, with
        episodes and agents (`runner.agents`) of their own. An evaluation continues only one way.
        Raises `ConfigError`: the environment cannot be copied."""
        if self.follow is not None:
            return [_followed(self, self.follow, self.episode.path)]
        family = self._twins(count if self.forking else 1, self.episode.path)
        self.episode.path = (*self.episode.path, 0)
        return family

    def open(self) -> Sequence[EpisodeRunner]:
        """Open every episode of the group right after the reset: this runner and copies of it.
        Raises `ConfigError`: the environment cannot be copied."""
        if self.follow is not None:
            return [_followed(self, self.follow, self.episode.path[:-1])]
        return self._twins(self.siblings, self.episode.path[:-1])

    def _twins(self, count: int, stem: tuple[int, ...]) -> list[EpisodeRunner]:
        """This runner and copies of it, whose paths extend `stem`."""
        family = [self, *(self._twin(branch, (*stem, branch)) for branch in range(1, count))]
        self._forks += family[1:]
        self._forked.append(self.num_steps)
        return family

    def joined(self, parts: Mapping[str, EpisodeRunner], joint: tuple[int, ...]) -> EpisodeRunner:
        """A copy of this runner, before its first step, in which every agent has given the answer
        it gave in the runner that `parts` names.

        Args:
            parts: agent -> the runner in which it spoke.
            joint: the number of each agent's answer.

        Raises:
            ConfigError: the environment cannot be copied.
        """
        twin = self._twin(0, (*joint, 1))
        twin.episode.id = f"{self.episode.id}/{'-'.join(map(str, joint))}"
        spoke = {name: runner.agents[name].fork(twin.episode, 0) for name, runner in parts.items()}
        twin.agents = Agents({**twin.agents, **spoke})
        self._forks.append(twin)
        return twin

    def _twin(self, branch: int, path: tuple[int, ...]) -> EpisodeRunner:
        """A copy of this runner with an environment, an episode and agents of its own."""
        try:
            environment = copy.deepcopy(self.environment)
        except Exception as error:
            raise ConfigError(
                f"environment {self.episode.environment!r} cannot be copied ({error!r}), so a "
                "workflow that tries several answers from one state cannot play it"
            ) from error
        twin = copy.copy(self)
        twin.environment = environment
        episode = self.episode
        twin.episode = replace(
            episode,
            id=_fork_id(self, branch),
            rollouts={},
            step_rewards=list(episode.step_rewards),
            metrics=dict(episode.metrics),
            states=list(episode.states),
            boards=list(episode.boards),
            path=path,
        )
        twin.agents = self.agents.fork(twin.episode, branch)
        twin._agent_of, twin._forks, twin._forked = dict(self._agent_of), [], []
        return twin

    @property
    def num_steps(self) -> int:
        """Joint steps taken so far."""
        return len(self.episode.step_rewards)

    def hand_over(self) -> None:
        """Hand the turns before a failed episode of the family (or one with a missing reward) to
        the first other episode that has them as context, so that they are trained on there."""
        usable = [candidate.episode for candidate in self.family if not candidate.episode.failed]
        for agent, turn in [lost for candidate in self.family for lost in _lost(candidate)]:
            heirs = (
                other
                for episode in usable
                if agent in episode.rollouts and agent not in episode.missing
                for other in episode.rollouts[agent].turns
            )
            same = (other for other in heirs if other.completion_ids is turn.completion_ids)
            heir = next(same, None)
            if heir is not None:
                heir.trained, turn.trained = True, False

    async def reset(self, posed: Task | None = None) -> StepResult:
        """Reset the environment; returns the first observations: agent -> observation. `posed` is a
        task that an agent of the episode has posed, instead of the episode's own."""
        result = self.opening if posed is None else None
        if result is None:
            task = posed or self.episode.task
            result = await self._call("reset", task, task.seed)
        self.result = self._by_agent(result, "reset")
        if self.on_reset is not None:
            self.on_reset(self)
        if self.watched or self.boards is not None:
            await self._note()
        return self.result

    def assign_roles(self, order: Sequence[str]) -> None:
        """Assign agents to other roles than those of their names, before the reset: `order` names
        the agent in the environment's first role, in its second, and so on."""
        self._agent_of = dict(zip(self.environment.agents, order, strict=True))
        for role, agent in self._agent_of.items():
            self.agents[agent].place = role

    async def step(self, actions: Mapping[str, Message], share: Share = "own") -> StepResult:
        """Send one message per agent, book the rewards, and return the next observations. `share`
        as for `finish`."""
        result = self._by_agent(await self._call("step", self._by_role(actions)), "step")
        self.result = result
        book(self.episode, self.agents, result.rewards, share)
        for agent, observation in result.observations.items():
            if agent in self.agents:
                self.agents[agent].shown(observation.messages)
        if self.on_step is not None:
            self.on_step(self)
        if self.watched or self.boards is not None:
            await self._note()
        return self.result

    def pay(self, agent: str, amount: float, name: str) -> None:
        """Give an agent an extra reward (a penalty below 0) for its last turn, after the joint step
        of that turn; the team's reward of the step changes by the same amount. `name` is that of
        the reward component in the log."""
        turn = self.episode.rollouts[agent].turns[-1]
        turn.reward += amount
        turn.components = summed(turn.components, {name: amount})
        self.episode.metrics = summed(self.episode.metrics, {f"{agent}/{name}": amount})
        self.episode.step_rewards[turn.step] += amount
        self.episode.reward += amount

    async def finish(self, actions: Mapping[str, Message], share: Share = "own") -> Episode:
        """Take one step, then end the episode.

        Args:
            actions: agent -> message.
            share: `own`: each agent keeps its own reward; `team`: every agent that has spoken gets
                the sum; a mapping agent -> weight: each gets that part of the sum.
        """
        await self.step(actions, share)
        return self.end()

    def end(self, truncated: bool = False) -> Episode:
        """Close the episode. `truncated`: it was cut short by a limit."""
        return self.episode.close("truncated" if truncated or self.result.truncated else "done")

    def fail(self, error: Exception) -> None:
        """Close the episode because of an error: a prompt that is too long truncates it, any other
        error makes it a failed one."""
        episode = self.episode
        if isinstance(error, PromptTooLong):
            episode.error = str(error)
            episode.metrics["prompt_too_long"] = 1.0
            episode.close("truncated")
            return
        episode.close("error")
        episode.error, self.failure = explain(error), error

    async def _note(self) -> None:
        """Record the environment's state and its board, if they are to be recorded."""
        over = self.result.done or self.result.truncated
        if self.watched and not self.result.done:
            states, now = self.episode.states, self.num_steps
            states += [None] * (now - len(states))
            states[now:] = [await self._call("state")]
        if self.boards is None or not self.environment.draws:
            return
        try:
            board = await self._call("render")
            self.boards.note(self.episode, board, over)
        except Exception as error:  # a drawing never ends an episode
            self.boards.failed(self.episode, error)

    def _by_role(self, actions: Mapping[str, Message]) -> dict[str, Message]:
        """The messages by role in the environment; its only role takes the message of any agent."""
        name, roles = self.episode.environment, self.environment.agents
        if not actions:
            raise EpisodeError(
                f"environment {name!r}: step requires the message of at least one agent"
            )
        if len(roles) == 1:
            if len(actions) > 1:
                raise ConfigError(
                    f"environment {name!r} takes the message of one agent, but {len(actions)} "
                    f"spoke at once ({', '.join(actions)}); use a workflow that decides whose "
                    "message counts"
                )
            self._agent_of = dict(zip(roles, actions, strict=True))
        role_of = {agent: role for role, agent in self._agent_of.items()}
        try:
            return {role_of[agent]: message for agent, message in actions.items()}
        except KeyError as unknown:
            raise ConfigError(
                f"environment {name!r} has no agent {unknown.args[0]!r}; its agents are "
                f"{', '.join(roles)}"
            ) from None

    def _by_agent(self, result: StepResult, method: str) -> StepResult:
        """The checked result of the environment by agent; of one role, that of the agent that spoke
        last, or of the first."""
        problem = contract_problem(result, self.environment, method)
        if problem is not None:
            raise EpisodeError(f"environment {self.episode.environment!r}: {problem}")
        names = self._agent_of
        if len(names) == 1 and len(self.environment.agents) == 1:
            (role,) = self.environment.agents
            agent = names.get(role, role)
            names[role] = agent if agent in self.agents else next(iter(self.agents))
        result.observations = {names.get(s, s): o for s, o in result.observations.items()}
        result.rewards = {names.get(s, s): reward for s, reward in result.rewards.items()}
        return result

    async def _call(self, what: str, *arguments: object) -> Any:
        """Run a method of the environment, in a thread unless it is a coroutine; the deadline
        applies to both. No other coroutine runs during a method that does neither."""
        method = getattr(self.environment, what)
        if not self.environment.blocking:
            with span("environment", self.episode.environment):
                answer = method(*arguments)
            if not is_pending(answer):
                return answer
            function, waits = (lambda: answer), True
        else:
            function, waits = partial(method, *arguments), is_async(method)
        async with self.working():
            name, task = self.episode.environment, self.episode.task
            with span("environment", name):
                async with time_limit(self.timeout, f"environment {name!r}: {what}", task):
                    answer = await (function() if waits else in_thread(function))
                    return await answer if is_pending(answer) else answer


@asynccontextmanager
async def time_limit(seconds: float | None, what: str, task: Task) -> AsyncIterator[None]:
    """Raises `EpisodeError`: it took longer. A `TimeoutError` of the environment's own passes."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise EpisodeError(
            f"{what} of task {task.id!r} took longer than {seconds:g} s; raise the environment's "
            "timeout (`timeout:` in its section, or `step_timeout`) if it needs more"
        ) from error


def join(runner: EpisodeRunner, role: str, name: str) -> Agent:
    """A further agent of an episode: an instance of a role, with a rollout of its own and the
    policy of the role."""
    first = runner.agents[role]
    agent = replace(first, settings=replace(first.settings, name=name))
    runner.agents[name] = agent
    runner.environment.agents = (*runner.environment.agents, name)
    runner._agent_of[name] = name
    runner.episode.policies[name] = agent.settings.policy
    return agent


def close_agents(runner: EpisodeRunner) -> None:
    """Record what the agents of an episode read after their last turns."""
    try:
        for agent in runner.agents.values():
            agent.close()
    except EpisodeError as error:
        runner.fail(error)


def _fork_id(runner: EpisodeRunner, branch: int) -> str:
    """The id of the episode of a branch: the joint step, and where the episode has already forked
    in that step, the number of those forks, so that no two branches have the same id."""
    step = runner.num_steps
    earlier = runner._forked.count(step)
    return f"{runner.episode.id}/{step}.{f'{earlier}.' if earlier else ''}{branch}"


def _followed(runner: EpisodeRunner, path: tuple[int, ...], stem: tuple[int, ...]) -> EpisodeRunner:
    """A runner as the branch after `stem` that `path` has: with the id and the keys of the copy
    that it was in the run."""
    depth, episode = len(stem), runner.episode
    branch = path[depth] if depth < len(path) else 0
    episode.path = (*stem, branch)
    if not branch:
        runner._forked.append(runner.num_steps)
    else:
        episode.id, runner._forked = _fork_id(runner, branch), []
        for agent in runner.agents.values():
            agent.key = agent.fork_key(depth, branch)
    return runner


def _lost(runner: EpisodeRunner) -> list[tuple[str, Turn]]:
    """The turns that would have been trained on in an episode, and are not: (agent, turn)."""
    episode = runner.episode
    if episode.failed:
        parts = episode.rollouts.items()
        return [(agent, turn) for agent, part in parts for turn in part.turns if turn.trained]
    missing = {name for name in episode.missing if runner.agents[name].settings.trained}
    return [(turn.agent, turn) for turn in episode.own_turns if turn.agent in missing]
