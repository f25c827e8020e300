"""A run on a Ray cluster: which policies share a worker, where workers are placed, and how a run
recovers from a lost one. The cluster and the workers' code are in `distributed/on_ray`."""

import asyncio
import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mrlm.build.engines import make_engines
from mrlm.build.in_process import InProcess
from mrlm.build.policies import PlayPlan, bases_of
from mrlm.build.ray_workers import Base, PolicyWorkerSpec
from mrlm.config import ExperimentConfig
from mrlm.config.ray_section import RayConfig, RayPolicyConfig
from mrlm.core import registry
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError, WorkerLost
from mrlm.core.log import log
from mrlm.core.timing import count
from mrlm.distributed.learning_job import LearningJob
from mrlm.distributed.on_ray.actor_calls import WorkerSlot, begin
from mrlm.distributed.on_ray.cluster import ActorPool, connect, reserve, shares
from mrlm.distributed.on_ray.collective_calls import WorkerGroup
from mrlm.distributed.on_ray.engine import EngineGroup, RayEngine
from mrlm.distributed.on_ray.environments import EnvironmentPool, EnvironmentWorker
from mrlm.distributed.on_ray.proxies import RemoteCritic, RemoteFrozen, RemoteLearner, RemotePolicy
from mrlm.distributed.on_ray.weight_transfer import boxed
from mrlm.distributed.on_ray.workers import RayWorker
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.checkpoint import checkpoints, newest_verified, read_state
from mrlm.learn.data.batch import Sample
from mrlm.learn.learner import Learner
from mrlm.learn.meter import Measured
from mrlm.play.engine import Engine
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.training.run import Run
from mrlm.training.saving import restore

KEY = "distributed.ray"


