"""The placement of a run's parts in this process. `build/run.py` requests policies, engines,
learners and critics from a placement and does not depend on where they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrlm.build.engines import make_engines
from mrlm.build.learners import make_critics, make_learners
from mrlm.build.policies import PlayPlan, load_policies
from mrlm.distributed.learning_job import LearningJob
from mrlm.learn.frozen import Frozen
from mrlm.play.engine import Engine
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.training.run import Placement, Run

TINY = 5_000_000
"""Parameters below which one thread is faster than several."""


class InProcess(Placement):
    """A placement with everything in this process."""

    def __init__(self, plan: PlayPlan) -> None:
        self.plan: PlayPlan = plan

    def load_policies(self) -> dict[str, Any]:
        return load_policies(self.plan)

    def make_engines(self, policies: Mapping[str, Any]) -> dict[str, Engine]:
        return make_engines(self.plan, policies)

    def make_learners(self, job: LearningJob, policies: Mapping[str, Any]) -> list[Any]:
        return make_learners(self.plan, policies, job)

    def frozen(self, policies: Mapping[str, Any], given: Mapping[str, Any]) -> list[Any]:
        """The policies that are not trained; `given` is what engines sample from."""
        return [
            Frozen(policy, given=given[name])
            for name, policy in policies.items()
            if not self.plan.assignment.policies[name].trainable
        ]

    def make_critics(
        self, job: LearningJob, learners: Sequence[Any], policies: Mapping[str, Any]
    ) -> list[Any]:
        return make_critics(self.plan, learners, policies, job)

    def environments(self, environments: Sequence[EnvironmentSpec]) -> list[EnvironmentSpec]:
        return list(environments)

    def ready(self, run: Run, checkpoint: Path | None) -> None:
        """Hook after a run is put together and its checkpoint, if any, is loaded."""
