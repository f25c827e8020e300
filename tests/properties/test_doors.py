"""Three doors, one room: a config file, a trainer and a loop of one's own give the same gradients
on the same rollouts."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from mrlm import (
    DPO,
    GRPO,
    PPO,
    REINFORCE,
    RLOO,
    SFT,
    Callback,
    GRPOTrainer,
    Learner,
    Message,
    MessageType,
    Rollout,
    load_config,
    run_experiment,
)
from mrlm.core.environment import SimulatedEnvironment
from mrlm.core.types import Observation, Reward
from mrlm.learn.learner import Learner as AnyLearner


class Letters(SimulatedEnvironment):
    """Pays for low letters, so that the rewards of random words differ."""

    blocking = False

    def reset(self, seed: int = 0) -> Observation:
        return Observation([Message(f"Write {seed % 7}")])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        words = action.content.encode()
        return Observation(done=True), Reward(sum(byte < 128 for byte in words) / 16)


CONFIG = """
experiment_name: doors
environments: [{env_type: "test_doors:Letters"}]
training: {algorithm: grpo, num_iterations: 1, batch_size: 2, optimizer: sgd, learning_rate: 1.0,
  max_grad_norm: null, report_to: none}
grpo: {group_size: 4}
generation: {max_new_tokens: 8}
"""


class Keep(Callback):
    """Keeps what was played and the weights afterwards."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []
        self.rewards: list[float] = []

    def on_train_begin(self, run: Any) -> None:
        take = run.source.take

        async def taken(count: int) -> Any:
            groups = await take(count)
            for group in groups:
                for episode in group:
                    (rollout,) = episode.rollouts.values()
                    self.rollouts.append(copy.deepcopy(rollout))
                    self.rewards.append(episode.reward)
            return groups

        run.source.take = taken

    def on_train_end(self, run: Any) -> None:
        (learner,) = run.learners
        self.weights = [p.detach().clone() for p in learner.weights_of.model.parameters()]


def test_three_doors_give_equal_gradients(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """One step of plain gradient descent with learning rate 1 moves the weights by the gradient."""
    start = [p.detach().clone() for p in model.parameters()]
    (tmp_path / "c.yaml").write_text(CONFIG)
    first = Keep()
    run_experiment(load_config(tmp_path / "c.yaml"), callbacks=[first])

    second = Keep()
    GRPOTrainer(
        model=copy.deepcopy(model),
        tokenizer=tokenizer,
        environment=Letters,
        num_generations=4,
        batch_size=2,
        max_new_tokens=8,
        optim="sgd",
        learning_rate=1.0,
        max_grad_norm=None,
        callbacks=[second],
        config=load_config(tmp_path / "c.yaml", ["environments=[]"]),
    ).train(num_iterations=1)

    own = copy.deepcopy(model)
    learner = Learner(own, tokenizer, GRPO(group_size=4))
    learner.calculate_loss(first.rollouts, first.rewards).backward()
    gradients = [p.grad for p in own.parameters()]
    moved = max(float((a - b).abs().max()) for a, b in zip(start, first.weights, strict=True))
    assert moved > 1e-4
    assert len(set(first.rewards)) > 2
    for before, by_config, by_trainer, gradient in zip(
        start, first.weights, second.weights, gradients, strict=True
    ):
        assert torch.equal(by_config, by_trainer)
        expected = before if gradient is None else before - gradient
        torch.testing.assert_close(by_config, expected, rtol=1e-4, atol=2e-6)


ROWS = [
    Rollout(task_id="q").add_messages(Message("2+2="), Message(text, MessageType.MODEL))
    for text in ("4", "5", "four", "22")
]


@pytest.mark.parametrize(
    "algorithm", [GRPO(), RLOO(), REINFORCE(), PPO(), SFT()], ids=lambda a: type(a).__name__
)
def test_the_own_loop_takes_every_algorithm(algorithm: Any, model: Any, tokenizer: Any) -> None:
    learner = AnyLearner(model, tokenizer, algorithm)
    loss = learner.calculate_loss(ROWS, [1.0, 0.0, 0.5, 0.0])
    loss.backward()
    assert torch.isfinite(loss)
    assert sum(float(p.grad.norm()) for p in learner.parameters() if p.grad is not None) > 0


def test_the_own_loop_takes_pairs(model: Any, tokenizer: Any) -> None:
    learner = AnyLearner(model, tokenizer, DPO())
    loss = learner.calculate_loss(ROWS[:2], [1.0, 0.0])
    loss.backward()
    assert loss.item() == pytest.approx(0.693147, abs=1e-5)
    assert any(p.grad is not None and float(p.grad.norm()) > 0 for p in model.parameters())
