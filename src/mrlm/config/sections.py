"""The sections of an experiment, field by field: types, ranges, defaults. Strict: an unknown key, a
wrong type or a value out of range is a `ConfigError`. No algorithm's settings live here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from mrlm.config.base import (
    Count,
    FileName,
    NotNegative,
    Positive,
    Reference,
    Section,
    Share,
    Whole,
    listed,
)
from mrlm.config.ray_section import RayConfig
from mrlm.core.matters import Matters


def _trackers(value: Any) -> Any:
    return [] if value in ("none", None, ["none"]) else listed(value)


class ScheduleConfig(Section):
    """Which policies learn when, and which agents exchange theirs. A string is the `order`."""

    order: Literal["simultaneous", "alternating", "sequential"] | None = None
    """`simultaneous`: all at once. `alternating`: some learn while the others are frozen, in turn.
    `sequential`: one after the other in random order, in every iteration. The algorithm's own if
    not set."""
    period: Count | None = None
    """Iterations of a turn where they alternate; 1 if not set."""
    turns: list[list[str]] | None = None
    """Policies that learn together where they alternate, turn by turn; each alone if not set."""
    swap_every: Count | None = None
    """Iterations after which agents exchange their policies; never (or as the algorithm says) if
    not set."""
    roles: list[str] | None = None
    """Agents that exchange their policies; all whose policies are trained if not set."""

    @model_validator(mode="before")
    @classmethod
    def _from_order(cls, value: Any) -> Any:
        return {"order": value} if isinstance(value, str) else value


class TrainingConfig(Section):
    """How long, how much at once, how it is optimised, what is kept."""

    algorithm: Reference = "grpo"
    """An algorithm's name, or `module:Class`."""
    num_iterations: Count | None = None
    """Iterations of the run; if not set, `num_epochs` passes over the tasks."""
    num_epochs: Count = 1
    """Passes over the tasks; where tasks never end one epoch is one iteration."""
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    """Which policies learn when."""
    batch_size: Count = 8
    """Tasks (rows, pairs) per iteration; each is played `group_size` times."""
    gradient_accumulation_steps: Count = 1
    """Equal parts an optimiser batch is cut into; the gradient stays the same."""
    max_tokens_per_microbatch: Count = 16384
    """Tokens, padding included, that go through the model at once while learning."""
    learning_rate: Positive | None = None
    """Peak learning rate; the algorithm's own if not set."""
    critic_learning_rate: Positive | None = None
    """Peak learning rate of critics and value heads; ten times the policy's, at most 1e-3, if not
    set (3e-4 for heads and mixers of `vdn` and `qmix`)."""
    critic_model: str | None = None
    """A hub id or folder that a central critic starts from; the first trained policy if not set."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive | None = 1.0
    """The gradient is clipped to this norm; null is off."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up."""
    warmup_steps: Whole = 0
    """Iterations over which the learning rate rises to its peak."""
    warmup_ratio: Share | None = None
    """The same as a share of the run, instead of `warmup_steps`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What forward passes compute in while learning; weights keep their own type."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""
    seed: Whole = 0
    save_steps: Count | None = None
    """Iterations between checkpoints; at the end only, if not set."""
    save_total_limit: Count = 2
    """Checkpoints that are kept; while a run goes on never fewer than two."""
    logging_steps: Count = 1
    """Iterations between lines on the terminal; files get every one."""
    report_to: Annotated[list[str], BeforeValidator(_trackers)] = Field(
        default_factory=lambda: ["tensorboard"]
    )
    """Trackers beside the metrics file that is always written; `none` is an empty list."""
    wandb: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `wandb.init` for the tracker `wandb`, such as `project`, `entity`, `name`."""
    max_nonfinite_steps: Count = 3
    """Steps in a row with a non-finite loss or gradient after which the run stops, or goes back."""
    rollback: Whole = 0
    """Times a run goes back to its last good checkpoint instead of stopping there."""
    rollback_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What all learning rates are multiplied by every time it has gone back."""
    threads: Count | None = None
    """CPU threads; chosen by the size of the model if not set."""
    max_lag: Whole = 0
    """Updates that weights may be behind when something is begun with them: above 0 play goes on
    while policies learn. 0: everything is learned from by the weights that sampled it."""
    profile: bool = False
    """Measure where the time of every step goes: a table at the end, `profile.jsonl` while it
    runs."""
    checks: Literal["error", "warn", "off"] = "error"
    """What happens when checks find something silently wrong: at the first step, after every
    exchange of weights, and in what every step was sampled with."""
    max_mismatch_kl: Positive | None = None
    """`mismatch_kl` of a policy from which on a step counts as sampled with other weights; 1e-4 in
    float32 and 0.05 in 16 bits if not set."""

    matters: ClassVar[Mapping[str, Matters]] = {
        **{
            name: Matters(
                lambda s, run, name=name: (
                    run.values
                    or any(p.trainable and getattr(p, name) is None for p in run.policies.values())
                ),
                "every trained policy has its own; remove it, or those of policies",
            )
            for name in ("learning_rate", "max_grad_norm", "weight_decay")
        },
        "critic_learning_rate": Matters(
            lambda s, run: run.values, "this algorithm has no critic; remove it"
        ),
        "max_mismatch_kl": Matters(
            lambda s, run: s.checks != "off",
            "with training.checks=off engine and trainer are not compared; remove one of the two",
        ),
        "wandb": Matters(
            lambda s, run: "wandb" in s.report_to,
            "the tracker wandb is not in training.report_to; add it, or remove this",
        ),
        "adam_beta1": Matters(
            lambda s, run: s.optimizer != "sgd", "the optimizer is sgd; remove it, or use adamw"
        ),
        "adam_beta2": Matters(
            lambda s, run: s.optimizer != "sgd", "the optimizer is sgd; remove it, or use adamw"
        ),
        "rollback_factor": Matters(
            lambda s, run: s.rollback or s.wrote("rollback"),
            "rollback is 0, so no run goes back; set it, or remove this",
        ),
    }

    def warmup(self, total: int) -> int:
        """Warm-up iterations of a run of `total` iterations."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        return round(self.warmup_ratio * total)


