"""The learner of one policy: annotates turns, computes the loss and steps the optimiser. Used by
the library's trainers and by custom training loops; independent of the source of turns."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mrlm.core.chat import Chat
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError, NonFiniteError
from mrlm.core.timing import count, span
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.groups import column
from mrlm.learn.credit.user_rollouts import (
    Play,
    RolloutReader,
    Sources,
    TeamReward,
    as_planned,
)
from mrlm.learn.critics.critic import AnswerCritic, Critic, beside
from mrlm.learn.data.batch import Batch, Loss, Sample, Totals, pack
from mrlm.learn.data.data_parallel import exchange_columns, nothing, parts, rounds, write_column
from mrlm.learn.data.first_pass import FirstPass
from mrlm.learn.data.samples import minibatches, openings, samples_of
from mrlm.learn.joint_update import JointUpdate, Work, update_together
from mrlm.learn.loss_tensor import LossTensor
from mrlm.learn.mismatch import FEW, FirstLook, drops, loss_mismatch, raw
from mrlm.learn.optimizer import LearnerSettings, Stepper, seed_dropout
from mrlm.learn.policy.copies import catch_up
from mrlm.learn.policy.policy import Policy, as_policy
from mrlm.learn.policy.reference import renew

log: logging.Logger = logging.getLogger("mrlm")

OWN = ("old_logprobs", "values", "entropies")
"""Columns from the policy's own forward, all computed in one pass."""


