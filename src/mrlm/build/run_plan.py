"""The parts of a run that are known before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mrlm.build.policies import LiveObjects, PolicyAssignment
from mrlm.build.schedule import schedule_of
from mrlm.config import ExperimentConfig
from mrlm.data.tasks import Reading
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.spec import Spec
from mrlm.learn.schedule import Schedule
from mrlm.play.sources.task_sampler import EnvironmentSpec, count_tasks

Data = list[dict[str, Any]] | Reading
"""The rows of a run, or a reader of them during the run."""


@dataclass
class RunPlan:
    """The parts of a run, each computed once.

    Args:
        config: one stage of an experiment.
        parts: live objects in place of sections of the config.
        algorithm: credit and loss.
        worlds: the environments.
        rows: the data set that is trained on instead; `None` where episodes are played.
        cast: the policy of every agent.
    """

    config: ExperimentConfig
    parts: LiveObjects
    algorithm: Algorithm
    worlds: Sequence[EnvironmentSpec]
    rows: Data | None
    cast: PolicyAssignment

    @cached_property
    def spec(self) -> Spec:
        """Requirements of the algorithm."""
        return self.algorithm.spec

    @cached_property
    def schedule(self) -> Schedule:
        """The policies trained in each iteration, and the roles they have."""
        return schedule_of(self.config, self.algorithm, self.cast)

    @property
    def trained_worlds(self) -> list[EnvironmentSpec]:
        """The environments that are trained on, not only evaluated."""
        return [world for world in self.worlds if world.trained]

    @property
    def imitates(self) -> bool:
        """Whether it trains on rows or on collected episodes."""
        return self.rows is not None or self.spec.sampling.collection is not None

    @property
    def num_tasks(self) -> int | None:
        """Tasks in one epoch; `None` where they never end or are not counted."""
        if self.rows is None:
            return count_tasks(self.worlds)
        return None if isinstance(self.rows, Reading) else len(self.rows)
