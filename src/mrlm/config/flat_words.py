"""Flat words as fields of a config class, and their conversion to settings and config paths."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from mrlm.config.aliases import REFERENCE_KL, UNSET, WORDS, Word
from mrlm.config.errors import InvalidConfig, Problem, did_you_mean, show
from mrlm.config.other_libraries import without_neutral


@dataclass(kw_only=True, config=ConfigDict(extra="forbid"))
class FlatWords:
    """A mixin of every algorithm's config class with the words of the table as fields.

    A word that is a field of the algorithm remains that field with its default. Values are
    validated by the section they belong to.
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
    num_agents: int | None = None
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
    model_name_or_path: str | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    use_cpu: bool | None = None
    use_peft: bool | None = None
    lora_r: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float | None = None
    lora_target_modules: str | list[str] | None = None
    shuffle_dataset: bool | None = None
    streaming: bool | None = None
    rollout_buffer_size: int | None = None
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
    advantage_normalization: bool | None = None
    reference_kl_coef: float | None = None
    reference_kl_enabled: bool | None = None
    preference_num_candidates: int | None = None
    importance_sampling_level: str | None = None
    vllm_importance_sampling_correction: bool | None = None
    vllm_importance_sampling_mode: str | None = None
    vllm_importance_sampling_clip_max: float | None = None
    vllm_importance_sampling_cap: float | None = None
    vllm_importance_sampling_clip_min: float | None = None
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
    use_vllm: bool | None = None
    vllm_server_base_url: str | None = None
    vllm_server_timeout: float | None = None
    vllm_enable_sleep_mode: bool | None = None
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
    eval_on_start: bool | None = None
    num_generations_eval: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, given: Any) -> Any:
        """Accept settings of other libraries that have no effect here; reject others with the
        reason."""
        if not isinstance(given, ArgsKwargs) or not given.kwargs:
            return given
        own = {field.name for field in dataclasses.fields(cls)}
        return ArgsKwargs(given.args, without_neutral(given.kwargs, own, cls.__name__))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Redeclare, on the subclass, the algorithm's fields that a word would hide."""
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
    """The settings of an algorithm (or config) object that differ from their defaults, or from the
    values implied by other settings (a preset)."""
    kind = type(settings)
    defaults = algorithm_fields(kind)
    values = {name: getattr(settings, name) for name in defaults}
    found: dict[str, Any] = {}
    for name, value in values.items():
        others = {key: other for key, other in values.items() if key != name}
        if value != kind.implied(others).get(name, defaults[name]):
            found[name] = value
    return found


def flat_words(settings: Any) -> dict[str, Any]:
    """The flat words that were given to a config object."""
    if not isinstance(settings, FlatWords):
        return {}
    own = algorithm_fields(type(settings))
    values = {name: getattr(settings, name) for name in WORDS if name not in own}
    return {name: value for name, value in values.items() if value is not None}


def split_config(settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a config object into the algorithm's settings and all others.

    Args:
        settings: such as `GRPOConfig(num_generations=4, learning_rate=1e-5)`.

    Returns:
        The algorithm's fields that differ from their defaults (`{"group_size": 4}`), and config
        path -> value (`{"training.learning_rate": 1e-5}`).

    Raises:
        ConfigError: one setting with two values, or a word without a setting of the algorithm.
    """
    title = type(settings).__name__
    fields, paths = changed_fields(settings), {}
    source = {f"algorithm.{name}": f"{title}.{name}" for name in fields}
    known = algorithm_fields(type(settings))
    for _, name, given in folded([(title, *word) for word in flat_words(settings).items()]):
        path, value = WORDS[name].path, WORDS[name].value(given)
        if value is UNSET or not applies(WORDS[name], value, known, f"{title}.{name}"):
            continue
        target, key = paths, path
        if path.startswith("algorithm."):
            target, key = fields, path.removeprefix("algorithm.")
        if key in target and target[key] != value:
            both = (target[key], source[path]), (value, f"{title}.{name}")
            raise InvalidConfig([twice(path, *both)])
        target[key] = value
        source[path] = f"{title}.{name}"
    return fields, paths


def setting_of(word: str) -> str:
    """The algorithm's setting of a keyword; the keyword itself if it is not one of them."""
    return WORDS[word].path.removeprefix("algorithm.") if word in WORDS else word


def applies(word: Word, value: Any, known: Mapping[str, Any], source: str) -> bool:
    """Whether the run has the setting of a word.

    Args:
        word: the word.
        value: its converted value.
        known: the settings of the run's algorithm.
        source: where the word was written.

    Returns:
        `False` if the value is the behaviour of an algorithm without the setting.

    Raises:
        ConfigError: the algorithm does not have the setting; the message contains the fix.
    """
    name = word.path.removeprefix("algorithm.")
    if name == word.path or name in known:
        return True
    if word.absent is None:
        hint = did_you_mean(name, known)
        text = f"it means the algorithm's {name!r}, which this algorithm does not have{hint}"
        raise InvalidConfig([Problem(source, text)])
    if not word.absent.accepts(value):
        raise InvalidConfig([Problem(source, word.absent.reason)])
    return False


def folded(words: Iterable[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """Words (place, name, value), with dependent ones combined into one.

    Raises:
        ConfigError: one of them without the other.
    """
    given = list(words)
    switches = [value for _, name, value in given if name == "reference_kl_enabled"]
    weights = [place for place, name, _ in given if name == "reference_kl_coef"]
    if weights and not switches:
        text = "it has an effect only with reference_kl_enabled: true; or set kl_coef"
        raise InvalidConfig([Problem(f"{weights[0]}.reference_kl_coef".lstrip("."), text)])
    kept: list[tuple[str, str, Any]] = []
    for place, name, value in given:
        if name == "reference_kl_enabled":
            if value and not weights:
                kept.append((place, "reference_kl_coef", REFERENCE_KL))
        elif name != "reference_kl_coef" or switches[0]:
            kept.append((place, name, value))
    return kept


def twice(path: str, one: tuple[Any, str], other: tuple[Any, str]) -> Problem:
    """The problem of one setting with two values; each is (value, where it was written)."""
    (a, here), (b, there) = one, other
    text = f"it has two values: {show(a)} ({here}) and {show(b)} ({there}); keep one of them"
    return Problem(path, text)