class LoraConfig(Section):
    """A low-rank adapter on a base that stays as it is."""

    r: Count = 8
    """Rank."""
    alpha: Positive = 16
    """Scale: the update counts `alpha / r`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Any = "all-linear"
    """`all-linear`, or a list of module names."""

    @field_validator("target_modules")
    @classmethod
    def _names(cls, value: Any) -> Any:
        listed = isinstance(value, list | tuple) and bool(value)
        if value != "all-linear" and not (listed and all(isinstance(each, str) for each in value)):
            raise ValueError(f"must be 'all-linear' or a list of module names, not {value!r}")
        return value if isinstance(value, str) else list(value)


class ModelConfig(Section):
    """The model that every policy starts from unless it names its own."""

    model_name_or_path: str = "mrlm/tiny"
    """A hub id, a Hugging Face folder, or `mrlm/tiny`, the embedded model."""
    tokenizer_name_or_path: str | None = None
    """The model's own if not set."""
    torch_dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Type of the weights; `auto` is what they were saved in."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    lean: bool = True
    """Compute models of the Llama, Mistral, Qwen and Gemma families with the library's own forward,
    which reads what samples share once; others, and all with `false`, with the model's own."""
    device: str = "auto"
    """`auto` is the first CUDA device, else the CPU."""
    lora: LoraConfig | None = None
    """An adapter for every trained policy that does not set its own."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """More variables for the chat template."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "lora": Matters(
            lambda s, run: any(p.trainable and not p.lora for p in run.policies.values()),
            "every trained policy has an adapter of its own; remove it, or policies.<name>.lora",
        ),
        **dict.fromkeys(
            ("model_name_or_path", "tokenizer_name_or_path"),
            Matters(
                lambda s, run: any(not run.policies[name].model for name in run.loaded),
                "every policy has a model of its own; remove it, or policies.<name>.model",
            ),
        ),
        **dict.fromkeys(
            ("torch_dtype", "attn_implementation"),
            Matters(
                lambda s, run: run.loaded or run.config.training.critic_model,
                "every model was given as an object, and none is loaded; remove it",
            ),
        ),
    }


