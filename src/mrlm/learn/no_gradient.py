"""The cause of a gradient of exactly 0, in steps of trainers and of custom loops."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from mrlm.core.errors import TrainingError
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import Batch, Outputs, Sample, Totals, pack
from mrlm.learn.data.samples import split
from mrlm.learn.policy.policy import Policy

log = logging.getLogger(__name__)
CANCELLED = 1e-6
"""Slopes cancel if their sum is at most this share of their absolute sum."""


def check_gradient(
    policy: Policy, samples: Sequence[Sample], algorithm: Algorithm, max_tokens: int
) -> None:
    """Called before a step whose gradient is exactly 0: a loss may be flat (every ratio is clipped,
    a margin is reached, the policy is certain of all tokens), and slopes at equal tokens of equal
    completions may cancel, which is warned of; but any other slope must reach the weights. On
    several ranks all of them call it with the same samples.

    Args:
        policy: the policy, with the weights of the gradient.
        samples: those of the step.
        algorithm: its loss.
        max_tokens: limit of a micro-batch.

    Raises:
        TrainingError: the loss has a slope.
    """
    slopes = [*_slopes(policy, samples, algorithm, max_tokens).values()]
    steep = [values for values in slopes if abs(sum(values)) > CANCELLED * sum(map(abs, values))]
    count = sum(map(len, steep))
    if not count:
        if any(slopes):
            log.warning(
                "policy %r: siblings wrote the same, so that their advantages cancel and nothing "
                "is trained in this step; raise the temperature, or set an entropy_coef",
                policy.name,
            )
        return
    weights = policy.parameters()
    cause = (
        "the gradients underflow in float16; set training.precision=bf16 or fp32"
        if policy.precision == "fp16"
        else "the forward pass does not use them. Is an adapter inactive or replaced, does the "
        "model compute under torch.no_grad, or were its modules changed after it was given? "
        "model.lean=false takes the model's own forward"
    )
    raise TrainingError(
        f"policy {policy.name!r}: the gradient is exactly 0 in all {len(weights)} trained tensors, "
        f"although the loss has a slope at {count} of {Totals.of(samples).tokens} tokens, so "
        f"nothing is trained: {cause}"
    )


def _slopes(
    policy: Policy, samples: Sequence[Sample], algorithm: Algorithm, max_tokens: int
) -> dict[tuple[int, int], list[float]]:
    """The slopes of the loss at the outputs of the policy that are not 0: kind of output and
    `_prefixes` -> those of all tokens at which it is a function of the same tokens."""
    totals = Totals.of(samples)
    slopes_at: dict[tuple[int, int], list[float]] = defaultdict(list)
    for micro in split(samples, max_tokens, packed=policy.packed):
        batch = pack(micro, totals, policy.pad_id, policy.device)
        with policy.scoring():
            outputs = policy.forward(batch)
        spread = outputs.distributions
        if not algorithm.spec.compares or spread is None:
            states = spread = None
        else:
            batch.reference = policy.reference_distributions(batch)
            states = _leaf(spread.states)
            spread = replace(spread, states=states)
        columns = outputs.logprobs, outputs.entropy, outputs.values
        leaves = [_leaf(column) for column in columns]
        with torch.enable_grad():
            loss = algorithm.loss(batch, Outputs(*leaves, distributions=spread))  # pyright: ignore[reportArgumentType]
        if not loss.total.requires_grad:
            continue
        inputs = [leaf for leaf in (*leaves, states) if leaf is not None]
        slopes = torch.autograd.grad(loss.total, inputs, allow_unused=True)
        logprobs = leaves[0]
        assert logprobs is not None
        certain = logprobs.detach().exp() >= 1
        for index, slope in enumerate(slopes):
            if slope is not None:
                slope = slope if slope.dim() == 1 else slope.abs().amax(-1)
                if index == 0 and slopes[1] is None:
                    slope = slope.masked_fill(certain, 0.0)
                contexts = _prefixes(batch, last=index == 0)
                for prefix, value in zip(contexts, slope.tolist(), strict=True):
                    slopes_at[index, prefix] += [value] * (value != 0)
    return slopes_at


def _prefixes(batch: Batch, last: bool) -> Iterator[int]:
    """A number of each trained token, equal where the tokens before it are, and with `last` it too:
    entropies, values and states are functions of the tokens before."""
    for sample in batch.samples:
        hashes = [0]
        for token in sample.ids:
            hashes.append(hash((hashes[-1], token)))
        for turn, start in zip(sample.turns, sample.starts, strict=True):
            temperature = turn.sampling.temperature
            first = start + last
            for value in hashes[first : first + len(turn.completion_ids)]:
                yield hash((value, temperature))


def watch_gradient(
    loss: Tensor, policy: Policy, samples: Sequence[Sample], algorithm: Algorithm
) -> None:
    """Has `check_gradient` called at the end of a backward pass of a custom loop through the loss,
    if it came to trained tensors and gave all of them a gradient of exactly 0."""
    weights = policy.parameters()

    def begin(slope: Tensor) -> None:
        if not bool(slope):  # the loop itself made the loss 0
            return
        moved: list[bool] = []

        def note(gradient: Tensor) -> None:
            if not any(moved):
                moved.append(bool(gradient.any()))

        hooks = [weight.register_hook(note) for weight in weights]

        def end() -> None:
            for hook in hooks:
                hook.remove()
            if moved and not any(moved):
                check_gradient(policy, samples, algorithm, sum(len(each.ids) for each in samples))

        engine: Any = Variable._execution_engine  # pyright: ignore[reportAttributeAccessIssue]
        engine.queue_callback(end)

    if loss.requires_grad:
        loss.register_hook(begin)


def _leaf(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach().clone().requires_grad_()
