"""The flat words that users of other trainers know, and the config path each one means: one table
for `args=`, for keywords and for YAML. It knows paths, not what reads them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass as plain_dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from mrlm.config.problems import InvalidConfig, Problem, did_you_mean, show

if TYPE_CHECKING:
    from mrlm.config.experiment import ExperimentConfig

UNSET: Any = object()
"""What a converter returns for a value that means "as if it were not written"."""

PER_DEVICE = "training.per_device_train_batch_size"
"""Stands for `training.batch_size` until `gradient_accumulation_steps` is known."""


@plain_dataclass(frozen=True, slots=True)
class Word:
    """Where a word leads. `algorithm.` at the beginning of `path` is the section of the run's
    algorithm; `convert` turns the value into ours."""

    path: str
    convert: Callable[[Any], Any] | None = None

    def value(self, given: Any) -> Any:
        """The value as our setting takes it, or `UNSET`."""
        return given if self.convert is None else self.convert(given)


def _if_positive(value: Any) -> Any:
    return UNSET if isinstance(value, int | float) and value <= 0 else value


def _cut_off(value: Any) -> Any:
    return 0 if value is None or value == -1 else value


def _precision(name: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            return name if value else UNSET
        return UNSET if value is None else f"{name}={value}"

    return convert


def _separate(value: Any) -> Any:
    return {True: "separate", False: "shared"}.get(value, value) if value is not None else UNSET


def _baseline(value: Any) -> Any:
    return {"raw": "none", "max": "group_max", "rloo": "leave_one_out"}.get(value, value)


def _optimizer(value: Any) -> Any:
    known = isinstance(value, str) and value.startswith("adamw_")
    return "adamw" if known and not value.endswith("bit") else value


WORDS: dict[str, Word] = {
    # how long, how much at once
    "num_iterations": Word("training.num_iterations"),
    "max_steps": Word("training.num_iterations", _if_positive),
    "num_epochs": Word("training.num_epochs"),
    "num_train_epochs": Word("training.num_epochs"),
    "schedule": Word("training.schedule"),
    "batch_size": Word("training.batch_size"),
    "train_batch_size": Word("training.batch_size"),
    "per_device_train_batch_size": Word(PER_DEVICE),
    "gradient_accumulation_steps": Word("training.gradient_accumulation_steps"),
    # how it is optimised
    "learning_rate": Word("training.learning_rate"),
    "agent_learning_rate": Word("training.learning_rate"),
    "critic_learning_rate": Word("training.critic_learning_rate"),
    "critic_model": Word("training.critic_model"),
    "use_separate_critic": Word("algorithm.critic", _separate),
    "optim": Word("training.optimizer", _optimizer),
    "optimizer": Word("training.optimizer", _optimizer),
    "adam_beta1": Word("training.adam_beta1"),
    "adam_beta2": Word("training.adam_beta2"),
    "weight_decay": Word("training.weight_decay"),
    "max_grad_norm": Word("training.max_grad_norm"),
    "lr_scheduler_type": Word("training.lr_scheduler_type"),
    "warmup_steps": Word("training.warmup_steps"),
    "warmup_ratio": Word("training.warmup_ratio"),
    "bf16": Word("training.precision", _precision("bf16")),
    "fp16": Word("training.precision", _precision("fp16")),
    "precision": Word("training.precision"),
    "gradient_checkpointing": Word("training.gradient_checkpointing"),
    "seed": Word("training.seed"),
    # what the algorithm calls by another name
    "num_generations": Word("algorithm.group_size"),
    "beta": Word("algorithm.kl_coef"),
    "dpo_beta": Word("algorithm.beta"),
    "epsilon": Word("algorithm.clip_range"),
    "cliprange": Word("algorithm.clip_range"),
    "epsilon_high": Word("algorithm.clip_range_high"),
    "cliprange_value": Word("algorithm.value_clip_range"),
    "num_ppo_epochs": Word("algorithm.update_epochs"),
    "ppo_epochs": Word("algorithm.update_epochs"),
    "num_mini_batches": Word("algorithm.num_minibatches"),
    "lam": Word("algorithm.gae_lambda"),
    "discount": Word("algorithm.gamma"),
    "ent_coef": Word("algorithm.entropy_coef"),
    "value_loss_coef": Word("algorithm.vf_coef"),
    "mask_truncated_completions": Word("algorithm.mask_truncated"),
    "use_bias_correction_kl": Word("algorithm.kl_bias_correction"),
    "advantage_mode": Word("algorithm.baseline", _baseline),
    # how tokens are drawn
    "max_new_tokens": Word("generation.max_new_tokens"),
    "max_completion_length": Word("generation.max_new_tokens"),
    "response_length": Word("generation.max_new_tokens"),
    "max_prompt_length": Word("generation.max_prompt_tokens"),
    "temperature": Word("generation.temperature"),
    "top_p": Word("generation.top_p"),
    "top_k": Word("generation.top_k", _cut_off),
    "min_p": Word("generation.min_p"),
    "num_turns": Word("workflow.max_turns"),
    "max_turns": Word("workflow.max_turns"),
    "external_transition": Word("workflow.external_transition"),
    "transition_mode": Word("workflow.transition_mode"),
    "external_prompt_passthrough": Word("workflow.external_prompt_passthrough"),
    "early_termination_threshold": Word("workflow.termination_threshold"),
    # where it is written, how often
    "output_dir": Word("output_dir"),
    "experiment_name": Word("experiment_name"),
    "run_name": Word("experiment_name"),
    "report_to": Word("training.report_to"),
    "logging_steps": Word("training.logging_steps"),
    "max_lag": Word("training.max_lag"),
    "max_async_level": Word("training.max_lag"),
    "max_head_offpolicyness": Word("training.max_lag"),
    "save_steps": Word("training.save_steps"),
    "save_total_limit": Word("training.save_total_limit"),
    "eval_steps": Word("evaluation.every", _if_positive),
    "eval_interval": Word("evaluation.every", _if_positive),
    "eval_num_samples": Word("evaluation.episodes"),
    "eval_episodes": Word("evaluation.episodes"),
}
"""word -> path. A field of the run's algorithm is a word too, and wins over this table."""


