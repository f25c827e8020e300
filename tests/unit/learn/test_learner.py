"""One learner step by step: what it annotates, which samples it trains on, what it says, and what
of it is kept."""

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from families import family
from mrlm import Learner, Message, MessageType, TeamLearner
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.happo import HAPPO
from mrlm.algorithms.ippo import IPPO
from mrlm.algorithms.mappo import MAPPO
from mrlm.algorithms.ppo import PPO
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError, NonFiniteError
from mrlm.core.types import Rollout, SamplingParams, Task, Turn
from mrlm.learn import joint_update
from mrlm.learn.checkpoint import read_checkpoint, read_state, write_checkpoint
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample, merge
from mrlm.learn.frozen import Frozen
from mrlm.learn.joint_update import Work, accumulate, run_together
from mrlm.learn.meter import Mean, Measured
from mrlm.learn.optimizer import LearnerSettings, Stepper, training_mode
from mrlm.learn.policy.copies import mirrored
from mrlm.learn.policy.lora import add_adapter
from mrlm.learn.policy.policy import Policy


def turn(prompt: Sequence[int], said: Sequence[int], **more: Any) -> Turn:
    settings = {"logprobs": [-1.0] * len(said), "advantages": 1.0} | more
    return Turn("agent", "policy", list(prompt), list(said), **settings)


def samples(*turns: Turn) -> list[Sample]:
    return [s for i, each in enumerate(turns) for s in merge([each], unit=i, rollout=i)]


def group(*turns: Turn, failed: bool = False) -> Group:
    """One episode of one agent's turns."""
    rollout = Rollout(agent="agent", turns=list(turns))
    status: Any = "error" if failed else "done"
    return Group([Episode("0", Task("x"), {"agent": rollout}, status=status)])


def learner_of(algorithm: Any, tokenizer: Any, model: Any = None, **settings: Any) -> Learner:
    policy = Policy("policy", family("llama") if model is None else model, tokenizer)
    return Learner(policy, None, algorithm, settings=LearnerSettings(**settings))


def updated(learner: Learner, chosen: Sequence[Sample], step: int = 0, seed: int = 1) -> Measured:
    return asyncio.run(learner.update(chosen, learner.algorithm, step, seed))


def annotated(learner: Learner, groups: Sequence[Group], *needs: str) -> None:
    asyncio.run(learner.annotate(groups, needs))


# -- columns ---------------------------------------------------------------------------------------


def exact(learner: Learner, each: Turn) -> list[float]:
    """Log-probs of a turn by the model's own forward, at its temperature."""
    ids = torch.tensor([[*each.prompt_ids, *each.completion_ids]])
    with torch.no_grad():
        logits = learner.weights_of.model(ids).logits[0, len(each.prompt_ids) - 1 : -1]
    found = (logits / each.sampling.temperature).log_softmax(-1)
    return found.gather(1, torch.tensor(each.completion_ids)[:, None])[:, 0].tolist()


UNSCORED: list[dict[str, Any]] = [{"logprobs": None}, {"sampling": SamplingParams(top_p=0.5)}]


@pytest.mark.parametrize("unscored", UNSCORED)
@pytest.mark.parametrize("place", [0, 1])
def test_a_conversation_with_one_unscored_turn_is_scored(
    unscored: dict[str, Any], place: int, tokenizer: Any
) -> None:
    """The sampler's log-probs serve where all of a sample's turns have them."""
    learner = learner_of(GRPO(), tokenizer)
    known = turn([5, 6], [7])
    both = [turn([9], [10, 11]), turn([9, 10, 11, 12], [13])]
    for name, value in unscored.items():
        setattr(both[place], name, value)
    annotated(learner, [group(known), group(*both)])
    assert known.old_logprobs is None
    for each in both:
        assert each.values is None and each.entropies is None and each.ref_logprobs is None
        assert each.old_logprobs == pytest.approx(exact(learner, each), abs=1e-4)