class OnRay(InProcess):
    """A placement of policies, and of environments where configured, in workers of a Ray cluster.
    The critic of a team, credit and the loop itself stay in this process."""

    local = False

    def __init__(self, plan: PlayPlan) -> None:
        super().__init__(plan)
        self.config: ExperimentConfig = plan.config
        self.settings: RayConfig = plan.config.distributed.ray
        self.bases: list[Base] = [self._base(names) for names in bases_of(plan)]
        self._check()
        self.pools: list[ActorPool] = []
        self.environments_at: EnvironmentPool | None = None
        self._job: LearningJob | None = None
        self._start: dict[str, Any] = {}
        self._origin: Path | None = None
        connect(self.settings)
        self._place()

    # -- placement ---------------------------------------------------------------------------------

    def _base(self, names: list[str]) -> Base:
        pool_settings = self.settings.policies
        sections = [pool_settings[name] for name in names if name in pool_settings]
        if any(section != sections[0] for section in sections):
            raise ConfigError(
                f"{KEY}.policies: {', '.join(names)} are adapters of one base, which is placed "
                "once; give them the same pools"
            )
        assignment = self.plan.assignment
        agents = [agent for agent, name in assignment.policy_of.items() if name in names]
        recipe = PolicyWorkerSpec(self.plan.only(agents, names))
        trained = any(assignment.policies[name].trainable for name in names)
        return Base(names, recipe, sections[0] if sections else RayPolicyConfig(), trained)

    def _check(self) -> None:
        """Refuses what cannot be placed on a cluster."""
        policy_names = [name for base in self.bases for name in base.names]
        for name in self.settings.policies:
            if name not in policy_names:
                raise ConfigError(registry.unknown(name, policy_names, f"{KEY}.policies"))
        if self.config.training.max_lag or self.config.asynchrony.oversample > 1:
            key = "training.max_lag" if self.config.training.max_lag else "asynchrony.oversample"
            raise ConfigError(
                f"{key}: asynchronous rollouts and aborted episodes need engines in the process "
                "of the loop; remove it, or set distributed.enabled=false"
            )
        if self.config.opponents.on:
            raise ConfigError(
                "opponents: past versions of policies are played only in runs of one process; set "
                "distributed.enabled=false, or remove the section opponents"
            )

    def _place(self) -> None:
        """Reserves pools and starts the workers, which then build their parts."""
        settings = self.settings
        pools = {n: ActorPool(f"{KEY}.pools.{n}", title) for n, title in settings.pools.items()}
        alone: list[tuple[ActorPool, bool]] = []

        def post(name: str, kind: type, arguments: tuple[Any, ...], pool: str | None) -> WorkerSlot:
            if pool is None:
                alone.append((ActorPool(name, {}), kind is RayWorker))
            chosen = alone[-1][0] if pool is None else pools[pool]
            chosen.members += 1
            return WorkerSlot(name, kind, arguments, chosen, settings.max_restarts)

        for base in self.bases:
            where = base.section
            worker_arguments = (list(sys.path), boxed(base.recipe, f"policies.{base.names[0]}"))
            together = settings.colocated and base.trained
            if base.trained:
                title = f"the learner of {base.title}"
                base.home = post(title, RayWorker, worker_arguments, where.learner)
                names = [f"{title} ({i} of {where.learners})" for i in range(2, where.learners + 1)]
                others = [post(name, RayWorker, worker_arguments, where.learner) for name in names]
                if others:
                    base.home = WorkerGroup(base.home, others, self.config.distributed.timeout)
            pool = where.learner if settings.colocated else where.engine
            for number in range(0 if together else where.engines):
                title = f"the engine {number + 1} of {base.title}"
                base.engines.append(post(title, RayWorker, worker_arguments, pool))
                base.engines[-1].taught = _as_at_first
            base.engines = [base.home] if together else base.engines
            base.home = base.home if base.trained else base.engines[0]
        names = [f"the environment worker {i + 1}" for i in range(settings.environment_workers)]
        spread = [post(name, EnvironmentWorker, (), settings.environment_pool) for name in names]
        self.environments_at = EnvironmentPool(spread) if spread else None
        holding = sum(weights for _, weights in alone)
        mine, theirs = shares(holding, len(alone) - holding, list(pools.values()))
        for pool, weights in alone:
            pool.resources = mine if weights else theirs
        self.posts: list[WorkerSlot] = [post for base in self.bases for post in base.posts] + spread
        self.pools = [*pools.values(), *(pool for pool, _ in alone)]
        for base in self.bases:
            base.check_whole()
        self._release = weakref.finalize(self, _release, self.posts, self.pools)
        try:
            reserve(self.pools, settings.placement_timeout)
            begin(self._holding)
        except BaseException:
            self.close()
            raise

    @property
    def _holding(self) -> list[WorkerSlot]:
        return [post for base in self.bases for post in base.posts]

    # -- the parts of the workers ------------------------------------------------------------------

    def load_policies(self) -> dict[str, Any]:
        calls = [
            (base, member, member.send("begin", member in base.engines))
            for base in self.bases
            for post in base.posts
            for member in post.members
        ]
        for base, post, answer in calls:
            base.about = post.collect(answer)
        kwargs = self.config.model.chat_template_kwargs
        remote: dict[str, RemotePolicy] = {}
        for base in self.bases:
            for name, about in base.about.items():
                remote[name] = RemotePolicy(name, about, Chat(about.tokenizer, kwargs), base.home)
        return {name: remote[name] for name in self.plan.assignment.policies if name in remote}

    def make_engines(self, policies: Mapping[str, Any]) -> dict[str, Engine]:
        """policy -> the group of workers that samples for it; APIs are called from here."""
        engines = make_engines(self.plan, {})
        groups: dict[str, EngineGroup] = {}
        timeout = self.config.engine.timeout
        for base in self.bases:
            trains = base.trained and base.home in base.engines
            groups |= dict.fromkeys(base.names, EngineGroup(base.engines, trains, timeout))
        first = self.bases[0].about[self.bases[0].names[0]]
        context = min(policy.max_context for base in self.bases for policy in base.about.values())
        engine = RayEngine(groups, first.tokenizer, context)
        return engines | dict.fromkeys(groups, engine)

    def make_learners(self, job: LearningJob, policies: Mapping[str, Any]) -> list[Any]:
        """Learners in workers; those of one base share one."""
        self._job = replace(job, folder=job.folder.absolute())
        critics = self._learn(self._job)
        home = {name: base.home for base in self.bases for name in base.names}
        return [
            RemoteLearner(
                policies[name],
                job.algorithm,
                home[name],
                RemoteCritic(name, home[name]) if name in critics else None,
            )
            for name, section in self.plan.assignment.policies.items()
            if section.trainable
        ]

    def frozen(self, policies: Mapping[str, Any], given: Mapping[str, Any]) -> list[Any]:
        """The policies that are not trained, in their workers."""
        return [
            RemoteFrozen(policies[name], base.home)
            for base in self.bases
            for name in base.names
            if not self.plan.assignment.policies[name].trainable
        ]

    def _learn(self, job: LearningJob) -> set[str]:
        """Builds the learners in the workers; returns the policies with a critic beside them."""
        homes = [base.home for base in self.bases if base.trained]
        calls = [(post, post.send("learn", job)) for post in homes]
        return {name for post, answer in calls for name in post.collect(answer)}

    def make_critics(
        self, job: LearningJob, learners: Sequence[Any], policies: Mapping[str, Any]
    ) -> list[Any]:
        """Critics beside policies are in the workers of these; the team's is here, with a network
        of its own."""
        of_team = job.algorithm.spec.critic.of_team
        if of_team and self.config.training.critic_model is None:
            name = learners[0].policy  # its weights initialise the critic
            lent = next(base for base in self.bases if name in base.names).recipe.load()[name]
            learners = [SimpleNamespace(weights_of=lent)]
        return super().make_critics(job, learners, policies)

    def environments(self, environments: Sequence[EnvironmentSpec]) -> list[EnvironmentSpec]:
        """Environments whose episodes run in workers, if any are set for them."""
        pool = self.environments_at
        if pool is None:
            return list(environments)
        boxes = {spec.name: boxed(spec.make, f"environment {spec.name!r}") for spec in environments}
        for post in pool.posts:
            post.arguments = (list(sys.path), boxes)
        begin(pool.posts)
        return [pool.spread(env) for env in environments]

    # -- the loop ----------------------------------------------------------------------------------

    async def update(
        self, jobs: Sequence[tuple[Any, Sequence[Sample], int]], algorithm: Algorithm, step: int
    ) -> list[Measured]:
        """Updates the learners of one base together, and different bases concurrently."""
        places: dict[WorkerSlot, list[int]] = {}
        for job_index, (learner, _, _) in enumerate(jobs):
            places.setdefault(learner.post, []).append(job_index)
        metrics_of: dict[int, Measured] = {}

        async def at(post: WorkerSlot, chosen: list[int]) -> None:
            work = [
                (learner.policy, samples, seed, learner.settings.rate_factor)
                for learner, samples, seed in (jobs[index] for index in chosen)
            ]
            answers = await post.ask_all("update", work, algorithm, step)
            metrics, states, _ = answers[0]
            for index, numbers, state in zip(chosen, metrics, states, strict=True):
                metrics_of[index], learner = numbers, jobs[index][0]
                learner.version, learner.nonfinite = state
            for what, whose, number in (count_row for answer in answers for count_row in answer[2]):
                count(what, whose, number)

        await asyncio.gather(*(at(post, chosen) for post, chosen in places.items()))
        return [metrics_of[job_index] for job_index in range(len(jobs))]

    def problems(
        self,
        find: Callable[[Learner, Sequence[Sample]], Iterable[str]],
        learner: Any,
        samples: Sequence[Sample],
    ) -> list[str]:
        """The result of `find`, called in the worker of the learner."""
        return learner.post.ask_now("problems", find, learner.policy, list(samples))

    # -- recovery ----------------------------------------------------------------------------------

    def ready(self, run: Run, checkpoint: Path | None) -> None:
        """Stores the state in which the run begins."""
        self._origin = checkpoint
        states = {"source": run.source.state_dict(), "algorithm": run.algorithm.state_dict()}
        self._start = copy.deepcopy(states)

    def recover(self, run: Run, lost: WorkerLost) -> None:
        """Replaces lost workers and restores the last checkpoint, or the beginning if none is
        written yet."""
        for post in self._holding:
            if not post.alive:
                post.restart()
        policies = self.load_policies()
        assert self._job is not None
        self._learn(self._job)
        for learner in run.learners:
            learner.version = learner.nonfinite = 0
        if run.spec.critic.of_team:
            run.critics = self.make_critics(self._job, run.learners, policies)
        for engine in run.engines.values():
            if isinstance(engine, RayEngine):
                engine.forget()
        checkpoint = newest_verified(run.folder) if checkpoints(run.folder) else self._origin
        if checkpoint is not None:
            restore(run, checkpoint)
            run.log.back(run.step, read_state(checkpoint)["parts"]["log"])
        else:
            run.log.back(-1, {})
            run.step = run.tokens = 0
            run.ease(0)
            run.source.load_state_dict(copy.deepcopy(self._start["source"]))
            run.algorithm.load_state_dict(copy.deepcopy(self._start["algorithm"]))
        log.info("the run continues from %s", checkpoint or "its beginning")

    def close(self) -> None:
        """Ends the workers and frees their resources; the cluster stays."""
        self._release()


def _as_at_first(post: WorkerSlot) -> None:
    """Gives the engine of a replacement worker the weights of the run's start."""
    post.ask_now("begin", True)


def _release(posts: Sequence[WorkerSlot], pools: Sequence[ActorPool]) -> None:
    for post in posts:
        post.stop()
    for pool in pools:
        pool.release()
