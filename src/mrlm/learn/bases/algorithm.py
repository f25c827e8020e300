"""The algorithm interface: `credit`, `loss`, and requirements (`spec`)."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform, final

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs
from torch import Tensor

from mrlm.config.errors import InvalidConfig, problems_of
from mrlm.config.paper_presets import PaperPreset, preset_of, read_presets
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.faces import attribute
from mrlm.core.matters import PLAYED, Matters
from mrlm.learn.bases.spec import Spec
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample
from mrlm.learn.data.samples import samples_of

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
A = TypeVar("A")


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
def settings(algorithm: type[A]) -> type[A]:
    """Makes the annotated attributes of an algorithm its settings, each checked by its type; wrong
    ones are a `ConfigError`."""
    made: Any = dataclass(kw_only=True, config=STRICT)(algorithm)
    checked = made.__init__

    @wraps(checked)
    def init(self: Any, *args: Any, **fields: Any) -> None:
        try:
            checked(self, *args, **fields)
        except ValidationError as error:
            raise InvalidConfig(problems_of(error, type(self), type(self).__name__)) from None

    made.__init__ = init
    return made


@settings
class Algorithm:
    """Base of every algorithm. A subclass is a dataclass of its settings with `credit_group` (or
    `credit`) and `loss`. Only the methods below may be overridden; `steps.py` has the optional
    steps of an iteration.

    `credit` may keep state (a moving baseline, a mixer), saved by `state_dict`; `loss` must be a
    pure function of its arguments, since it runs once per micro-batch, next to the weights.

    `metrics` holds metrics of the latest `credit` (over all ranks), logged with the step; `credit`
    clears it first. `waiting`: no policy is updated in this iteration. A subclass with a
    `__post_init__` must call its parent's.

    Args:
        preset: settings of a paper, by a name in `presets`; explicit settings override them.
        group_size: episodes per task, compared with each other.
        update_epochs: optimiser epochs over the episodes.
        num_minibatches: optimiser steps per epoch.
        target_kl: stop the epochs early once `approx_kl` exceeds this.
    """

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **fields: Any) -> Any:
            """The algorithm; with `model=` and `tokenizer=`, as in SimpleTorchLLMRL, a `Learner`
            with it, where `eps` is `clip_range`."""
            if "model" not in fields:
                return super().__new__(cls)
            learner = importlib.import_module("mrlm.learn.learner").Learner  # which imports this
            fields = {"clip_range" if key == "eps" else key: value for key, value in fields.items()}
            model, tokenizer = fields.pop("model"), fields.pop("tokenizer", None)
            return learner(model, tokenizer, cls(**fields))

    preset: str | None = None
    group_size: int = Field(default=1, ge=1)
    update_epochs: int = Field(default=1, ge=1)
    num_minibatches: int = Field(default=1, ge=1)
    target_kl: float | None = Field(default=None, gt=0)

    default_learning_rate: ClassVar[float] = 1e-6
    """Used if neither `training.learning_rate` nor a preset with a learning rate is set."""
    presets: ClassVar[Mapping[str, PaperPreset]] = {}
    """Paper presets, by name; a class that does not give its own has those of
    `presets/<module>.yaml` beside its file in this library, or none."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "group_size": PLAYED,
        "target_kl": Matters(
            lambda s, run: s.update_epochs > 1,
            "it ends the epochs early, and update_epochs is 1; remove it, or set more epochs",
        ),
    }

    face: ClassVar[str]
    """Prefix of its `Trainer` and `Config` names, if it is not the class name; a literal."""
    also: ClassVar[Mapping[str, Mapping[str, object]]]
    """Names that other libraries use for this algorithm, each with the settings whose defaults
    differ; literals."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("mrlm.algorithms."):
            module: Any = sys.modules[cls.__module__]
            module.__getattr__ = partial(attribute, cls.__module__)
            if "presets" not in vars(cls):
                file = Path(module.__file__)
                cls.presets = read_presets(file.with_name("presets") / f"{file.stem}.yaml")

    def __post_init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.waiting: bool = False

    @model_validator(mode="before")
    @classmethod
    def _with_implied(cls, arguments: ArgsKwargs) -> ArgsKwargs:
        written = dict(arguments.kwargs or {})
        return ArgsKwargs(arguments.args, {**cls.implied(written), **written})

    @classmethod
    def implied(cls, given: Mapping[str, object]) -> dict[str, object]:
        """Settings that follow from others, such as a preset, unless given explicitly."""
        name = given.get("preset")
        return {} if name is None else preset_of(cls.presets, name, cls.__name__).values

    @property
    @final
    def learning_rate(self) -> float:
        """The learning rate if `training.learning_rate` is not set."""
        preset_rate = None if self.preset is None else self.presets[self.preset].learning_rate
        return self.default_learning_rate if preset_rate is None else preset_rate[0]

    @property
    def spec(self) -> Spec:
        """Requirements, derived from its settings."""
        return Spec()

    def check_agents(self, policy_of: Mapping[str, str], num_agents: int) -> None:
        """Raises a `ConfigError` that names what is supported if it cannot train these agents.

        Args:
            policy_of: agent -> policy, for agents with trained policies.
            num_agents: size of the team, agents with frozen policies included.
        """

    def credit(self, groups: Sequence[Group]) -> None:
        """Writes `advantages` (and `returns`) on every turn to train. Called once per iteration.
        Turns of failed episodes, and others to skip, keep `advantages=None`, and the learner drops
        them."""
        self.metrics = {}
        for group in groups:
            self.credit_group(group)

    def credit_group(self, group: Group) -> None:
        """The same for a single group, if groups are independent."""
        raise NotImplementedError(f"{type(self).__name__} must define credit or credit_group")

    def samples(self, groups: Sequence[Group], policy: str) -> list[Sample]:
        """The training samples of a policy, from groups with credit."""
        return samples_of(groups, policy, self.spec.unit)

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        """The loss of a micro-batch: its part of a loss normalised by `batch.totals`."""
        raise NotImplementedError(f"{type(self).__name__} must define loss")

    def value_loss(self, batch: Batch, values: Tensor) -> Tensor:
        """The loss of a critic with its own network on a micro-batch: `values` (N,) against
        `batch.returns`, normalised by `batch.totals`."""
        raise NotImplementedError(f"{type(self).__name__} must define value_loss")

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state of `credit` for checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""


def check_agent(key: str, agent: str | None, policy_of: Mapping[str, str]) -> None:
    """Refuses a setting that names an agent which is not trained.

    Args:
        agent: its value; `None` names none.
        policy_of: agent -> policy, for agents with trained policies.

    Raises:
        ConfigError: the agent is none of them.
    """
    if agent is not None and agent not in policy_of:
        raise ConfigError(
            f"{key}={agent!r} is none of the trained agents ({', '.join(policy_of)}); "
            "set one of them, or leave it out for the first"
        )
