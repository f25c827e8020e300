"""The source `Play`: samples groups of episodes from agents in environments. Handles deadlines,
retries and failed episodes; independent of learning."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any

from mrlm.core.environment import Environment
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ENDS_RUN, ConfigError, EpisodeError
from mrlm.core.log import log
from mrlm.core.process_group import ALONE, Peers, shares
from mrlm.core.progress import advance, counting
from mrlm.core.sync_async import as_failure, in_thread, is_interrupt
from mrlm.core.timing import span
from mrlm.core.types import Message, StepResult, Task
from mrlm.play.agent import Agent, Agents, AgentSettings, Ask, TextAgent
from mrlm.play.board_recorder import BoardRecorder
from mrlm.play.engine import Batcher, Engine, ExternalCalls, Key
from mrlm.play.episode_runner import EpisodeRunner, close_agents, time_limit
from mrlm.play.failure_log import Failures
from mrlm.play.sources.answer_log import AnswerLog
from mrlm.play.sources.oversampling import OversampledTask
from mrlm.play.sources.source import EpisodeSource
from mrlm.play.sources.task_sampler import EnvironmentSpec, PlannedTask, TaskSampler, count_tasks
from mrlm.play.workflow import silent

EXPERT = "expert"
AssignOpponents = Callable[
    [EnvironmentSpec, int, Mapping[str, AgentSettings]], Mapping[str, AgentSettings]
]
"""(environment, task number, default agents) -> the agents that play this task."""


@dataclass(eq=False, repr=False)
class Play(EpisodeSource):
    """Samples groups of episodes: the same task and seed, `group_size` times, concurrently.

    Args:
        environments: the environments, in turn by weight.
        settings_of: settings by agent name.
        engines: policy -> its engine.
        group_size: episodes of each task.
        seed: of the run; all random numbers are derived from it and the episode's place.
        engine_timeout: seconds one engine call may take.
        demonstrate: the environments' own experts act instead of the policies.
        watched: record the environments' states before every joint step.
        greedy: play each training task once more, greedily; that episode is not trained on.
        persons: human players by agent, as the function that prompts each.
        on_step: called with the runner after every joint step.
        on_reset: called with the runner after the reset.
        boards: record the environments' boards.
        most_boards: of so many of the groups of a `take`, the first ones (`None`: of all).
        assign_opponents: chooses the agents of a training task, where these vary.
        peers: the processes that share the tasks; all of them get all groups.
        surplus: episodes of each training task that are started beyond `group_size`: the first to
            complete are kept, the others aborted.
        follow: play one path of each tree, as in `EpisodeRunner`.
    """

    environments: Sequence[EnvironmentSpec]
    settings_of: Mapping[str, AgentSettings]
    engines: InitVar[Mapping[str, Engine]]
    group_size: int
    seed: InitVar[int]
    engine_timeout: InitVar[float] = 600.0
    demonstrate: bool = False
    watched: bool = False
    greedy: bool = False
    persons: Mapping[str, Ask] = field(default_factory=dict)
    on_step: Callable[[EpisodeRunner], None] | None = None
    on_reset: Callable[[EpisodeRunner], None] | None = None
    boards: bool = False
    most_boards: int | None = None
    assign_opponents: AssignOpponents | None = None
    peers: Peers = ALONE
    surplus: int = 0
    follow: tuple[int, ...] | None = None
    pulse: ExternalCalls = field(default_factory=ExternalCalls, init=False)
    answer_log: AnswerLog = field(default_factory=AnswerLog, init=False)
    failures: Failures = field(default_factory=Failures, init=False)
    recorder: BoardRecorder = field(default_factory=BoardRecorder, init=False)

    def __post_init__(
        self, engines: Mapping[str, Engine], seed: int, engine_timeout: float
    ) -> None:
        self.task_sampler: TaskSampler = TaskSampler(self.environments, seed)
        self.batcher: Batcher = Batcher(engines, engine_timeout, self.pulse)
        self._length: dict[str, float] = {}
        self._warned: set[str] = set()
        self._races: list[OversampledTask] = []
        if self.surplus:
            self.batcher.answers, self.batcher.gate = self.answer_log, self._judged
        for env in self.environments:
            if not env.template.seeded:
                log.warning(
                    "environment %r: its reset takes neither seed nor task, so episodes cannot be "
                    "reproduced; the episodes of a group are copies of one reset",
                    env.name,
                )

    def num_tasks(self) -> int | None:
        return count_tasks(self.environments)

    def assign(self, settings_of: Mapping[str, AgentSettings]) -> None:
        self.settings_of = settings_of

    async def take(self, count: int) -> list[Group]:
        """Samples the groups of the next `count` tasks."""
        most = count if self.most_boards is None else self.most_boards
        jobs = [replace(self._next(), boards=number < most) for number in range(count)]
        groups = await self._play(jobs)
        for job in jobs:
            self.answer_log.forget(self.task_sampler.key(job))
        return groups

    def begin(self) -> tuple[Key, Coroutine[Any, Any, Group]]:
        """The next task: the prefix of its requests' keys, and the coroutine that plays it."""
        job = self._next()
        return self.task_sampler.key(job), self._group(job)

    def _next(self) -> PlannedTask:
        """The next task, for any process."""
        env, index = self.task_sampler.draw()
        settings_of = self.settings_of
        if self.assign_opponents is not None:
            settings_of = self.assign_opponents(env, index, settings_of)
        lineups = [settings_of] * (self.group_size + self.surplus)
        keep = self.group_size if self.surplus else None
        return PlannedTask(env, "train", index, lineups, keep=keep)

    async def evaluate(self, episodes: int, samples: int = 1, greedy: bool = True) -> list[Group]:
        """Plays held-out tasks, always the same ones: about `episodes` of them over all
        environments, each `samples` times."""
        settings_of = _greedy(self.settings_of) if greedy else self.settings_of
        jobs = []
        for number, env in enumerate(self.environments):
            share = (episodes + len(self.environments) - 1 - number) // len(self.environments)
            available = env.template.num_tasks("eval")
            if available is not None and share > available:
                if available and env.name not in self._warned:
                    log.warning(
                        "evaluation: %d episodes of environment %r are requested, and it has %d "
                        "held-out tasks; each is played once",
                        *(share, env.name, available),
                    )
                self._warned.add(env.name)
                share = available
            jobs += [PlannedTask(env, "eval", k, [settings_of] * samples) for k in range(share)]
        if not jobs:
            raise ConfigError(
                "no environment has a held-out task to evaluate on; add a validation split to one"
            )
        return await self._play(jobs)

    async def play_task(self, job: PlannedTask) -> Episode:
        """The episode of a planned task; an `AllFailedError` if it fails."""
        return (await self._play([job]))[0].episodes[0]

    async def matches(
        self,
        env: EnvironmentSpec,
        lineups: Sequence[Mapping[str, AgentSettings]],
        tasks: int,
        greedy: bool,
    ) -> list[Group]:
        """Plays held-out tasks of an environment, always the same ones, each with every one of
        `lineups`: the episodes of a group differ in the policies of their agents."""
        if greedy:
            lineups = list(map(_greedy, lineups))
        available = env.template.num_tasks("eval")
        count = tasks if available is None else min(tasks, available)
        jobs = [PlannedTask(env, "eval", index, lineups) for index in range(count)]
        return await self._play(jobs)

    def state_dict(self) -> dict[str, Any]:
        return {"taken": dict(self.task_sampler.taken), "tokens": self.batcher.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.task_sampler.taken |= state["taken"]
        self.batcher.tokens = state["tokens"]

    # -- all groups --------------------------------------------------------------------------------

    async def _play(self, jobs: Sequence[PlannedTask]) -> list[Group]:
        """The groups of all jobs. Each process plays a share of about equal length, estimated from
        past episodes of the same environments; with fewer tasks than processes, parts of one."""
        peers = self.peers
        if peers.size > 1:
            num_parts = -(-peers.size // max(1, len(jobs)))
            jobs = [part for job in jobs for part in job.parts(num_parts)]
        loads = [self._length.get(job.env.name, 1.0) * len(job.numbers) for job in jobs]
        places = shares(loads, peers.size)
        mine = [jobs[index] for index in places[peers.rank]]
        episodes = sum(len(job.numbers) for job in mine)
        with counting("evaluation" if jobs and jobs[0].split == "eval" else "episodes", episodes):
            played = await asyncio.gather(*(self._group(job) for job in mine))
        if peers.size == 1:
            return self.failures.checked(played)
        group_of: dict[int, Group] = {}
        for chosen, groups in zip(places, await peers.exchange(played), strict=True):
            group_of |= zip(chosen, groups, strict=True)
        whole: list[Group] = []
        for index, job in enumerate(jobs):
            self._note(job.env, group_of[index])
            if job.first:
                whole.append(group_of[index])
            else:
                task = whole[-1].episodes[0].task
                for episode in group_of[index]:
                    episode.task = task
                together = [*whole[-1].episodes, *group_of[index].episodes]
                whole[-1].episodes = sorted(together, key=lambda episode: episode.path)
        return self.failures.checked(whole)

    def _note(self, env: EnvironmentSpec, group: Group) -> None:
        """Updates the mean number of tokens of an environment's episodes."""
        mean = sum(len(turn) for episode in group for turn in episode.turns) / max(1, len(group))
        self._length[env.name] = 0.9 * self._length.get(env.name, mean) + 0.1 * mean

    # -- one group, one episode --------------------------------------------------------------------

    async def _group(self, job: PlannedTask) -> Group:
        """The episodes of a task, one for each of its numbers, or the first of them to complete
        where not all are kept."""
        env, lineups, task = job.env, job.lineups, self.task_sampler.task(job)
        key = self.task_sampler.key(job)
        opening = None if env.template.seeded else await _opened(env, task)
        size = len(lineups)
        first_of, siblings = (job.numbers[:1], size) if job.forks else (job.numbers, 1)
        play = partial(self._episode, env, task, opening, boards=job.boards)
        jobs: list[Coroutine[Any, Any, list[Episode]]] = [
            self._tried(env.retries, partial(play, (*key, g), lineups[g], siblings))
            for g in first_of
        ]
        if job.keep is not None:
            jobs = [self._first(jobs, job.keep, key)]
        if self.greedy and job.split == "train" and job.first:
            greedy_settings = _greedy(lineups[0]).items()
            calm = {name: replace(settings, trained=False) for name, settings in greedy_settings}
            jobs.append(self._tried(env.retries, partial(play, (*key, size), calm), greedy=True))
        played = await asyncio.gather(*jobs)
        if opening is not None:
            opening[0].close()
        episodes = [episode for family in played for episode in family]
        return Group(sorted(episodes, key=lambda episode: episode.path), task.id)

    async def _first(
        self, jobs: Sequence[Coroutine[Any, Any, list[Episode]]], keep: int, key: Key
    ) -> list[Episode]:
        """The first rollouts of a task to complete."""
        plays = [asyncio.create_task(job) for job in jobs]
        race = OversampledTask(
            plays, keep, lambda number: self.answer_log.rounds.get((*key, number), 0)
        )
        self._races.append(race)
        try:
            families = await race.won
        finally:
            race.stop()
            self._races.remove(race)
        return [episode for family in families for episode in family]

    def judge(self) -> bool:
        """Aborts rollouts that are not needed; returns whether any was. Called when all running
        episodes wait for the engine."""
        decided = [race.judge() for race in self._races]
        return any(decided)

    async def _judged(self) -> None:
        await self.batcher.settled()
        self.judge()

    async def _tried(
        self, retries: int, play: Callable[[], Awaitable[list[Episode]]], greedy: bool = False
    ) -> list[Episode]:
        """An episode, with those that a workflow forked from it; tried again where all failed."""
        family = await play()
        for attempt in range(retries):
            if not all(episode.failed for episode in family):
                break
            log.info("episode %s: attempt %d", family[0].id, attempt + 2)
            family = await play()
        for episode in family:
            episode.greedy = greedy
        advance(len(family))
        return family

    async def _episode(
        self,
        env: EnvironmentSpec,
        task: Task,
        opening: tuple[Environment, StepResult] | None,
        key: Key,
        settings_of: Mapping[str, AgentSettings],
        siblings: int = 1,
        *,
        boards: bool = True,
    ) -> list[Episode]:
        episode = Episode(
            "/".join(map(str, key[1:])),
            task,
            environment=env.name,
            path=(int(key[-1]),),
            policies={name: settings.policy for name, settings in settings_of.items()},
        )
        environment, first = copy.deepcopy(opening) if opening else (env.make(), None)
        agents = Agents()
        for name, settings in settings_of.items():
            agents[name] = self._agent(settings, episode, environment, key)
        runner = EpisodeRunner(
            environment,
            episode,
            agents,
            env.timeout,
            self.pulse,
            first,
            self.watched,
            forking=key[1] == "train",
            siblings=siblings,
            on_step=self.on_step,
            follow=self.follow,
            on_reset=self.on_reset,
            boards=self.recorder if self.boards and boards else None,
        )
        try:
            await env.workflow(task, agents, runner)
            for branch in runner.family:
                if branch.episode.status == "running":
                    branch.end(truncated=not branch.result.done)
                if branch.failure is None and not branch.episode.turns:
                    branch.fail(silent(env.workflow, branch))
        except ENDS_RUN:
            raise
        except BaseException as error:  # any error of an environment or workflow is data
            if is_interrupt(error):
                raise
            for branch in runner.family:
                branch.fail(as_failure(error))
        finally:
            for branch in runner.family:
                branch.environment.close()
        for branch in runner.family:
            close_agents(branch)
            if branch.failure is not None:
                self.failures.note(branch.episode, branch.failure)
        return [branch.episode for branch in runner.family]

    def _agent(
        self, settings: AgentSettings, episode: Episode, environment: Environment, key: Key
    ) -> Agent:
        if ask := self.persons.get(settings.name):
            own = settings
            return TextAgent(own, episode, None, key, lambda _, seen: ask(own.name, own.view(seen)))
        if self.demonstrate or settings.sampler == EXPERT:
            return TextAgent(settings, episode, None, key, partial(_expert, environment, episode))
        if own := environment.stops.get(settings.name):
            stops = tuple(dict.fromkeys((*settings.sampling.stop, *own)))
            settings = replace(settings, sampling=replace(settings.sampling, stop=stops))
        return Agent(settings, episode, self.batcher, key)


def _greedy(settings_of: Mapping[str, AgentSettings]) -> Mapping[str, AgentSettings]:
    return {name: settings.greedy() for name, settings in settings_of.items()}


def _expert(
    environment: Environment, episode: Episode, agent: Agent, seen: Sequence[Message]
) -> str:
    """The message of the environment's expert."""
    text = environment.expert(agent.place, list(seen))
    if text is None:
        raise EpisodeError(
            f"environment {episode.environment!r} has no expert for agent {agent.name!r}, "
            "so nothing can be demonstrated"
        )
    return text


async def _opened(env: EnvironmentSpec, task: Task) -> tuple[Environment, StepResult]:
    """An environment that was reset once for all siblings, which play copies of it."""
    environment = env.make()

    async def first() -> StepResult:
        result = await in_thread(lambda: environment.reset(task, task.seed))
        return result if isinstance(result, StepResult) else await result

    with span("environment", env.name):
        async with time_limit(env.timeout, f"environment {env.name!r}: reset", task):
            return environment, await first()