class PriceConfig(Section):
    """What a million tokens cost, in any currency."""

    prompt: NotNegative = 0.0
    completion: NotNegative = 0.0


class EndpointConfig(Section):
    """A server that speaks chat completions, as OpenAI's does (vLLM, SGLang, `transformers serve`,
    most providers). It is only asked; nothing is trained there."""

    base_url: Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")]
    """Where it is, up to `/v1`; without user name, password or query."""
    model: Annotated[str, Field(min_length=1)]
    """The model's name there."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = None
    """Environment variable that holds the key; the key itself stands nowhere."""
    max_retries: Whole = 4
    """Times a call is repeated that failed for a reason that may pass."""
    requests_per_minute: Positive | None = None
    """No limit if not set."""
    max_concurrent: Count = 16
    """Calls under way at once."""
    timeout: Positive = 60.0
    """Seconds one call may take."""
    price: PriceConfig = Field(default_factory=PriceConfig)
    """What its tokens cost, per million."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls `generation.max_new_tokens`."""
    body: dict[str, Any] = Field(default_factory=dict)
    """More fields of every request, such as `{reasoning_effort: low}`."""


class PolicyConfig(Section):
    """One set of weights. What is not set comes from `model` and `training`."""

    model: str | None = None
    """A hub id or folder."""
    tokenizer: str | None = None
    trainable: bool = True
    """A policy that is not trained is frozen: a judge, an opponent."""
    lora: LoraConfig | None = None
    learning_rate: Positive | None = None
    max_grad_norm: Positive | None = None
    weight_decay: NotNegative | None = None
    endpoint: EndpointConfig | None = None
    """A server that speaks for this policy, which is frozen then."""
    engine: Reference | None = None
    """The plug-in that asks the endpoint; `openai` if not set."""

    matters: ClassVar[Mapping[str, Matters]] = dict.fromkeys(
        ("lora", "learning_rate", "max_grad_norm", "weight_decay"),
        Matters(
            lambda s, run: s.trainable,
            "the policy is frozen (trainable: false); remove it, or that",
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _frozen_behind_an_api(cls, value: Any) -> Any:
        behind = isinstance(value, Mapping) and value.get("endpoint") is not None
        return {"trainable": False, **value} if behind else value

    @property
    def misfit(self) -> tuple[str, str] | None:
        """What does not fit the endpoint, or the lack of one, as a key and a sentence."""
        if self.endpoint is None:
            text = "it asks an endpoint, and there is none; set endpoint, or remove it"
            return None if self.engine is None else ("engine", text)
        if self.trainable:
            return "trainable", (
                "a policy behind an endpoint has no weights here, so it cannot be trained; "
                "set trainable=false"
            )
        for key in ("model", "tokenizer", "lora", "learning_rate", "max_grad_norm", "weight_decay"):
            if getattr(self, key) is not None:
                return key, "a policy behind an endpoint has no weights here; remove it"
        return None


class DataConfig(Section):
    """Rows to learn from, for supervised and preference learning."""

    dataset: Any = None
    """A preset (`mrlm data` lists them), a file, a folder, a hub id, or the rows themselves (a list
    of mappings)."""
    split: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    """Our name of a column -> its name in the data."""
    on_bad_row: Literal["raise", "skip"] = "raise"
    on_long_row: Literal["raise", "truncate"] = "raise"
    """What is done with a row that its policy cannot read whole; `truncate` cuts the beginning of
    its prompt, never an answer."""
    max_rows: Count | None = None
    shuffle: bool = True
    streaming: bool = False
    """Read rows while they are learned from, instead of all of them before."""
    shuffle_buffer: Count = 10_000
    """Rows that are in memory at a time where they are streamed and shuffled."""

    matters: ClassVar[Mapping[str, Matters]] = {
        **dict.fromkeys(
            (
                "split",
                "columns",
                "on_bad_row",
                "on_long_row",
                "max_rows",
                "shuffle",
                "streaming",
            ),
            Matters(
                lambda s, run: run.rows,
                "this run plays and learns from no rows; remove it, or set data.dataset",
            ),
        ),
        "shuffle_buffer": Matters(
            lambda s, run: run.rows and s.streaming and s.shuffle,
            "only rows that are streamed and shuffled have a buffer; set data.streaming",
        ),
    }

    @field_validator("dataset")
    @classmethod
    def _rows(cls, value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        rows = isinstance(value, list) and all(isinstance(row, Mapping) for row in value)
        if value is None or rows or (isinstance(value, str) and value):
            return value
        raise ValueError("must be a preset, a path, a hub id or a list of rows (mappings)")


class FsdpConfig(Section):
    """How `distributed.strategy=fsdp` cuts models into shards.

    Args:
        sharding: `full`: weights are put together for each pass and given back after it;
            `grad_op`: they stay together until the step; `hybrid`: they are cut within a node, and
            nodes hold the same.
        cpu_offload: shards live in the memory of the processor.
        reduce_dtype: what gradients are added up in; `null`: `float32`.
    """

    sharding: Literal["full", "grad_op", "hybrid"] = "full"
    cpu_offload: bool = False
    reduce_dtype: Literal["float32", "bfloat16"] | None = None


class DistributedConfig(Section):
    """Several processes that train one run together, started by torchrun (or, with `ray`, by Ray).

    Args:
        enabled: whether they do; they do so too, with `ddp`, wherever torchrun started several.
        strategy: `ddp`: every process holds the models whole. `fsdp`: they are cut into shards.
        timeout: seconds that a process waits for the others before it gives up.
        bucket_mib: gradients are added up in pieces of this size.
        fsdp: how models are cut.
    """

    enabled: bool = False
    strategy: Literal["ddp", "fsdp", "ray"] = "ddp"
    ray: RayConfig = Field(default_factory=RayConfig)
    """The cluster, and who is where on it."""
    timeout: float = Field(default=1800.0, gt=0)
    bucket_mib: int = Field(default=25, ge=1)
    fsdp: FsdpConfig = Field(default_factory=FsdpConfig)

    matters: ClassVar[Mapping[str, Matters]] = {
        "fsdp": Matters(
            lambda s, run: s.strategy == "fsdp", "strategy is not fsdp; set it, or remove this"
        ),
        "ray": Matters(
            lambda s, run: s.strategy == "ray", "strategy is not ray; set it, or remove this"
        ),
    }


class AsynchronyConfig(Section):
    """How play goes on beside learning, and what is played beyond what is needed."""

    partial: bool = True
    """Episodes may go on with new weights where they are when those come (`training.max_lag` above
    1). Otherwise everything that was begun is complete before weights are exchanged."""
    matters: ClassVar[Mapping[str, Matters]] = {
        "partial": Matters(
            lambda s, run: run.config.training.max_lag > 1,
            "episodes go on across updates only with training.max_lag above 1; remove it",
        )
    }
    oversample: Annotated[float, Field(ge=1, le=8)] = 1.0
    """So many times `group_size` episodes of each task are begun, and the first `group_size` to be
    complete are kept. 1 is off."""


class StageConfig(Section):
    """One run of a pipeline: a name, and the keys of the experiment that are different in it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    name: FileName

    @property
    def changes(self) -> dict[str, Any]:
        """What is different in this stage, as it was written."""
        return dict(self.__pydantic_extra__ or {})
