"""What an algorithm is: who earned what (`credit`), and what to minimise (`loss`). Nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs
from torch import Tensor

from mrlm.config.paper_presets import PaperPreset, preset_of
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.faces import attribute
from mrlm.core.matters import PLAYED, Matters
from mrlm.core.rounds import Rounds
from mrlm.learn.critics.mixers import Mixing
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample
from mrlm.learn.data.samples import samples_of
from mrlm.learn.schedule import Order

Topology = Literal["shared", "separate", "central", "mixed"]
"""Who estimates values. `shared`: a head on the policy itself. `separate`: a network beside each
policy, reading what the policy reads. `central`: one network for the team, reading what everybody
read and said, as text. `mixed`: one for the team that values every agent by itself and mixes the
values into the team's."""

Need = Literal["siblings", "greedy", "tree", "rows", "pairs"]
"""What an algorithm asks of its source. `siblings`: several episodes of one task. `greedy`: one
more of each, played greedily, that others are compared with and that is never trained. `tree`:
several answers to every state. `rows`: a data set instead of play. `pairs`: where there are rows,
they are preference pairs. Every combination of answers is asked for by `crosses`."""

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Collection:
    """How an algorithm that learns from episodes as from a data set wants them collected.

    Args:
        demonstrate: the worlds' experts play instead of the policies.
        every: iterations between two collections.
        min_reward: least reward of an episode that is kept; `None` keeps all.
        most: how many episodes of a collection are kept; `None` is all.
    """

    demonstrate: bool = False
    every: int = 1
    min_reward: float | None = None
    most: int | None = None


