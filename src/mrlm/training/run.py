"""The state of one training run, and the hooks of users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from mrlm.config import ExperimentConfig
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import TrainingError, WorkerLost
from mrlm.core.process_group import ALONE, Peers
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.spec import Spec
from mrlm.learn.critics.critic import Critic
from mrlm.learn.data.batch import Sample
from mrlm.learn.frozen import Frozen
from mrlm.learn.joint_update import update_together
from mrlm.learn.learner import Learner
from mrlm.learn.meter import Measured
from mrlm.learn.schedule import Schedule
from mrlm.play.agent import AgentSettings
from mrlm.play.engine import Engine
from mrlm.play.sources.play import Play
from mrlm.play.sources.source import EpisodeSource
from mrlm.selfplay.opponent_pool import Population
from mrlm.tracking.run_log import RunLog


class Callback:
    """Hooks into a run; every method does nothing unless it is overridden. `run.stop()` ends the
    run after the current step, with everything saved. Where several processes train together each
    calls all of them; `run.peers.main` is true in exactly one.

    `run` is the state of the run, `metrics` are name -> value, as in `metrics.jsonl`."""

    def on_train_begin(self, run: Run) -> None:
        """Called before the first step."""

    def on_step_begin(self, run: Run) -> None:
        """Called before every step; `run.step` are done."""

    def on_step_end(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Called after every step, with its metrics."""

    def on_episodes(self, run: Run, step: int, episodes: Sequence[Episode]) -> None:
        """Called after rollouts, before training on them, and after those of an evaluation; they
        are logged as those of `step`."""

    def on_evaluate(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Called after every evaluation."""

    def on_save(self, run: Run, folder: Path) -> None:
        """Called after every checkpoint; `folder` is the checkpoint."""

    def on_train_end(self, run: Run) -> None:
        """Called after the last step."""


class Placement:
    """The location of learners and engines: this process. Other placements do the same elsewhere;
    the loop is the same for all."""

    local: bool = True
    """Whether weights are in this process, and are there as long as it is."""

    async def update(
        self, jobs: Sequence[tuple[Learner, Sequence[Sample], int]], algorithm: Algorithm, step: int
    ) -> list[Measured]:
        """Updates the learners of a stage; arguments are those of `update_together`."""
        return await update_together(jobs, algorithm, step)

    def problems(
        self,
        find: Callable[[Learner, Sequence[Sample]], Iterable[str]],
        learner: Learner,
        samples: Sequence[Sample],
    ) -> list[str]:
        """The result of `find` for some samples, called where a learner's weights are."""
        return list(find(learner, samples))

    def recover(self, run: Run, lost: WorkerLost) -> None:
        """Repairs a run that lost a worker, so that it can continue from the last checkpoint.
        Raises `TrainingError`: it cannot."""
        raise TrainingError(str(lost)) from lost

    def close(self) -> None:
        """Frees resources elsewhere."""


class Phase(Enum):
    """The part of a step that a run is in."""

    PLAYING = 1
    """Within a step whose state can be saved as that of the step before."""
    UPDATING = 2
    """Weights have changed since the last step."""
    UNSAVED = 3
    """The last step is whole, and `final/` does not have it yet."""
    SAVED = 4
    """There is nothing to save."""


@dataclass(slots=True)
class Run:
    """The state of one training run, built by `build`.

    Args:
        config: the stage of the experiment.
        algorithm: credit and loss.
        spec: requirements of the algorithm.
        source: provides the groups.
        learners: one per trained policy.
        engines: policy -> its engine.
        evaluator: plays held-out tasks; `None` without an environment.
        log: metrics and episodes.
        total_steps: iterations to do.
        critics: networks that estimate values, where the policies do not themselves.
        schedule: the policies trained in each iteration, and the roles they have.
        assignments: agent settings for every rotation of the roles.
        population: past versions of policies that are met as opponents.
        peers: the processes that train together.
        placement: the location of learners and engines.
        step: iterations done.
        rollbacks: how often it returned to a checkpoint after losses that were not finite.
        frozen: policies with weights that are not trained.
        untrained: agents that the log has already named for having only advantages of 0.
        alarm: the alarm that ends the run (`training.doctor=stop`).
        unproven: the latest training data, where engines have its weights without a proof.
        saves_end: its last step is saved, as a checkpoint and as `final/`.
        phase: where it is in its steps.
        checked: its first step was checked, and is not again when it is continued.
        team: the config that plays its team, with the models that its policies begin with.
        live_models: policies whose models a program gave as objects.
        measures_effects: evaluations measure the effects of agents where no number of tasks is set.
    """

    config: ExperimentConfig
    folder: Path
    algorithm: Algorithm
    spec: Spec
    source: EpisodeSource
    learners: list[Learner]
    engines: dict[str, Engine]
    evaluator: Play | None
    log: RunLog
    total_steps: int
    critics: Sequence[Critic] = ()
    schedule: Schedule = field(default_factory=Schedule)
    assignments: Sequence[Mapping[str, AgentSettings]] = ()
    population: Population = field(default_factory=Population)
    peers: Peers = ALONE
    placement: Placement = field(default_factory=Placement)
    step: int = 0
    callbacks: Sequence[Callback] = ()
    tokens: int = 0
    rollbacks: int = 0
    frozen: Sequence[Frozen] = ()
    untrained: set[str] = field(default_factory=set)
    stopping: bool = False
    interrupted: bool = False
    alarm: str | None = None
    unproven: Sequence[Group] | None = None
    saves_end: bool = True
    phase: Phase = Phase.SAVED
    checked: bool = False
    team: Mapping[str, Any] = field(default_factory=dict)
    live_models: Sequence[str] = ()
    measures_effects: bool = False

    def assign_policies(self, step: int) -> None:
        """Sets the policies of all agents for an iteration. Turns of policies that are not trained
        in it are context."""
        if not self.assignments:
            return
        learns, usual = self.schedule.learns, self.assignments[self.schedule.rotation(step)]
        settings_of = {
            name: replace(given, trained=given.trained and learns(given.policy, step))
            for name, given in usual.items()
        }
        self.source.assign(settings_of)
        if self.evaluator is not None:
            self.evaluator.assign(settings_of)

    def ease(self, rollbacks: int) -> None:
        """Sets the learning rate for a number of rollbacks."""
        self.rollbacks = rollbacks
        factor = self.config.training.rollback_factor**rollbacks
        for owner in (*self.learners, *self.critics):
            owner.settings.rate_factor = factor

    @property
    def evaluates(self) -> bool:
        return self.evaluator is not None and self.config.evaluation.episodes > 0

    @property
    def defers(self) -> bool:
        """Whether its end can be saved later, at any time and by this process alone."""
        return self.peers.size == 1 and self.placement.local

    @property
    def failing(self) -> bool:
        """Whether a learner is in the middle of steps that are not finite, so that the state is
        not worth saving."""
        stepped = (*self.learners, *self.critics)
        return self.config.training.rollback > 0 and any(owner.nonfinite for owner in stepped)

    def stop(self) -> None:
        self.stopping = True
