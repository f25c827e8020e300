"""Value networks separate from the policy: one per policy, or one for the team. Algorithms define
which return a value predicts."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from mrlm.core.chat import Chat
from mrlm.core.episodes import Episode, Group
from mrlm.core.log import log
from mrlm.core.progress import advance, counting
from mrlm.core.timing import span
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.columns import fill_columns
from mrlm.learn.credit.groups import column
from mrlm.learn.credit.joint_steps import joint_texts
from mrlm.learn.data.batch import Batch, Sample, Totals, merge, pack
from mrlm.learn.data.data_parallel import micro_batches
from mrlm.learn.data.own_loop_ranks import Across
from mrlm.learn.data.samples import minibatches, samples_of
from mrlm.learn.optimizer import LearnerSettings, Trainee, training_mode
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.randomness import seed_generators

TEAM = "team"
"""Name of the critic of a whole team."""


class Critic(Trainee):
    """The critic of one policy (`name`), with the same input as the policy. `body` is its network,
    which gets a value head."""

    rate: ClassVar[str] = "training.critic_learning_rate"

    def __init__(self, name: str, body: Policy, settings: LearnerSettings) -> None:
        self.name = name
        self.body = body
        rate = settings.critic_rate
        settings = replace(settings, learning_rate=rate, critic_learning_rate=rate)
        super().__init__(body, settings, f"critic of {name!r}")
        self.equip()

    def equip(self) -> None:
        """Adds the value head to the network."""
        self.body.add_value_head()

    def modules(self) -> list[nn.Module]:
        return self.body.modules()

    def samples(self, groups: Sequence[Group], credited: bool) -> list[Sample]:
        """Samples to value: all, or (`credited`) those with returns to train on."""
        return samples_of(groups, self.name, "turn", credited)

    def record(self, turn: Turn) -> None:
        """Copies the values of a turn of `samples` to the turns that it represents."""

    def loss(
        self, groups: Sequence[Group], algorithm: Algorithm, across: Across | None = None
    ) -> Tensor:
        """The loss over all values of groups with `values` and `returns`, for custom training
        loops; `across` is the process group of the loop, if there are several ranks."""
        return self._loss_of(self.samples(groups, credited=True), algorithm, across)

    def _loss_of(
        self, samples: Sequence[Sample], algorithm: Algorithm, across: Across | None
    ) -> Tensor:
        totals = None if across is None else across.totals(samples)
        if samples:
            batch = pack(samples, totals, self.body.pad_id, self.body.device)
            loss = algorithm.value_loss(batch, self.body.values(batch))
        else:  # its agents were silent
            loss = torch.stack([p.sum() for p in self.body.parameters()]).sum() * 0.0
        if across is None:
            return loss
        return across.averaged(loss * across.size, list(self.learned.parameters()))

    def losses(
        self,
        groups: Sequence[Group],
        algorithm: Algorithm,
        rng: random.Random,
        across: Across | None = None,
    ) -> Iterator[Tensor]:
        """Yields the losses of `update`, for custom loops that step between them."""
        samples = self.samples(groups, credited=True)
        for _ in range(algorithm.spec.critic.passes or algorithm.update_epochs):
            for minibatch in minibatches(samples, algorithm.num_minibatches, rng):
                yield self._loss_of(minibatch, algorithm, across)

    def annotate(self, groups: Sequence[Group]) -> None:
        """Writes `values` on the turns."""
        samples = self.samples(groups, credited=False)

        def compute(batch: Batch) -> dict[str, Tensor]:
            return {"values": self.body.values(batch)}

        fill_columns(self.body, self.settings, samples, compute, ["values"], self.title)
        for turn in (turn for sample in samples for turn in sample.turns):
            self.record(turn)

    def update(
        self, groups: Sequence[Group], algorithm: Algorithm, step: int, seed: int
    ) -> dict[str, float]:
        """Trains on groups with `values` and `returns`, in the algorithm's epochs and mini-batches;
        `step` is the iteration of the learning rate schedule, `seed` that of mini-batches and
        dropout. Returns metrics, averaged over optimiser steps."""
        samples = self.samples(groups, credited=True)
        if not samples:
            return {}
        seed_generators((seed >> 1) + self.settings.peers.rank, self.body.device)
        rng, rate = random.Random(seed), self.stepper.begin(step)
        history: list[tuple[float, float]] = []
        passes = algorithm.spec.critic.passes or algorithm.update_epochs
        count = passes * len(samples) // self.settings.peers.size
        checkpointing = self.settings.gradient_checkpointing
        with training_mode([self.body], checkpointing), counting(self.title, count):
            for _ in range(passes):
                for minibatch in minibatches(samples, algorithm.num_minibatches, rng):
                    history.append(self._optimizer_step(minibatch, algorithm))
        finite = [row for row in history if all(map(math.isfinite, row))]
        means = np.mean(finite, axis=0) if finite else []
        metrics = dict(zip(("value_loss", "critic_grad_norm"), map(float, means), strict=False))
        return metrics | {"critic_learning_rate": rate}

    def _optimizer_step(
        self, samples: Sequence[Sample], algorithm: Algorithm
    ) -> tuple[float, float]:
        """One step on one mini-batch; returns the loss and the gradient norm."""
        peers, loss = self.settings.peers, None
        while loss is None:
            try:
                loss = self._backward(samples, algorithm)
            except torch.OutOfMemoryError as error:
                self.shrink(error)
        peers.add_gradients(self.body.parameters())
        (sums,) = peers.add_numbers([{"loss": loss}])
        with span("optimizer", self.title):
            return sums["loss"], self.finish_step(sums)[0]

    def _backward(self, samples: Sequence[Sample], algorithm: Algorithm) -> float:
        """Adds up the gradient of a mini-batch; returns the loss on this rank."""
        self.stepper.clear()
        loss, settings, totals = 0.0, self.settings, Totals.of(samples)
        micros = micro_batches(self.body, settings, samples, totals, settings.accumulation)
        for batch, real, last in micros:
            self.body.storage.begin(last)
            with span("forward", self.title):
                found = self.body.values(batch)
            with span("head", self.title):
                part = algorithm.value_loss(batch, found) if real else found.sum() * 0.0
            with span("backward", self.title):
                self.stepper.backward(part)
            loss += float(part.detach())
            advance(batch.num_sequences)
        return loss

    def save(self, folder: Path) -> None:
        self.body.save(folder)

    def load(self, folder: Path) -> None:
        """Loads the weights that `save` wrote, bit by bit."""
        self.body.load(folder)


@dataclass(slots=True)
class CriticTurn(Turn):
    """A joint state as the input of a critic, in place of its turns (`taken`): the prompt is its
    text, the completion an end mark."""

    taken: list[Turn] = field(default_factory=list)


class CentralCritic(Critic):
    """One critic for the team: it reads the joint state of every joint step as text, with its own
    tokenizer, and gives one value at the state's last token.

    The states of an episode extend one another, so an episode is one sequence in which each state
    ends in a mark. Text beyond the network's positions is truncated from the left, with one
    warning. `chats` are the renderers of each policy's conversations, to decode its tokens.
    """

    def __init__(self, body: Policy, settings: LearnerSettings, chats: Mapping[str, Chat]) -> None:
        super().__init__(TEAM, body, settings)
        self.chats: dict[str, Chat] = dict(chats)
        self._cut = False

    def samples(self, groups: Sequence[Group], credited: bool) -> list[Sample]:
        samples: list[Sample] = []
        for states in (self.states(episode) for group in groups for episode in group.valid):
            for sample in merge([x for x in states if x.returns is not None or not credited]):
                sample.unit = sample.rollout = len(samples)
                samples.append(sample)
        return samples

    def record(self, turn: Turn) -> None:
        assert isinstance(turn, CriticTurn)
        for taken_turn in turn.taken:
            taken_turn.values = float(column(turn, "values")[0])

    def states(self, episode: Episode) -> list[CriticTurn]:
        """The joint states of an episode, with the values and returns of their turns."""
        tokenizer, chat = self.body.tokenizer, self.body.chat
        mark = self.body.pad_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        limit = self.body.max_context - 1
        ids: list[int] = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        joint_states: list[CriticTurn] = []
        for step, text in joint_texts(episode, lambda t, ids: self.chats[t.policy].decode(ids)):
            ids = [*ids, *chat.encode_text(text)]
            if len(ids) > limit and not self._cut:
                self._cut = True
                log.warning(
                    "joint states exceed the %d tokens of the central critic and are truncated on "
                    "the left; set training.critic_model to a model with more positions",
                    limit,
                )
            state = CriticTurn(self.name, self.name, ids[-limit:], [mark], taken=step.turns)
            state.values, state.returns = step.turns[0].values, step.turns[0].returns
            joint_states.append(state)
            ids = [*ids, mark]
        return joint_states
