"""Simultaneous updates of learners: micro-batches of policies on a shared base run through it in
one pass. Results do not depend on the batching."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from mrlm.core.process_group import ALONE, Peers
from mrlm.core.timing import span
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import Batch, Loss, Sample
from mrlm.learn.fast.cpu_backends import quick_products
from mrlm.learn.fast.packed_pass import LeanPass, LossOf, hidden_states
from mrlm.learn.optimizer import LearnerSettings, TrainingMode
from mrlm.learn.policy.policy import Policy


class Member(Protocol):
    """A learner that takes part in a joint update."""

    @property
    def settings(self) -> LearnerSettings:
        """Optimisation settings."""
        ...

    @property
    def weights_of(self) -> Policy:
        """The trained policy."""
        ...

    async def bring(
        self,
        samples: Sequence[Sample],
        algorithm: Algorithm,
        step: int,
        seed: int,
        meeting: JointUpdate,
    ) -> dict[str, float]:
        """Updates the policy, with micro-batches computed jointly with those of other learners."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """A micro-batch whose gradient is added to a policy's parameters.

    Args:
        policy: the trained policy.
        batch: the micro-batch.
        loss_of: the loss; may be called on parts of the batch, whose losses add up.
        backward: runs backward from a loss over the whole batch.
        entropy_gradient: whether the loss differentiates the entropy.
        max_tokens: maximum tokens per forward pass.
        last: whether it is the last one of its optimiser step.
    """

    policy: Policy
    batch: Batch
    loss_of: LossOf
    backward: Callable[[Tensor], None]
    entropy_gradient: bool = False
    max_tokens: int = 1 << 30
    last: bool = True

    @property
    def tokens(self) -> int:
        return sum(len(sample.ids) for sample in self.batch.samples)


def accumulate(works: Sequence[Work]) -> list[Loss]:
    """Computes losses and accumulates gradients; returns the detached losses in order."""
    losses: dict[int, Loss] = {}
    shared: dict[tuple[int, torch.dtype], list[tuple[int, Work, LeanPass]]] = {}
    for place, work in enumerate(works):
        lean = work.policy.lean_pass
        if lean is None:
            if work.policy.shards is not None:
                work.policy.shards.begin(work.last)
            with span("forward", work.policy.name):
                outputs = work.policy.forward(work.batch, work.entropy_gradient)
            with span("head", work.policy.name):
                loss = work.loss_of(work.batch, outputs)
            with span("backward", work.policy.name):
                work.backward(loss.total)
            losses[place] = Loss(loss.total.detach(), loss.metrics)
        else:
            key = (id(lean.anatomy.model), lean.forward.dtype)
            shared.setdefault(key, []).append((place, work, lean))
    for entries in shared.values():
        for chosen in _loads(entries):
            places, several, passes = zip(*chosen, strict=True)
            found = _through(several, passes)
            losses |= dict(zip(places, found, strict=True))
    return [losses[place] for place in range(len(works))]


def _loads(
    entries: Sequence[tuple[int, Work, LeanPass]],
) -> list[list[tuple[int, Work, LeanPass]]]:
    """Groups micro-batches that fit into one pass."""
    loads: list[list[tuple[int, Work, LeanPass]]] = []
    held = 0
    for entry in entries:
        size = len(entry[1].batch.tree.ids)
        if not loads or held + size > entry[1].max_tokens:
            loads.append([])
            held = 0
        loads[-1].append(entry)
        held += size
    return loads


def _through(works: Sequence[Work], passes: Sequence[LeanPass]) -> list[Loss]:
    policy = works[0].policy
    with quick_products(policy.device, policy.size * sum(work.tokens for work in works)):
        batches = [work.batch for work in works]
        names = "+".join(work.policy.name for work in works)
        with span("forward", names):
            hidden = hidden_states(list(zip(passes, batches, strict=True)))
        losses, backs = [], []
        for work, lean, states in zip(works, passes, hidden, strict=True):
            head = work.policy.value_head
            with span("head", work.policy.name):
                loss, back = lean.through_head(
                    states, work.batch, work.loss_of, head, work.entropy_gradient
                )
            losses.append(loss)
            backs.append(back)
        # nothing below the head is trained: no backward through the base
        pairs = [(x, g) for x, g in zip(hidden, backs, strict=True) if x.requires_grad]
        if pairs:
            with span("backward", names):
                torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])
    return losses


class JointUpdate:
    """Collects the micro-batches of the learners in a stage and computes them jointly once every
    active learner has submitted one. On several ranks, gradients of learners that finished a step
    are reduced together in order of names, so that all ranks reduce the same ones.

    Args:
        members: number of learners.
        peers: the process group.
    """

    def __init__(self, members: int, peers: Peers = ALONE) -> None:
        self.members: int = members
        self.peers: Peers = peers
        self._waiting: list[tuple[Work, asyncio.Future[Loss]]] = []
        self._ready: dict[str, _Part] = {}

    async def accumulate(self, work: Work) -> Loss:
        """Adds the gradient of a micro-batch; returns its detached loss."""
        future: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        self._begin()
        return await future

    async def add_up(
        self, name: str, parameters: Iterable[nn.Parameter], numbers: dict[str, float]
    ) -> dict[str, float]:
        """All-reduces a learner's gradients and the `numbers` (sums over ranks); returns the
        numbers."""
        if self.peers.size == 1:
            return numbers
        future: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()
        self._ready[name] = _Part(list(parameters), numbers, future)
        self._begin()
        return await future

    def leave(self) -> None:
        """Called by a learner that submits no more work."""
        self.members -= 1
        self._begin()

    def _begin(self) -> None:
        if not self._waiting:
            self._add_up()
            return
        if len(self._waiting) + len(self._ready) < self.members:
            return
        waiting, self._waiting = self._waiting, []
        try:
            losses = accumulate([work for work, _ in waiting])
        except BaseException as error:
            for _, future in waiting:
                future.set_exception(error)
            return
        for (_, future), loss in zip(waiting, losses, strict=True):
            future.set_result(loss)

    def _add_up(self) -> None:
        if not self._ready or len(self._ready) < self.members:
            return
        ready = [self._ready[name] for name in sorted(self._ready)]
        self._ready = {}
        try:
            with span("optimizer", "all"):
                self.peers.add_gradients(weight for part in ready for weight in part.parameters)
                sums = self.peers.add_numbers([part.numbers for part in ready])
        except BaseException as error:
            for part in ready:
                part.future.set_exception(error)
            return
        for part, numbers in zip(ready, sums, strict=True):
            part.future.set_result(numbers)


@dataclass(frozen=True, slots=True)
class _Part:
    """This rank's part of a learner's step."""

    parameters: list[nn.Parameter]
    numbers: dict[str, float]
    future: asyncio.Future[dict[str, float]]


async def update_together(
    jobs: Sequence[tuple[Member, Sequence[Sample], int]], algorithm: Algorithm, step: int
) -> list[dict[str, float]]:
    """Updates several learners at once; arguments and results as for `Learner.update`.

    Args:
        jobs: each learner with its samples and seed.
        algorithm: its loss, epochs and mini-batches.
        step: iteration, for the learning rate schedules.
    """
    peers = jobs[0][0].settings.peers if jobs else ALONE
    meeting = JointUpdate(len(jobs), peers)

    async def one(learner: Member, samples: Sequence[Sample], seed: int) -> dict[str, float]:
        try:
            return await learner.bring(samples, algorithm, step, seed, meeting)
        finally:
            meeting.leave()

    models = {id(learner.weights_of.model): learner for learner, _, _ in jobs}
    with ExitStack() as modes:
        for learner in models.values():
            checkpointing = learner.settings.gradient_checkpointing
            modes.enter_context(TrainingMode(learner.weights_of.model, checkpointing))
        tasks = [asyncio.ensure_future(one(*job)) for job in jobs]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:  # if one learner fails, all of them stop
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
