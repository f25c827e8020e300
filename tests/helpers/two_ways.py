"""What a learner does on the lean path and on the reference's."""

import copy
import random
from typing import Any

import torch

from families import VOCABULARY
from mrlm.core.types import SamplingParams, Turn
from mrlm.learn.data.batch import Sample, merge, pack
from mrlm.learn.policy.policy import Policy

LORA: dict[str, Any] = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}


def conversations(seed: int = 0, groups: int = 3, siblings: int = 3) -> list[Sample]:
    """Ragged groups: siblings share a prompt, some go on for a second turn after words of the
    world, two are alike."""
    rng = random.Random(seed)

    def words(least: int, most: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(least, most))]

    samples: list[Sample] = []
    for _ in range(groups):
        prompt = words(1, 20)
        for sibling in range(siblings):
            said = words(1, 12)
            turns = [Turn("a", "policy", prompt, said)]
            if sibling:
                again = [*prompt, *said, *words(2, 6)]
                turns.append(Turn("a", "policy", again, words(1, 7)))
            for turn in turns:
                turn.sampling = SamplingParams(temperature=rng.choice([0.5, 1.0, 1.3]))
                turn.logprobs = [rng.uniform(-8, -4) for _ in turn.completion_ids]
                turn.advantages = rng.uniform(-1, 1)
                turn.returns = turn.values = rng.uniform(-1, 1)
            samples += merge(turns, unit=len(samples), rollout=len(samples))
    twin = copy.deepcopy(samples[-1])
    twin.unit = twin.rollout = len(samples)
    return [*samples, twin]


def both_ways(model: Any, tokenizer: Any, **more: Any) -> tuple[Policy, Policy]:
    """The same weights read lean and in general."""
    lean = Policy("policy", model, tokenizer, **more)
    general = Policy("policy", model, tokenizer, lean=False, **more)
    assert lean.packed and not general.packed
    return lean, general


def gradients(policy: Policy) -> dict[str, torch.Tensor]:
    found = {}
    for name, weight in policy.named_parameters().items():
        if weight.grad is not None:
            found[name] = weight.grad.clone()
        weight.grad = None
    return found


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys() and found
    for name, grad in expected.items():
        gap = (found[name] - grad).norm() / grad.norm().clamp_min(1e-6)
        assert float(gap) < 1e-4, name


def compare(lean: Policy, general: Policy, samples: list[Sample]) -> None:
    """Log-probs to 1e-5 of their size, entropies, and gradients to 1e-4."""
    batch = pack(samples)
    weights = torch.linspace(-1, 1, len(batch))
    outcomes = []
    for policy in (lean, general):
        said = policy.forward(batch, entropy_gradient=True)
        ((said.logprobs + 0.3 * said.entropy) * weights).sum().backward()
        outcomes.append((said, gradients(policy)))
    (found, ours), (expected, theirs) = outcomes
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.entropy, expected.entropy, rtol=1e-5, atol=1e-5)
    assert_close(ours, theirs)