@dataclass(kw_only=True, config=ConfigDict(extra="forbid"))
class FlatWords:
    """The words of the table as fields, mixed into every algorithm's config class.

    A word that the algorithm has as a field of its own stays that field, default and all. Values
    are checked where they arrive, by the section they belong to.
    """

    num_iterations: int | None = None
    max_steps: int | None = None
    num_epochs: int | None = None
    num_train_epochs: int | None = None
    schedule: str | dict[str, Any] | None = None
    batch_size: int | None = None
    train_batch_size: int | None = None
    per_device_train_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    learning_rate: float | None = None
    agent_learning_rate: float | None = None
    critic_learning_rate: float | None = None
    critic_model: str | None = None
    use_separate_critic: bool | None = None
    optim: str | None = None
    optimizer: str | None = None
    adam_beta1: float | None = None
    adam_beta2: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    lr_scheduler_type: str | None = None
    warmup_steps: int | None = None
    warmup_ratio: float | None = None
    bf16: bool | None = None
    fp16: bool | None = None
    precision: str | None = None
    gradient_checkpointing: bool | None = None
    seed: int | None = None
    num_generations: int | None = None
    beta: float | None = None
    dpo_beta: float | None = None
    epsilon: float | None = None
    cliprange: float | None = None
    epsilon_high: float | None = None
    cliprange_value: float | None = None
    num_ppo_epochs: int | None = None
    ppo_epochs: int | None = None
    num_mini_batches: int | None = None
    lam: float | None = None
    discount: float | None = None
    ent_coef: float | None = None
    value_loss_coef: float | None = None
    mask_truncated_completions: bool | None = None
    use_bias_correction_kl: bool | None = None
    advantage_mode: str | None = None
    max_new_tokens: int | None = None
    max_completion_length: int | None = None
    response_length: int | None = None
    max_prompt_length: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    num_turns: int | None = None
    max_turns: int | None = None
    external_transition: str | None = None
    transition_mode: str | None = None
    external_prompt_passthrough: bool | None = None
    early_termination_threshold: float | None = None
    output_dir: str | None = None
    experiment_name: str | None = None
    run_name: str | None = None
    report_to: str | list[str] | None = None
    logging_steps: int | None = None
    max_lag: int | None = None
    max_async_level: int | None = None
    max_head_offpolicyness: int | None = None
    save_steps: int | None = None
    save_total_limit: int | None = None
    eval_steps: int | None = None
    eval_interval: int | None = None
    eval_num_samples: int | None = None
    eval_episodes: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Declare again, on the subclass, the algorithm's fields that a word would hide."""
        super().__init_subclass__(**kwargs)
        own = dict(inspect.get_annotations(cls))
        for base in reversed(cls.__mro__[1:]):
            if issubclass(base, FlatWords) or not dataclasses.is_dataclass(base):
                continue
            described = base.__dict__.get("__pydantic_fields__", {})
            for name in described.keys() & WORDS.keys() - cls.__dict__.keys():
                own[name] = described[name].annotation
                setattr(cls, name, described[name])
        cls.__annotations__ = own


