"""One policy and its optimiser: values, adapters, precision, saving, and steps that are right or
not taken at all."""

import asyncio
import copy
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from families import family
from mrlm import Learner
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.algorithms.sft import SFT
from mrlm.core.errors import ModelError
from mrlm.core.types import SamplingParams
from mrlm.learn.data.batch import Sample, merge, pack
from mrlm.learn.optimizer import LearnerSettings, Stepper
from mrlm.learn.policy.copies import adopt, catch_up, mirrored, opponent_copy
from mrlm.learn.policy.loading import load_model, load_tokenizer, pick_device
from mrlm.learn.policy.lora import BASE, add_adapter, switch_adapter
from mrlm.learn.policy.policy import Policy, as_policy
from mrlm.learn.policy.reference import renew
from mrlm.learn.policy.saved_model import HEADS
from mrlm.learn.policy.weight_files import take_file, take_folder, write_weights
from oracles import trained_turn as turn

LORA: dict[str, Any] = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}


def ragged() -> list[Sample]:
    turns = [
        turn([5, 6, 7, 8], [9, 10, 2], 1.0),
        turn([20], [21, 22, 23, 24, 25, 2], -0.5),
        turn([30, 31], [2], 2.0),
        turn([40, 41, 42], [43, 44], 0.7),
    ]
    return [s for i, each in enumerate(turns) for s in merge([each], unit=i, rollout=i)]


def copies(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def changed(before: dict[str, torch.Tensor], policy: Policy) -> set[str]:
    return {n for n, p in policy.model.named_parameters() if not torch.equal(p, before[n])}


def same(one: dict[str, torch.Tensor], policy: Policy) -> bool:
    return not changed(one, policy)


def updated(learner: Learner, samples: list[Sample] | None = None, **more: Any) -> dict[str, float]:
    """One call of `update` on the ragged samples, as the loop makes it."""
    chosen = ragged() if samples is None else samples
    return asyncio.run(learner.update(chosen, learner.algorithm, more.get("step", 0), 1))


def two_adapters(model: Any, tokenizer: Any) -> tuple[Policy, Policy, Policy]:
    """Policies `a`, `b` and the base they share; the adapters have weights that matter."""
    torch.manual_seed(3)
    shared = add_adapter(add_adapter(model, "a", LORA), "b", LORA)
    with torch.no_grad():
        for name, weight in shared.named_parameters():
            if ".lora_B." in name:
                weight.normal_(std=0.05)
    a, b = (Policy(name, shared, tokenizer, adapter=name) for name in "ab")
    return a, b, Policy("base", shared, tokenizer, adapter=BASE)


def test_an_adapter_that_is_in_use_with_another_is_used_alone(model: Any, tokenizer: Any) -> None:
    a, _, _ = two_adapters(model, tokenizer)
    switch_adapter(a.model, "a")
    a.model.base_model.set_adapter(["a", "b"])
    assert a.model.active_adapter == "a"
    switch_adapter(a.model, "a")
    assert list(a.model.base_model.active_adapters) == ["a"]
    assert all(
        weight.requires_grad for name, weight in a.model.named_parameters() if "lora" in name
    )


def logprobs(policy: Policy) -> torch.Tensor:
    with policy.scoring():
        return policy.forward(pack(ragged())).logprobs


# -- values ----------------------------------------------------------------------------------------


def test_a_value_is_read_from_the_state_before_its_token(model: Any, tokenizer: Any) -> None:
    policy = Policy("policy", model, tokenizer)
    policy.add_value_head()
    assert policy.value_head is not None
    batch = pack(ragged())
    first = policy.forward(batch).values
    assert first is not None and bool((first == 0).all())
    torch.manual_seed(0)
    torch.nn.init.normal_(policy.value_head.linear.weight)
    torch.nn.init.normal_(policy.value_head.linear.bias)
    found = policy.forward(batch).values
    expected = []
    for sample in ragged():
        hidden = model.model(torch.tensor([sample.ids])).last_hidden_state[0]
        values = policy.value_head(hidden)
        (start,) = sample.starts
        expected.append(values[start - 1 : len(sample.ids) - 1])
    assert found is not None
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-4)
    plain = Policy("policy", model, tokenizer, lean=False)
    plain.add_value_head()
    plain.forward(batch)
    assert not plain.output_layer._forward_pre_hooks, "the user's model is as it was"


def test_an_adapter_has_values_too(model: Any, tokenizer: Any) -> None:
    a, *_ = two_adapters(model, tokenizer)
    a.add_value_head()
    assert a.value_head is not None
    torch.nn.init.ones_(a.value_head.linear.weight)
    values = a.forward(pack(ragged())).values
    assert values is not None and values.shape == (12,) and len(set(values.tolist())) == 12
    assert {"value_head.linear.weight", "value_head.linear.bias"} < set(a.named_parameters())


