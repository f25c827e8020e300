"""Joint updates of learners: policies on a shared base run through it in one pass."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mrlm.core.process_group import ALONE, Peers
from mrlm.core.progress import advance, counting
from mrlm.core.timing import span
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample, pack
from mrlm.learn.fast.cpu_backends import other_products, quick_products
from mrlm.learn.fast.packed_pass import HeadJob, LeanPass, LossOf, hidden_states
from mrlm.learn.meter import Measured
from mrlm.learn.optimizer import LearnerSettings, training_mode
from mrlm.learn.policy.policy import Policy


class Member(Protocol):
    """A learner that takes part in a joint update."""

    settings: LearnerSettings

    @property
    def weights_of(self) -> Policy: ...

    def steps(
        self, samples: Sequence[Sample], algorithm: Algorithm, step: int, seed: int
    ) -> "Updating":
        """Updates the policy: yields its micro-batches and the ends of its optimiser steps."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """A micro-batch whose gradient is added to a policy's parameters.

    `loss_of` may be called on parts of the batch, whose losses add up; `backward` runs backward
    from a loss over the whole batch. `max_tokens` is the limit of a joint pass; `last` marks the
    end of an optimiser step.
    """

    policy: Policy
    batch: Batch
    loss_of: LossOf
    backward: Callable[[Tensor], None]
    entropy_gradient: bool = False
    max_tokens: int = 1 << 30
    last: bool = True


def accumulate(works: Sequence[Work]) -> list[Loss]:
    """Computes losses and accumulates gradients; returns the detached losses in order."""
    losses: dict[int, Loss] = {}
    shared: dict[tuple[int, torch.dtype], list[tuple[int, Work, LeanPass]]] = {}
    for index, work in enumerate(works):
        lean = work.policy.lean_pass
        if lean is None:
            work.policy.storage.begin(work.last)
            with span("forward", work.policy.name):
                outputs = work.policy.forward(work.batch, work.entropy_gradient)
            with span("head", work.policy.name):
                loss = work.loss_of(work.batch, outputs)
            with span("backward", work.policy.name):
                work.backward(loss.total)
            losses[index] = Loss(loss.total.detach(), loss.metrics)
            advance(work.batch.num_sequences)
        else:
            key = (id(lean.anatomy.model), lean.forward.dtype)
            shared.setdefault(key, []).append((index, work, lean))
    for entries in shared.values():
        for chosen in _loads(entries):
            places, several, passes = zip(*chosen, strict=True)
            losses |= dict(zip(places, _through(several, passes), strict=True))
            advance(sum(work.batch.num_sequences for work in several))
    return [losses[index] for index in range(len(works))]


def _loads(entries: Sequence[tuple[int, Work, LeanPass]]) -> list[list[tuple[int, Work, LeanPass]]]:
    """Groups micro-batches that fit into one pass."""
    loads: list[list[tuple[int, Work, LeanPass]]] = []
    held = 0
    for entry in entries:
        held += len(entry[1].batch.tree.ids)
        if not loads or held > entry[1].max_tokens:
            loads.append([])
            held = len(entry[1].batch.tree.ids)
        loads[-1].append(entry)
    return loads


def _through(works: Sequence[Work], passes: Sequence[LeanPass]) -> list[Loss]:
    policy = works[0].policy
    size = policy.size * sum(len(work.batch.tree.ids) for work in works)
    blocks = not any(lean_pass.adapter for lean_pass in passes)
    with quick_products(policy.device, size, blocks):
        names = "+".join(work.policy.name for work in works)
        with span("forward", names):
            pairs = [(lean, work.batch) for lean, work in zip(passes, works, strict=True)]
            hidden = hidden_states(pairs, direct=True)
        jobs = [HeadJob(x.batch, x.loss_of, x.policy.value_head, x.entropy_gradient) for x in works]
        with span("head", names), other_products():
            losses, back = passes[0].through_head(hidden, jobs)
        if hidden.requires_grad:  # else nothing below the head is trained
            with span("backward", names):
                hidden.backward(back)
    return losses


@dataclass(frozen=True, slots=True)
class StepSums:
    """The end of a learner's optimiser step: gradients and `numbers` (by name, or a `Meter`), to be
    summed over ranks."""

    policy: str
    parameters: Sequence[nn.Parameter]
    numbers: dict[Any, Any]

    def answer(self) -> dict[Any, Any]:
        """The sums of a single process."""
        return self.numbers


@dataclass(frozen=True, slots=True)
class ScoringPass:
    """A pass over a few samples that only measures."""

    policy: Policy
    samples: Sequence[Sample]

    def answer(self) -> tuple[Batch, Outputs]:
        """The samples and what the policy gives for them."""
        policy = self.policy
        with policy.scoring():
            batch = pack(self.samples, None, policy.pad_id, policy.device)
            return batch, policy.forward(batch)


Updating = Generator[Work | StepSums | ScoringPass, Any, Measured]
"""An update of one learner: it is sent the detached `Loss` of a `Work`, the summed numbers of a
`StepSums`, or the result of a `ScoringPass`, and returns its metrics. Where memory runs out, a
`torch.OutOfMemoryError` is thrown into it in place of a loss (see `tried`)."""


def tried(
    gradient: Callable[[], Generator[Work, Loss, dict[str, float]]],
    shrink: Callable[[torch.OutOfMemoryError], None],
    records: Sequence[object],
) -> Generator[Work, Loss, dict[str, float]]:
    """The result of `gradient`, which begins again where memory runs out and `shrink` allows it;
    `records`, which its losses are noted in, are then as before."""
    before = [{name: copy(value) for name, value in vars(each).items()} for each in records]
    while True:
        try:
            return (yield from gradient())
        except torch.OutOfMemoryError as error:
            shrink(error)
            for each, values in zip(records, before, strict=True):
                vars(each).update({name: copy(value) for name, value in values.items()})


async def update_together(
    jobs: Sequence[tuple[Member, Sequence[Sample], int]], algorithm: Algorithm, step: int
) -> list[Measured]:
    """Updates several learners at once, each with its samples and seed; `step` is the iteration of
    the learning rate schedules. Results as for `Learner.update`."""
    models: dict[int, list[Member]] = {}
    for learner, _, _ in jobs:
        models.setdefault(id(learner.weights_of.model), []).append(learner)
    with ExitStack() as modes:
        for learners in models.values():
            policies = [learner.weights_of for learner in learners]
            checkpointing = learners[-1].settings.gradient_checkpointing
            modes.enter_context(training_mode(policies, checkpointing))
        updates = [learner.steps(samples, algorithm, step, seed) for learner, samples, seed in jobs]
        peers = jobs[0][0].settings.peers if jobs else ALONE
        count = algorithm.update_epochs * sum(len(samples) for _, samples, _ in jobs) // peers.size
        with counting("sequences", count):
            return run_together(updates, peers)


def _tried(works: Sequence[Work]) -> Sequence[Loss | torch.OutOfMemoryError]:
    """`accumulate`, or for each micro-batch the error of a device without enough memory."""
    try:
        return accumulate(works)
    except torch.OutOfMemoryError as error:
        text = str(error)
    return [torch.OutOfMemoryError(text) for _ in works]  # without the frames that hold activations


def run_together(updates: Sequence[Updating], peers: Peers = ALONE) -> list[Measured]:
    """Runs updates to their ends: once every unfinished one has a micro-batch, these are computed
    jointly. On several ranks, gradients of learners that finished a step are reduced together in
    order of names, so that all ranks reduce the same ones.
    """
    results: dict[int, Measured] = {}
    works: dict[int, Work] = {}
    ends: dict[int, StepSums] = {}

    def resume(number: int, answer: Loss | dict[Any, Any] | torch.OutOfMemoryError | None) -> None:
        update = updates[number]
        try:
            short = isinstance(answer, torch.OutOfMemoryError)
            request = update.throw(answer) if short else update.send(answer)
            while not isinstance(request, Work):
                if isinstance(request, StepSums) and peers.size > 1:
                    break
                request = update.send(request.answer())
        except StopIteration as end:
            results[number] = end.value
            return
        if isinstance(request, Work):
            works[number] = request
        elif isinstance(request, StepSums):
            ends[number] = request

    with ExitStack() as opened:
        for update in updates:
            opened.callback(update.close)  # if one learner fails, all of them stop
        for index in range(len(updates)):
            resume(index, None)
        while works or ends:
            answers: Sequence[Loss | dict[Any, Any] | torch.OutOfMemoryError]
            if works:
                places, answers = [*works], _tried([*works.values()])
                works.clear()
            else:
                places = sorted(ends, key=lambda index: ends[index].policy)
                ready = [ends.pop(index) for index in places]
                with span("optimizer", "all"):
                    peers.add_gradients(weight for part in ready for weight in part.parameters)
                    answers = peers.add_numbers([part.numbers for part in ready])
            for index, answer in zip(places, answers, strict=True):
                resume(index, answer)
    return [results[index] for index in range(len(updates))]