class Learner:
    """Trains one policy.

    In a custom loop: `loss = Learner(model, tokenizer, GRPO()).calculate_loss(rollouts, rewards)`,
    then `loss.backward()` and a step of an optimiser over `learner.parameters()`. The model is
    never wrapped or cast, and copied only for a frozen reference, if the algorithm needs one and
    none is given, and for a separate critic (for an adapter: a second adapter on the same base).

    Args:
        model: a causal language model, a PEFT model (its active adapter is trained) or a `Policy`.
        tokenizer: its tokenizer.
        algorithm: credit and loss.
        agents: names of the trained agents; all if `None`.
        reference: a frozen model for algorithms with a reference.
        settings: optimisation settings of `update`; not used by `calculate_loss`.
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
        self._policy = as_policy("policy", model, tokenizer, reference)
        self.algorithm = algorithm
        self.spec: Spec = algorithm.spec
        spec = self.spec
        self.agents: frozenset[str] | None = None if agents is None else frozenset(agents)
        self.settings: LearnerSettings = settings or LearnerSettings()
        self.version: int = 0
        self.nonfinite: int = 0
        self._stepper: Stepper | None = None
        self.critic: Critic | None = None
        self._first = FirstPass()
        self.mirror: Policy | None = None
        """A copy that engines sample from during training."""
        shared = "values" in spec.columns and spec.critic.topology == "shared"
        if shared or spec.scalar_head:
            self._policy.add_value_head()
        elif "values" in spec.columns and spec.critic.topology == "separate":
            kind = AnswerCritic if spec.critic.answers_alone else Critic
            self.critic = kind(self.policy, beside(self._policy), self.settings)
        if spec.columns & {"ref_logprobs", "full_kl"}:
            self._policy.keep_reference()

    @property
    def policy(self) -> str:
        """Name of the trained policy."""
        return self._policy.name

    @property
    def weights_of(self) -> Policy:
        """The policy itself."""
        return self._policy

    @property
    def chat(self) -> Chat:
        return self._policy.chat

    def parameters(self) -> list[nn.Parameter]:
        """Parameters for an optimiser: the policy's trainable parameters, heads included, and those
        of its critic."""
        beside_it = [] if self.critic is None else self.critic.body.parameters()
        return [*self._policy.parameters(), *beside_it]

    def renew_reference(self) -> None:
        """Makes the current policy its own reference."""
        renew(self._policy)

    def weights(self) -> Policy:
        """Weights for an engine after an update: the live weights, or a copy of their current state
        if engines sample during training or the policy is sharded (then collective: every rank must
        call it)."""
        shards = self._policy.shards
        if shards is not None:
            shards.refresh()
            return shards.whole
        if self.mirror is None:
            return self._policy
        catch_up(self.mirror, self._policy)
        return self.mirror

    # -- custom training loops ---------------------------------------------------------------------

    def batch(
        self,
        rollouts: Sequence[Play | Group],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> Batch:
        """Packs rollouts with credit as `calculate_loss` does. Arguments as there."""
        return self.packed(self._credited(*self._groups(rollouts, rewards, group_by)))

    def calculate_loss(
        self,
        rollouts: Sequence[Play | Group],
        rewards: Sequence[TeamReward] | None = None,
        group_by: Callable[[Any], Any] | None = None,
    ) -> LossTensor:
        """Computes the loss of rollouts, a scalar tensor with `loss.metrics`; only MODEL messages
        are trained on.

        The first loss of a rollout starts its update: later ones use its log-probs and values as
        the old ones (the ratio of PPO and GRPO), until `forget` is called or the rollout is
        deleted.

        Args:
            rollouts: built by hand or by a `Generator`. A rollout with messages of several agents
                is an episode; so is a mapping agent -> rollout. Episodes and groups of a trainer
                are used unchanged.
            rewards: one team reward per rollout, which every agent gets for its last turn (or agent
                -> its own). Rollouts with a reward that is `None` or not finite are skipped.
                `None`: the turns' own rewards.
            group_by: key of the rollouts that are compared; by default `task_id`, else the messages
                before the first MODEL message. If every group would have one member, all rollouts
                are one group.

        Raises:
            ConfigError: wrong number of rewards, no finite reward, or a group baseline with a
                single rollout.
        """
        groups, sources = self._groups(rollouts, rewards, group_by)
        loss = self.loss_of(self._credited(groups, sources))
        total, metrics = loss.total, dict(loss.metrics)
        if self.critic is not None:
            value = self.critic.loss(groups, self.algorithm, self._policy.across)
            total, metrics["value_loss"] = total + value, value.detach()
        return LossTensor.of(total, metrics)

    def packed(self, samples: Sequence[Sample]) -> Batch:
        """Packs samples with credit into one batch."""
        across = self._policy.across
        totals = None if across is None else across.totals(samples)
        return pack(samples, totals, self._policy.pad_id, self._policy.device)

    def loss_of(self, samples: Sequence[Sample]) -> Loss:
        """The loss of samples with credit as one batch; `calculate_loss` takes rollouts."""
        batch, across = self.packed(samples), self._policy.across
        outputs = self._policy.forward(batch, self.spec.entropy)
        loss = self.algorithm.loss(batch, outputs)
        if across is not None:
            metrics = {name: value * across.size for name, value in loss.metrics.items()}
            total = across.averaged(loss.total * across.size, self._policy.parameters())
            loss = Loss(total, metrics)
        return Loss(loss.total, loss.metrics | loss_mismatch(self._policy, batch, outputs))

    def forget(self) -> None:
        """Starts a new update: the next loss takes the current policy as the old one, also for
        rollouts that had a loss before."""
        self._first.forget()

    def _credited(self, groups: list[Group], sources: Sources) -> list[Sample]:
        if self.spec.critic.of_team:
            raise ConfigError(
                f"{type(self.algorithm).__name__} needs a critic that sees every agent, but a "
                "Learner has one policy; use TeamLearner({agent: (model, tokenizer)}, algorithm)"
            )
        if not all(self._first.recall(*source) for source in sources):
            self._annotate(groups, self.spec.columns)
            if self.critic is not None:
                self.critic.annotate(groups)
            for source in sources:
                self._first.recall(*source)
                self._first.keep(*source)
        self.algorithm.credit(groups)
        samples = self.algorithm.samples(groups, self.policy)
        if not samples:
            raise ConfigError(
                "nothing to train on: no rollout has a MODEL message of a trained agent"
            )
        return samples

    def _groups(
        self,
        rollouts: Sequence[Play | Group],
        rewards: Sequence[TeamReward] | None,
        group_by: Callable[[Any], Any] | None,
    ) -> tuple[list[Group], Sources]:
        reader = RolloutReader(self.policy, self.chat, self.agents)
        groups, sources = reader.groups(rollouts, rewards, group_by)
        return as_planned(groups, self.spec.sampling, type(self.algorithm).__name__), sources

    # -- trainers ----------------------------------------------------------------------------------

    async def annotate(self, groups: Sequence[Group], needs: Iterable[str]) -> None:
        """Computes the columns in `needs` for this policy's turns (`values`, `ref_logprobs`,
        `old_logprobs`, `full_kl`, `entropies`)."""
        self._annotate(groups, frozenset(needs))

    async def rescore(self, groups: Sequence[Group]) -> None:
        """Writes `new_logprobs`, the log-probs under the current weights, on this policy's turns;
        nothing else changes."""
        samples = samples_of(groups, self.policy, "turn", credited=False)
        with self._policy.scoring():
            self._fill_all("new_logprobs", samples)

    async def update(
        self, samples: Sequence[Sample], algorithm: Algorithm, step: int, seed: int
    ) -> dict[str, float]:
        """Trains on credited samples for `update_epochs` epochs of `num_minibatches` optimiser
        steps.

        Args:
            samples: training samples.
            algorithm: its loss, epochs and mini-batches.
            step: iteration, for the learning rate schedule.
            seed: for the order of mini-batches and dropout.

        Returns:
            Metrics, averaged over optimiser steps.
        """
        (metrics,) = await update_together([(self, samples, seed)], algorithm, step)
        return metrics

    async def bring(
        self,
        samples: Sequence[Sample],
        algorithm: Algorithm,
        step: int,
        seed: int,
        meeting: JointUpdate,
    ) -> dict[str, float]:
        """`update` with micro-batches computed jointly with those of other learners; the model is
        already in training mode."""
        if not samples:
            return {}
        seed_dropout((seed >> 1) + self.settings.peers.rank, self._policy.device)
        rng, rate = random.Random(seed), self.stepper.begin(step)
        history: list[dict[str, float]] = []
        look = self._first_look(samples)
        for epoch in range(algorithm.update_epochs):
            for minibatch in minibatches(samples, algorithm.num_minibatches, rng):
                now = None if history else look
                history.append(await self._optimizer_step(minibatch, algorithm, meeting, now))
            moved = history[-1].get("approx_kl", 0.0)
            if algorithm.target_kl is not None and moved > algorithm.target_kl:
                log.info(
                    "%s: stopped after %d epochs, approx_kl %.4f", self.policy, epoch + 1, moved
                )
                break
        self.version += 1
        keys = {key for row in history for key in row}
        metrics = {key: sum(row.get(key, 0.0) for row in history) / len(history) for key in keys}
        metrics |= raw(history[0])
        metrics["learning_rate"] = rate
        metrics["optimizer_steps"] = float(len(history))
        return metrics

    @property
    def stepper(self) -> Stepper:
        """The policy's optimiser, made on first use."""
        if self._stepper is None:
            self._stepper = Stepper(self._policy, self.settings)
        return self._stepper

    def _first_look(self, samples: Sequence[Sample]) -> FirstLook:
        """Measures the sampler mismatch in the first pass of an update; with dropout, in an extra
        pass over a few samples without it."""
        look = FirstLook(self.version)
        if drops(self._policy.model):
            with self._policy.scoring():
                batch = self.packed(samples[:FEW])
                look.add(batch, self._policy.forward(batch).logprobs)
            look.done = True
        return look

    async def _optimizer_step(
        self,
        samples: Sequence[Sample],
        algorithm: Algorithm,
        meeting: JointUpdate,
        look: FirstLook | None = None,
    ) -> dict[str, float]:
        """One optimiser step on one mini-batch of any number of micro-batches; in the first one of
        an update, `look` compares the sampler's log-probs with the computed ones."""
        stepper = self.stepper
        stepper.clear()
        totals = Totals.of(samples)
        spec = algorithm.spec
        if spec.ignores_zero:
            samples = [sample for sample in samples if any(map(_teaches, sample.turns))]
            totals.seen = Totals.of(samples).tokens
            if not samples:
                return {"loss": 0.0, "grad_norm": 0.0, "nonfinite_steps": 0.0}
        for sample in samples:
            for turn in sample.turns:
                count("trained", turn.agent, len(turn))
        sums: dict[str, torch.Tensor | float] = {}
        settings, policy = self.settings, self._policy
        peers = settings.peers
        shared = parts(samples, peers.size, policy.packed)
        micros = rounds(policy, peers, shared, settings.max_tokens, settings.accumulation)
        loss_of = algorithm.loss if look is None or look.done else look.at(algorithm.loss)
        for number, micro in enumerate(micros):
            # a sharded model needs equally many calls per rank: one without data reuses a sample
            batch = pack(micro or samples[:1], totals, policy.pad_id, policy.device)
            work = Work(
                policy,
                batch,
                loss_of if micro else nothing,
                stepper.backward,
                spec.entropy,
                settings.max_tokens,
                last=number == len(micros) - 1,
            )
            loss = await meeting.accumulate(work)
            for key, value in {"loss": loss.total, **loss.metrics}.items():
                sums[key] = sums.get(key, 0.0) + value
        metrics = {key: float(value) for key, value in sums.items()}
        metrics |= {} if look is None else look.numbers()
        metrics = await meeting.add_up(self.policy, policy.parameters(), metrics)
        with span("optimizer", self.policy):
            metrics["grad_norm"] = stepper.norm()
            finite = math.isfinite(metrics["grad_norm"]) and math.isfinite(metrics["loss"])
            overflow = stepper.scale > 1.0 and math.isfinite(metrics["loss"])
            stepper.step(apply=finite)
        if not finite and overflow:
            log.info("policy %r: gradient overflow; lowering the loss scale", self.policy)
        elif not finite:
            self._skip(samples, metrics)
        self.nonfinite = 0 if finite else self.nonfinite
        kept = {key: value for key, value in metrics.items() if math.isfinite(value)}
        return kept | {"nonfinite_steps": float(not finite)}

    def _skip(self, samples: Sequence[Sample], metrics: dict[str, float]) -> None:
        """Skips a non-finite step; several in a row end the run, and the batch is saved for
        debugging."""
        self.nonfinite += 1
        loss, norm = metrics["loss"], metrics["grad_norm"]
        where = f"policy {self.policy!r}: loss {loss:g}, gradient norm {norm:g}"
        log.warning("%s; the step is skipped (%d in a row)", where, self.nonfinite)
        if self.nonfinite < self.settings.max_nonfinite_steps:
            return
        place = ""
        if self.settings.dump_folder is not None and self.settings.peers.main:
            path = self.settings.dump_folder / f"nonfinite-{self.policy}.pt"
            rows = [{"ids": sample.ids, "starts": sample.starts} for sample in samples]
            torch.save({"samples": rows, "metrics": metrics}, path)
            place = f"; the batch is in {path}"
        raise NonFiniteError(
            f"{where}: {self.nonfinite} steps in a row were not finite{place}. "
            "Lower the learning rate, or set training.precision=fp32"
        )

    # -- forward -----------------------------------------------------------------------------------

    def _annotate(self, groups: Sequence[Group], needs: frozenset[str]) -> None:
        samples = samples_of(groups, self.policy, "turn", credited=False)
        if self.spec.critic.topology != "shared":
            needs -= {"values"}  # computed by a critic
        jobs = dict.fromkeys(sorted(needs), samples)
        if "old_logprobs" not in jobs and self.spec.reads_old:
            # the sampler's log-probs suffice unless missing, truncated, or from older weights
            aged = self.spec.rescores_lagged
            jobs["old_logprobs"] = [
                sample
                for sample in samples
                if any(_unscored(turn) or (aged and turn.lag > 0) for turn in sample.turns)
            ]
        # columns that one pass can compute share it
        whole = [need for need in OWN if samples and len(jobs.get(need, ())) == len(samples)]
        if len(whole) > 1:
            jobs = {need: chosen for need, chosen in jobs.items() if need not in whole}
            jobs["+".join(whole)] = samples
        elif "values" in jobs and self.spec.critic.per_turn and self._policy.packed:
            jobs["values"] = openings(samples)
        with self._policy.scoring():
            for need, chosen in jobs.items():
                self._fill_all(need, chosen)
        if jobs.get("values", samples) is not samples:
            turns = (turn for sample in samples for turn in sample.turns)
            for turn, opening in zip(turns, jobs["values"], strict=True):
                turn.values = float(column(opening.turns[0], "values")[0])

    def _fill_all(self, need: str, samples: Sequence[Sample]) -> None:
        """Writes a column (or several, joined by `+`) on the turns of samples; each rank computes
        its part."""
        if not samples:
            return
        peers, packed = self.settings.peers, self._policy.packed
        shared = parts(samples, peers.size, packed)
        with span(need.partition("+")[0], self.policy):
            for micro in rounds(self._policy, peers, shared, self.settings.max_tokens):
                self._fill(need, micro or samples[:1])
            exchange_columns(peers, shared, need.split("+"))

    def _fill(self, need: str, samples: Sequence[Sample]) -> None:
        """Writes a column on the turns of one micro-batch."""
        batch = pack(samples, pad_id=self._policy.pad_id, device=self._policy.device)
        columns: dict[str, torch.Tensor] = {}
        if need == "ref_logprobs":
            columns[need] = self._policy.reference_logprobs(batch)
        elif need == "values":
            columns[need] = self._policy.values(batch)
        elif need == "full_kl":
            columns[need] = self._policy.full_kl(batch)
        elif need == "new_logprobs":
            columns[need] = self._policy.forward(batch).logprobs
        else:
            outputs = self._policy.forward(batch)
            found = zip(OWN, (outputs.logprobs, outputs.values, outputs.entropy), strict=True)
            asked = need.split("+")
            columns |= {name: said for name, said in found if name in asked and said is not None}
        for name, numbers in columns.items():
            write_column(batch, name, numbers)

    # -- state -------------------------------------------------------------------------------------

    def optimizer_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and JSON-able rest of the optimiser state; parameters are named by position."""
        tensors, rest = self.stepper.state()
        return tensors, rest | {"version": self.version, "nonfinite": self.nonfinite}

    def load_optimizer_state(self, tensors: dict[str, torch.Tensor], rest: dict[str, Any]) -> None:
        """Inverse of `optimizer_state`."""
        self.stepper.load_state(tensors, rest)
        self.version = rest["version"]
        self.nonfinite = rest["nonfinite"]


def _teaches(turn: Turn) -> bool:
    return bool(np.any(turn.advantages))


def _unscored(turn: Turn) -> bool:
    return turn.logprobs is None or turn.sampling.truncates
