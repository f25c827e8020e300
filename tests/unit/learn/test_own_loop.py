"""Learners in ordinary PyTorch loops: the loss is a tensor, and later epochs compare with the
first."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mrlm import (
    GRPO,
    MAPPO,
    PPO,
    REINFORCE,
    Generator,
    Learner,
    LLMEnvironment,
    LossTensor,
    Message,
    MessageType,
    ReMax,
    Rollout,
    RouterR1Trainer,
    StepResult,
    TeamLearner,
)
from mrlm.core import registry
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.environments.search_qa import SearchQAEnvironment, routing_reward

ANSWERS = ("4", "5", "four", "22")
REWARDS = [1.0, 0.0, 0.5, 0.25]


def written() -> list[Rollout]:
    """Answers to one question, written by hand."""
    return [
        Rollout().add_messages(Message("2+2="), Message(text, MessageType.MODEL))
        for text in ANSWERS
    ]


def gradients(model: Any) -> list[Tensor | None]:
    return [None if weight.grad is None else weight.grad.clone() for weight in model.parameters()]


def plain(loss: Tensor, model: Any) -> None:
    loss.backward()


def halved(loss: Tensor, model: Any) -> None:
    (loss / 2).backward()


def accumulated(loss: Tensor, model: Any) -> None:
    loss /= 4
    loss.backward()


def regularised(loss: Tensor, model: Any) -> None:
    (loss + 0.1 * sum(weight.square().sum() for weight in model.parameters())).backward()


def scaled(loss: Tensor, model: Any) -> None:
    torch.amp.GradScaler("cpu", init_scale=8.0).scale(loss).backward()


def stacked(loss: Tensor, model: Any) -> None:
    torch.stack([loss, 2 * loss]).sum().backward()


def accelerated(loss: Tensor, model: Any) -> None:
    from accelerate import Accelerator

    Accelerator(cpu=True).backward(loss)


@pytest.mark.parametrize(
    ("backward", "factor"),
    [(halved, 0.5), (accumulated, 0.25), (scaled, 8.0), (stacked, 3.0), (accelerated, 1.0)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_whatever_is_done_with_the_loss_its_gradient_follows(
    backward: Callable[..., None], factor: float, critic: Any, model: Any, tokenizer: Any
) -> None:
    learner = Learner(model, tokenizer, PPO(critic=critic))
    rollouts, found = written(), []
    for way in (plain, backward):
        model.zero_grad()
        way(learner.calculate_loss(rollouts, REWARDS), model)
        found.append(gradients(model))
    assert any(slope is not None and float(slope.norm()) > 0 for slope in found[0])
    for expected, slope in zip(*found, strict=True):
        if expected is None or slope is None:
            assert expected is slope
        else:
            torch.testing.assert_close(slope, factor * expected, rtol=1e-4, atol=2e-6)


def test_a_penalty_may_be_added_to_the_loss(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, GRPO())
    learner.calculate_loss(written(), REWARDS).backward()
    expected = gradients(model)
    model.zero_grad()
    regularised(learner.calculate_loss(written(), REWARDS), model)
    for weight, slope in zip(model.parameters(), expected, strict=True):
        assert weight.grad is not None
        wanted = 0.2 * weight.detach() + (0.0 if slope is None else slope)
        torch.testing.assert_close(weight.grad, wanted, rtol=1e-5, atol=1e-7)


def test_the_loss_is_a_tensor_whose_metrics_survive_arithmetic(model: Any, tokenizer: Any) -> None:
    loss = Learner(model, tokenizer, GRPO()).calculate_loss(written(), REWARDS)
    assert isinstance(loss, Tensor) and loss.shape == () and loss.requires_grad
    assert {"policy_loss", "approx_kl"} <= loss.metrics.keys()
    assert all(type(value) is float for value in loss.metrics.values())
    for other in (loss / 2, loss + torch.ones(()), torch.stack([loss, loss]).mean(), loss.detach()):
        assert isinstance(other, LossTensor) and other.metrics == loss.metrics
    assert f"{loss:.4f}" == f"{loss.item():.4f}" and "LossTensor" not in repr(loss)
    assert float(copy.deepcopy(loss.detach())) == loss.item()


# -- epochs ----------------------------------------------------------------------------------------


def sampled(model: Any, tokenizer: Any, **sampling: Any) -> list[Rollout]:
    rollouts = [Rollout().add_messages(Message("2+2=")) for _ in REWARDS]
    Generator(model, tokenizer, max_new_tokens=6, **sampling).batch_generate(rollouts)
    return rollouts


def k3(sampler: float, trainer: float) -> float:
    return math.exp(trainer - sampler) - 1 - (trainer - sampler)


def scored(model: Any, rollout: Rollout) -> list[float]:
    """The log-probs of what a rollout sampled, by the model's own forward."""
    (turn,) = rollout.turns
    ids, start = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]]), len(turn.prompt_ids)
    with torch.no_grad():
        found = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
    return found.gather(1, ids[0, start:, None])[:, 0].tolist()


