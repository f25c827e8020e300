"""The sections of an experiment, field by field: types, ranges, defaults. Unknown keys, wrong types
and values out of range are `ConfigError`s. Settings of algorithms are in their own files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from mrlm.config.base import (
    MOST,
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
from mrlm.core.matters import Matters, each_of


def _trackers(value: Any) -> Any:
    return [] if value in ("none", None, ["none"]) else listed(value)


def _off(value: Any) -> Any:
    """YAML reads the word `off` as false."""
    return "off" if value is False else value


class ScheduleConfig(Section):
    """The schedule of policy updates, and exchanges of policies. A string is the `order`."""

    order: Literal["simultaneous", "alternating", "sequential"] | None = None
    """`simultaneous`: all at once. `alternating`: in turn, some are trained while the others are
    frozen. `sequential`: one after the other in random order, in every iteration. By default the
    algorithm's own."""
    period: Count | None = None
    """Iterations per turn with `alternating`; 1 by default."""
    turns: list[list[str]] | None = None
    """Groups of policies trained together with `alternating`; by default each alone."""
    swap_every: Count | None = None
    """Iterations after which agents exchange their policies; by default never, or as defined by the
    algorithm."""
    roles: list[str] | None = None
    """Agents that exchange their policies; by default all with trained policies."""

    @model_validator(mode="before")
    @classmethod
    def _from_order(cls, value: Any) -> Any:
        return {"order": value} if isinstance(value, str) else value