@pytest.mark.parametrize("gradient", [True, False])
def test_an_entropy_has_a_gradient_where_it_is_asked_for(
    gradient: bool, model: Any, tokenizer: Any
) -> None:
    said = Policy("policy", model, tokenizer, lean=False).forward(pack(ragged()), gradient)
    assert said.entropy.requires_grad is gradient and said.logprobs.requires_grad
    assert said.values is None


def test_how_much_a_model_can_read(model: Any, tokenizer: Any) -> None:
    policy = Policy("policy", model, tokenizer)
    assert policy.max_context == model.config.max_position_embeddings
    module: Any = torch.nn.Linear(1, 1)
    foreign = Policy("foreign", module, tokenizer)
    assert foreign.max_context == 1 << 20
    for settings, most in [
        ({}, 1 << 20),
        ({"n_positions": 7}, 7),
        ({"max_position_embeddings": None, "n_positions": 7}, 7),
        ({"max_position_embeddings": 0, "seq_length": 9}, 9),
        ({"max_sequence_length": 5, "seq_length": 9}, 5),
    ]:
        module.config = SimpleNamespace(**settings)
        assert foreign.max_context == most


def test_every_id_that_ends_a_completion(model: Any, tokenizer: Any) -> None:
    policy = Policy("a", model, copy.deepcopy(tokenizer))
    for own, generated, others, found in [
        (7, 9, [], {7, 9}),
        (7, [9, 11], [3], {3, 7, 9, 11}),
        (None, None, [], set()),
        (None, (9, None), [], {9}),
        (0, None, [], {0}),
    ]:
        policy.tokenizer.eos_token_id = own
        policy.model.generation_config.eos_token_id = generated
        policy.other_ends = frozenset(others)
        assert policy.eos_ids == {*found, 2}  # <|im_end|>, with which the template ends a message
    policy.model.generation_config = None
    policy.tokenizer.eos_token_id = 7
    assert policy.eos_ids == {2, 7}


def test_what_a_user_hands_over_as_a_policy(model: Any, tokenizer: Any) -> None:
    policy = as_policy("p", model, tokenizer)
    assert (policy.name, policy.model, policy.tokenizer) == ("p", model, tokenizer)
    assert policy.adapter is None and policy.reference is None
    assert as_policy("q", policy) is policy
    given = as_policy("p", (model, tokenizer), reference=model)
    assert given.model is model and given.tokenizer is tokenizer and given.reference is model
    a, *_ = two_adapters(copy.deepcopy(model), tokenizer)
    a.model.set_adapter("b")
    assert as_policy("p", a.model, tokenizer).adapter == "b"
    assert as_policy("p", (a.model, tokenizer, "a")).adapter == "a"
    assert as_policy("p", (a.model, tokenizer)).adapter == "b"


@pytest.mark.parametrize("training", [True, False])
def test_scoring_puts_the_mode_back_also_after_an_error(
    training: bool, model: Any, tokenizer: Any
) -> None:
    policy = Policy("policy", model.train(training), tokenizer)
    with policy.scoring():
        assert not model.training and not torch.is_grad_enabled()
    with pytest.raises(KeyError), policy.scoring():
        raise KeyError
    assert model.training is training and torch.is_grad_enabled()


@pytest.mark.parametrize("ways", [(True, True), (False, True), (True, False), (False, False)])
def test_a_divergence_of_whole_distributions_whichever_way_is_gone(
    ways: tuple[bool, bool], model: Any, tokenizer: Any
) -> None:
    """A policy with a hook is read by its own forward, and so is a reference with one."""
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.manual_seed(1)), alpha=0.02)
    chosen = ragged()
    for sample in chosen:
        for each in sample.turns:
            each.sampling = SamplingParams(temperature=0.5)
    batch, expected, theirs = pack(chosen), [], []
    for sample in chosen:
        here = slice(sample.starts[0] - 1, -1)
        with torch.no_grad():
            rows = [m(torch.tensor([sample.ids])).logits[0, here] * 2 for m in (model, reference)]
        p, q = (row.log_softmax(-1) for row in rows)
        expected.append((p.exp() * (p - q)).sum(-1))
        theirs.append(q.gather(1, torch.tensor(sample.ids[sample.starts[0] :])[:, None])[:, 0])
    for lean, weights in zip(ways, (model, reference), strict=True):
        if not lean:
            weights.model.layers[0].register_forward_hook(lambda *_: None)
    policy = Policy("policy", model, tokenizer, reference=reference)
    assert policy.packed is ways[0] and (policy._pass("reference") is not None) is ways[1]
    found = policy.full_kl(batch)
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-3)
    assert not found.requires_grad and float(found.min()) > 0
    said = policy.reference_logprobs(batch)
    torch.testing.assert_close(said, torch.cat(theirs), atol=1e-4, rtol=1e-4)