@pytest.mark.parametrize("algorithm", [REINFORCE, GRPO, PPO])
def test_the_mismatch_is_logged_while_the_weights_are_those_that_sampled(
    algorithm: Any, model: Any, tokenizer: Any
) -> None:
    """By hand, whether the log-probs are those of the first pass or of the loss; nothing once the
    weights have moved, however little, and nothing of what was not sampled."""
    learner = Learner(model, tokenizer, algorithm())
    rollouts, calls = sampled(model, tokenizer), []
    assert learner.calculate_loss(rollouts, REWARDS).metrics["mismatch_kl"] == pytest.approx(
        0.0, abs=1e-9
    )
    learner.forget()
    for rollout in rollouts:
        rollout.turns[0].logprobs = [x - 0.25 for x in rollout.turns[0].logprobs or ()]
    passes = learner.weights_of.forward
    learner.weights_of.forward = lambda *a, **k: calls.append(a) or passes(*a, **k)  # type: ignore[method-assign]
    loss = learner.calculate_loss(rollouts, REWARDS)
    pairs = [
        pair
        for rollout in rollouts
        for pair in zip(rollout.turns[0].logprobs or (), scored(model, rollout), strict=True)
    ]
    expected = sum(k3(*pair) for pair in pairs) / len(pairs)
    assert loss.metrics["mismatch_kl"] == pytest.approx(expected, rel=1e-4)
    assert expected == pytest.approx(k3(0.0, 0.25), rel=1e-3)
    assert len(calls) == 1, "no forward is added"
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight.data[7, 3] += 1e-3  # past the version counter, as fused optimisers write
    assert "mismatch_kl" not in learner.calculate_loss(rollouts, REWARDS).metrics
    assert "mismatch_kl" not in learner.calculate_loss(written(), REWARDS).metrics
    cut = sampled(model, tokenizer, top_p=0.9)
    assert "mismatch_kl" not in learner.calculate_loss(cut, REWARDS).metrics


def test_a_team_logs_the_mismatch_of_every_policy(model: Any, tokenizer: Any) -> None:
    models = {"a": model, "b": copy.deepcopy(model)}
    team = TeamLearner({name: (each, tokenizer) for name, each in models.items()}, MAPPO())
    parts = {name: sampled(each, tokenizer) for name, each in models.items()}
    for rollout in parts["b"]:
        rollout.turns[0].logprobs = [x - 0.25 for x in rollout.turns[0].logprobs or ()]
    episodes = [dict(zip(parts, pair, strict=True)) for pair in zip(*parts.values(), strict=True)]
    found = team.calculate_loss(episodes, REWARDS).metrics
    assert found["mismatch_kl/a"] == pytest.approx(0.0, abs=1e-9)
    assert found["mismatch_kl/b"] == pytest.approx(k3(0.0, 0.25), rel=1e-3)
    with torch.no_grad():
        models["b"].get_input_embeddings().weight[7, 3] += 1e-3
    assert "mismatch_kl/b" not in team.calculate_loss(episodes, REWARDS).metrics


@pytest.mark.parametrize("kind", ["by hand", "top_p", "episodes", "plain"])
def test_the_ratio_is_taken_to_the_first_epoch(kind: str, model: Any, tokenizer: Any) -> None:
    """`approx_kl` grows from epoch to epoch, and what moved beyond the range is clipped."""
    rollouts: list[Any] = written()
    if kind != "by hand":
        rollouts = sampled(model, tokenizer, top_p=1.0 if kind == "plain" else 0.9)
    if kind == "episodes":
        task = Task("2+2=")
        rollouts = [Episode.recorded(str(n), task, {"agent": r}) for n, r in enumerate(rollouts)]
    learner = Learner(model, tokenizer, GRPO(clip_range=0.05))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    moved, clipped = [], []
    for _ in range(4):
        loss = learner.calculate_loss(rollouts, REWARDS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        moved.append(loss.metrics["approx_kl"])
        clipped.append(loss.metrics["clip_fraction"])
    assert moved[0] == pytest.approx(0.0, abs=1e-6) and clipped[0] == 0.0
    assert moved[3] > moved[1] > 1e-5 and clipped[3] > 0.0
    learner.forget()
    begun = learner.calculate_loss(rollouts, REWARDS).metrics["approx_kl"]
    if kind != "plain":  # what the engine recorded stays
        assert begun == pytest.approx(0.0, abs=1e-6)


def test_an_algorithm_of_trees_refuses_turns_with_a_state_each(model: Any, tokenizer: Any) -> None:
    sure = [Message("sure?"), Message("yes", MessageType.MODEL)]
    rollouts = [rollout.add_messages(*sure) for rollout in written()]
    learner = Learner(model, tokenizer, registry.load("algorithms", "at_grpo")())
    with pytest.raises(ConfigError, match="compares several answers to one state"):
        learner.calculate_loss(rollouts, REWARDS)


def test_values_of_the_first_epoch_serve_the_later_ones(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, PPO(whiten_advantages=False))
    rollouts = written()
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.5)
    batches = []
    for _ in range(2):
        batches.append(learner.batch(rollouts, REWARDS))
        learner.calculate_loss(rollouts, REWARDS).backward()
        optimizer.step()
    torch.testing.assert_close(batches[0].advantages, batches[1].advantages)
    learner.forget()
    assert float((learner.batch(rollouts, REWARDS).values - batches[0].values).abs().max()) > 1e-3


