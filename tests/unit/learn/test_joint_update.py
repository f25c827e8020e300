"""Adapters on one base are trained together as they are alone, each with its own settings."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from families import family
from mrlm import Learner
from mrlm.algorithms.ippo import IPPO
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.core.types import Turn
from mrlm.learn import joint_update
from mrlm.learn.data.batch import Sample, merge
from mrlm.learn.fast import packed_pass
from mrlm.learn.joint_update import update_together
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.lora import add_adapter
from mrlm.learn.policy.policy import Policy

pytestmark = pytest.mark.system

LORA: dict[str, Any] = {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": "all-linear"}
SETTINGS = {
    "free": LearnerSettings(learning_rate=1e-2, max_grad_norm=None),
    "clipped": LearnerSettings(learning_rate=3e-2, max_grad_norm=1e-2, weight_decay=0.1),
    "linear": LearnerSettings(
        learning_rate=1e-3, max_grad_norm=50.0, optimizer="adam", schedule="linear", total_steps=4
    ),
    "parts": LearnerSettings(learning_rate=1e-2, optimizer="sgd", accumulation=2),
    "idle": LearnerSettings(learning_rate=1e-2),
}
"""Adapter -> how it is trained; the last one has no gradient in every other step."""


def team(algorithm: Any, tokenizer: Any) -> list[Learner]:
    """A learner for each adapter; in float64, where the order of sums hardly counts."""
    model = family("llama")
    for name in SETTINGS:
        model = add_adapter(model, name, LORA)
    model = model.double()
    torch.manual_seed(0)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if ".lora_B." in key:
                weight.normal_(std=0.1)
    return [
        Learner(Policy(name, model, tokenizer, adapter=name), None, algorithm, settings=settings)
        for name, settings in SETTINGS.items()
    ]


def samples_of(place: int, step: int) -> list[Sample]:
    """The texts of an adapter: other ones, and more of them, for each."""
    idle = place == len(SETTINGS) - 1 and step % 2 == 1
    found: list[Sample] = []
    for number in range(2 + place):
        said = [7 + (place + 3 * number + step + k) % 20 for k in range(1 + number)]
        found += merge(
            [
                Turn(
                    "agent",
                    "policy",
                    [5, 6, 8 + number],
                    said,
                    logprobs=[-1.0] * len(said),
                    values=[0.1] * len(said),
                    returns=[0.5 * number] * len(said),
                    advantages=0.0 if idle else 1.0 - 0.7 * number,
                )
            ],
            unit=number,
            rollout=number,
        )
    return found


def trained(
    learners: Sequence[Learner], algorithm: Any, together: bool
) -> list[list[dict[str, float]]]:
    """The metrics of three updates."""
    rows = []
    for step in range(3):
        jobs = [(learner, samples_of(at, step), at) for at, learner in enumerate(learners)]
        calls = [jobs] if together else [[job] for job in jobs]
        rows.append(
            [
                metrics
                for call in calls
                for metrics in asyncio.run(update_together(call, algorithm, step))
            ]
        )
    return rows


@pytest.mark.parametrize(
    ("algorithm", "limit"),
    [(REINFORCE, 1000), (IPPO, 5), pytest.param(IPPO, 1000, marks=pytest.mark.slow)],
)
def test_adapters_on_one_base_learn_as_each_alone(
    algorithm: Any, limit: int, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with logits of so few tokens at once that those of an adapter are split. Log-probs and
    metrics are in float32, so that the weights agree to 1e-6 and no better."""
    monkeypatch.setattr(packed_pass, "rows_at_once", lambda *_: limit)
    alone, together = (team(algorithm(), tokenizer) for _ in range(2))
    assert all(learner.weights_of.packed for learner in together)
    before = [weight.clone() for learner in alone for weight in learner.parameters()]
    expected = trained(alone, algorithm(), together=False)
    found = trained(together, algorithm(), together=True)
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one == pytest.approx(other, rel=1e-5, abs=1e-6)
    rates = [row["learning_rate"] for row in found[1]]
    assert rates == pytest.approx([1e-2, 3e-2, 0.75e-3, 1e-2, 1e-2])
    assert found[0][1]["grad_norm"] > 1e-2, "clipped"
    assert found[0][2]["grad_norm"] < 50.0, "not clipped"
    weights = [weight for learner in alone for weight in learner.parameters()]
    others = [weight for learner in together for weight in learner.parameters()]
    for one, other in zip(weights, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    moved = [not torch.equal(*pair) for pair in zip(before, weights, strict=True)]
    assert all(moved)


@pytest.mark.parametrize(
    ("algorithm", "times"),
    [(REINFORCE, 1), (REINFORCE, 99), pytest.param(IPPO, 1, marks=pytest.mark.slow)],
)
def test_a_step_that_runs_out_of_memory_is_computed_again_in_smaller_parts(
    algorithm: Any,
    times: int,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error comes when gradients and numbers of other micro-batches have been added already."""
    both = []
    for _ in range(2):
        for name, settings in SETTINGS.items():
            monkeypatch.setitem(SETTINGS, name, replace(settings, max_tokens=10, shrinks=True))
        both.append(team(algorithm(), tokenizer))
    expected, learners = both
    before = trained(expected, algorithm(), together=True)
    hidden_states, calls = joint_update.hidden_states, []

    def limited(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if 2 < len(calls) <= 2 + times:
            raise torch.OutOfMemoryError("tried to allocate 1 GiB")
        return hidden_states(*args, **kwargs)

    monkeypatch.setattr(joint_update, "hidden_states", limited)
    if times > 1:
        with pytest.raises(torch.OutOfMemoryError, match="1 GiB"):
            trained(learners, algorithm(), together=True)
        return
    after = trained(learners, algorithm(), together=True)
    halved = [learner for learner in learners if learner.settings.max_tokens == 5]
    assert halved and caplog.text.count("at most 5 tokens") == len(halved)
    for one, other in zip(after, before, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    for learner, other in zip(learners, expected, strict=True):
        for weight, same in zip(learner.parameters(), other.parameters(), strict=True):
            # Adam divides by the gradient's size, so rounding of a tiny one moves a weight more.
            torch.testing.assert_close(weight, same, rtol=1e-5, atol=5e-6)
