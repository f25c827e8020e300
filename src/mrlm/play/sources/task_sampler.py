"""The environments of a run, and a sampler of their tasks: by weight, shuffled in every epoch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.play.agent import AgentSettings, seed_of, shuffled
from mrlm.play.engine import Key
from mrlm.play.workflow import Workflow


@dataclass(slots=True)
class EnvironmentSpec:
    """One of the environments of a run.

    Args:
        name: in metrics and episodes.
        template: an instance for everything that does not depend on an episode (agents, tasks).
        make: makes an environment for one episode.
        workflow: decides which agent acts when.
        weight: its share of the tasks; an environment with 0 is evaluated and never trained on.
        timeout: seconds one `reset` or `step` may take; `None`: no limit.
        retries: how often a failed episode is tried again.
    """

    name: str
    template: Environment
    make: Callable[[], Environment]
    workflow: Workflow
    weight: float = 1.0
    timeout: float | None = 60.0
    retries: int = 0

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that play here: those that the workflow names, else the environment's."""
        return tuple(self.workflow.agents or self.template.agents)

    @property
    def trained(self) -> bool:
        """Whether its tasks are trained on, not only evaluated."""
        return self.weight > 0


def count_tasks(environments: Sequence[EnvironmentSpec]) -> int | None:
    """Number of training tasks of all environments; `None` if those of any never end."""
    counts = [env.template.num_tasks("train") for env in environments if env.trained]
    return None if None in counts else sum(count or 0 for count in counts)


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task to be played with every one of `lineups`; these `numbers` of them are played here
    (default: all). The first `keep` to complete are kept (default: all). With `boards` the
    environment's boards are recorded. A `task` replaces the one of the environment."""

    env: EnvironmentSpec
    split: Split
    index: int
    lineups: Sequence[Mapping[str, AgentSettings]]
    part: range | None = None
    keep: int | None = None
    boards: bool = True
    task: Task | None = None

    @property
    def numbers(self) -> range:
        """Indices of the lineups that are played."""
        return range(len(self.lineups)) if self.part is None else self.part

    @property
    def first(self) -> bool:
        """Whether it includes the first episode."""
        return self.numbers.start == 0

    @property
    def forks(self) -> bool:
        """Whether all episodes are forked from one."""
        return self.split == "train" and self.env.workflow.spec.opens

    def parts(self, count: int) -> "list[PlannedTask]":
        """The task in at most `count` parts; episodes that depend on one another stay together."""
        whole = not self.env.template.seeded or self.forks or self.keep is not None
        size = len(self.numbers)
        step = size if whole else -(-size // count)
        return [replace(self, part=self.numbers[at : at + step]) for at in range(0, size, step)]


@dataclass(eq=False, repr=False)
class TaskSampler:
    """The training tasks of some environments, in turn by weight; their order follows from the
    seed of the run."""

    environments: Sequence[EnvironmentSpec]
    seed: int

    def __post_init__(self) -> None:
        self.taken: dict[str, int] = {env.name: 0 for env in self.environments}
        """Environment -> number of its tasks that were sampled."""

    def draw(self) -> tuple[EnvironmentSpec, int]:
        """The environment that is furthest behind its share, and the number of its next task."""
        total = sum(self.taken.values()) + 1
        weights = sum(env.weight for env in self.environments)

        def behind(env: EnvironmentSpec) -> float:
            return env.weight / weights * total - self.taken[env.name]

        env = max((env for env in self.environments if env.trained), key=behind)
        self.taken[env.name] += 1
        return env, self.taken[env.name] - 1

    def task(self, job: PlannedTask) -> Task:
        """The task of a job: with a new seed where tasks never end, else in a new order in every
        epoch."""
        env, split, index = job.env, job.split, job.index
        if job.task is not None:
            return job.task
        count = env.template.num_tasks(split)
        if count is None:
            return env.template.task(seed_of(self.key(job)) >> 33, split)
        if count == 0:
            raise ConfigError(f"environment {env.name!r} has no {split} tasks")
        epoch, position = divmod(index, count)
        if split == "train":
            position = int(shuffled((self.seed, "order", env.name, epoch), count)[position])
        return env.template.task(position, split)

    def key(self, job: PlannedTask) -> Key:
        """The prefix of the keys of all requests of a job."""
        return (self.seed, job.split, job.env.name, job.index)