@pytest.mark.parametrize("lag", [0, 1])
def test_older_weights_are_rescored_where_the_algorithm_says_so(lag: int, tokenizer: Any) -> None:
    learner = learner_of(GRPO(), tokenizer)
    aged = turn([5, 6], [7], lag=lag)
    annotated(learner, [group(aged)])
    assert (aged.old_logprobs is not None) is (lag > 0 and learner.spec.rescores_lagged)
    assert learner.spec.rescores_lagged


def test_rescoring_writes_one_column_and_leaves_the_mode(tokenizer: Any) -> None:
    learner = learner_of(GRPO(), tokenizer)
    learner.weights_of.model.train()
    said = turn([5, 6], [7, 8], sampling=SamplingParams(temperature=0.5))
    failed = turn([5], [6])
    asyncio.run(learner.rescore([group(said), group(failed, failed=True)]))
    assert said.new_logprobs == pytest.approx(exact(learner, said), abs=1e-4)
    assert said.old_logprobs is None and failed.new_logprobs is None
    assert learner.weights_of.model.training
    frozen = Frozen(learner.weights_of, version=7)
    again = turn([5, 6], [7, 8], sampling=SamplingParams(temperature=0.5), advantages=None)
    asyncio.run(frozen.rescore([group(again)]))
    assert again.new_logprobs == pytest.approx(said.new_logprobs)
    asyncio.run(frozen.rescore([]))
    assert (frozen.policy, frozen.version) == ("policy", 7)
    assert frozen.weights() is frozen.weights_of is learner.weights_of
    other = learner.weights_of.alike()
    given = Frozen(learner.weights_of, given=other)
    assert given.weights() is other and given.weights_of is learner.weights_of
    assert given.version == 0


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("level", ["turn", "token"])
def test_values_of_whole_turns_are_read_where_they_begin(
    level: Any, lean: bool, tokenizer: Any
) -> None:
    """A critic of turns gives each one number where that is less to read: that of the place its
    first token is said from."""
    policy = Policy("policy", family("llama"), tokenizer, lean=lean)
    learner = Learner(policy, None, PPO(critic="shared", level=level))
    assert learner.spec.critic.per_turn is (level == "turn")
    head = policy.value_head
    assert head is not None
    nn.init.normal_(head.linear.weight)
    both = [turn([9], [10, 11]), turn([9, 10, 11, 12], [13])]
    scored = turn([20, 21], [22, 23])
    annotated(learner, [group(*both), group(scored)], "values")
    for each in (*both, scored):
        with torch.no_grad():
            ids = torch.tensor([[*each.prompt_ids, *each.completion_ids]])
            states = policy.model.model(ids).last_hidden_state[0, len(each.prompt_ids) - 1 : -1]
            wanted = head(states).flatten().tolist()
        if level == "turn" and lean:
            assert each.values == pytest.approx(wanted[0], abs=1e-4)
        else:
            assert list(each.values) == pytest.approx(wanted, abs=1e-4)  # type: ignore[arg-type]


def test_all_columns_at_once_are_those_of_each_alone(tokenizer: Any) -> None:
    needs = ["old_logprobs", "values", "ref_logprobs", "entropies", "full_kl"]
    learner = learner_of(PPO(critic="shared", kl_coef=0.1), tokenizer)
    head = learner.weights_of.value_head
    assert head is not None
    nn.init.normal_(head.linear.weight)
    with torch.no_grad():  # the reference stays
        learner.weights_of.model.model.norm.weight.mul_(1.1)

    def said(*asked: str) -> dict[str, list[float]]:
        one = turn([5, 6], [7, 8, 9], sampling=SamplingParams(top_k=3, temperature=0.7))
        annotated(learner, [group(one)], *asked)
        found = {name: getattr(one, name) for name in needs}
        return {name: list(row) for name, row in found.items() if row is not None}

    together = said(*needs)
    assert list(together) == needs and all(len(row) == 3 for row in together.values())
    for need in needs:
        alone = said(need)
        assert set(alone) == {need, "old_logprobs"}, "a cut distribution is scored in any case"
        assert alone[need] == pytest.approx(together[need], abs=1e-5)
    two = said("old_logprobs", "entropies")
    assert list(two) == ["old_logprobs", "entropies"]
    assert min(together["full_kl"]) > 0 and min(together["entropies"]) > 0


