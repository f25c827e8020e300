"""Optimisation of one policy: optimiser, learning rate, gradient clipping and loss scaling."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from mrlm.core.errors import ConfigError, NonFiniteError
from mrlm.core.log import log
from mrlm.core.process_group import ALONE, Peers
from mrlm.learn.adam import HostAdam
from mrlm.learn.critics.mixers import TeamValue
from mrlm.learn.data.batch import Sample
from mrlm.learn.fast.repeatable import repeatable
from mrlm.learn.master_weights import MASTER, MasterWeights, decayed
from mrlm.learn.policy.loading import set_checkpointing
from mrlm.learn.policy.modes import update_mode
from mrlm.learn.policy.policy import Policy, random_forward, stop_adapter_dropout
from mrlm.learn.policy.randomness import GENERATORS

CRITIC_RATE_LIMIT = 1e-3


@dataclass(slots=True)
class LearnerSettings:
    """Optimisation settings of one policy.

    Args:
        learning_rate: peak learning rate.
        critic_learning_rate: that of value heads and critics; `None` as in `critic_rate`.
        optimizer, betas, weight_decay: the optimiser; norms and biases have no decay.
        master_weights: whether weights in 16 bits are updated through float32 copies.
        offload: whether its moments are in the host's memory.
        max_grad_norm: the policy's gradient is clipped to this norm; `None` is off.
        schedule, warmup_steps, total_steps: learning rate schedule over iterations.
        max_tokens: grid cells of a micro-batch.
        shrinks: whether an out-of-memory error of a device halves `max_tokens`, once.
        accumulation: minimum number of micro-batches per optimiser step.
        gradient_checkpointing: recompute activations instead of keeping them.
        dropout: whether dropout acts in updates; `None` is that of adapters alone.
        max_nonfinite_steps: non-finite losses or gradients in a row after which training stops.
        gradient_shares: iterations between computations of a shared policy's gradient by agent; 0
            is never.
        dump_folder: destination of the batch that ended training.
        rate_factor: factor of every learning rate; below 1 after a rollback to a checkpoint.
        peers: the process group of data parallelism.
    """

    learning_rate: float = 1e-6
    critic_learning_rate: float | None = None
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    master_weights: bool = True
    offload: bool = False
    max_grad_norm: float | None = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    max_tokens: int = 16384
    shrinks: bool = False
    accumulation: int = 1
    gradient_checkpointing: bool = False
    dropout: bool | None = None
    max_nonfinite_steps: int = 3
    gradient_shares: int = 0
    dump_folder: Path | None = None
    rate_factor: float = 1.0
    peers: Peers = ALONE

    @property
    def critic_rate(self) -> float:
        """Default learning rate of critics and value heads: ten times the policy's, at most 1e-3
        unless the policy's is higher. Rates that suit adapters are too high for values: with 1e-1,
        ten times 1e-2, values are off by more than the returns differ."""
        if self.critic_learning_rate:
            return self.critic_learning_rate
        return max(self.learning_rate, min(10 * self.learning_rate, CRITIC_RATE_LIMIT))


Learned = Policy | TeamValue
"""A trainable module: a policy, or a network on top of one."""


class Stepper:
    """The optimiser of one policy; its heads have their own learning rate."""

    def __init__(self, policy: Learned, settings: LearnerSettings) -> None:
        self.policy: Learned = policy
        self.settings: LearnerSettings = settings
        heads = list(policy.value_head.parameters()) if policy.value_head else []
        head_ids = {id(weight) for weight in heads}
        body_weights = [weight for weight in policy.parameters() if id(weight) not in head_ids]
        self.weights: list[nn.Parameter] = body_weights + heads
        """The trained parameters, in the order that names them in the state."""
        self.masters: MasterWeights = MasterWeights(self.weights, settings.master_weights)
        pairs = zip(self.weights, self.masters.optimized, strict=True)
        optimized = {id(weight): copy for weight, copy in pairs}
        self.own: list[nn.Parameter] = [optimized[id(weight)] for weight in body_weights or heads]
        """Those that the optimiser updates for them, without a value head if there are others."""
        groups: list[dict[str, Any]] = []
        rates = settings.learning_rate, settings.critic_rate
        for group_weights, rate in zip((body_weights, heads), rates, strict=True):
            parts = decayed(policy, group_weights) if settings.weight_decay else (group_weights,)
            for part, share in zip(parts, (settings.weight_decay, 0.0), strict=False):
                group: dict[str, Any] = {"params": [optimized[id(weight)] for weight in part]}
                group |= {"lr": rate, "peak_lr": rate, "weight_decay": share}
                groups += [group] if part else []
        self.optimizer: torch.optim.Optimizer = _optimizer(groups, settings, policy.storage.sharded)
        scaled = policy.precision == "fp16"
        self.scaler: torch.amp.GradScaler = torch.amp.GradScaler(policy.device.type, enabled=scaled)

    def begin(self, step: int) -> float:
        """Sets the learning rates of an iteration; returns the policy's."""
        share = self.schedule(step) * self.settings.rate_factor
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * share
        return self.optimizer.param_groups[0]["lr"]

    def schedule(self, step: int) -> float:
        """Share of the peak learning rate at an iteration."""
        settings = self.settings
        if step < settings.warmup_steps:
            return (step + 1) / settings.warmup_steps
        span = max(1, settings.total_steps - settings.warmup_steps)
        progress = min(1.0, (step - settings.warmup_steps) / span)
        if settings.schedule == "linear":
            return 1.0 - progress
        if settings.schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        return 1.0

    def clear(self) -> None:
        for weight in self.weights:
            weight.grad = None

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a part of the loss."""
        self.scaler.scale(loss).backward()

    def norm(self) -> float:
        """Norm of the full gradient, after which it is clipped to `max_grad_norm`."""
        self.masters.take_gradients()
        self.scaler.unscale_(self.optimizer)
        limit = self.settings.max_grad_norm
        return self.policy.storage.clip(self.masters.optimized, limit or math.inf)

    def step(self, apply: bool) -> None:
        """Updates the weights (unless `apply` is false) and clears gradients."""
        if apply:
            self.scaler.step(self.optimizer)
        self.masters.round_back()
        self.scaler.update()
        self.clear()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able rest of the state; parameters are named by position."""
        tensors: dict[str, Tensor] = {}
        rest: dict[str, Any] = {}
        for index, weight in enumerate(self.masters.optimized):
            for key, value in self.optimizer.state.get(weight, {}).items():
                target: dict[str, Any] = tensors if isinstance(value, Tensor) else rest
                target[f"{index}.{key}"] = value
        tensors |= self.masters.state()
        return tensors, {"values": rest, "scaler": self.scaler.state_dict()}

    def load_state(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        state: dict[int, dict[str, Any]] = {}
        copies: dict[int, Tensor] = {}
        weights, storage = self.weights, self.policy.storage
        grouped = (weight for group in self.optimizer.param_groups for weight in group["params"])
        place_of = {id(weight): position for position, weight in enumerate(grouped)}
        for name, value in {**tensors, **rest["values"]}.items():
            index, key = name.split(".", 1)
            if isinstance(value, Tensor):
                value = storage.place(weights[int(index)], value)
            if key == MASTER:
                copies[int(index)] = value
                continue
            position = place_of[id(self.masters.optimized[int(index)])]
            state.setdefault(position, {})[key] = value
        self.masters.load(copies)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        if rest["scaler"]:
            self.scaler.load_state_dict(rest["scaler"])


def _optimizer(
    groups: list[dict[str, Any]], settings: LearnerSettings, sharded: bool
) -> torch.optim.Optimizer:
    """The optimiser of some groups of parameters."""
    decay, decoupled = settings.weight_decay, settings.optimizer == "adamw"
    if settings.optimizer == "sgd":  # shards have no fused step
        return torch.optim.SGD(groups, weight_decay=decay, fused=not sharded)
    how: dict[str, Any] = {"betas": settings.betas, "weight_decay": decay, "fused": True}
    if settings.offload:
        return HostAdam(groups, decoupled_weight_decay=decoupled, **how)
    return (torch.optim.AdamW if decoupled else torch.optim.Adam)(groups, **how)


class Trainee:
    """Base of learners and critics: weights and optimiser; `title` names them in messages."""

    rate: ClassVar[str] = "the learning rate"
    """The setting to lower if steps are not finite."""
    counters: ClassVar[tuple[str, ...]] = ("nonfinite",)
    """Counts that a checkpoint keeps."""
    heads_suffice: ClassVar[bool] = True
    """Whether heads on a frozen model can be all that is trained."""

    def __init__(self, learned: Learned, settings: LearnerSettings, title: str) -> None:
        self.learned: Learned = learned
        self.settings: LearnerSettings = settings
        self.title: str = title
        if isinstance(learned, Policy):
            learned.dropout = bool(settings.dropout)
            if settings.dropout is False:
                stop_adapter_dropout(learned)
        if settings.offload and (learned.device.type == "cpu" or learned.storage.sharded):
            reason = "sharded by FSDP" if learned.storage.sharded else "on the CPU"
            raise ConfigError(
                f"training.optimizer_offload=true is for whole weights on a device, and those of "
                f"{title} are {reason}; remove it"
            )
        self.nonfinite: int = 0
        """Steps in a row that were not finite."""

    @cached_property
    def stepper(self) -> Stepper:
        """The optimiser, made on first use."""
        self.check_trainable()
        return Stepper(self.learned, self.settings)

    def check_trainable(self) -> None:
        """Raises a `ConfigError` if there is no parameter to train."""
        if not any(
            weight.requires_grad and (self.heads_suffice or not name.startswith("value_head."))
            for name, weight in dict(self.learned.named_parameters()).items()
        ):
            raise ConfigError(
                f"{self.title} has no parameter to train: all are frozen "
                "(requires_grad=False); call model.requires_grad_(True), or leave it out of the "
                "training (policies.<name>.trainable=false; trained=[...] of a TeamLearner)"
            )

    def shrink(self, error: torch.OutOfMemoryError) -> None:
        """Halves micro-batches after an out-of-memory error, once; else raises it."""
        settings = self.settings
        if not settings.shrinks or self.learned.storage.sharded:
            raise error
        settings.shrinks, settings.max_tokens = False, max(1, settings.max_tokens // 2)
        log.warning(
            "%s: out of memory; the step is computed again in micro-batches of at most %d tokens, "
            "and so are the next ones (training.max_tokens_per_microbatch sets the number)",
            self.title,
            settings.max_tokens,
        )

    def finish_step(
        self,
        metrics: dict[str, float],
        samples: Sequence[Sample] = (),
        without_gradient: Callable[[], None] | None = None,
    ) -> tuple[float, bool]:
        """Steps with the accumulated gradient unless it or the loss (of `metrics`) is not finite;
        returns its norm, and whether it stepped. An overflow of the loss scale does not count;
        several other failures in a row end the run with a `NonFiniteError`, and save the
        `samples`. `without_gradient` is called before a step whose gradient is exactly 0."""
        loss = metrics["loss"]
        norm = self.stepper.norm()
        if norm == 0.0 and without_gradient is not None:
            without_gradient()
        finite = math.isfinite(loss) and math.isfinite(norm)
        overflow = self.stepper.scaler.get_scale() > 1.0 and math.isfinite(loss)
        self.stepper.step(apply=finite)
        if finite:
            self.nonfinite = 0
        elif overflow:
            log.info("%s: gradient overflow; lowering the loss scale", self.title)
        else:
            self.nonfinite += 1
            where = f"{self.title}: loss {loss:g}, gradient norm {norm:g}"
            log.warning("%s; the step is skipped (%d in a row)", where, self.nonfinite)
            if self.nonfinite >= self.settings.max_nonfinite_steps:
                dump_note = self._dump(samples, metrics | {"grad_norm": norm})
                raise NonFiniteError(
                    f"{where}: {self.nonfinite} steps in a row were not finite{dump_note}. "
                    f"Lower {self.rate}, or set training.precision=fp32"
                )
        return norm, finite

    def _dump(self, samples: Sequence[Sample], metrics: dict[str, float]) -> str:
        folder = self.settings.dump_folder
        if not samples or folder is None or not self.settings.peers.main:
            return ""
        path = folder / f"nonfinite-{samples[0].turns[0].policy}.pt"
        rows = [{"ids": sample.ids, "starts": sample.starts} for sample in samples]
        torch.save({"samples": rows, "metrics": metrics}, path)
        return f"; the batch is in {path}"

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON-able rest of the optimiser state; parameters are named by position."""
        tensors, rest = self.stepper.state()
        rest |= {name: getattr(self, name) for name in self.counters}
        return tensors, rest | {"max_tokens": self.settings.max_tokens}

    def load_optimizer_state(self, tensors: dict[str, Tensor], rest: dict[str, Any]) -> None:
        self.stepper.load_state(tensors, rest)
        for name in self.counters:
            setattr(self, name, rest[name])


@contextmanager
def training_mode(policies: Sequence[Policy], checkpointing: bool) -> Iterator[None]:
    """Context for training mode (dropout, gradient checkpointing, sums in a fixed order) of
    policies with one model; restores the previous mode. Of a model on the fast path, only the
    modules of these policies are set, whatever the number of other adapters."""
    model, device = policies[0].model, policies[0].device
    passes = [policy.lean_pass for policy in policies]
    with ExitStack() as modes:
        modes.enter_context(repeatable(device))
        if device.type != "cpu" and any(map(random_forward, policies)):
            modes.enter_context(GENERATORS.drawing())
        if None in passes:
            modes.enter_context(update_mode(model, policies[0].dropout, checkpointing))
        for lean in passes:
            if lean is not None:
                modes.enter_context(lean.training())
        if checkpointing:
            modes.callback(set_checkpointing, model, False)
            set_checkpointing(model, True)
        yield
