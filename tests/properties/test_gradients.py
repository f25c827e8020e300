"""What gets a gradient and what does not: every sampled token of a trained agent, and nothing
else."""

import copy
from typing import Any

import pytest
import torch

from mrlm import GRPO, Learner, Message, MessageType, Rollout
from mrlm.algorithms.sft import SFT
from mrlm.core.errors import ConfigError
from mrlm.learn.credit.user_rollouts import RolloutReader
from mrlm.learn.data.batch import merge, pack
from mrlm.learn.policy.lora import add_adapter
from mrlm.learn.policy.policy import Policy
from oracles import logit_gradient
from oracles import trained_turn as turn

SAID = "I think the answer is 4"
TOOL = "Result: 5"


def conversation(answer: str, thought: str = SAID, tool: str = TOOL) -> Rollout:
    return Rollout().add_messages(
        Message("Work together.", MessageType.SYSTEM),
        Message("What is 2 + 3?", MessageType.MESSAGE),
        Message(thought, MessageType.MODEL, agent="a"),
        Message("calculate(2 + 3)", MessageType.MODEL, agent="b"),
        Message(tool, MessageType.SYSTEM),
        Message(answer, MessageType.MODEL, agent="b"),
    )


@pytest.mark.parametrize("lora", [False, True])
def test_only_the_agents_own_tokens_get_a_gradient(model: Any, tokenizer: Any, lora: bool) -> None:
    adapter = None
    if lora:
        model = add_adapter(
            model, "b", {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}
        )
        adapter = "b"
    policy = Policy("policy", model, tokenizer, adapter=adapter)
    learner = Learner(policy, None, GRPO(), agents=["b"])
    turns = RolloutReader(learner.policy, learner.chat, learner.agents).turns(
        conversation("The answer is 5")
    )
    norms = logit_gradient(policy, turns)
    ids = merge(turns)[0].ids
    text = ["".join(tokenizer.decode([i + 0])) for i in ids]
    trained = [i + 1 for i, norm in enumerate(norms.tolist()) if norm > 0]
    written = "".join(text[i] for i in trained)
    assert written == "calculate(2 + 3)<|im_end|>The answer is 5<|im_end|>"
    if lora:
        gradients = {name: p.grad for name, p in policy.named_parameters().items()}
        assert any(g is not None and g.abs().sum() > 0 for g in gradients.values())
        assert all(".lora_" in name for name in gradients)


def test_what_others_said_changes_nothing_but_context(model: Any, tokenizer: Any) -> None:
    """Other agents' and tools' tokens enter through attention only: with the same text the loss is
    the same, whoever is trained on."""
    alone = Learner(model, tokenizer, SFT(), agents=["b"])
    batch = alone.batch([conversation("The answer is 5")])
    trained = "".join(tokenizer.decode(ids) for ids in batch.trained_token_ids())
    assert SAID not in trained and TOOL not in trained
    both = Learner(model, tokenizer, SFT()).batch([conversation("The answer is 5")])
    assert SAID in "".join(tokenizer.decode(ids) for ids in both.trained_token_ids())
    assert TOOL not in "".join(tokenizer.decode(ids) for ids in both.trained_token_ids())


@pytest.mark.parametrize("said", [[8, 9, 2], [8, 9, 10], [2], [42]], ids=str)
def test_the_last_token_and_the_end_token_are_trained(
    said: list[int], model: Any, tokenizer: Any
) -> None:
    assert tokenizer.eos_token_id == 2
    norms = logit_gradient(Policy("policy", model, tokenizer), [turn([5, 6, 7], said)])
    assert (norms > 0).tolist() == [False, False, *[True] * len(said), False]


@pytest.mark.parametrize("lean", [True, False])
def test_an_entropy_bonus_has_the_gradient_of_the_entropy(
    lean: bool, model: Any, tokenizer: Any
) -> None:
    """In an own loop as in the library's; without an advantage it is the only one."""
    alone = copy.deepcopy(model)
    logits = alone(torch.tensor([[5, 6, 7, 8, 9, 10]])).logits[0, 2:5]
    (-0.5 * torch.distributions.Categorical(logits=logits).entropy().mean()).backward()
    policy = Policy("policy", model, tokenizer, lean=lean)
    learner = Learner(policy, None, GRPO(entropy_coef=0.5))
    samples = merge([turn([5, 6, 7], [8, 9, 10], advantage=0.0)])
    learner.loss_of(samples).total.backward()
    pairs = list(zip(model.parameters(), alone.parameters(), strict=True))
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one, _ in pairs)
    for one, other in pairs:
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3)


def test_pads_after_the_end_are_never_trained(model: Any, tokenizer: Any) -> None:
    eos = tokenizer.eos_token_id
    samples = [s for t in (turn([5], [6, eos]), turn([5], [6, 7, 8, 9, eos])) for s in merge([t])]
    batch = pack(samples, pad_id=eos)
    assert len(batch) == 7 and batch.trained_token_ids() == [[6, eos], [6, 7, 8, 9, eos]]
    positions = batch.grid.keep[batch.grid.column] + 1
    assert bool(batch.grid.attention_mask[batch.sequence, positions].all())


def test_a_conversation_is_a_sample_of_every_speaker_and_read_once(
    model: Any, tokenizer: Any
) -> None:
    batch = Learner(model, tokenizer, SFT()).batch([conversation("The answer is 5")])
    assert batch.num_sequences == len(batch.agents) == 2 and batch.num_turns == 3
    assert len(batch.tree.ids) <= max(len(sample.ids) for sample in batch.samples)


def test_groups_follow_the_question_and_one_rollout_alone_is_refused(
    model: Any, tokenizer: Any
) -> None:
    learner = Learner(model, tokenizer, GRPO(scale_rewards="none"))

    def asked(question: str) -> Rollout:
        return Rollout().add_messages(Message(question), Message("5", MessageType.MODEL))

    batch = learner.batch([asked("a"), asked("a"), asked("b"), asked("b")], [1.0, 0.0, 5.0, 5.0])
    by_turn = [float(batch.advantages[batch.turn == i][0]) for i in range(4)]
    assert by_turn == [0.5, -0.5, 0.0, 0.0]
    whole = learner.batch([asked("a"), asked("b")], [1.0, 0.0])
    assert sorted({float(x) for x in whole.advantages}) == [-0.5, 0.5]
    keyed = learner.batch(
        [asked("a"), asked("b"), asked("c"), asked("d")],
        [1.0, 0.0, 5.0, 5.0],
        group_by=lambda r: r.messages[0].content in "ab",
    )
    assert {float(x) for x in keyed.advantages} == {0.5, -0.5, 0.0}
    with pytest.raises(ConfigError, match="only one"):
        learner.calculate_loss([asked("a")], [1.0])
    with pytest.raises(ConfigError, match="2 rollouts but 1 rewards"):
        learner.calculate_loss([asked("a"), asked("a")], [1.0])
    with pytest.raises(ConfigError, match="finite"):
        learner.calculate_loss([asked("a"), asked("a")], [None, float("nan")])


def test_the_users_model_is_left_as_it_is(model: Any, tokenizer: Any) -> None:
    kind, training = type(model), model.training
    learner = Learner(model, tokenizer, GRPO())
    learner.calculate_loss([conversation("a"), conversation("b")], rewards=[1.0, 0.0]).backward()
    assert learner.weights_of.model is model and type(model) is kind and model.training == training
    assert {id(p) for p in learner.parameters()} == {id(p) for p in model.parameters()}