# -- what is trained on ----------------------------------------------------------------------------


def test_a_sample_with_any_advantage_is_trained_on(tokenizer: Any) -> None:
    """One whose advantages are all 0 has no gradient and is not read; it counts in means."""
    uneven = turn([5, 6], [7, 8, 9], advantages=[0.0, 1.0, 0.0])
    nothing = turn([5, 6], [9, 8, 7], advantages=[0.0, 0.0, 0.0])
    found = []
    for chosen in ([uneven], [uneven, nothing], [nothing]):
        learner = learner_of(GRPO(loss_type="reinforce", aggregation="token_mean"), tokenizer)
        assert learner.spec.ignores_zero
        found.append(updated(learner, samples(*chosen)))
    one, two, none = (each["grad_norm"] for each in found)
    assert one > 0 and two == pytest.approx(one / 2, rel=1e-4) and none == 0
    assert found[2]["loss"] == 0.0 and found[2]["nonfinite_steps"] == 0.0
    assert found[2]["optimizer_steps"] == 1.0


class Odd(REINFORCE):
    """Logs how far it says it has moved, a number that only its first step has, and what it saw."""

    def begin(self, moves: Sequence[float | None]) -> "Odd":
        self.seen: list[int] = []
        self.moves = list(moves)
        return self

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        metrics: dict[str, Any] = {} if self.seen else {"first": 6.0}
        self.seen.append(len(batch))
        moved = self.moves.pop(0)
        metrics |= {} if moved is None else {"approx_kl": moved}
        return Loss(super().loss(batch, outputs).total, metrics)


