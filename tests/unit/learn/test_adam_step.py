"""Steps are those of `torch.optim`, bit by bit."""

import copy
import json
from typing import Any

import pytest
import torch

from families import family
from mrlm.learn.optimizer import LearnerSettings, Stepper
from mrlm.learn.policy.policy import Policy


def gradients(stepper: Stepper, seed: int, missing: bool) -> None:
    """Random gradients; of the second weight none if it is `missing`."""
    generator = torch.Generator().manual_seed(seed)
    for at, weight in enumerate(stepper.weights):
        grad = torch.randn(weight.shape, generator=generator)
        weight.grad = None if missing and at == 1 else grad


@pytest.mark.parametrize("absent", [None, 0, 2])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_steps_are_those_of_the_optimizer(kind: Any, absent: int | None, tokenizer: Any) -> None:
    """Also with a head of its own learning rate, where a gradient is absent in a step, and after
    the state was loaded."""
    made = []
    for _ in range(2):
        policy = Policy("policy", family("llama"), tokenizer)
        policy.add_value_head()
        settings = LearnerSettings(
            learning_rate=1e-2,
            critic_learning_rate=1e-1,
            optimizer=kind,
            betas=(0.5, 0.75),
            weight_decay=0.1,
            schedule="linear",
            total_steps=8,
        )
        made.append(Stepper(policy, settings))
    ours, theirs = made
    for step in range(6):
        if step == 4:
            tensors, rest = copy.deepcopy(ours.state())
            ours.load_state(tensors, json.loads(json.dumps(rest)))
        for stepper in (ours, theirs):
            stepper.begin(step)
            gradients(stepper, step, missing=step == absent)
        ours.step(apply=True)
        theirs.optimizer.step()
        for one, other in zip(ours.weights, theirs.weights, strict=True):
            assert torch.equal(one, other) and one.grad is None
    mine, known = (stepper.state()[0] for stepper in (ours, theirs))
    assert mine.keys() == known.keys()
    assert all(torch.equal(mine[name], known[name]) for name in mine)
