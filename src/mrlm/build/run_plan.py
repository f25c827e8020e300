"""The parts of a run that are known before a model is loaded."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mrlm.build.environments import make_environments
from mrlm.build.policies import LiveObjects, PlayPlan, assign
from mrlm.build.precision import with_precision
from mrlm.build.recorded import refuse_program
from mrlm.build.schedule import schedule_of
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.data.tasks import Reading
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.spec import Spec
from mrlm.learn.schedule import Schedule
from mrlm.play.sources.task_sampler import EnvironmentSpec, count_tasks

Data = list[dict[str, Any]] | Reading
"""The rows of a run, or a reader of them during the run."""


@dataclass(kw_only=True)
class RunPlan(PlayPlan):
    """The parts of a run, each computed once; `rows` is the data set that is trained on, `None`
    where episodes are played."""

    algorithm: Algorithm
    rows: Data | None

    @cached_property
    def spec(self) -> Spec:
        return self.algorithm.spec

    @cached_property
    def schedule(self) -> Schedule:
        """The policies trained in each iteration, and the roles they have."""
        return schedule_of(self.config, self.algorithm, self.assignment)

    @property
    def trained_environments(self) -> list[EnvironmentSpec]:
        """The environments that are trained on, not only evaluated."""
        return [env for env in self.environments if env.trained]

    @property
    def imitates(self) -> bool:
        """Whether it trains on rows or on collected episodes."""
        return self.rows is not None or self.spec.sampling.collection is not None

    @property
    def num_tasks(self) -> int | None:
        """Tasks in one epoch; `None` where they never end or are not counted."""
        if self.rows is None:
            return count_tasks(self.environments)
        return None if isinstance(self.rows, Reading) else len(self.rows)


def play_plan(config: ExperimentConfig) -> PlayPlan:
    """The plan for playing an experiment. Raises `ConfigError`: the config has no environment, or
    its policies cannot be assigned."""
    refuse_program(config)
    config = with_precision(config)
    parts = LiveObjects()
    environments = make_environments(config, parts)
    if not environments:
        raise ConfigError("the config has no environment to play in; set environments:")
    assignment = assign(config, environments, parts)
    return PlayPlan(config=config, parts=parts, environments=environments, assignment=assignment)