# -- adapters --------------------------------------------------------------------------------------


def test_adapters_of_one_base_learn_apart(model: Any, tokenizer: Any) -> None:
    a, b, base = two_adapters(model, tokenizer)
    settings = LearnerSettings(learning_rate=1e-2)
    learners = {p.name: Learner(p, None, REINFORCE(), settings=settings) for p in (a, b)}
    plain, of_b = logprobs(base), logprobs(b)
    for name in ("a", "b", "a"):
        before = copies(a)
        assert updated(learners[name])["grad_norm"] > 0
        moved = changed(before, a)
        assert moved and all(f".{name}." in key for key in moved)
        assert {k.split(".lora_")[1][0] for k in moved} == {"A", "B"}
        assert torch.equal(logprobs(base), plain)
    assert not torch.equal(logprobs(b), of_b) and not torch.equal(logprobs(a), logprobs(b))


def test_the_base_is_the_model_with_adapters_off(
    model: Any, tokenizer: Any, tiny_path: str
) -> None:
    a, b, base = two_adapters(model, tokenizer)
    fresh = logprobs(Policy("fresh", load_model(tiny_path), tokenizer))
    assert torch.equal(logprobs(base), fresh)
    assert not torch.allclose(logprobs(a), fresh) and not torch.allclose(logprobs(b), fresh)
    for policy in (a, b):
        mine = logprobs(policy)
        policy.keep_reference()  # it adds something already: a copy of the adapter is kept
        assert policy.reference is None and policy.reference_adapter
        assert torch.equal(policy.reference_logprobs(pack(ragged())), mine)
        policy.reference_adapter = BASE
        policy.passes.clear()
        assert torch.equal(policy.reference_logprobs(pack(ragged())), fresh)
        assert torch.equal(logprobs(policy), mine)
    assert base.parameters() == []
    assert torch.equal(base.reference_logprobs(pack(ragged())), fresh)


@pytest.mark.parametrize("ask", ["base", "reference"])
def test_asking_the_base_leaves_every_adapter_trainable(
    model: Any, tokenizer: Any, ask: str
) -> None:
    """An optimiser that is made after a frozen opponent spoke finds its parameters."""
    a, b, base = two_adapters(model, tokenizer)
    logprobs(a)
    if ask == "base":
        logprobs(base)
    else:
        a.reference_logprobs(pack(ragged()))
    assert all(p.requires_grad for p in b.named_parameters().values())
    assert len(b.parameters()) == len(a.parameters()) > 0
    settings = LearnerSettings(learning_rate=1e-2)
    assert updated(Learner(b, None, REINFORCE(), settings=settings))["grad_norm"] > 0


@pytest.mark.parametrize("name", ["model", "default", "layers", "weight"])
def test_a_policy_may_have_any_name(model: Any, tokenizer: Any, name: str) -> None:
    """A name that is also a part of the model's own names takes no weight of the base."""
    shared = add_adapter(model, name, LORA)
    policy = Policy(name, shared, tokenizer, adapter=name)
    assert all(".lora_" in key for key in policy.named_parameters())
    before = copies(policy)
    settings = LearnerSettings(learning_rate=1e-2, weight_decay=0.1)
    updated(Learner(policy, None, REINFORCE(), settings=settings))
    assert all(".lora_" in key for key in changed(before, policy))


def test_an_adapter_starts_as_the_base(model: Any, tokenizer: Any) -> None:
    expected = logprobs(Policy("plain", model, tokenizer))
    torch.manual_seed(0)
    policy = Policy("a", add_adapter(model, "a", LORA), tokenizer, adapter="a")
    torch.testing.assert_close(logprobs(policy), expected, atol=1e-6, rtol=0)


def test_keep_reference_is_a_copy_that_stays(model: Any, tokenizer: Any) -> None:
    policy = Policy("policy", model, tokenizer)
    with pytest.raises(ModelError, match="no reference"):
        policy.reference_logprobs(pack(ragged()))
    policy.keep_reference()
    kept, before = policy.reference, logprobs(policy)
    assert kept is not model and not any(p.requires_grad for p in kept.parameters())
    updated(Learner(policy, None, REINFORCE(), settings=LearnerSettings(learning_rate=1e-2)))
    policy.keep_reference()
    assert policy.reference is kept
    assert torch.equal(policy.reference_logprobs(pack(ragged())), before)
    assert not torch.equal(logprobs(policy), before)


