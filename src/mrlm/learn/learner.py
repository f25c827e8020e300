"""A learner trains one policy: it annotates turns, forms the loss and steps the optimiser. It serves the library's loop and a
user's own alike, and does not know where turns come from."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.transcripts import transcript_turns
from mrlm.core.types import Episode, Group, Role, Rollout, Task, Turn
from mrlm.learn.algorithm import Algorithm
from mrlm.learn.batch import Batch, Loss, Outputs, Sample, Totals, merge, pack, split
from mrlm.learn.policy import Policy

log = logging.getLogger("mrlm")


@dataclass(slots=True)
class LearnerSettings:
    """How one policy is optimised.

    Args:
        learning_rate: peak learning rate.
        critic_learning_rate: that of value heads; ten times the policy's when `None`.
        optimizer, betas, weight_decay: what steps.
        max_grad_norm: the policy's gradient is clipped to this norm; `None` is off.
        schedule, warmup_steps, total_steps: course of the learning rate over iterations.
        max_tokens: grid cells of a micro-batch.
        accumulation: parts an optimiser batch is cut into at least.
        gradient_checkpointing: recompute activations instead of keeping them.
        max_nonfinite_steps: steps in a row with a non-finite loss or gradient after which training stops.
        dump_folder: where the batch is written that ended it.
    """

    learning_rate: float = 1e-6
    critic_learning_rate: float | None = None
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    max_tokens: int = 16384
    accumulation: int = 1
    gradient_checkpointing: bool = False
    max_nonfinite_steps: int = 3
    dump_folder: Path | None = None


class Learner:
    """Trains one policy.

    In a user's own loop: `loss = Learner(model, tokenizer, GRPO()).calculate_loss(rollouts, rewards)`, then `loss.backward()`
    and a step of the user's optimiser over `learner.parameters()`. The model is never wrapped, cast or copied (a frozen
    copy is kept beside it if the algorithm compares with a reference and none is given).

    Args:
        model: a causal language model, a PEFT model (its active adapter is trained) or a `Policy`.
        tokenizer: its tokenizer.
        algorithm: credit and loss.
        agents: names of the agents that are trained; every agent when `None`.
        reference: a frozen model for algorithms that compare with one.
        settings: how `update` optimises; not used by `calculate_loss`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        algorithm: Algorithm | None = None,
        *,
        agents: Sequence[str] | None = None,
        reference: Any = None,
        settings: LearnerSettings | None = None,
    ) -> None:
        if algorithm is None:
            raise ConfigError("Learner needs an algorithm: Learner(model, tokenizer, GRPO())")
        if isinstance(model, Policy):
            self._policy = model
        else:
            adapter = getattr(model, "active_adapter", None)
            adapter = adapter if isinstance(adapter, str) else None
            self._policy = Policy("policy", model, tokenizer, adapter=adapter, reference=reference)
        self.algorithm = algorithm
        self.agents = None if agents is None else frozenset(agents)
        self.settings = settings or LearnerSettings()
        self.version = 0
        self.nonfinite = 0
        self._optimizer: torch.optim.Optimizer | None = None
        self._scaler: torch.amp.GradScaler | None = None
        if "values" in algorithm.needs:
            self._policy.add_value_head()
        if "ref_logprobs" in algorithm.needs:
            self._policy.keep_reference()

    @property
    def policy(self) -> str:
        """Name of the policy that is trained."""
        return self._policy.name

    @property
    def weights_of(self) -> Policy:
        """The policy itself."""
        return self._policy

    @property
    def chat(self) -> Chat:
        return self._policy.chat

    def parameters(self) -> list[nn.Parameter]:
        """What an optimiser should step: the policy's own trainable parameters, heads included."""
        return self._policy.parameters()

    def weights(self) -> Policy:
        """What an engine takes after an update: here the live weights themselves."""
        return self._policy

    # -- the user's own loop ------------------------------------------------------------------------------------------------

    def batch(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[float] | None = None,
        group_by: Callable[[Rollout], Any] | None = None,
    ) -> Batch:
        """The rollouts with their credit, packed as `calculate_loss` sees them. Arguments as there."""
        groups = self._groups(rollouts, rewards, group_by)
        return self._batch(groups)

    def calculate_loss(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[float] | None = None,
        group_by: Callable[[Rollout], Any] | None = None,
    ) -> Loss:
        """The loss of some rollouts; only MODEL messages are trained on.

        Args:
            rollouts: built by hand or by a `Generator`.
            rewards: one number per rollout; the turns' own rewards when `None`.
            group_by: key of the rollouts that are compared; by default `task_id`, else the messages before the first MODEL
                message. If every group would have one member, all rollouts are one group.

        Raises:
            ConfigError: rewards of the wrong number or not finite, or a group baseline with a single rollout.
        """
        groups = self._groups(rollouts, rewards, group_by)
        batch = self._batch(groups)
        if len(batch) == 0:
            zero = torch.stack([value.sum() * 0.0 for value in self.parameters()]).sum()
            return Loss(zero)
        return self.algorithm.loss(batch, self._forward(batch))

    def _batch(self, groups: list[Group]) -> Batch:
        self._annotate(groups, self.algorithm.needs)
        self.algorithm.credit(groups)
        samples = samples_of(groups, self.policy, self.algorithm.unit)
        if not samples:
            raise ConfigError(
                "there is nothing to train on: no rollout has a MODEL message of a trained agent"
            )
        return pack(samples, pad_id=self._policy.pad_id, device=self._policy.device)

    def _groups(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[float] | None,
        group_by: Callable[[Rollout], Any] | None,
    ) -> list[Group]:
        """Rollouts as groups of one-agent episodes, with their rewards on the last turn."""
        if rewards is not None and len(rewards) != len(rollouts):
            raise ConfigError(
                f"{len(rollouts)} rollouts but {len(rewards)} rewards; give one reward per rollout"
            )
        by_key: dict[Any, list[Episode]] = {}
        for index, rollout in enumerate(rollouts):
            turns = self._turns(rollout)
            if rewards is not None:
                reward = float(rewards[index])
                if not math.isfinite(reward):
                    raise ConfigError(f"reward {index} is {reward}; rewards must be finite numbers")
                for turn in turns:
                    turn.reward = 0.0
                if turns:
                    turns[-1].reward = reward
            total = sum(turn.reward for turn in turns)
            key = group_by(rollout) if group_by else _default_key(rollout)
            copy = replace(rollout, policy=self.policy, turns=turns)
            episode = Episode(
                str(index), Task(str(key)), {rollout.agent or "agent": copy}, total, status="done"
            )
            episode.step_rewards = [total]
            by_key.setdefault(key, []).append(episode)
        groups = [Group(episodes, str(key)) for key, episodes in by_key.items()]
        if "siblings" in self.algorithm.requires and all(len(group) == 1 for group in groups):
            if len(groups) == 1:
                raise ConfigError(
                    f"{type(self.algorithm).__name__} compares rollouts with each other, and there is only one; "
                    "give several rollouts of the same question"
                )
            log.info(
                "no two rollouts start alike, so all %d are compared as one group", len(groups)
            )
            groups = [Group([episode for group in groups for episode in group])]
        return groups

    def _turns(self, rollout: Rollout) -> list[Turn]:
        """The turns an engine recorded, and one per MODEL message that was written by hand."""
        recorded = {id(turn) for turn in rollout.turns}
        by_hand = [
            index
            for index, message in enumerate(rollout.messages)
            if message.role is Role.ASSISTANT
            and (message.turn is None or id(message.turn) not in recorded)
        ]
        turns = list(rollout.turns)
        if by_hand and not (turns and all(message.turn is None for message in rollout.messages)):
            name = rollout.agent or "agent"
            written = transcript_turns(self.chat, rollout.messages, name, self.policy, self.agents)
            turns += [
                turn for turn in written if turn.message is not None and turn.message.turn is None
            ]
            turns.sort(key=lambda turn: len(turn.prompt_ids))
        for turn in turns:
            turn.policy = self.policy
            turn.advantages = turn.returns = turn.values = turn.ref_logprobs = turn.old_logprobs = (
                None
            )
            turn.trained = self.agents is None or turn.agent in self.agents
        return turns

    # -- the library's loop -------------------------------------------------------------------------------------------------

    async def annotate(self, groups: Sequence[Group], needs: Iterable[str]) -> None:
        """Compute the columns in `needs` for this policy's turns (`values`, `ref_logprobs`, `old_logprobs`)."""
        self._annotate(groups, frozenset(needs))

    async def update(
        self, samples: Sequence[Sample], algorithm: Algorithm, step: int, seed: int
    ) -> dict[str, float]:
        """Train on credited samples: `update_epochs` times over them, `num_minibatches` optimiser steps each.

        Args:
            samples: what to train on.
            algorithm: its loss, epochs and mini-batches.
            step: iteration, for the learning rate.
            seed: decides the order of mini-batches (and dropout).

        Returns:
            Metrics, averaged over optimiser steps.
        """
        if not samples:
            return {}
        torch.manual_seed(seed % (1 << 63))
        optimizer, rng = self.optimizer(), random.Random(seed)
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * self.schedule(step)
        history: list[dict[str, float]] = []
        with self._training_mode():
            for epoch in range(algorithm.update_epochs):
                for minibatch in _minibatches(samples, algorithm.num_minibatches, rng):
                    history.append(self._optimizer_step(minibatch, algorithm))
                moved = history[-1].get("approx_kl", 0.0)
                if algorithm.target_kl is not None and moved > algorithm.target_kl:
                    log.info(
                        "%s: epochs ended after %d, approx_kl %.4f", self.policy, epoch + 1, moved
                    )
                    break
        self.version += 1
        keys = {key for row in history for key in row}
        metrics = {key: sum(row.get(key, 0.0) for row in history) / len(history) for key in keys}
        metrics["learning_rate"] = optimizer.param_groups[0]["lr"]
        metrics["optimizer_steps"] = float(len(history))
        return metrics

    def schedule(self, step: int) -> float:
        """Share of the peak learning rate at an iteration: linear warm-up, then constant, linear or cosine to zero."""
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

    def optimizer(self) -> torch.optim.Optimizer:
        """The policy's own optimiser, made at first use."""
        if self._optimizer is None:
            settings = self.settings
            heads = (
                []
                if self._policy.value_head is None
                else list(self._policy.value_head.parameters())
            )
            own = [value for value in self.parameters() if not any(value is head for head in heads)]
            critic = settings.critic_learning_rate or 10 * settings.learning_rate
            rows = [(own, settings.learning_rate), (heads, critic)]
            groups = [{"params": each, "lr": lr, "peak_lr": lr} for each, lr in rows if each]
            shared = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
            if settings.optimizer == "sgd":
                self._optimizer = torch.optim.SGD(groups, **shared)
            else:
                kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
                self._optimizer = kind(groups, betas=settings.betas, **shared)
            scaled = self._policy.precision == "fp16"
            self._scaler = torch.amp.GradScaler(self._policy.device.type, enabled=scaled)
        return self._optimizer

    def _optimizer_step(self, samples: Sequence[Sample], algorithm: Algorithm) -> dict[str, float]:
        """One step on one mini-batch, whatever number of micro-batches it takes."""
        settings, optimizer = self.settings, self.optimizer()
        assert self._scaler is not None
        optimizer.zero_grad(set_to_none=True)
        totals = Totals.of(samples)
        sums: dict[str, torch.Tensor | float] = {}
        for micro in split(samples, settings.max_tokens, settings.accumulation):
            batch = pack(micro, totals, self._policy.pad_id, self._policy.device)
            loss = algorithm.loss(batch, self._forward(batch, algorithm.needs_entropy))
            self._scaler.scale(loss.total).backward()
            for key, value in {"loss": loss.total.detach(), **loss.metrics}.items():
                sums[key] = sums.get(key, 0.0) + value
        self._scaler.unscale_(optimizer)
        limit = math.inf if settings.max_grad_norm is None else settings.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters(), limit))
        metrics = {key: float(value) for key, value in sums.items()} | {"grad_norm": norm}
        if math.isfinite(norm) and math.isfinite(metrics["loss"]):
            self.nonfinite = 0
            self._scaler.step(optimizer)
        else:
            self._skip(samples, metrics)
        self._scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return {key: value for key, value in metrics.items() if math.isfinite(value)} | {
            "nonfinite_steps": float(self.nonfinite > 0)
        }

    def _skip(self, samples: Sequence[Sample], metrics: dict[str, float]) -> None:
        """A non-finite step changes nothing; several in a row end the run, and the batch is kept to be looked at."""
        self.nonfinite += 1
        where = f"policy {self.policy!r}: loss {metrics['loss']:g}, gradient norm {metrics['grad_norm']:g}"
        log.warning("%s; the step is skipped (%d in a row)", where, self.nonfinite)
        if self.nonfinite < self.settings.max_nonfinite_steps:
            return
        place = ""
        if self.settings.dump_folder is not None:
            path = self.settings.dump_folder / f"nonfinite-{self.policy}.pt"
            rows = [{"ids": sample.ids, "starts": sample.starts} for sample in samples]
            torch.save({"samples": rows, "metrics": metrics}, path)
            place = f"; the batch is in {path}"
        raise TrainingError(
            f"{where}: {self.nonfinite} steps in a row were not finite{place}. "
            "Lower the learning rate, or set training.precision=fp32"
        )

    # -- forward ------------------------------------------------------------------------------------------------------------

    def _forward(self, batch: Batch, entropy_gradient: bool | None = None) -> Outputs:
        wanted = self.algorithm.needs_entropy if entropy_gradient is None else entropy_gradient
        return self._policy.forward(batch, wanted)

    @torch.no_grad()
    def _annotate(self, groups: Sequence[Group], needs: frozenset[str]) -> None:
        samples = samples_of(groups, self.policy, "turn", credited=False)
        jobs = {need: samples for need in sorted(needs)}
        if "old_logprobs" not in jobs:
            # the sampler's log-probs serve, except where there are none or they are those of a cut distribution
            jobs["old_logprobs"] = [
                sample for sample in samples if any(map(_unscored, sample.turns))
            ]
        if "values" in jobs and len(jobs["old_logprobs"]) == len(samples):
            jobs["old_logprobs+values"] = samples
            del jobs["values"], jobs["old_logprobs"]
        for need, chosen in jobs.items():
            for micro in split(chosen, self.settings.max_tokens) if chosen else []:
                self._fill(need, micro)

    def _fill(self, need: str, samples: Sequence[Sample]) -> None:
        """Write a column on the turns of one micro-batch."""
        batch = pack(samples, pad_id=self._policy.pad_id, device=self._policy.device)
        columns: dict[str, torch.Tensor] = {}
        if need == "ref_logprobs":
            columns[need] = self._policy.reference_logprobs(batch)
        else:
            outputs = self._policy.forward(batch)
            if "values" in need:
                assert outputs.values is not None
                columns["values"] = outputs.values
            if "old_logprobs" in need:
                columns["old_logprobs"] = outputs.logprobs
        for name, column in columns.items():
            pieces = column.float().cpu().numpy()
            end = 0
            for turn in batch.turns:
                start, end = end, end + len(turn)
                setattr(turn, name, pieces[start:end])

    def _training_mode(self) -> Any:
        return _Mode(self._policy.model, self.settings.gradient_checkpointing)

    # -- state --------------------------------------------------------------------------------------------------------------

    def optimizer_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and JSON-able rest of the optimiser's state; parameters are named by their position."""
        state = self.optimizer().state_dict()
        tensors, rest = {}, {}
        for index, entry in state["state"].items():
            for key, value in entry.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{index}.{key}"] = value
                else:
                    rest[f"{index}.{key}"] = value
        assert self._scaler is not None
        more = {"values": rest, "version": self.version, "nonfinite": self.nonfinite}
        return tensors, more | {"scaler": self._scaler.state_dict()}

    def load_optimizer_state(self, tensors: dict[str, torch.Tensor], rest: dict[str, Any]) -> None:
        """Inverse of `optimizer_state`."""
        optimizer = self.optimizer()
        state: dict[int, dict[str, Any]] = {}
        for name, value in {**tensors, **rest["values"]}.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        assert self._scaler is not None
        if rest["scaler"]:
            self._scaler.load_state_dict(rest["scaler"])
        self.version, self.nonfinite = rest["version"], rest["nonfinite"]


