"""The flat argument names of other trainers, and the config path of each: one table for `args=`,
keywords and YAML."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from mrlm.config.other_libraries import Refused, without_neutral

UNSET: Any = object()
"""Result of a converter for a value that is equivalent to an unset one."""

PER_DEVICE = "training.per_device_train_batch_size"
"""Placeholder of `training.batch_size` until `gradient_accumulation_steps` is known."""

NUM_AGENTS = "num_agents"
"""An argument of trainers, not a setting: a config names its agents."""

REFERENCE_KL = 0.1
"""CoMLRL's default `reference_kl_coef`, if enabled without a number."""

MISMATCH_MODES: dict[Any, Any] = {
    "token_truncate": "token",
    "token_mask": "icepop",
    "sequence_truncate": "sequence",
    None: UNSET,
}
"""Kinds of importance weights by TRL's names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """The target of a flat word. `algorithm.` at the beginning of `path` is the section of the
    run's algorithm; `convert` converts the value; `absent` handles an algorithm without the
    setting."""

    path: str
    convert: Callable[[Any], object] | None = None
    absent: Refused | None = None

    def value(self, given: object) -> Any:
        """The converted value, or `UNSET`."""
        return given if self.convert is None else self.convert(given)


def _if_positive(value: object) -> object:
    return UNSET if isinstance(value, int | float) and value <= 0 else value


def _default_adapter(value: object) -> object:
    return {} if value else UNSET


def _cut_off(value: object) -> object:
    return 0 if value is None or value == -1 else value


def _precision(name: str) -> Callable[[Any], object]:
    def convert(value: object) -> object:
        if isinstance(value, bool):
            return name if value else UNSET
        return UNSET if value is None else f"{name}={value}"

    return convert


def _separate(value: Any) -> object:
    return {True: "separate", False: "shared"}.get(value, value) if value is not None else UNSET


def _baseline(value: Any) -> object:
    return {"raw": "none", "max": "group_max", "rloo": "leave_one_out"}.get(value, value)


def _optimizer(value: Any) -> object:
    known = isinstance(value, str) and value.startswith("adamw_")
    return "adamw" if known and not value.endswith("bit") else value


def _named(names: Mapping[Any, Any]) -> Callable[[Any], object]:
    """A converter by a table; other values are unchanged, and validated by the section."""

    def convert(value: object) -> object:
        return names.get(value, value) if isinstance(value, bool | str | None) else value

    return convert


_unless_none = _named({None: UNSET})

NO_WHITENING = Refused(
    "this algorithm does not divide advantages by their deviation over a batch; "
    "grpo has scale_rewards, reinforce has whiten"
)
NO_SHARED_LOSS = Refused(
    "the critic of this algorithm is a network with an optimiser of its own; set "
    "training.critic_learning_rate",
    (None,),
)


@dataclass(kw_only=True, config=ConfigDict(extra="forbid"))
class FlatWords:
    """A mixin of every algorithm's config class: a field for every flat word, with its target.

    A word that is a field of the algorithm remains that field with its default. Values are
    validated by the section they belong to.
    """

    # how long, how much at once
    num_iterations: Annotated[int | None, Word("training.num_iterations")] = None
    max_steps: Annotated[int | None, Word("training.num_iterations", _if_positive)] = None
    num_epochs: Annotated[int | None, Word("training.num_epochs")] = None
    num_train_epochs: Annotated[int | None, Word("training.num_epochs")] = None
    schedule: Annotated[str | dict[str, Any] | None, Word("training.schedule")] = None
    batch_size: Annotated[int | None, Word("training.batch_size")] = None
    train_batch_size: Annotated[int | None, Word("training.batch_size")] = None
    per_device_train_batch_size: Annotated[int | None, Word(PER_DEVICE)] = None
    gradient_accumulation_steps: Annotated[
        int | None, Word("training.gradient_accumulation_steps")
    ] = None
    num_agents: Annotated[int | None, Word(NUM_AGENTS)] = None
    # how it is optimised
    learning_rate: Annotated[float | None, Word("training.learning_rate")] = None
    agent_learning_rate: Annotated[float | None, Word("training.learning_rate")] = None
    critic_learning_rate: Annotated[float | None, Word("training.critic_learning_rate")] = None
    critic_model: Annotated[str | None, Word("training.critic_model")] = None
    use_separate_critic: Annotated[bool | None, Word("algorithm.critic", _separate)] = None
    optim: Annotated[str | None, Word("training.optimizer", _optimizer)] = None
    optimizer: Annotated[str | None, Word("training.optimizer", _optimizer)] = None
    adam_beta1: Annotated[float | None, Word("training.adam_beta1")] = None
    adam_beta2: Annotated[float | None, Word("training.adam_beta2")] = None
    weight_decay: Annotated[float | None, Word("training.weight_decay")] = None
    max_grad_norm: Annotated[float | None, Word("training.max_grad_norm")] = None
    lr_scheduler_type: Annotated[str | None, Word("training.lr_scheduler_type")] = None
    warmup_steps: Annotated[int | None, Word("training.warmup_steps")] = None
    warmup_ratio: Annotated[float | None, Word("training.warmup_ratio")] = None
    bf16: Annotated[bool | None, Word("training.precision", _precision("bf16"))] = None
    fp16: Annotated[bool | None, Word("training.precision", _precision("fp16"))] = None
    precision: Annotated[str | None, Word("training.precision")] = None
    gradient_checkpointing: Annotated[bool | None, Word("training.gradient_checkpointing")] = None
    seed: Annotated[int | None, Word("training.seed")] = None
    # what is trained, and where
    model_name_or_path: Annotated[str | None, Word("model.model_name_or_path")] = None
    dtype: Annotated[str | None, Word("model.torch_dtype", _unless_none)] = None
    torch_dtype: Annotated[str | None, Word("model.torch_dtype", _unless_none)] = None
    attn_implementation: Annotated[str | None, Word("model.attn_implementation", _unless_none)] = (
        None
    )
    trust_remote_code: Annotated[bool | None, Word("model.trust_remote_code")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Word("model.chat_template_kwargs", _unless_none)
    ] = None
    use_cpu: Annotated[bool | None, Word("model.device", _named({True: "cpu", False: UNSET}))] = (
        None
    )
    use_peft: Annotated[bool | None, Word("model.lora", _default_adapter)] = None
    lora_r: Annotated[int | None, Word("model.lora.r")] = None
    lora_alpha: Annotated[float | None, Word("model.lora.alpha")] = None
    lora_dropout: Annotated[float | None, Word("model.lora.dropout")] = None
    lora_target_modules: Annotated[
        str | list[str] | None, Word("model.lora.target_modules", _unless_none)
    ] = None
    shuffle_dataset: Annotated[bool | None, Word("data.shuffle", _unless_none)] = None
    streaming: Annotated[bool | None, Word("data.streaming")] = None
    rollout_buffer_size: Annotated[int | None, Word("training.batch_size")] = None
    # settings that the algorithm has under another name
    num_generations: Annotated[int | None, Word("algorithm.group_size")] = None
    beta: Annotated[float | None, Word("algorithm.kl_coef")] = None
    dpo_beta: Annotated[float | None, Word("algorithm.beta")] = None
    epsilon: Annotated[float | None, Word("algorithm.clip_range")] = None
    cliprange: Annotated[float | None, Word("algorithm.clip_range")] = None
    epsilon_high: Annotated[float | None, Word("algorithm.clip_range_high")] = None
    cliprange_value: Annotated[float | None, Word("algorithm.value_clip_range")] = None
    num_ppo_epochs: Annotated[int | None, Word("algorithm.update_epochs")] = None
    ppo_epochs: Annotated[int | None, Word("algorithm.update_epochs")] = None
    num_mini_batches: Annotated[int | None, Word("algorithm.num_minibatches")] = None
    lam: Annotated[float | None, Word("algorithm.gae_lambda")] = None
    discount: Annotated[float | None, Word("algorithm.gamma")] = None
    ent_coef: Annotated[float | None, Word("algorithm.entropy_coef")] = None
    value_loss_coef: Annotated[float | None, Word("algorithm.vf_coef", absent=NO_SHARED_LOSS)] = (
        None
    )
    advantage_normalization: Annotated[
        bool | None, Word("algorithm.whiten_advantages", absent=NO_WHITENING)
    ] = None
    reference_kl_coef: Annotated[float | None, Word("algorithm.kl_coef")] = None
    reference_kl_enabled: Annotated[bool | None, Word("algorithm.kl_coef")] = (
        None  # `folded` makes one of the two
    )
    preference_num_candidates: Annotated[int | None, Word("algorithm.group_size")] = None
    importance_sampling_level: Annotated[
        str | None,
        Word("algorithm.loss_type", _named({"token": UNSET, "sequence": "gspo", None: UNSET})),
    ] = None
    vllm_importance_sampling_correction: Annotated[
        bool | None, Word("algorithm.importance", _named({True: UNSET, False: "none", None: UNSET}))
    ] = None
    vllm_importance_sampling_mode: Annotated[
        str | None, Word("algorithm.importance", _named(MISMATCH_MODES))
    ] = None
    vllm_importance_sampling_clip_max: Annotated[
        float | None, Word("algorithm.importance_cap", _unless_none)
    ] = None
    vllm_importance_sampling_cap: Annotated[
        float | None, Word("algorithm.importance_cap", _unless_none)
    ] = None
    vllm_importance_sampling_clip_min: Annotated[
        float | None, Word("algorithm.importance_floor", _unless_none)
    ] = None
    mask_truncated_completions: Annotated[bool | None, Word("algorithm.mask_truncated")] = None
    use_bias_correction_kl: Annotated[bool | None, Word("algorithm.kl_bias_correction")] = None
    advantage_mode: Annotated[str | None, Word("algorithm.baseline", _baseline)] = None
    # sampling
    max_new_tokens: Annotated[int | None, Word("generation.max_new_tokens")] = None
    max_completion_length: Annotated[int | None, Word("generation.max_new_tokens")] = None
    response_length: Annotated[int | None, Word("generation.max_new_tokens")] = None
    max_prompt_length: Annotated[int | None, Word("generation.max_prompt_tokens")] = None
    temperature: Annotated[float | None, Word("generation.temperature")] = None
    top_p: Annotated[float | None, Word("generation.top_p")] = None
    top_k: Annotated[int | None, Word("generation.top_k", _cut_off)] = None
    min_p: Annotated[float | None, Word("generation.min_p")] = None
    use_vllm: Annotated[bool | None, Word("engine.name", _named({True: "vllm", False: UNSET}))] = (
        None
    )
    vllm_server_base_url: Annotated[str | None, Word("engine.base_url", _unless_none)] = None
    vllm_server_timeout: Annotated[float | None, Word("engine.timeout")] = None
    vllm_enable_sleep_mode: Annotated[bool | None, Word("engine.sleep")] = None
    num_turns: Annotated[int | None, Word("workflow.max_turns")] = None
    max_turns: Annotated[int | None, Word("workflow.max_turns")] = None
    external_transition: Annotated[str | None, Word("workflow.external_transition")] = None
    transition_mode: Annotated[str | None, Word("workflow.transition_mode")] = None
    external_prompt_passthrough: Annotated[
        bool | None, Word("workflow.external_prompt_passthrough")
    ] = None
    early_termination_threshold: Annotated[float | None, Word("workflow.termination_threshold")] = (
        None
    )
    # output and cadences
    output_dir: Annotated[str | None, Word("output_dir")] = None
    experiment_name: Annotated[str | None, Word("experiment_name")] = None
    run_name: Annotated[str | None, Word("experiment_name")] = None
    report_to: Annotated[str | list[str] | None, Word("training.report_to")] = None
    logging_steps: Annotated[int | None, Word("training.logging_steps")] = None
    max_lag: Annotated[int | None, Word("training.max_lag")] = None
    max_async_level: Annotated[int | None, Word("training.max_lag")] = None
    max_head_offpolicyness: Annotated[int | None, Word("training.max_lag")] = None
    save_steps: Annotated[int | None, Word("training.save_steps")] = None
    save_total_limit: Annotated[int | None, Word("training.save_total_limit")] = None
    eval_steps: Annotated[int | None, Word("evaluation.every", _if_positive)] = None
    eval_interval: Annotated[int | None, Word("evaluation.every", _if_positive)] = None
    eval_num_samples: Annotated[int | None, Word("evaluation.episodes")] = None
    eval_episodes: Annotated[int | None, Word("evaluation.episodes")] = None
    eval_on_start: Annotated[bool | None, Word("evaluation.at_start")] = None
    num_generations_eval: Annotated[int | None, Word("evaluation.samples", _unless_none)] = None

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


WORDS: dict[str, Word] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(FlatWords, include_extras=True).items()
}
"""word -> its target. A field of the run's algorithm is a word too, and wins over this table."""