# -- what is kept ----------------------------------------------------------------------------------


def test_a_saved_model_comes_back_bit_by_bit(
    model: Any, tokenizer: Any, tiny_path: str, tmp_path: Path
) -> None:
    policy = Policy("policy", model, tokenizer)
    policy.add_value_head()
    updated(Learner(policy, None, REINFORCE(), settings=LearnerSettings(learning_rate=1e-2)))
    assert policy.value_head is not None
    torch.nn.init.normal_(policy.value_head.linear.weight)
    policy.save(tmp_path / "saved")
    kept, head = copies(policy), policy.value_head.linear.weight.detach().clone()
    again = Policy("policy", load_model(tiny_path), tokenizer)
    identity = [id(p) for p in again.model.parameters()]
    assert not same(kept, again)
    again.load(tmp_path / "saved")
    assert same(kept, again) and identity == [id(p) for p in again.model.parameters()]
    assert again.value_head is not None and torch.equal(again.value_head.linear.weight, head)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(logprobs(Policy("p", plain, tokenizer)), logprobs(policy))
    assert load_tokenizer(str(tmp_path / "saved")).chat_template == tokenizer.chat_template
    assert plain.generation_config.eos_token_id == model.generation_config.eos_token_id


def test_saved_adapters_come_back_and_load_alone(
    model: Any, tokenizer: Any, tiny_path: str, tmp_path: Path
) -> None:
    a, b, base = two_adapters(model, tokenizer)
    expected = {policy.name: logprobs(policy) for policy in (a, b, base)}
    kept = copies(a)
    for policy in (a, b):
        policy.save(tmp_path / policy.name)
    with torch.no_grad():
        for weight in a.named_parameters().values():
            weight.mul_(1.5)
    a.load(tmp_path / "a")
    assert same(kept, a) and all(p.requires_grad for p in a.named_parameters().values())
    for policy in (a, b):
        folder = str(tmp_path / policy.name)
        stock = AutoModelForCausalLM.from_pretrained(folder)
        for loaded in (stock, load_model(folder)):
            found = logprobs(Policy("p", loaded, tokenizer))
            torch.testing.assert_close(found, expected[policy.name], atol=1e-4, rtol=0)
        assert len(load_tokenizer(folder)) == len(tokenizer)
        saved = json.loads((tmp_path / policy.name / "adapter_config.json").read_text())
        modules = saved["target_modules"]
        assert modules == sorted(modules) and len(modules) > 3  # in every process the same file