def algorithm_fields(algorithm: type[Any]) -> dict[str, Any]:
    """The settings of an algorithm (or config) class without the flat words: name -> default."""
    found: dict[str, Any] = {}
    for base in reversed(algorithm.__mro__):
        if base is FlatWords or not dataclasses.is_dataclass(base):
            continue
        if issubclass(base, FlatWords):
            own = inspect.get_annotations(base)
            described = {n: f for n, f in base.__pydantic_fields__.items() if n in own}  # type: ignore[attr-defined]
        else:
            described = base.__dict__.get("__pydantic_fields__", {})
        found |= {
            name: field.get_default(call_default_factory=True) for name, field in described.items()
        }
    return found


def changed_fields(settings: Any) -> dict[str, Any]:
    """The settings of an algorithm (or config) object that differ from their defaults."""
    defaults = algorithm_fields(type(settings))
    values = {name: getattr(settings, name) for name in defaults}
    return {name: value for name, value in values.items() if value != defaults[name]}


def flat_words(settings: Any) -> dict[str, Any]:
    """The flat words that were given to a config object."""
    if not isinstance(settings, FlatWords):
        return {}
    own = algorithm_fields(type(settings))
    values = {name: getattr(settings, name) for name in WORDS if name not in own}
    return {name: value for name, value in values.items() if value is not None}


def split_config(settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an algorithm's config object says about the algorithm, and about everything else.

    Args:
        settings: such as `GRPOConfig(num_generations=4, learning_rate=1e-5)`.

    Returns:
        The algorithm's fields that differ from their defaults (`{"group_size": 4}`), and config
        path -> value (`{"training.learning_rate": 1e-5}`).

    Raises:
        ConfigError: one setting with two values, or a word the algorithm has no setting for.
    """
    title = type(settings).__name__
    fields, paths = changed_fields(settings), {}
    source = {f"algorithm.{name}": f"{title}.{name}" for name in fields}
    known = algorithm_fields(type(settings))
    for name, given in flat_words(settings).items():
        path, value = WORDS[name].path, WORDS[name].value(given)
        if value is UNSET:
            continue
        target, key = paths, path
        if path.startswith("algorithm."):
            target, key = fields, path.removeprefix("algorithm.")
            require_field(key, known, f"{title}.{name}")
        if key in target and target[key] != value:
            both = (target[key], source[path]), (value, f"{title}.{name}")
            raise InvalidConfig([twice(path, *both)])
        target[key] = value
        source[path] = f"{title}.{name}"
    return fields, paths


def apply_words(
    config: ExperimentConfig, words: Mapping[str, Any], fields: Mapping[str, Any] | None = None
) -> ExperimentConfig:
    """A config with flat words (or dotted paths) and settings of its algorithm laid over it.

    Raises:
        ConfigError: a word nobody knows, or a setting with two values.
    """
    return config.joined(words, fields)


def require_field(name: str, known: Mapping[str, Any], word: str) -> None:
    """Refuse a word whose meaning the algorithm does not know.

    Raises:
        ConfigError: which names it knows instead.
    """
    if name not in known:
        hint = did_you_mean(name, known)
        text = f"it means the algorithm's {name!r}, which this algorithm does not have{hint}"
        raise InvalidConfig([Problem(word, text)])


def twice(path: str, one: tuple[Any, str], other: tuple[Any, str]) -> Problem:
    """The problem of one setting with two values; each is (value, where it was written)."""
    (a, here), (b, there) = one, other
    text = f"it has two values: {show(a)} ({here}) and {show(b)} ({there}); keep one of them"
    return Problem(path, text)