@pytest.mark.parametrize(
    ("target", "moves", "steps"),
    [
        (None, [0.9, 0.25, 0.1, 0.6, 0.0, 0.0], 6),
        (0.5, [0.9, 0.25, 0.1, 0.6, 0.0, 0.0], 4),
        (0.6, [0.9, 0.25, 0.1, 0.6, 0.0, 0.0], 6),
        (0.2, [0.9, 0.25, 0.1, 0.6, 0.0, 0.0], 2),
        (0.0, [None] * 6, 6),
    ],
)
def test_epochs_end_once_the_policy_has_moved_beyond_the_target(
    target: float | None, moves: list[float | None], steps: int, tokenizer: Any
) -> None:
    """Three epochs of two steps: the last step of an epoch says how far it is."""
    algorithm = Odd(update_epochs=3, num_minibatches=2).begin(moves)
    algorithm.target_kl = target
    learner = learner_of(algorithm, tokenizer, learning_rate=0.25, warmup_steps=4)
    chosen = samples(turn([5, 6], [7]), turn([5], [8, 9, 10]))
    metrics = updated(learner, chosen, step=1)
    assert len(algorithm.seen) == steps and metrics["optimizer_steps"] == steps
    assert metrics["first"] == pytest.approx(6.0 / steps)
    known = sum(each or 0.0 for each in moves[:steps])
    assert metrics.get("approx_kl", 0.0) == pytest.approx(known / steps)
    assert metrics["learning_rate"] == 0.125
    # the sampler is compared with the first step alone, before any weight has moved
    assert metrics.agents["mismatch_kl", "agent"].weight == algorithm.seen[0]
    assert learner.version == 1
    assert updated(learner, []) == {} and learner.version == 1


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_an_update_is_one_step_down_the_loss(
    accumulation: int, lean: bool, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many parts it is computed in, and whatever gradients were left before."""
    chosen = samples(
        turn([5, 6], [7]), turn([5], [8, 9, 10], advantages=-0.5), turn([20], [21, 22])
    )
    policy = Policy("policy", family("llama"), tokenizer, lean=lean)
    settings = LearnerSettings(
        learning_rate=1.0,
        optimizer="sgd",
        max_grad_norm=None,
        accumulation=accumulation,
        max_tokens=1000,
    )
    learner = Learner(policy, None, GRPO(entropy_coef=0.1), settings=settings)
    loss = learner.loss_of(chosen)
    loss.backward()
    slopes = [weight.grad for weight in policy.parameters()]
    before = [weight.detach().clone() for weight in policy.parameters()]
    for weight in policy.parameters():
        weight.grad = torch.ones_like(weight)
    brought: list[Work] = []
    noting = lambda works: brought.extend(works) or accumulate(works)  # noqa: E731
    monkeypatch.setattr(joint_update, "accumulate", noting)
    (metrics,) = run_together([learner.steps(chosen, learner.algorithm, 0, 1)])
    parts = len(brought)
    assert parts == {1: 1, 2: 3, 3: 3}[accumulation]  # at least as many, of equal size
    assert [work.last for work in brought] == [False] * (parts - 1) + [True]
    assert sum(len(work.batch) for work in brought) == 6
    assert all(work.entropy_gradient and work.max_tokens == 1000 for work in brought)
    for weight, old, slope in zip(policy.parameters(), before, slopes, strict=True):
        assert slope is not None
        torch.testing.assert_close(old - weight.detach(), slope, atol=1e-5, rtol=1e-3)
    norm = math.sqrt(sum(float(slope.square().sum()) for slope in slopes))  # type: ignore[union-attr]
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert metrics["entropy"] == pytest.approx(float(loss.metrics["entropy"]), rel=1e-5)


def test_where_dropout_draws_the_sampler_is_compared_without_it(tokenizer: Any) -> None:
    """A few samples are read once more for that; what is drawn follows from the seed."""

    def one(seed: int) -> tuple[Learner, Measured]:
        settings = {"r": 2, "alpha": 4, "dropout": 0.5, "target_modules": ["q_proj"]}
        torch.manual_seed(0)
        model = add_adapter(family("llama"), "policy", settings)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if ".lora_B." in key:
                    weight.normal_(std=0.05)
        policy = Policy("policy", model, tokenizer, adapter="policy")
        learner = Learner(policy, None, REINFORCE(), settings=LearnerSettings(learning_rate=0.01))
        turns = [turn([5, 6 + number], [7] * (1 + number)) for number in range(10)]
        if seed == 1:
            model.eval()
            for each in turns[:8]:
                each.logprobs = exact(learner, each)
        return learner, updated(learner, samples(*turns), seed=seed)

    metrics = one(1)[1]
    mismatch = metrics.agents["mismatch_kl", "agent"]
    assert mismatch == Mean(pytest.approx(0.0, abs=1e-6), sum(range(1, 9)))
    found = [one(seed)[0].weights_of.parameters() for seed in (2, 2, 64)]
    pairs = [list(zip(found[0], other, strict=True)) for other in found[1:]]
    assert all(torch.equal(a, b) for a, b in pairs[0])
    assert not all(torch.equal(a, b) for a, b in pairs[1])


def test_minibatches_come_in_an_order_that_the_seed_decides(tokenizer: Any) -> None:
    chosen = samples(*(turn([5, 6], [7] * size) for size in range(1, 9)))

    def order(seed: int) -> list[int]:
        algorithm = Odd(num_minibatches=8).begin([0.0] * 8)
        updated(learner_of(algorithm, tokenizer), chosen, seed=seed)
        return algorithm.seen

    assert order(1) == order(1) != order(2) and sorted(order(1)) == list(range(1, 9))


# -- steps that fail -------------------------------------------------------------------------------


class Bad(REINFORCE):
    factor = 1.0

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        found = super().loss(batch, outputs)
        return Loss(found.total * self.factor, {"fine": 2.0, "odd": math.inf})


def test_what_is_said_of_a_step_that_is_not_finite(
    tokenizer: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    algorithm = Bad()
    settings: Any = {"max_nonfinite_steps": 2, "dump_folder": tmp_path}
    learner = learner_of(algorithm, tokenizer, **settings)
    chosen = samples(turn([5, 6], [7]))
    assert updated(learner, chosen).keys() >= {"loss", "grad_norm", "fine"}
    with caplog.at_level(logging.WARNING, logger="mrlm"):
        assert not caplog.records
        algorithm.factor = math.nan
        metrics = updated(learner, chosen)
    assert metrics["fine"] == 2.0 and metrics["nonfinite_steps"] == 1.0
    assert not {"loss", "grad_norm", "odd"} & metrics.keys()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "policy 'policy': loss nan, gradient norm nan; the step is skipped (1 in a row)"
    )
    assert not list(tmp_path.iterdir())
    with pytest.raises(NonFiniteError) as caught:
        updated(learner, chosen)
    path = tmp_path / "nonfinite-policy.pt"
    assert f"2 steps in a row were not finite; the batch is in {path}" in str(caught.value)
    kept = torch.load(path)
    assert kept["samples"] == [{"ids": [5, 6, 7], "starts": [2]}]
    unkept = learner_of(algorithm, tokenizer, max_nonfinite_steps=1)
    with pytest.raises(NonFiniteError, match=r"1 steps in a row were not finite\. Lower"):
        updated(unkept, chosen)


class Half(REINFORCE):
    """A loss that is a number without a gradient that is, or the other way round."""

    which = "slope"

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        total = super().loss(batch, outputs).total
        if self.which == "value":
            return Loss(total + math.nan)
        return Loss(total + (outputs.logprobs.sum() * 0).sqrt())


@pytest.mark.parametrize("which", ["slope", "value"])
def test_a_loss_and_its_gradient_have_to_be_finite(which: str, tokenizer: Any) -> None:
    algorithm = Half()
    algorithm.which = which
    learner = learner_of(algorithm, tokenizer)
    before = [weight.detach().clone() for weight in learner.parameters()]
    metrics = updated(learner, samples(turn([5, 6], [7])))
    assert learner.nonfinite == metrics["nonfinite_steps"] == 1.0
    assert ("loss" in metrics) is (which == "slope")
    assert ("grad_norm" in metrics) is (which == "value")
    for old, weight in zip(before, learner.parameters(), strict=True):
        assert torch.equal(old, weight)


# -- optimiser -------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_an_optimiser_goes_on_where_it_was(optimizer: Any, tokenizer: Any) -> None:
    """Its state in a new learner: the next steps have the same bits."""
    chosen = samples(turn([5, 6], [7]), turn([5], [8, 9], advantages=-0.5))
    first, second = (
        learner_of(REINFORCE(), tokenizer, optimizer=optimizer, learning_rate=0.01)
        for _ in range(2)
    )
    for step in range(2):
        updated(first, chosen, step)
    first.nonfinite = 2
    tensors, rest = first.optimizer_state()
    assert (len(tensors) > 0) is (optimizer != "sgd") and rest["version"] == 2
    second.weights_of.model.load_state_dict(first.weights_of.model.state_dict())
    tensors = {name: value.clone() for name, value in tensors.items()}
    second.load_optimizer_state(tensors, json.loads(json.dumps(rest)))
    assert (second.version, second.nonfinite) == (2, 2)
    for learner in (first, second):
        updated(learner, chosen, 2)
    for one, other in zip(
        first.weights_of.parameters(), second.weights_of.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_a_loss_scale_is_kept_with_the_optimiser(tokenizer: Any) -> None:
    policy = Policy("policy", family("llama"), tokenizer, precision="fp16")
    stepper, other = (Stepper(policy, LearnerSettings()) for _ in range(2))
    stepper.scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    stepper.scaler.scale(torch.ones(()))
    other.scaler.scale(torch.ones(()))
    tensors, rest = stepper.state()
    assert other.scaler.get_scale() != 32.0
    other.load_state(tensors, rest)
    assert other.scaler.get_scale() == stepper.scaler.get_scale() == 32.0


def test_the_learning_rate_may_be_multiplied(tokenizer: Any) -> None:
    policy = Policy("policy", family("llama"), tokenizer)
    settings = LearnerSettings(learning_rate=0.5, rate_factor=0.25, warmup_steps=2)
    assert [Stepper(policy, settings).begin(step) for step in range(3)] == [0.0625, 0.125, 0.125]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("lean", [True, False])
def test_training_mode_is_put_back(
    training: bool, checkpointing: bool, lean: bool, tokenizer: Any
) -> None:
    model = family("llama").train(training)
    policy = Policy("policy", model, tokenizer, lean=lean)
    assert policy.packed is lean
    for _ in range(2):
        with training_mode([policy], checkpointing):
            assert model.model.layers[0].training is (lean or checkpointing)
            assert model.model.layers[0].mlp.training is lean  # without dropout, as in evaluation
            assert model.model.layers[0].gradient_checkpointing is checkpointing
        assert not any(each.training is not training for each in model.modules())
        assert not model.model.layers[0].gradient_checkpointing


def test_training_mode_is_that_of_the_adapters_that_learn(tokenizer: Any) -> None:
    model = family("llama")
    for name in "abc":
        settings = {"r": 2, "alpha": 4, "dropout": 0.5, "target_modules": ["q_proj"]}
        model = add_adapter(model, name, settings)
    model.eval()
    policies = [Policy(name, model, tokenizer, adapter=name) for name in "ab"]
    drops = model.get_base_model().model.layers[0].self_attn.q_proj.lora_dropout
    with training_mode(policies, False):
        assert [drops[name].training for name in "abc"] == [True, True, False]
    assert not any(each.training for each in model.modules())


# -- checkpoints -----------------------------------------------------------------------------------


def team_of(tokenizer: Any, seed: int) -> list[Learner]:
    found = []
    for name in ("a", "b"):
        policy = Policy(name, family("llama", seed), tokenizer)
        algorithm = IPPO(critic="separate", kl_coef=0.1)
        found.append(Learner(policy, None, algorithm, settings=LearnerSettings(learning_rate=0.01)))
    return found


def bits(learner: Learner) -> list[torch.Tensor]:
    whole = [*learner.weights_of.model.parameters(), *learner.critic.body.parameters()]  # type: ignore[union-attr]
    reference = learner.weights_of.reference
    whole += [] if reference is None else list(reference.parameters())
    return [each.detach().clone() for each in whole]


def test_a_checkpoint_is_everything_of_its_learners(tokenizer: Any, tmp_path: Path) -> None:
    """Policies, references that moved, critics, and the optimisers of all: learners of other
    weights that read it go on with the same bits."""
    chosen = samples(turn([5, 6], [7]), turn([5], [8, 9], advantages=-0.5))
    kept, read = team_of(tokenizer, 0), team_of(tokenizer, 1)
    for learner in kept:
        updated(learner, chosen)
        stepper = learner.critic.stepper  # type: ignore[union-attr]
        for weight in stepper.weights:
            weight.grad = torch.ones_like(weight)
        stepper.step(apply=True)
    kept[0].renew_reference()
    updated(kept[0], chosen)
    critics = [[learner.critic for learner in each] for each in (kept, read)]
    folder = write_checkpoint(tmp_path, 7, kept, {"x": {"y": [1, 2]}}, 3, critics[0])  # type: ignore[arg-type]
    assert folder == tmp_path / "checkpoint-7"
    asked: list[tuple[str, str]] = []

    def shards_of(kind: str, whose: Any) -> dict[str, torch.Tensor]:
        asked.append((kind, whose.policy if kind == "learner" else whose.name))
        return {}

    written = read_state(folder)
    assert written["step"] == 7 and written["parts"] == {"x": {"y": [1, 2]}}
    assert [written["learners"][name]["version"] for name in "ab"] == [2, 1]
    assert read_checkpoint(folder, read, critics[1], shards_of) == written  # type: ignore[arg-type]
    names = [critic.name for critic in critics[1]]  # type: ignore[union-attr]
    assert asked == [("learner", "a"), ("learner", "b"), *(("critic", name) for name in names)]
    assert [learner.version for learner in read] == [2, 1]
    for mine, theirs in zip(*critics, strict=True):
        moments = [critic.optimizer_state()[0] for critic in (mine, theirs)]  # type: ignore[union-attr]
        assert moments[0].keys() == moments[1].keys() and moments[0]
        assert all(torch.equal(moments[0][key], moments[1][key]) for key in moments[0])
    for one, other in zip(kept, read, strict=True):
        pairs = zip(bits(one), bits(other), strict=True)
        # a reference that has not moved is made again from the policy that a run begins with
        count = len(bits(one)) if one is kept[0] else 2 * len(bits(one)) // 3
        assert all(torch.equal(a, b) for a, b in list(pairs)[:count])
        for learner in (one, other):
            updated(learner, chosen, 1)
        assert all(
            torch.equal(a, b)
            for a, b in zip(one.weights_of.parameters(), other.weights_of.parameters(), strict=True)
        )


@pytest.mark.parametrize(("keep", "left"), [(0, [9, 4]), (2, [9, 4]), (3, [9, 4, 2])])
def test_old_checkpoints_go_and_later_ones_stay(
    keep: int, left: list[int], tmp_path: Path, tokenizer: Any
) -> None:
    for step in (1, 2, 4, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "part-0").write_text("x")
    write_checkpoint(tmp_path, 9, [], {}, keep, shards=cut)
    assert (tmp_path / "checkpoint-9" / "shards" / "part-0").read_text() == "x"
    assert {path.name for path in tmp_path.iterdir()} == {
        f"checkpoint-{step}" for step in (12, *left)
    }


# -- own loops -------------------------------------------------------------------------------------


def written(*texts: str) -> list[Rollout]:
    return [
        Rollout().add_messages(Message("2+2="), Message(text, MessageType.MODEL)) for text in texts
    ]


def test_a_rollout_that_joins_later_compares_with_its_own_beginning(
    model: Any, tokenizer: Any
) -> None:
    """One that is known keeps what it was compared with before."""
    learner = Learner(model, tokenizer, GRPO())
    known, new = written("4", "5"), written("six", "7")
    first = learner.batch(known, [1.0, 0.0]).old_logprobs
    with torch.no_grad():
        model.model.norm.weight.mul_(1.05)
    loss = learner.calculate_loss([*known, *new], [1.0, 0.0, 0.5, 0.25])
    assert loss.metrics["approx_kl"] > 1e-6
    batch = learner.batch([*known, *new], [1.0, 0.0, 0.5, 0.25])
    assert torch.equal(batch.old_logprobs[: len(first)], first)
    gaps = (learner.weights_of.forward(batch).logprobs - batch.old_logprobs).abs()
    assert float(gaps[: len(first)].max()) > 1e-3 > 1e-4 > float(gaps[len(first) :].max())
    learner.forget()
    assert learner.calculate_loss(known, [1.0, 0.0]).metrics["approx_kl"] < 1e-6


def test_the_loss_of_a_critic_of_its_own_is_added(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, PPO(critic="separate"))
    assert learner.critic is not None
    nn.init.normal_(learner.critic.body.value_head.linear.weight)  # type: ignore[union-attr]
    plays = written("4", "five", "22")
    loss = learner.calculate_loss(plays, [1.0, 0.0, 0.5])
    batch = learner.batch(plays, [1.0, 0.0, 0.5])
    own = learner.loss_of(batch.samples)
    value = loss.metrics["value_loss"]
    assert value > 0 and loss.item() == pytest.approx(own.item() + value, abs=1e-5)
    count = len(learner.weights_of.parameters())
    both = learner.parameters()
    assert len(both) > count and len({id(parameter) for parameter in both}) == len(both)
    alone = Learner(learner.weights_of, None, GRPO())
    assert len(alone.parameters()) == count


def test_engines_take_the_weights_or_a_copy_of_them(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, GRPO())
    assert learner.weights() is learner.weights_of
    learner.mirror = mirrored({"policy": learner.weights_of}, {"policy"})["policy"]
    with torch.no_grad():
        model.model.norm.weight.mul_(2.0)
    found = learner.weights()
    assert found is learner.mirror
    assert torch.equal(found.model.model.norm.weight, model.model.norm.weight)


# -- teams -----------------------------------------------------------------------------------------


def pair(tokenizer: Any) -> dict[str, Any]:
    return {name: (family("llama", seed), tokenizer) for seed, name in enumerate("ab")}


def said_by(*agents: str) -> Rollout:
    found = Rollout().add_messages(Message("2+3?"))
    for number, agent in enumerate(agents):
        found.add_messages(Message("5" * (1 + number), MessageType.MODEL, agent=agent))
        found.add_messages(Message("and?"))
    return found


def test_one_loss_is_the_sum_of_those_of_the_policies(tokenizer: Any) -> None:
    agents = pair(tokenizer)
    plays, rewards = [said_by("a", "b"), said_by("b", "a", "b")], [1.0, 0.0]
    team = TeamLearner(agents, GRPO())
    loss = team.calculate_loss(plays, rewards)
    batches = team.batches(plays, rewards)
    alone = [each.loss_of(batches[each.policy].samples) for each in team.learners]
    assert loss.item() == pytest.approx(sum(each.item() for each in alone), abs=1e-6)
    for learner, each in zip(team.learners, alone, strict=True):
        name = f"policy_loss/{learner.policy}"
        assert loss.metrics[name] == pytest.approx(float(each.metrics["policy_loss"]), abs=1e-6)
    assert list(team.batches([said_by("a"), said_by("a", "a")], rewards)) == ["a"]
    only = TeamLearner(agents, GRPO(), trained=["a"])
    assert list(only.batches(plays, rewards)) == ["a"]
    with pytest.raises(ConfigError, match="nothing to train on: no episode"):
        only.calculate_loss([said_by("b"), said_by("b", "b")], rewards)


@pytest.mark.parametrize(
    ("epochs", "target", "rate", "policies"),
    [
        (1, None, 0.0, "ab a a"),
        (2, None, 0.0, "ab a a ab a a"),
        (3, 0.0, 0.5, "ab a a b b"),
        (3, -1.0, 0.5, "ab a a"),
        (2, 1e9, 0.5, "ab a a ab a a"),
    ],
)
def test_steps_of_a_team_in_which_one_has_less_to_learn(
    epochs: int, target: float | None, rate: float, policies: str, tokenizer: Any
) -> None:
    """As many as the policy with most mini-batches has; those that moved too far rest. `b`, with
    one answer alone, has nothing to compare and does not move at all."""
    algorithm = GRPO(update_epochs=epochs, num_minibatches=3)
    algorithm.target_kl = target
    team = TeamLearner(pair(tokenizer), algorithm)
    plays = [said_by("a", "b"), said_by("a"), said_by("a", "a")]
    optimizer = torch.optim.SGD(team.parameters(), lr=rate)
    seen: list[str] = []
    for loss in team.losses(plays, [1.0, 0.0, 0.25]):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append("".join(sorted({name.partition("/")[2] for name in loss.metrics})))
    assert seen == policies.split()


def test_the_critic_of_a_team_begins_as_the_first_policy_or_as_given(tokenizer: Any) -> None:
    agents = pair(tokenizer)
    first, second = (agents[name][0] for name in "ab")
    (critic,) = TeamLearner(agents, MAPPO()).critics
    body = critic.body.model
    assert body is not first
    assert torch.equal(body.model.norm.weight, first.model.norm.weight)
    assert not torch.equal(body.model.norm.weight, second.model.norm.weight)
    given = family("llama", 7)
    (critic,) = TeamLearner(agents, MAPPO(), critic=(given, tokenizer)).critics
    assert critic.body.model is given


def test_who_warns_of_an_order_that_is_missing(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A team whose algorithm updates one after the other, once; not one with a single policy."""
    agents = pair(tokenizer)
    plays, rewards = [said_by("a", "b"), said_by("b", "a", "b")], [1.0, 0.0]
    for algorithm, trained, names in (
        (MAPPO(), None, []),
        (HAPPO(), ["a"], []),
        (HAPPO(), None, ["HAPPO"]),
    ):
        caplog.clear()
        team = TeamLearner(agents, algorithm, trained=trained)
        for _ in range(2):
            team.calculate_loss(plays, rewards)
        said = [record.getMessage().split()[0] for record in caplog.records]
        assert said == names