def test_what_is_saved_of_an_adapter(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """A config that says it is done with, with the base where the library did not know it; the
    adapter itself goes on learning, and heads are left out where nobody asks for them."""
    a, *_ = two_adapters(model, tokenizer)
    a.add_value_head()
    for base, named in (("given", "given"), (None, model.name_or_path), ("", model.name_or_path)):
        a.model.peft_config["a"].base_model_name_or_path = base
        a.model.peft_config["a"].task_type = None  # as PEFT lets it be
        a.save(tmp_path / "a", heads=base != "given")
        saved = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
        assert saved["base_model_name_or_path"] == named and saved["inference_mode"] is True
        assert a.model.peft_config["a"].inference_mode is False
        assert saved["task_type"] == "CAUSAL_LM"
        assert (tmp_path / "a" / HEADS).is_file() is (base != "given")
    text = (tmp_path / "a" / "adapter_config.json").read_text()
    assert list(saved) == sorted(saved) and text.startswith('{\n  "')
    with safe_open(tmp_path / "a" / "adapter_model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    fresh = Policy("fresh", model, tokenizer)
    fresh.load_heads(tmp_path)
    assert fresh.value_head is None


# -- copies ----------------------------------------------------------------------------------------


def test_a_stand_in_is_frozen_and_of_the_same_kind(model: Any, tokenizer: Any) -> None:
    policy = Policy("p", model.train(), tokenizer, precision="bf16", lean=False)
    other = opponent_copy(policy, "past")
    assert (other.name, other.precision, other.lean) == ("past", "bf16", False)
    assert other.chat is policy.chat and other.tokenizer is tokenizer and other.adapter is None
    assert other.model is not model and not other.model.training and model.training
    assert other.parameters() == [] and same(copies(policy), other)
    assert all(weight.requires_grad for weight in model.parameters())


def test_a_stand_in_of_an_adapter_is_one_more_on_its_base(model: Any, tokenizer: Any) -> None:
    a, _, _ = two_adapters(model, tokenizer)
    names = ["past", "a", "b"]
    others = [opponent_copy(a, name) for name in names]
    assert [other.name for other in others] == names
    assert [other.adapter for other in others] == ["past", "a-", "b-"]
    assert opponent_copy(a, "").adapter == "-"
    for other in others:
        assert other.model is a.model and torch.equal(logprobs(other), logprobs(a))
        first = next(iter(other.named_parameters().values()))
        with torch.no_grad():
            first.add_(1.0)
        assert not torch.equal(logprobs(other), logprobs(a))


def test_mirrors_copy_what_learns_and_share_the_rest(model: Any, tokenizer: Any) -> None:
    a, b, base = two_adapters(model, tokenizer)
    apart = Policy("apart", load_model(model.name_or_path), tokenizer)
    a.precision, a.lean = "bf16", False
    policies = {"a": a, "b": b, "base": base, "apart": apart}
    found = mirrored(policies, {"a"})
    assert list(found) == list(policies) and found["apart"] is apart
    assert (found["a"].adapter, found["a"].precision, found["a"].lean) == ("a", "bf16", False)
    assert found["a"].chat is a.chat and found["b"].adapter == "b"
    assert not found["a"].model.training
    weights = {name: dict(found[name].model.named_parameters()) for name in ("a", "b", "base")}
    for key, weight in a.model.named_parameters():
        for name, copied in weights.items():
            shared = copied[key] is weight
            assert shared is (".a." not in key), (name, key)
    with torch.no_grad():
        for weight in a.named_parameters().values():
            weight.add_(0.125)
    before = logprobs(found["a"])
    a.add_value_head()
    catch_up(found["a"], a)
    assert found["a"].value_head is not None and found["a"].value_head is not a.value_head
    for key, weight in found["a"].named_parameters().items():
        assert torch.equal(weight, a.named_parameters()[key])
    assert not torch.equal(logprobs(found["a"]), before)


@pytest.mark.parametrize("kind", ["model", "adapter"])
def test_a_stand_in_takes_weights_from_a_folder(
    kind: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    a, b, _ = two_adapters(copy.deepcopy(model), tokenizer)
    policy = a if kind == "adapter" else Policy("p", model, tokenizer)
    past = opponent_copy(policy, "past")
    other = b if kind == "adapter" else Policy("q", family("llama"), tokenizer)
    if kind == "model":
        with torch.no_grad():
            model.model.norm.weight.add_(1.0)
        other = policy
    other.save(tmp_path / "other")
    assert not torch.equal(logprobs(past), logprobs(other))
    adopt(past, str(tmp_path / "other"))
    assert torch.equal(logprobs(past), logprobs(other))
    Policy("q", family("llama"), tokenizer).save(tmp_path / "strange")
    said = (
        "not an adapter folder" if kind == "adapter" else "does not fit the weights of the policy"
    )
    with pytest.raises(ModelError, match=said):
        adopt(past, str(tmp_path / "strange"))
    if kind == "adapter":
        wide = add_adapter(family("llama"), "a", {**LORA, "r": 3})
        Policy("q", wide, tokenizer, adapter="a").save(tmp_path / "wide")
        config = tmp_path / "wide" / "adapter_config.json"
        known = json.loads(config.read_text()) | {"base_model_name_or_path": "hub/name"}
        config.write_text(json.dumps(known))
        with pytest.raises(ModelError, match="size mismatch"):
            adopt(past, str(tmp_path / "wide"))


@pytest.mark.parametrize("adapter", [None, "a"])
def test_weights_travel_as_one_file(
    adapter: str | None, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    def policy_of(seed: int, rank: int = 2) -> Policy:
        weights = family("llama", seed)
        if adapter:
            weights = add_adapter(weights, adapter, {**LORA, "r": rank})
            with torch.no_grad():
                for key, weight in weights.named_parameters():
                    if ".lora_B." in key:
                        weight.fill_(0.1 * (seed + 1))
        return Policy("p", weights, tokenizer, adapter=adapter)

    one, other = policy_of(0), policy_of(1)
    one.add_value_head()
    file = tmp_path / "w.safetensors"
    write_weights(one, file)
    with safe_open(file, "pt") as saved:
        assert saved.metadata() == {"format": "pt"}
        assert not any("value_head" in key for key in saved.keys())  # noqa: SIM118
    identity = [id(weight) for weight in other.named_parameters().values()]
    take_file(other, file)
    own = one.named_parameters()
    for key, weight in other.named_parameters().items():
        assert torch.equal(weight, own[key])
    assert identity == [id(weight) for weight in other.named_parameters().values()]
    third = policy_of(2)
    one.save(tmp_path / "folder")
    take_folder(third, tmp_path / "folder")
    assert all(torch.equal(w, own[key]) for key, w in third.named_parameters().items())

    tensors = load_file(file)
    names = sorted(tensors)
    more = {**tensors, **{f"zz{n}": torch.ones(1) for n in range(4)}}
    less = {key: value for key, value in tensors.items() if key not in names[:3]}
    bent = {**tensors, names[1]: torch.ones(2, 2)}
    before = {key: weight.clone() for key, weight in third.named_parameters().items()}
    for given, said in [
        (more, "have unknown zz0, zz1, zz2 and 1 more; send"),
        (less, f"lack {', '.join(names[:3])}; send"),
        (bent, f"reshape {names[1]}; send"),
    ]:
        save_file(given, file)
        with pytest.raises(ModelError, match=re.escape(said)):
            take_file(third, file)
    file.write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot read the safetensors file"):
        take_file(third, file)
    with pytest.raises(ModelError, match="cannot read the safetensors file"):
        take_file(third, tmp_path / "gone")
    assert all(torch.equal(weight, before[key]) for key, weight in third.named_parameters().items())
    if adapter:
        with pytest.raises(ModelError, match="base of adapters and never changes"):
            write_weights(Policy("base", one.model, tokenizer, adapter=BASE), file)


# -- references ------------------------------------------------------------------------------------


def test_a_reference_that_was_handed_over_stays(model: Any, tokenizer: Any) -> None:
    given = copy.deepcopy(model)
    policy = Policy("p", model, tokenizer, reference=given)
    policy.keep_reference()
    assert policy.reference is given
    renew(policy)
    assert policy.reference is not given and policy.reference_moved
    kept = policy.reference
    assert not kept.training and not any(p.requires_grad for p in kept.parameters())
    with torch.no_grad():
        model.model.norm.weight.add_(1.0)
    assert torch.equal(given.model.norm.weight + 1.0, model.model.norm.weight)
    renew(policy)
    assert policy.reference is kept, "in place"
    assert torch.equal(kept.model.norm.weight, model.model.norm.weight)


def test_the_reference_of_an_adapter_is_its_base_until_that_is_another(
    model: Any, tokenizer: Any
) -> None:
    fresh = Policy("n", add_adapter(model, "n", LORA), tokenizer, adapter="n")
    fresh.keep_reference()
    assert fresh.reference_adapter == BASE and fresh.reference is None
    add_adapter(fresh.model, "n-reference", LORA)
    moved = {key: p for key, p in fresh.named_parameters().items() if ".lora_B." in key}
    with torch.no_grad():
        for weight in moved.values():
            weight.normal_(std=0.1)
    for _ in range(2):
        before = logprobs(fresh)
        renew(fresh)
        assert fresh.reference_adapter == "n-reference-reference"
        assert torch.equal(fresh.reference_logprobs(pack(ragged())), before)
        assert fresh.model.active_adapter == "n" and torch.equal(logprobs(fresh), before)
        with torch.no_grad():
            for weight in moved.values():
                weight.mul_(2.0)
        assert torch.equal(fresh.reference_logprobs(pack(ragged())), before)
        general = Policy("g", fresh.model, tokenizer, adapter="n", lean=False)
        general.reference_adapter = fresh.reference_adapter
        found = general.reference_logprobs(pack(ragged()))
        torch.testing.assert_close(found, before, atol=1e-4, rtol=0)
        assert fresh.model.active_adapter == "n"


# -- how it is computed ----------------------------------------------------------------------------


def gradient(
    build: Callable[[], Policy], algorithm: Any = None, **settings: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """The movement of all weights under one SGD step at rate 1, which is the gradient."""
    policy = build()
    before = copies(policy)
    learner = Learner(
        policy,
        None,
        algorithm or REINFORCE(),
        settings=LearnerSettings(
            learning_rate=1.0, optimizer="sgd", max_grad_norm=None, **settings
        ),
    )
    metrics = updated(learner)
    while metrics["nonfinite_steps"]:  # fp16 lowers its loss scale first
        metrics = updated(learner)
    after = dict(policy.model.named_parameters())
    return torch.cat([(before[n] - after[n].detach()).flatten() for n in before]), metrics


@pytest.fixture
def fresh(tiny_path: str, tokenizer: Any) -> Callable[..., Policy]:
    """Makes policies over new copies of the embedded model."""
    return lambda **more: Policy("policy", load_model(tiny_path), tokenizer, **more)


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulation": 2},
        {"accumulation": 99},
        {"max_tokens": 1},
        {"max_tokens": 20, "accumulation": 3},
        {"gradient_checkpointing": True},
    ],
)
def test_how_a_batch_is_computed_does_not_change_its_gradient(
    fresh: Callable[..., Policy], settings: dict[str, Any]
) -> None:
    expected, numbers = gradient(fresh)
    found, metrics = gradient(fresh, **settings)
    assert float(expected.norm()) > 0.01
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)
    assert metrics["loss"] == pytest.approx(numbers["loss"], abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(numbers["grad_norm"], rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-3)


def test_adapters_can_be_checkpointed(tiny_path: str, tokenizer: Any) -> None:
    def build() -> Policy:
        return two_adapters(load_model(tiny_path), tokenizer)[0]

    expected, _ = gradient(build)
    found, _ = gradient(build, gradient_checkpointing=True)
    assert float(expected.norm()) > 0.001
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_keeps_full_weights(fresh: Callable[..., Policy], precision: Any) -> None:
    exact = logprobs(fresh())
    policy = fresh(precision=precision)
    policy.add_value_head()
    rounded = logprobs(policy)
    assert rounded.dtype is torch.float32 and not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, atol=0.1, rtol=0)
    before = copies(policy)
    learner = Learner(policy, None, REINFORCE(), settings=LearnerSettings(learning_rate=1e-5))
    assert all(math.isfinite(updated(learner)["loss"]) for _ in range(12))
    assert updated(learner)["nonfinite_steps"] == 0.0
    assert {p.dtype for p in policy.parameters()} == {torch.float32} and changed(before, policy)
    full, numbers = gradient(fresh)
    half, found = gradient(lambda: fresh(precision=precision))
    assert found["grad_norm"] == pytest.approx(numbers["grad_norm"], rel=0.05)
    assert float(torch.cosine_similarity(full, half, dim=0)) > 0.99


# -- steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, {0: 1.0, 7: 1.0, 10**6: 1.0}),
        ({"warmup_steps": 4}, {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 50: 1.0}),
        ({"schedule": "linear", "total_steps": 10}, {0: 1.0, 5: 0.5, 9: 0.1, 10: 0.0, 12: 0.0}),
        (
            {"schedule": "linear", "warmup_steps": 2, "total_steps": 6},
            {0: 0.5, 1: 1.0, 2: 1.0, 3: 0.75, 5: 0.25, 6: 0.0},
        ),
        (
            {"schedule": "cosine", "total_steps": 4},
            {0: 1.0, 1: 0.5 + math.sqrt(0.125), 2: 0.5, 3: 0.5 - math.sqrt(0.125), 4: 0.0},
        ),
        ({"schedule": "cosine", "warmup_steps": 1, "total_steps": 3}, {0: 1.0, 1: 1.0, 2: 0.5}),
    ],
)
def test_the_course_of_the_learning_rate(
    fresh: Callable[..., Policy], settings: dict[str, Any], expected: dict[int, float]
) -> None:
    policy = fresh()
    policy.add_value_head()
    stepper = Stepper(policy, LearnerSettings(learning_rate=5e-5, **settings))
    for step, share in expected.items():
        assert stepper.begin(step) == pytest.approx(5e-5 * share, abs=1e-15)
        rates = [group["lr"] for group in stepper.optimizer.param_groups]
        assert rates == pytest.approx([5e-5 * share, 5e-4 * share], abs=1e-15)