class _Mode:
    """The model in training mode (dropout, gradient checkpointing), and back in the mode it was in afterwards."""

    def __init__(self, model: Any, checkpointing: bool) -> None:
        self.model, self.checkpointing = model, checkpointing

    def __enter__(self) -> None:
        self.was_training = self.model.training
        self.model.train()
        if self.checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})

    def __exit__(self, *exception: object) -> None:
        if self.checkpointing:
            self.model.gradient_checkpointing_disable()
        self.model.train(self.was_training)


def samples_of(
    groups: Sequence[Group], policy: str, unit: str = "turn", credited: bool = True
) -> list[Sample]:
    """What a policy trains on: the turns of its agents, merged into samples, with the unit that packing keeps together.

    Args:
        groups: played and (where `credited`) with advantages on their turns; failed episodes and turns without an advantage
            are left out.
        policy: whose turns.
        unit: `turn`: each sample on its own; `pair`: a group's samples of one agent; `joint_step`: an episode's.
        credited: whether turns need an advantage.
    """
    samples: list[Sample] = []
    units: dict[tuple[object, ...], int] = {}
    count = 0
    for number, group in enumerate(groups):
        for place, episode in enumerate(group.episodes):
            if episode.failed:
                continue
            for agent, rollout in episode.rollouts.items():
                turns = [
                    turn
                    for turn in rollout.turns
                    if turn.policy == policy
                    and turn.trained
                    and (not credited or turn.advantages is not None)
                ]
                count += 1
                for sample in merge(turns, rollout=count - 1):
                    keys: dict[str, tuple[object, ...]] = {
                        "turn": (len(samples),),
                        "pair": (number, agent),
                        "joint_step": (number, place),
                    }
                    sample.unit = units.setdefault(keys[unit], len(units))
                    samples.append(sample)
    return samples


def _minibatches(
    samples: Sequence[Sample], parts: int, rng: random.Random
) -> Iterator[list[Sample]]:
    """The samples in `parts` random parts of nearly equal size, units whole."""
    by_unit: dict[int, list[Sample]] = {}
    for sample in samples:
        by_unit.setdefault(sample.unit, []).append(sample)
    units = list(by_unit.values())
    if parts > 1:
        rng.shuffle(units)
    for part in range(parts):
        chosen = units[part * len(units) // parts : (part + 1) * len(units) // parts]
        if chosen:
            yield [sample for unit in chosen for sample in unit]


def _unscored(turn: Turn) -> bool:
    return turn.logprobs is None or turn.sampling.truncates


def _default_key(rollout: Rollout) -> Any:
    if rollout.task_id is not None:
        return rollout.task_id
    opening = []
    for message in rollout.messages:
        if message.role is Role.ASSISTANT:
            break
        opening.append((str(message.role), message.content))
    return tuple(opening)
