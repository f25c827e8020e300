"""Learners that update at the same time: their micro-batches go through a base that their policies
share as one. What they compute does not depend on whether they meet."""

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
        """How it learns."""
        ...

    @property
    def weights_of(self) -> Policy:
        """The policy whose weights it steps."""
        ...

    async def bring(
        self,
        samples: Sequence[Sample],
        algorithm: Algorithm,
        step: int,
        seed: int,
        meeting: JointUpdate,
    ) -> dict[str, float]:
        """Update, with micro-batches that are computed where other learners bring theirs."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """A micro-batch whose gradient is to be added to that of a policy's parameters.

    Args:
        policy: whose.
        batch: what is trained on.
        loss_of: the loss; it may be asked for several parts of the batch, whose losses add up.
        backward: what starts backward from a loss, where the loss is formed whole.
        entropy_gradient: whether the loss differentiates the entropy.
        max_tokens: tokens that may go through the model at once.
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
    """Form losses and add their gradients; returns the losses, without gradient, in order."""
    losses: dict[int, Loss] = {}
    shared: dict[tuple[int, torch.dtype], list[tuple[int, Work, LeanPass]]] = {}
    for place, work in enumerate(works):
        lean = work.policy.lean_pass
        if lean is None:
            if work.policy.shards is not None:
                work.policy.shards.begin(work.last)
            with span("forward", work.policy.name):
                said = work.policy.forward(work.batch, work.entropy_gradient)
            with span("head", work.policy.name):
                loss = work.loss_of(work.batch, said)
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
    """As many micro-batches together as may go through at once."""
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
        # a base of which nothing is trained below the head has nothing to carry back
        pairs = [(x, g) for x, g in zip(hidden, backs, strict=True) if x.requires_grad]
        if pairs:
            with span("backward", names):
                torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])
    return losses


class JointUpdate:
    """Where the learners of a stage bring their micro-batches. Once all that are still at work have
    brought one, they are computed together. Where several processes compute gradients together,
    those of all that have brought everything of a step are added up at once, in order of their
    names: so every process adds up the same ones at the same time.

    Args:
        members: how many learners take part.
        peers: the processes.
    """

    def __init__(self, members: int, peers: Peers = ALONE) -> None:
        self.members: int = members
        self.peers: Peers = peers
        self._waiting: list[tuple[Work, asyncio.Future[Loss]]] = []
        self._ready: dict[str, _Part] = {}

    async def accumulate(self, work: Work) -> Loss:
        """Add the gradient of a micro-batch; returns its loss, without gradient."""
        future: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        self._begin()
        return await future

    async def add_up(
        self, name: str, parameters: Iterable[nn.Parameter], numbers: dict[str, float]
    ) -> dict[str, float]:
        """Make the gradients of a learner's parameters, and the numbers, sums over all processes;
        returns the numbers."""
        if self.peers.size == 1:
            return numbers
        future: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()
        self._ready[name] = _Part(list(parameters), numbers, future)
        self._begin()
        return await future

    def leave(self) -> None:
        """Say that one of the members brings no more."""
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
    """What this process has computed of a learner's step."""

    parameters: list[nn.Parameter]
    numbers: dict[str, float]
    future: asyncio.Future[dict[str, float]]


async def update_together(
    jobs: Sequence[tuple[Member, Sequence[Sample], int]], algorithm: Algorithm, step: int
) -> list[dict[str, float]]:
    """Update several learners at once; arguments and results are those of `Learner.update`.

    Args:
        jobs: each learner with its samples and its seed.
        algorithm: its loss, epochs and mini-batches.
        step: iteration, for the learning rates.
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
        except BaseException:  # nobody goes on learning when one of them could not
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
