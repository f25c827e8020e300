"""The flat argument names of other trainers, and the config path of each: one table for `args=`,
keywords and YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mrlm.config.other_libraries import Refused

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


@dataclass(frozen=True, slots=True)
class Word:
    """The target of a flat word. `algorithm.` at the beginning of `path` is the section of the
    run's algorithm; `convert` converts the value; `absent` handles an algorithm without the
    setting."""

    path: str
    convert: Callable[[Any], Any] | None = None
    absent: Refused | None = None

    def value(self, given: Any) -> Any:
        """The converted value, or `UNSET`."""
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


def _named(names: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """A converter by a table; other values are unchanged, and validated by the section."""

    def convert(value: Any) -> Any:
        return names.get(value, value) if isinstance(value, bool | str | None) else value

    return convert


NO_WHITENING = Refused(
    "this algorithm does not divide advantages by their deviation over a batch; "
    "grpo has scale_rewards, reinforce has whiten"
)
NO_SHARED_LOSS = Refused(
    "the critic of this algorithm is a network with an optimiser of its own; set "
    "training.critic_learning_rate",
    (None,),
)

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
    "num_agents": Word(NUM_AGENTS),
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
    # what is trained, and where
    "model_name_or_path": Word("model.model_name_or_path"),
    "dtype": Word("model.torch_dtype", _named({None: UNSET})),
    "torch_dtype": Word("model.torch_dtype", _named({None: UNSET})),
    "attn_implementation": Word("model.attn_implementation", _named({None: UNSET})),
    "trust_remote_code": Word("model.trust_remote_code"),
    "chat_template_kwargs": Word("model.chat_template_kwargs", _named({None: UNSET})),
    "use_cpu": Word("model.device", _named({True: "cpu", False: UNSET})),
    "use_peft": Word("model.lora", lambda value: {} if value else UNSET),
    "lora_r": Word("model.lora.r"),
    "lora_alpha": Word("model.lora.alpha"),
    "lora_dropout": Word("model.lora.dropout"),
    "lora_target_modules": Word("model.lora.target_modules", _named({None: UNSET})),
    "shuffle_dataset": Word("data.shuffle", _named({None: UNSET})),
    "streaming": Word("data.streaming"),
    "rollout_buffer_size": Word("training.batch_size"),
    # settings that the algorithm has under another name
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
    "value_loss_coef": Word("algorithm.vf_coef", absent=NO_SHARED_LOSS),
    "advantage_normalization": Word("algorithm.whiten_advantages", absent=NO_WHITENING),
    "reference_kl_coef": Word("algorithm.kl_coef"),
    "reference_kl_enabled": Word("algorithm.kl_coef"),  # `folded` makes one of the two
    "preference_num_candidates": Word("algorithm.group_size"),
    "importance_sampling_level": Word(
        "algorithm.loss_type", _named({"token": UNSET, "sequence": "gspo", None: UNSET})
    ),
    "vllm_importance_sampling_correction": Word(
        "algorithm.importance", _named({True: UNSET, False: "none", None: UNSET})
    ),
    "vllm_importance_sampling_mode": Word("algorithm.importance", _named(MISMATCH_MODES)),
    "vllm_importance_sampling_clip_max": Word("algorithm.importance_cap", _named({None: UNSET})),
    "vllm_importance_sampling_cap": Word("algorithm.importance_cap", _named({None: UNSET})),
    "vllm_importance_sampling_clip_min": Word("algorithm.importance_floor", _named({None: UNSET})),
    "mask_truncated_completions": Word("algorithm.mask_truncated"),
    "use_bias_correction_kl": Word("algorithm.kl_bias_correction"),
    "advantage_mode": Word("algorithm.baseline", _baseline),
    # sampling
    "max_new_tokens": Word("generation.max_new_tokens"),
    "max_completion_length": Word("generation.max_new_tokens"),
    "response_length": Word("generation.max_new_tokens"),
    "max_prompt_length": Word("generation.max_prompt_tokens"),
    "temperature": Word("generation.temperature"),
    "top_p": Word("generation.top_p"),
    "top_k": Word("generation.top_k", _cut_off),
    "min_p": Word("generation.min_p"),
    "use_vllm": Word("engine.name", _named({True: "vllm", False: UNSET})),
    "vllm_server_base_url": Word("engine.base_url", _named({None: UNSET})),
    "vllm_server_timeout": Word("engine.timeout"),
    "vllm_enable_sleep_mode": Word("engine.sleep"),
    "num_turns": Word("workflow.max_turns"),
    "max_turns": Word("workflow.max_turns"),
    "external_transition": Word("workflow.external_transition"),
    "transition_mode": Word("workflow.transition_mode"),
    "external_prompt_passthrough": Word("workflow.external_prompt_passthrough"),
    "early_termination_threshold": Word("workflow.termination_threshold"),
    # output and cadences
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
    "eval_on_start": Word("evaluation.at_start"),
    "num_generations_eval": Word("evaluation.samples", _named({None: UNSET})),
}
"""word -> path. A field of the run's algorithm is a word too, and wins over this table."""
