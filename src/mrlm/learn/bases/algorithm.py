"""The contract of an algorithm: who earned what (`credit`), what to minimise (`loss`), and its
requirements (`spec`). Nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, final

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs
from torch import Tensor

from mrlm.config.paper_presets import PaperPreset, preset_of
from mrlm.core.episodes import Group
from mrlm.core.faces import attribute
from mrlm.core.matters import PLAYED, Matters
from mrlm.learn.bases.spec import Spec
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample
from mrlm.learn.data.samples import samples_of

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


@dataclass(kw_only=True, config=STRICT)
class Algorithm:
    """Base of every algorithm. A subclass is a dataclass of its settings with `credit_group` (or
    `credit`) and `loss`. It may override the methods below, and no other name; `steps.py` has the
    steps of an iteration that single algorithms add.

    State (a moving baseline, a mixer) may live in `credit` and goes through `state_dict`; `loss` is
    a pure function of its arguments, because it runs beside the weights and once per micro-batch.

    `metrics` holds numbers about the latest `credit` (of all processes together), to be logged with
    the step; `credit` begins by emptying it. `waiting` says that no policy learns in this
    iteration. A subclass with a `__post_init__` calls its parent's.

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

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("mrlm.algorithms."):
            module: Any = sys.modules[cls.__module__]
            module.__getattr__ = partial(attribute, cls.__module__)

    def __post_init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.waiting: bool = False

    @model_validator(mode="before")
    @classmethod
    def _with_implied(cls, given: ArgsKwargs) -> ArgsKwargs:
        written = dict(given.kwargs or {})
        return ArgsKwargs(given.args, {**cls.implied(written), **written})

    @classmethod
    def implied(cls, given: Mapping[str, object]) -> dict[str, object]:
        """Settings that follow from others, such as a preset, where they are not given themselves.

        Raises:
            ConfigError: there is no such preset.
        """
        name = given.get("preset")
        return {} if name is None else preset_of(cls.presets, name, cls.__name__).values

    @property
    @final
    def learning_rate(self) -> float:
        """The learning rate where `training.learning_rate` is not set."""
        found = None if self.preset is None else self.presets[self.preset].learning_rate
        return self.default_learning_rate if found is None else found[0]

    @property
    def spec(self) -> Spec:
        """Its requirements, which follow from its settings."""
        return Spec()

    def check_agents(self, policy_of: Mapping[str, str], num_agents: int) -> None:
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

    def samples(self, groups: Sequence[Group], policy: str) -> list[Sample]:
        """What a policy trains on, of groups with credit."""
        return samples_of(groups, policy, self.spec.unit)

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """What to minimise on a micro-batch: its part of a loss normalised by `batch.totals`."""
        raise NotImplementedError(f"{type(self).__name__} must define loss")

    def value_loss(self, batch: Batch, values: Tensor) -> Tensor:
        """What a critic with a network of its own minimises on a micro-batch, the same way:
        `values` (N,) against `batch.returns`."""
        raise NotImplementedError(f"{type(self).__name__} must define value_loss")

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of `credit`, for checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