def test_what_was_remembered_goes_with_its_rollouts(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, GRPO())
    rollouts = written()
    learner.calculate_loss(rollouts, REWARDS)
    assert len(learner._first._known) == len(rollouts)
    del rollouts
    assert not learner._first._known


# -- a greedy baseline -----------------------------------------------------------------------------


def test_remax_compares_with_what_was_generated_at_temperature_0(
    model: Any, tokenizer: Any
) -> None:
    rollouts = sampled(model, tokenizer)
    greedy = Rollout().add_messages(Message("2+2="))
    Generator(model, tokenizer, max_new_tokens=6, temperature=0).generate(greedy)
    learner = Learner(model, tokenizer, ReMax())
    batch = learner.batch([*rollouts, greedy], [*REWARDS, 0.4])
    by_turn = [float(batch.advantages[batch.turn == i][0]) for i in range(batch.num_turns)]
    assert by_turn == pytest.approx([reward - 0.4 for reward in REWARDS])
    learner.calculate_loss([*rollouts, greedy], [*REWARDS, 0.4]).backward()
    assert any(slope is not None and float(slope.norm()) > 0 for slope in gradients(model))
    with pytest.raises(ConfigError, match=r"at temperature 0, but .* has none.*temperature=0\)"):
        learner.calculate_loss(rollouts, REWARDS)
    with pytest.raises(ConfigError, match="add rollouts at a higher temperature"):
        learner.calculate_loss([greedy], [1.0])


# -- Router-R1 -------------------------------------------------------------------------------------


def test_a_router_in_an_own_loop(model: Any, tokenizer: Any) -> None:
    """The environment says where a turn ends, frozen models answer, and the reward is public."""
    environment = SearchQAEnvironment(models=["small"], max_turns=1, prompts="short")
    assert environment.stops == {"router": ("</search>", "</answer>")}
    small = LLMEnvironment(model, tokenizer, mode="client", generation_config={"max_new_tokens": 4})  # type: ignore[arg-type]
    result = environment.reset(0)
    result = environment.step(
        Message("<think>ask</think> <search>small: Who?</search>", agent="router")
    )
    assert list(result.observations) == ["small"]
    result = environment.step({"small": small.respond(result.messages)})
    assert "<information>" in result.messages[0].content
    result = environment.step(Message("<think>so</think> <answer>none</answer>", agent="router"))
    assert result.done and result.reward == 0.0
    assert routing_reward(environment.transcript, ["none"], ["small"]) == 1.0


def test_what_an_environment_does_not_read_is_not_generated(model: Any, tokenizer: Any) -> None:
    """Agents of a trainer stop where the environment says; a pool of live frozen models plays."""
    seen: list[Any] = []

    class Once(SearchQAEnvironment):
        @property
        def stops(self) -> dict[str, tuple[str, ...]]:
            return {"router": ("e", "a"), "small": ()}

        def step(self, actions: dict[str, Message]) -> StepResult:
            seen.extend(actions.values())
            return super().step(actions)

    frozen = copy.deepcopy(model)
    trainer = RouterR1Trainer(
        agents={"router": model, "small": LLMEnvironment(frozen, tokenizer, mode="client")},  # type: ignore[arg-type]
        tokenizer=tokenizer,
        environment=Once(models=["small"], max_turns=1, prompts="short"),
        max_new_tokens=24,
        batch_size=4,
        report_to="none",
    )
    trainer.train(num_iterations=1)
    turns = [message.turn for message in seen if message.turn.agent == "router"]
    assert {turn.sampling.stop for turn in turns} == {("e", "a")}
    assert not any({"e", "a"} & set(message.content) for message in seen if message.turn in turns)
    assert {learner.policy for learner in trainer.run.learners} == {"router"}
    assert all(weight.grad is None for weight in frozen.parameters())


@pytest.mark.parametrize("algorithm", ["marft", "ippo", "mappo"])
def test_an_agent_that_never_speaks_has_no_loss(model: Any, tokenizer: Any, algorithm: str) -> None:
    """Its critic too: the others are trained as ever."""
    policies = {"a": (model, tokenizer), "b": (copy.deepcopy(model), tokenizer)}
    team = TeamLearner(policies, registry.load("algorithms", algorithm)())
    loss = team.calculate_loss([{"a": rollout} for rollout in written()], REWARDS)
    loss.backward()
    assert math.isfinite(loss.item())
    assert any(slope is not None and float(slope.norm()) > 0 for slope in gradients(model))