class TrainingConfig(Section):
    """The training: duration, batch sizes, optimisation, checkpoints and checks."""

    algorithm: Reference = "grpo"
    """An algorithm's name, or `module:Class`."""
    num_iterations: Count | None = None
    """Iterations of the run; if not set, `num_epochs` passes over the tasks."""
    num_epochs: Annotated[float, Field(gt=0, le=MOST)] = 1
    """Passes over the tasks, or part of one; where tasks never end one epoch is one iteration, in
    an outer loop (`spin`) it is a round."""
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    """Schedule of policy updates."""
    batch_size: Count = 8
    """Tasks (rows, pairs) per iteration; each is played `group_size` times."""
    gradient_accumulation_steps: Count = 1
    """Number of equal parts of an optimiser batch; the gradient stays the same."""
    max_tokens_per_microbatch: Count | Literal["auto"] = "auto"
    """Tokens, padding included, per forward pass in training. `auto`: as many as fit into half of
    the free memory when the run starts, at most 16384; an out-of-memory error of a device halves
    them once."""
    learning_rate: Positive | None = None
    """Peak learning rate; the algorithm's own if not set."""
    critic_learning_rate: Positive | None = None
    """Peak learning rate of critics and value heads; ten times the policy's, at most 1e-3, if not
    set (3e-4 for heads and mixers of `vdn` and `qmix`)."""
    critic_model: str | None = None
    """A hub id or folder that a central critic starts from; the first trained policy if not set."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    optimizer_offload: bool = False
    """Keep the moments of `adamw` and `adam` in the host's memory: eight bytes less per weight on a
    GPU, equal numbers, slower steps."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    weight_decay: NotNegative = 0.0
    """Of all trained weights but norms and biases."""
    master_weights: bool = True
    """Update weights in 16 bits through float32 copies, which cost as much memory as float32
    weights. `false`: in place, where steps below half a digit of a weight round to nothing."""
    max_grad_norm: Positive | None = 1.0
    """The gradient is clipped to this norm; null disables clipping."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up."""
    warmup_steps: Whole = 0
    """Iterations over which the learning rate rises to its peak."""
    warmup_ratio: Share | None = None
    """Warm-up as a fraction of the run, instead of `warmup_steps`."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Compute type of forward passes in training; weights keep their own type. `auto`: bf16 on a
    CUDA device that has it, else fp32."""
    dropout: bool | None = None
    """Which dropout acts in updates, where it makes losses and ratios random: `true` that of models
    and adapters, `false` none, `null` that of adapters (`lora.dropout`)."""
    gradient_checkpointing: bool = False
    """Recompute activations instead of storing them."""
    seed: Whole = 0
    save_steps: Count | None = None
    """Iterations between checkpoints; by default only at the end."""
    save_total_limit: Count | None = 2
    """Number of checkpoints kept; during a run at least two. Null keeps all."""
    logging_steps: Count = 1
    """Iterations between lines on the terminal; files contain every iteration."""
    show: list[str] = Field(default_factory=list)
    """Metrics on the terminal, with `*` for any part of a name; by default numbers by agent."""
    report_to: Annotated[list[str], BeforeValidator(_trackers)] = Field(
        default_factory=lambda: ["tensorboard"]
    )
    """Trackers beside the metrics file that is always written; `none` is an empty list."""
    wandb: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `wandb.init` for the tracker `wandb`, such as `project`, `entity`, `name`."""
    max_nonfinite_steps: Count = 3
    """Consecutive steps with a non-finite loss or gradient after which the run stops or is rolled
    back."""
    rollback: Whole = 0
    """Maximum number of rollbacks to the last good checkpoint before the run stops."""
    rollback_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor on all learning rates at every rollback."""
    threads: Count | None = None
    """CPU threads; by default chosen by the size of the model."""
    max_lag: Whole = 0
    """Maximum staleness in updates of the weights that start an episode: above 0 sampling continues
    during training. 0: everything is trained on by the weights that sampled it."""
    profile: bool = False
    """Profile every step: a table at the end, `profile.jsonl` during the run."""
    checks: Annotated[Literal["error", "warn", "off"], BeforeValidator(_off)] = "error"
    """Reaction to failed checks of silent errors: at the first step, after every weight update, and
    on the sampling weights of every step."""
    max_mismatch_kl: Positive | None = None
    """`mismatch_kl` of a policy above which a step counts as sampled with other weights; by default
    1e-4 in float32 and 0.05 in 16 bits."""
    doctor: Annotated[Literal["warn", "stop", "off"], BeforeValidator(_off)] = "warn"
    """Reaction to an alarm of the rules that examine every step (`mrlm doctor`): `warn` logs it,
    `stop` also ends the run after a checkpoint."""
    doctor_rules: dict[str, dict[str, Any] | bool] = Field(default_factory=dict)
    """Rule, or one's own `module:Class` -> thresholds that differ from the defaults; `false`
    switches it off."""
    gradient_shares: Whole = 0
    """Iterations between computations of a shared policy's gradient by agent (`gradient_share`,
    `gradient_cosine`), one more pass for each agent. 0: never."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "doctor_rules": Matters(
            lambda s, run: s.doctor != "off",
            "training.doctor is off, so no rule is called; remove one of the two",
        ),
        "gradient_shares": Matters(
            lambda s, run: run.agents > len(run.policies),
            "every agent has a policy of its own; remove it, or share one (agents.<name>.policy)",
        ),
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
        **each_of(
            "adam_beta1 adam_beta2 optimizer_offload",
            lambda s, run: s.optimizer != "sgd",
            "the optimizer is sgd; remove it, or use adamw",
        ),
        "master_weights": Matters(
            lambda s, run: (
                run.config.model.torch_dtype != "float32" or len(run.loaded) < len(run.policies)
            ),
            "the weights are float32 (model.torch_dtype) and need no copies; remove it",
        ),
        "rollback_factor": Matters(
            lambda s, run: s.rollback or s.wrote("rollback"),
            "rollback is 0, so no rollback happens; set it, or remove this",
        ),
    }

    def warmup(self, total: int) -> int:
        """Warm-up iterations of a run of `total` iterations."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        return round(self.warmup_ratio * total)


