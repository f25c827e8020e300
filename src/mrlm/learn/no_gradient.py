"""The cause of a gradient of exactly 0, in steps of trainers and of custom loops."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from mrlm.core.errors import TrainingError
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.data.batch import Outputs, Sample, Totals, pack
from mrlm.learn.data.samples import split
from mrlm.learn.policy.policy import Policy


def check_gradient(
    policy: Policy, samples: Sequence[Sample], algorithm: Algorithm, max_tokens: int
) -> None:
    """Called before a step whose gradient is exactly 0: a loss may be flat (every ratio is clipped,
    a margin is reached, the policy is certain of all tokens), but one with a slope must reach the
    weights. On several ranks all of them call it with the same samples.

    Args:
        policy: the policy, with the weights of the gradient.
        samples: those of the step.
        algorithm: its loss.
        max_tokens: limit of a micro-batch.

    Raises:
        TrainingError: the loss has a slope.
    """
    totals, count = Totals.of(samples), 0
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
        certain = (logprobs.detach().exp() >= 1) & (slopes[1] is None)
        for index, slope in enumerate(slopes):
            if slope is not None:
                slope = slope if slope.dim() == 1 else slope.abs().amax(-1)
                count += int(((slope != 0) & ~(certain & (index == 0))).sum())
    if not count:
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
        f"although the loss has a slope at {count} of {totals.tokens} tokens, so nothing is "
        f"trained: {cause}"
    )


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
