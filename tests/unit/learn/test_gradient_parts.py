"""The gradient of a shared policy by agent."""

import asyncio
import math
from typing import Any

import pytest
import torch

from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.agent_numbers import agent_metrics
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.gradient_parts import gradient_numbers, part_of
from mrlm.learn.joint_update import Work, accumulate
from mrlm.learn.learner import Learner
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy


def groups(rewards: dict[str, list[float]], policy: str) -> list[Group]:
    """A group of episodes in which every agent answers once."""
    episodes = []
    for number, row in enumerate(zip(*rewards.values(), strict=True)):
        rollouts = {}
        for place, (agent, reward) in enumerate(zip(rewards, row, strict=True)):
            ids = [20 + (7 * number + 3 * place + k) % 40 for k in range(3 + number + place)]
            turn = Turn(agent, policy, [5, 6 + place], ids, [-3.0] * len(ids), reward=reward)
            rollouts[agent] = Rollout(agent, policy, turns=[turn])
        fields: dict[str, Any] = {"status": "done"}
        episodes.append(Episode.recorded(f"e{number}", Task("t"), rollouts, **fields))
    return [Group(episodes, "t")]


REWARDS = {"one": [1.0, 0.0, 0.5, 0.2], "two": [0.0, 1.0, 1.0, 0.3], "three": [0.1, 0.2, 0.9, 0.0]}


def learner_of(model: Any, tokenizer: Any, algorithm: Algorithm, **settings: Any) -> Learner:
    policy = Policy("policy", model, tokenizer)
    return Learner(policy, None, algorithm, settings=LearnerSettings(**settings))


def credited(learner: Learner, rewards: dict[str, list[float]] = REWARDS) -> list[Any]:
    found = groups(rewards, learner.policy)
    asyncio.run(learner.annotate(found, learner.spec.columns))
    learner.algorithm.credit(found)
    return learner.algorithm.samples(found, learner.policy)


def gradient(learner: Learner, samples: list[Any], loss_of: Any) -> torch.Tensor:
    """The gradient of a loss over samples, as the update computes it."""
    learner.stepper.clear()
    batch = learner.packed(samples)
    entropic = learner.spec.entropy
    accumulate([Work(learner.weights_of, batch, loss_of, learner.stepper.backward, entropic)])
    found = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for p in learner.weights_of.parameters()
    ]
    learner.stepper.clear()
    return torch.cat([x.flatten() for x in found])


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(group_size=4, kl_coef=0.1, entropy_coef=0.05),
        GRPO(group_size=4, loss_type="gspo"),
        PPO(update_epochs=1),
    ],
    ids=["grpo", "gspo", "value head"],
)
def test_the_parts_add_up(model: Any, tokenizer: Any, algorithm: Algorithm, lora: bool) -> None:
    """Also with an adapter; share and cosine are those of the parts, and training is the same with
    them, bit by bit."""
    import copy

    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        )
    plain = learner_of(copy.deepcopy(model), tokenizer, copy.deepcopy(algorithm), learning_rate=0.1)
    learner = learner_of(
        model, tokenizer, algorithm, learning_rate=0.1, gradient_shares=2, accumulation=3
    )
    plain.settings.accumulation = 3
    samples = credited(learner)
    whole = gradient(learner, samples, learner.algorithm.loss)
    parts = {a: gradient(learner, samples, part_of(a, learner.algorithm.loss)) for a in REWARDS}
    assert whole.norm() > 0
    assert (sum(parts.values()) - whole).norm() <= 1e-6 * whole.norm()
    updates = {"policy": asyncio.run(learner.update(samples, learner.algorithm, 2, 7))}
    norms = {agent: float(part.norm()) for agent, part in parts.items()}
    found = agent_metrics(updates)
    for agent, norm in norms.items():
        share = norm / sum(norms.values())
        assert found[f"gradient_share/{agent}"] == pytest.approx(share, rel=1e-4)
    cosine = float(torch.cosine_similarity(parts["one"], parts["two"], dim=0))
    assert found["gradient_cosine/one/two"] == pytest.approx(cosine, abs=1e-4)
    asyncio.run(plain.update(credited(plain), plain.algorithm, 2, 7))
    both = zip(plain.parameters(), learner.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in both)


def test_shares_are_logged_in_their_iterations_also_without_a_gradient(
    model: Any, tokenizer: Any
) -> None:
    learner = learner_of(model, tokenizer, GRPO(group_size=4), gradient_shares=3)
    samples = credited(learner, {"one": [1.0] * 4, "two": [0.0, 1.0, 0.0, 1.0]})
    flat = credited(learner, {"one": [1.0] * 4, "two": [0.0] * 4})
    found = [
        agent_metrics({"p": asyncio.run(learner.update(rows, learner.algorithm, step, 0))})
        for step, rows in ((3, samples), (4, samples), (6, flat))
    ]
    names = {"gradient_share/one", "gradient_share/two", "gradient_cosine/one/two"}
    shown = [{name: row[name] for name in sorted(names & row.keys())} for row in found]
    assert shown[0] == {"gradient_cosine/one/two": 0, "gradient_share/one": 0, **_only("two")}
    assert shown[1] == {}
    assert shown[2] == dict.fromkeys(sorted(names), 0.0)


def _only(agent: str) -> dict[str, float]:
    return {f"gradient_share/{agent}": 1.0}


def test_numbers_by_hand() -> None:
    parts = {"a": [torch.tensor([3.0]), None], "b": [torch.tensor([1.0]), torch.ones(1)], "c": None}
    found = gradient_numbers(parts)
    root = math.sqrt(2)
    assert {key: number.value for key, number in found.items()} == pytest.approx(
        {
            ("gradient_share", "a"): 3 / (3 + root),
            ("gradient_share", "b"): root / (3 + root),
            ("gradient_share", "c"): 0.0,
            ("gradient_cosine", "a/b"): 1 / root,
            ("gradient_cosine", "a/c"): 0.0,
            ("gradient_cosine", "b/c"): 0.0,
        }
    )