class DataConfig(Section):
    """The data set for supervised and preference learning."""

    dataset: Any = None
    """A preset (`mrlm data` lists them), a file, a folder, a hub id, or the rows themselves (a list
    of mappings)."""
    split: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    """Our name of a column -> its name in the data."""
    on_bad_row: Literal["raise", "skip"] = "raise"
    on_long_row: Literal["raise", "truncate"] = "raise"
    """Handling of rows that exceed the context length of the policy; `truncate` removes the
    beginning of the prompt, never of an answer."""
    max_rows: Count | None = None
    shuffle: bool = True
    streaming: bool = False
    """Read rows during training, instead of all of them before it."""
    shuffle_buffer: Count = 10_000
    """Rows in memory at a time, if they are streamed and shuffled."""

    matters: ClassVar[Mapping[str, Matters]] = {
        **each_of(
            "split columns on_bad_row on_long_row max_rows shuffle streaming",
            lambda s, run: run.rows,
            "this run samples episodes and reads no rows; remove it, or set data.dataset",
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
    """The sharding of models with `distributed.strategy=fsdp`.

    Args:
        sharding: `full`: weights are gathered for each pass and freed after it; `grad_op`: they
            stay gathered until the step; `hybrid`: they are sharded within a node, and replicated
            across nodes.
        cpu_offload: keep shards in CPU memory.
        reduce_dtype: type of gradient reduction; `null`: `float32`.
    """

    sharding: Literal["full", "grad_op", "hybrid"] = "full"
    cpu_offload: bool = False
    reduce_dtype: Literal["float32", "bfloat16"] | None = None


class DistributedConfig(Section):
    """Distributed training by several processes, started by torchrun (or, with `ray`, by Ray).

    Args:
        enabled: enable it; with `ddp` it is also enabled if torchrun has started several processes.
        strategy: `ddp`: every process holds the whole models. `fsdp`: models are sharded.
        timeout: seconds that a process waits for the others.
        bucket_mib: size of the buckets in which gradients are reduced.
        fsdp: settings of sharding.
    """

    enabled: bool = False
    strategy: Literal["ddp", "fsdp", "ray"] = "ddp"
    ray: RayConfig = Field(default_factory=RayConfig)
    """The cluster, and the placement of workers."""
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


class RecordConfig(Section):
    """The record of episodes in the run folder, for `mrlm.read_run`, `mrlm replay` and pages."""

    tokens: Literal["sample", "all", "none"] = "sample"
    """The episodes whose tokens are recorded, with their log-probs, advantages and other columns: a
    `sample` (of every evaluation and of two groups per training step), `all`, or `none`."""
    keep: Literal["all", "evaluations"] | Count = "all"
    """The episodes that are recorded: `all`, those of `evaluations`, or of so many groups per
    training step (and of evaluations)."""
    compress: bool = True
    """Write `episodes.jsonl.gz`; `false` writes `episodes.jsonl`."""
    max_gb: Positive | None = 4.0
    """Size of the file, in GB, from which only every second training step is kept, then every
    fourth, and so on; evaluations stay. `null`: no limit."""


class AsynchronyConfig(Section):
    """Asynchronous sampling during training, and oversampling."""

    partial: bool = True
    """Continue running episodes with new weights (`training.max_lag` above 1). Otherwise all
    episodes are completed before weights are updated."""
    matters: ClassVar[Mapping[str, Matters]] = {
        "partial": Matters(
            lambda s, run: run.config.training.max_lag > 1,
            "episodes span updates only with training.max_lag above 1; remove it",
        )
    }
    oversample: Annotated[float, Field(ge=1, le=8)] = 1.0
    """Factor on `group_size` for the number of episodes started per task, of which the first
    `group_size` to complete are kept. 1 disables it."""


class StageConfig(Section):
    """One run of a pipeline: a name, and the keys of the experiment that differ in it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    name: FileName

    @property
    def changes(self) -> dict[str, Any]:
        """The changes of this stage, as written."""
        return dict(self.__pydantic_extra__ or {})
