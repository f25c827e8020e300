"""Specs of Ray workers: the policies of one base, how they are built there, and which workers train
and sample from them."""

from dataclasses import dataclass, field, replace

import torch

from mrlm.build.engines import make_engines
from mrlm.build.in_process import TINY
from mrlm.build.learners import make_learners
from mrlm.build.policies import PlayPlan, load_policies
from mrlm.config.ray_section import RayPolicyConfig
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import Peers
from mrlm.distributed.learning_job import LearningJob
from mrlm.distributed.on_ray.actor_calls import WorkerSlot
from mrlm.distributed.on_ray.workers import About
from mrlm.learn.learner import Learner
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Engine


@dataclass(slots=True)
class PolicyWorkerSpec:
    """A spec for building the policies of one base, their learners and their engine in a worker, by
    the plan of a run with these policies and their agents alone."""

    plan: PlayPlan

    def load(self) -> dict[str, Policy]:
        """The policies as they are at the start of the run."""
        return load_policies(self.plan)

    def policies(self) -> dict[str, Policy]:
        """The same, in a process of its own."""
        loaded = self.load()
        threads = self.plan.config.training.threads
        if threads is None and max(policy.size for policy in loaded.values()) < TINY:
            threads = 1
        if threads is not None:  # else as many as the worker has processors
            torch.set_num_threads(threads)
        return loaded

    def engine(self, policies: dict[str, Policy]) -> Engine:
        return next(iter(make_engines(self.plan, policies).values()))

    def learners(
        self, policies: dict[str, Policy], job: LearningJob, peers: Peers
    ) -> list[Learner]:
        return make_learners(replace(self.plan, peers=peers), policies, job)


@dataclass(slots=True)
class Base:
    """Policies of one base, the spec that builds them, their placement, and the workers that hold
    them: those that train (`home`; where they are frozen, the first that samples) and those that
    sample (`engines`). `about` has the description of each policy from its worker."""

    names: list[str]
    recipe: PolicyWorkerSpec
    section: RayPolicyConfig
    trained: bool
    home: WorkerSlot = field(init=False)
    engines: list[WorkerSlot] = field(default_factory=list)
    about: dict[str, About] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """A name for messages."""
        return " and ".join(map(repr, self.names))

    @property
    def posts(self) -> list[WorkerSlot]:
        return list(dict.fromkeys([self.home, *self.engines]))

    def check_whole(self) -> None:
        """Checks that workers that train together have whole accelerators. Raises `ConfigError`:
        they have fractions of one."""
        count, share = len(self.home.members), self.home.pool.share_of("GPU")
        if count > 1 and 0 < share < 1:
            raise ConfigError(
                f"distributed.ray.policies: {count} workers train {self.title}, with {share:g} GPU "
                "each; give each a whole one (pools), or set learners=1"
            )