@dataclass(kw_only=True, config=STRICT)
class Algorithm:
    """Base of every algorithm. A subclass is a dataclass of its settings with `credit_group` (or
    `credit`) and `loss`.

    State (a moving baseline, a mixer) may live in `credit` and goes through `state_dict`; `loss` is
    a pure function of its arguments, because it runs beside the weights and once per micro-batch.

    `metrics` holds numbers about the latest `credit` (of all processes together), to be logged with
    the step; `credit` begins by emptying it. A subclass with a `__post_init__` calls its parent's.

    Args:
        preset: settings of a paper, by the name of one of the algorithm's `presets`; those that are
            given beside it win.
        group_size: episodes played from each task, which are then compared.
        update_epochs: times the optimiser goes over the played episodes.
        num_minibatches: optimiser steps per epoch.
        target_kl: stop the epochs early when the policy has moved further than this (`approx_kl`).
    """

    preset: str | None = None
    group_size: int = Field(default=1, ge=1)
    update_epochs: int = Field(default=1, ge=1)
    num_minibatches: int = Field(default=1, ge=1)
    target_kl: float | None = Field(default=None, gt=0)

    requires: ClassVar[frozenset[Need]] = frozenset()
    """What the source must offer."""
    unit: ClassVar[Literal["turn", "pair", "joint_step"]] = "turn"
    """What packing never splits."""
    reads_trees: ClassVar[bool] = False
    """Whether it gives credit to episodes that were forked from one another."""
    reads_pruned: ClassVar[bool] = False
    """Whether it does so too where only some answers to a state were followed up."""
    reads_old: ClassVar[bool] = True
    """Whether the loss reads `batch.old_logprobs`: it learns from what the policies themselves
    sampled, not from the rows of a data set."""
    default_order: ClassVar[Order] = "simultaneous"
    """How policies take turns in learning where `training.schedule.order` is not set."""
    orders: ClassVar[tuple[Order, ...]] = ("simultaneous", "alternating", "sequential")
    """The orders it can learn in."""
    scalar_head: ClassVar[bool] = False
    """Whether every policy gets a head for one number, whatever `needs` says."""
    default_learning_rate: ClassVar[float] = 1e-6
    """Used when neither `training.learning_rate` nor a preset with a learning rate is set."""
    presets: ClassVar[Mapping[str, PaperPreset]] = {}
    """The papers whose numbers it knows, by name."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "group_size": PLAYED,
        "target_kl": Matters(
            lambda s, run: s.update_epochs > 1,
            "it ends the epochs early, and update_epochs is 1; remove it, or set more epochs",
        ),
    }

    face: ClassVar[str]
    """What its trainer and its config are called before `Trainer` and `Config`, where that is not
    the name of the class; a literal."""
    also: ClassVar[Mapping[str, Mapping[str, Any]]]
    """The same for trainers of other libraries that mean this algorithm, each with the settings
    whose defaults differ; literals."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("mrlm.algorithms."):
            module: Any = sys.modules[cls.__module__]
            module.__getattr__ = partial(attribute, cls.__module__)

    def __post_init__(self) -> None:
        self.metrics: dict[str, float] = {}

    @model_validator(mode="before")
    @classmethod
    def _with_implied(cls, given: ArgsKwargs) -> ArgsKwargs:
        written = dict(given.kwargs or {})
        return ArgsKwargs(given.args, {**cls.implied(written), **written})

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that follow from others, such as a preset, where they are not given themselves.

        Raises:
            ConfigError: there is no such preset.
        """
        name = given.get("preset")
        return {} if name is None else preset_of(cls.presets, name, cls.__name__).values

    @property
    def learning_rate(self) -> float:
        """The learning rate where `training.learning_rate` is not set."""
        found = None if self.preset is None else self.presets[self.preset].learning_rate
        return self.default_learning_rate if found is None else found[0]

    @property
    def needs(self) -> frozenset[str]:
        """Columns to compute before `credit`: `values`, `ref_logprobs`, `old_logprobs`,
        `full_kl`, `entropies`."""
        return frozenset()

    @property
    def topology(self) -> Topology:
        """Who computes `values`, where they are needed."""
        return "shared"

    @property
    def turn_values(self) -> bool:
        """Whether a turn has one value, that of what was read before it: what was said then need
        not be read to compute it."""
        return False

    @property
    def values_answers_alone(self) -> bool:
        """Whether the critic beside a policy reads answers without what came before them."""
        return False

    @property
    def swap_every(self) -> int | None:
        """Iterations after which agents exchange their policies by a setting of the algorithm's
        own; `None`: there is none."""
        return None

    @property
    def critic_passes(self) -> int:
        """Times a critic with a network of its own goes over the played episodes."""
        return self.update_epochs

    @property
    def mixing(self) -> Mixing:
        """How a `mixed` critic makes the team's value of its agents'."""
        return Mixing()

    @property
    def collection(self) -> Collection | None:
        """How episodes are collected before they are learned from; `None`: each is learned from
        once, as it was played."""
        return None

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss differentiates the entropy."""
        return False

    @property
    def ignores_zero(self) -> bool:
        """Whether samples whose advantages are all 0 add nothing to the loss, so that they need not
        go through the model; they still count in its denominators."""
        return False

    @property
    def crosses(self) -> bool:
        """Whether every combination of the agents' answers to a task is to be played."""
        return False

    def check_joint(self, num_agents: int) -> None:
        """Refuse a number of agents whose combinations are too many; asked where it `crosses`."""

    @property
    def decouples(self) -> bool:
        """Whether what older weights sampled is scored anew before the update, so that the ratio is
        to the policy as it is then, and a weight makes up for the age."""
        return True

    def check_lag(self) -> None:
        """Refuse to learn from what older weights sampled; asked where there is any.

        Raises:
            ConfigError: the reason.
        """
        if self.reads_old:
            raise ConfigError(
                f"{type(self).__name__} takes every answer for one of the policy as it is, and has "
                "no correction for what older weights sampled; set training.max_lag=0"
            )

    @property
    def refills(self) -> int:
        """How often an iteration may take further tasks in the place of groups that `keeps` does
        not."""
        return 0

    def keeps(self, group: Group) -> bool:
        """Whether a group that was just played is worth learning from; asked where `refills` is
        above 0, before columns are computed."""
        return True

    def check_cast(self, policy_of: Mapping[str, str], num_agents: int) -> None:
        """Refuse agents that it cannot train.

        Args:
            policy_of: agent -> policy, of those whose policies are trained.
            num_agents: agents of the team, those of frozen policies included.

        Raises:
            ConfigError: what would work.
        """

    def credit(self, groups: Sequence[Group]) -> None:
        """Write `advantages` (and `returns`) on every turn that is to be trained. Called once per
        iteration. Turns of failed episodes, and others that must not count, are left with
        `advantages=None`, and the learner drops them."""
        self.metrics = {}
        for group in groups:
            self.credit_group(group)

    def credit_group(self, group: Group) -> None:
        """The same for one group, where groups do not depend on each other."""
        raise NotImplementedError(f"{type(self).__name__} must define credit or credit_group")

    def refine(self, groups: Sequence[Group], critics: Sequence[Any]) -> None:
        """Called when the critics have learned what `credit` wrote, before any policy learns: to
        rewrite columns that follow from what they know now."""

    def samples(self, groups: Sequence[Group], policy: str) -> list[Sample]:
        """What a policy trains on, of groups with credit."""
        return samples_of(groups, policy, self.unit)

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """What to minimise on a micro-batch: its part of a loss normalised by `batch.totals`."""
        raise NotImplementedError(f"{type(self).__name__} must define loss")

    def value_loss(self, batch: Batch, values: Tensor) -> Tensor:
        """What a critic with a network of its own minimises on a micro-batch, the same way:
        `values` (N,) against `batch.returns`."""
        raise NotImplementedError(f"{type(self).__name__} must define value_loss")

    def order(self, learners: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Stages of the learners that may update: those of one stage do so together, stages one
        after the other. The run's `Schedule` goes on from there."""
        return [learners]

    async def carry(
        self, stage: Sequence[Any], waiting: Sequence[Any], groups: Sequence[Group]
    ) -> dict[str, float]:
        """Called between two stages, to recompute columns for those to come.

        Args:
            stage: learners that have just updated.
            waiting: learners that are still to update in this iteration.
            groups: what they learn from.

        Returns:
            Numbers to log.
        """
        return {}

    def rounds(self, tasks: int, batch_size: int) -> Rounds | None:
        """The outer loop, where rows are answered by the policies and learned from in rounds;
        `None`: there is none.

        Args:
            tasks: rows of the data set.
            batch_size: rows per iteration.
        """
        return None

    def renews_reference(self, step: int, tasks: int | None, batch_size: int) -> bool:
        """Whether the reference becomes the policy as it is, before iteration `step` (the first is
        0) is learned from. Arguments are those of `rounds`."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of `credit`, for checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