@pytest.mark.parametrize(("rate", "critic"), [(1e-5, 1e-4), (3e-4, 1e-3), (5e-3, 5e-3)])
def test_a_critic_learns_faster_but_not_without_bound(rate: float, critic: float) -> None:
    assert LearnerSettings(learning_rate=rate).critic_rate == pytest.approx(critic)


def test_a_critic_may_have_a_rate_of_its_own(fresh: Callable[..., Policy]) -> None:
    policy = fresh()
    policy.add_value_head()
    stepper = Stepper(policy, LearnerSettings(learning_rate=1e-3, critic_learning_rate=5e-3))
    assert [g["lr"] for g in stepper.optimizer.param_groups] == [1e-3, 5e-3]
    stepped = {id(p) for group in stepper.optimizer.param_groups for p in group["params"]}
    assert stepped == {id(p) for p in policy.parameters()}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_each_optimizer_steps_as_torch_does(fresh: Callable[..., Policy], optimizer: Any) -> None:
    policy, twin = fresh(), fresh()
    settings = LearnerSettings(
        learning_rate=1e-2,
        optimizer=optimizer,
        betas=(0.8, 0.9),
        weight_decay=0.1,
        max_grad_norm=None,
    )
    learner = Learner(policy, None, SFT(), settings=settings)
    parameters = twin.parameters()
    groups: list[dict[str, Any]] = [  # norms and biases are vectors
        {"params": [x for x in parameters if x.ndim > 1], "weight_decay": 0.1},
        {"params": [x for x in parameters if x.ndim == 1], "weight_decay": 0.0},
    ]
    mine: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD(groups, 1e-2),
        "adam": lambda: torch.optim.Adam(groups, 1e-2, (0.8, 0.9)),
        "adamw": lambda: torch.optim.AdamW(groups, 1e-2, (0.8, 0.9)),
    }[optimizer]()
    for step in range(2):
        updated(learner, step=step)
        batch = pack(ragged())
        mine.zero_grad()
        SFT().loss(batch, twin.forward(batch)).backward()
        mine.step()
    for found, expected in zip(policy.parameters(), parameters, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def test_the_gradient_is_clipped_to_its_norm(fresh: Callable[..., Policy]) -> None:
    free, numbers = gradient(fresh)
    policy = fresh()
    before = copies(policy)
    limit = numbers["grad_norm"] / 4
    learner = Learner(
        policy,
        None,
        REINFORCE(),
        settings=LearnerSettings(learning_rate=1.0, optimizer="sgd", max_grad_norm=limit),
    )
    assert updated(learner)["grad_norm"] == pytest.approx(numbers["grad_norm"], rel=1e-4)
    after = dict(policy.model.named_parameters())
    moved = torch.cat([(before[n] - after[n].detach()).flatten() for n in before])
    torch.testing.assert_close(moved, free / 4, atol=1e-5, rtol=1e-2)


def test_a_loss_scale_that_is_still_too_high_is_no_failure(fresh: Callable[..., Policy]) -> None:
    """fp16 begins with a scale that overflows; it is halved until gradients fit, however many steps
    that takes."""
    policy = fresh(precision="fp16")
    before = copies(policy)
    learner = Learner(policy, None, REINFORCE(), settings=LearnerSettings(learning_rate=1e-4))
    learner.stepper.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
    skipped = [updated(learner)["nonfinite_steps"] for _ in range(20)]
    assert skipped[:4] == [1.0] * 4 and skipped[-1] == 0.0
    assert not same(before, policy)


# -- loading ---------------------------------------------------------------------------------------


def test_what_cannot_be_loaded_is_named(tiny_path: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere")
    for load in (load_model, load_tokenizer):
        with pytest.raises(ModelError, match="nowhere: the folder does not exist"):
            load(missing)
    (tmp_path / "empty").mkdir()
    for load in (load_model, load_tokenizer):
        with pytest.raises(ModelError, match=r"has no config\.json"):
            load(str(tmp_path / "empty"))
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(Path(tiny_path) / "config.json", bare)
    with pytest.raises(ModelError, match=r"bare: the folder has no tokenizer.*tokenizer_name"):
        load_tokenizer(str(bare))
    with pytest.raises(ModelError, match="bare: its model cannot be loaded"):
        load_model(str(bare))
    with pytest.raises(ModelError, match="give a local folder"):
        load_model("no-such-owner/no-such-model")


def test_types_and_devices(tiny_path: str) -> None:
    assert load_model(tiny_path, "bfloat16").dtype is torch.bfloat16
    with pytest.raises(ModelError, match=r"float8.*float32"):
        load_model(tiny_path, "float8")
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(ModelError, match="is not a torch device"):
        pick_device("abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="no CUDA device"):
            pick_device("cuda:0")
        assert pick_device("auto").type == "cpu"


def test_a_model_in_half_precision_is_saved_as_it_is(
    tiny_path: str, tokenizer: Any, tmp_path: Path
) -> None:
    policy = Policy("policy", load_model(tiny_path, "bfloat16"), tokenizer)
    kept = copies(policy)
    policy.save(tmp_path / "half")
    with torch.no_grad():
        for weight in policy.parameters():
            weight.zero_()
    policy.load(tmp_path / "half")
    assert same(kept, policy) and policy.model.dtype is torch.bfloat16


def test_what_is_filled_in_is_an_id_of_the_tokenizer(model: Any, tokenizer: Any) -> None:
    """The padding token; without one the end; without either id 0, which masks cover too."""
    for pad, end, found in [(5, 7, 5), (0, 7, 0), (None, 7, 7), (None, None, 0)]:
        policy = Policy("a", model, copy.deepcopy(tokenizer))
        policy.tokenizer.pad_token_id, policy.tokenizer.eos_token_id = pad, end
        assert policy.pad_id == found
