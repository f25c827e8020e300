"""The lean forward computes what a model's own forward computes, and less of it."""

import asyncio
import copy
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from families import FAMILIES, VOCABULARY, family
from mrlm import Learner
from mrlm.algorithms.dpo import DPO
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.ppo import PPO
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.core.errors import TrainingError
from mrlm.learn.data.batch import Batch, Loss, pack
from mrlm.learn.data.samples import split
from mrlm.learn.fast import cpu_backends, forward, matmul, packed_pass, prefix_tree, row_blocks
from mrlm.learn.fast.elementwise import Norm
from mrlm.learn.fast.forward import LeanForward
from mrlm.learn.fast.llama_modules import NotLean, anatomy_of
from mrlm.learn.fast.prefix_tree import plant
from mrlm.learn.joint_update import Work, accumulate, update_together
from mrlm.learn.optimizer import LearnerSettings, training_mode
from mrlm.learn.policy.lora import BASE, add_adapter
from mrlm.learn.policy.policy import Policy
from two_ways import LORA, assert_close, both_ways, compare, conversations, gradients


def work(policy: Policy, batch: Batch, algorithm: Any, **more: Any) -> Work:
    backward = torch.Tensor.backward
    return Work(policy, batch, algorithm.loss, backward, algorithm.spec.entropy, **more)


def add_gradient(policy: Policy, batch: Batch, algorithm: Any) -> Loss:
    (loss,) = accumulate([work(policy, batch, algorithm)])
    return loss


@pytest.mark.parametrize("name", FAMILIES)
def test_both_ways_give_the_same_numbers_and_gradients(name: str, tokenizer: Any) -> None:
    lean, general = both_ways(family(name), tokenizer)
    compare(lean, general, conversations())


@pytest.mark.parametrize("name", ["llama", "llama-tied-biased", "gemma2"])
def test_the_row_of_a_padding_token_gets_no_gradient_from_what_is_read(
    name: str, tokenizer: Any
) -> None:
    """A model whose end token is its padding token reads it everywhere, and its own library leaves
    the embedding of that token as it is."""
    samples = conversations()
    pad = samples[0].ids[0]
    lean, general = both_ways(family(name, pad_token_id=pad), tokenizer)
    compare(lean, general, samples)
    lean.forward(pack(samples)).logprobs.sum().backward()
    embedding = lean.model.get_input_embeddings().weight.grad
    assert bool(embedding[pad].any()) is (name != "llama")  # a tied head teaches it what to say


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_adapters_add_what_they_add(name: str, tokenizer: Any) -> None:
    model = add_adapter(add_adapter(family(name), "a", LORA), "b", {**LORA, "r": 2})
    torch.manual_seed(1)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if ".lora_B." in key:
                weight.normal_(std=0.05)
    said = []
    for adapter in "ab":
        lean, general = both_ways(model, tokenizer, adapter=adapter)
        compare(lean, general, conversations())
        said.append(lean.forward(pack(conversations())).logprobs)
    base = Policy("base", model, tokenizer, adapter=BASE)
    said.append(base.forward(pack(conversations())).logprobs)
    assert not torch.allclose(said[0], said[1]) and not torch.allclose(said[0], said[2])
    assert base.parameters() == []


@pytest.mark.parametrize("max_tokens", [10**6, 150, 1])
def test_policies_on_one_base_are_read_together(max_tokens: int, tokenizer: Any) -> None:
    """Losses and gradients of three policies, two ranks and the base: in one go, in two, alone."""
    model = add_adapter(add_adapter(family("qwen2"), "a", LORA), "b", {**LORA, "r": 2})
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if ".lora_B." in key:
                weight.normal_(std=0.05)
    policies = [Policy(name, model, tokenizer, adapter=name) for name in "ab"]
    batches = [pack(conversations(seed)) for seed in range(2)]
    sizes: list[int] = []
    block = LeanForward.hidden

    def counted(self: Any, forest: Any, **how: bool) -> Any:
        sizes.append(len(forest))
        return block(self, forest, **how)

    alone = [add_gradient(p, b, GRPO()) for p, b in zip(policies, batches, strict=True)]
    expected = [gradients(policy) for policy in policies]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeanForward, "hidden", counted)
        together = accumulate(
            [
                work(p, b, GRPO(), max_tokens=max_tokens)
                for p, b in zip(policies, batches, strict=True)
            ]
        )
    assert sizes == ([2] if max_tokens == 10**6 else [1, 1])
    for policy, before, found, loss in zip(policies, expected, together, alone, strict=True):
        assert_close(gradients(policy), before)
        assert float(found.total) == pytest.approx(float(loss.total), rel=1e-5)


def test_a_learner_that_fails_does_not_keep_the_others_waiting(tokenizer: Any) -> None:
    model = add_adapter(add_adapter(family("qwen2"), "a", LORA), "b", LORA)
    jobs = []
    for name in "ab":
        policy = Policy(name, model, tokenizer, adapter=name)
        settings = LearnerSettings(max_nonfinite_steps=1)
        chosen = conversations()
        if name == "a":
            for sample in chosen:
                for each in sample.turns:
                    each.advantages = float("nan")
        jobs.append((Learner(policy, None, GRPO(), settings=settings), chosen, 1))
    with pytest.raises(TrainingError, match="'a'"):
        asyncio.run(update_together(jobs, GRPO(update_epochs=3), 0))


def test_an_adapter_that_comes_later_is_seen(tokenizer: Any) -> None:
    few: dict[str, Any] = {**LORA, "target_modules": ["q_proj"]}
    model = add_adapter(family("llama"), "a", few)
    first = Policy("a", model, tokenizer, adapter="a")
    before = first.forward(pack(conversations())).logprobs
    add_adapter(model, "b", LORA)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if ".lora_B.b" in key:
                weight.normal_(std=0.1)
    lean, general = both_ways(model, tokenizer, adapter="b")
    compare(lean, general, conversations())
    assert torch.equal(first.forward(pack(conversations())).logprobs, before)


@pytest.mark.parametrize("algorithm", [
    GRPO(), GRPO(loss_type="gspo", entropy_coef=0.1), GRPO(kl_coef=0.1), PPO(), REINFORCE(), DPO(),
], ids=["grpo", "gspo+entropy", "grpo+kl", "ppo", "reinforce", "dpo"])  # fmt: skip
@pytest.mark.parametrize("held", [None, 24, 4])
def test_a_loss_formed_in_parts_has_the_gradient_of_the_whole(
    algorithm: Any, held: int | None, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits for all tokens, for a few units, or for less than one unit."""
    if held is not None:
        monkeypatch.setattr(packed_pass, "rows_at_once", lambda *_: held)
    samples = conversations(siblings=2)[:6]
    if algorithm.spec.unit == "pair":
        samples = [s for s in samples if len(s.turns) == 1 or s.unit % 2]
        for place, sample in enumerate(samples):
            sample.unit = place // 2
            for turn in sample.turns:
                turn.advantages, turn.ref_logprobs = 1.0 - 2 * (place % 2), -5.0
    model = family("qwen2")
    lean, general = both_ways(model, tokenizer)
    if "values" in algorithm.spec.columns:
        for policy in (lean, general):
            policy.add_value_head()
            with torch.no_grad():
                for weight in policy.value_head.parameters():  # type: ignore[union-attr]
                    weight.fill_(0.05)
    batch = pack(samples)
    outcomes = []
    for policy in (lean, general):
        loss = add_gradient(policy, batch, algorithm)
        outcomes.append((loss, gradients(policy)))
    (found, ours), (expected, theirs) = outcomes
    assert float(found.total) == pytest.approx(float(expected.total), rel=1e-4, abs=1e-5)
    for key, value in expected.metrics.items():
        assert float(found.metrics[key]) == pytest.approx(float(value), rel=1e-4, abs=1e-5), key
    assert_close(ours, theirs)


@pytest.mark.parametrize("adapters", [False, True])
def test_checkpointing_goes_the_lean_way_and_keeps_less(tokenizer: Any, adapters: bool) -> None:
    """The library that enables it hooks the embedding, and a model with hooks is not lean."""
    kept = []
    for on in (False, True):
        model = family("qwen2")
        named = {"adapter": "a"} if adapters else {}
        if adapters:
            model = add_adapter(model, "a", LORA)
        policy = Policy("policy", model, tokenizer, **named)
        batch = pack(conversations())
        sizes: list[int] = []
        with (
            training_mode([policy], on),
            torch.autograd.graph.saved_tensors_hooks(
                lambda x, sizes=sizes: (sizes.append(x.numel()), x)[1], lambda x: x
            ),
        ):
            assert policy.packed
            policy.forward(batch)
        assert policy.packed
        assert not any(module._forward_hooks for module in policy.model.modules())
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2, kept


# -- what is computed ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_holds_every_different_beginning_once(seed: int) -> None:
    rng = random.Random(seed)
    openings = [[rng.randrange(3) for _ in range(rng.randint(1, 12))] for _ in range(3)]
    sequences = []
    for _ in range(rng.randint(1, 9)):
        opening = rng.choice(openings)
        opening = opening[: rng.randint(0, len(opening))]
        sequences.append(opening + [rng.randrange(3) for _ in range(rng.randint(2, 9))])
    sample = np.repeat(np.arange(len(sequences)), [len(ids) - 1 for ids in sequences])
    place = np.concatenate([np.arange(len(ids) - 1) for ids in sequences])
    tree = plant(sequences, sample, place)
    beginnings = {tuple(ids[:k]) for ids in sequences for k in range(1, len(ids))}
    assert len(tree.ids) == len(beginnings)
    read: dict[int, list[int]] = {}
    end = 0
    for piece in tree.pieces:
        assert piece.start == end
        end = piece.stop
        rows, asking, _ = piece.shape
        queries = piece.rows
        if queries is None:
            queries = torch.arange(piece.start, piece.stop).view(rows, asking)
        keys = queries if piece.keys is None else piece.keys
        flat = torch.arange(rows * asking) if piece.inside is None else piece.inside
        for at, token in zip(flat.tolist(), range(piece.start, piece.stop), strict=True):
            row, column = divmod(at, asking)
            assert int(queries[row, column]) == token
            seen = piece.visible(None)[row, 0, column]
            read[token] = tree.ids[keys[row][seen]].tolist()
            for window in (1, 3):
                seen = piece.visible(window)[row, 0, column]
                assert tree.ids[keys[row][seen]].tolist() == read[token][-window:]
        # a row that is padding reads something, so that its softmax is a number
        assert all(bool(piece.visible(window).any(-1).all()) for window in (None, 1, 3))
    assert end == len(tree.ids)
    for number, at, token in zip(sample, place, tree.predictors.tolist(), strict=True):
        assert read[token] == sequences[number][: at + 1]
        assert int(tree.positions[token]) == at


def planted(*sequences: list[int]) -> Any:
    """The tree of whole sequences, each with one more id that is predicted."""
    sample = np.repeat(np.arange(len(sequences)), [len(ids) for ids in sequences])
    place = np.concatenate([np.arange(len(ids)) for ids in sequences])
    return plant([[*ids, 0] for ids in sequences], sample, place)


def test_a_tree_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots first, short ones first; what leaves a trunk lies behind it."""
    monkeypatch.setattr(prefix_tree, "SPARE", 0)
    tree = planted([1, 2, 3, 6, 7], [1, 2, 3, 4, 5], [9, 8], [1, 2, 3, 4, 5])
    assert tree.ids.tolist() == [9, 8, 1, 2, 3, 4, 5, 6, 7]
    assert tree.positions.tolist() == [0, 1, 0, 1, 2, 3, 4, 3, 4]
    one, two = [2, 3, 4, 7, 8], [2, 3, 4, 5, 6]
    assert tree.predictors.tolist() == [*one, *two, 0, 1, *two]
    assert [piece.shape for piece in tree.pieces] == [(1, 2, 2), (1, 3, 3), (2, 2, 5)]
    assert [(piece.start, piece.stop) for piece in tree.pieces] == [(0, 2), (2, 5), (5, 9)]
    first, trunk, forks = tree.pieces
    assert first.keys is trunk.keys is first.rows is forks.rows is forks.inside is None
    assert forks.keys.tolist() == [[2, 3, 4, 5, 6], [2, 3, 4, 7, 8]]
    assert forks.lengths.tolist() == [[3, 2], [3, 2]]
    alone = plant([[7]], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert alone.ids.tolist() == [7] and alone.predictors.tolist() == []


def trunk(length: int, *ends: int, first: int = 1) -> list[list[int]]:
    """Siblings that have a prompt of so many ids in common, and so many of their own."""
    prompt = [first, *range(100, 99 + length)]
    return [[*prompt, *[50 + number] * end] for number, end in enumerate(ends)]


@pytest.mark.parametrize(
    ("sequences", "shapes"),
    [
        # as long as what is padded is at most a quarter of what is read
        ([[1] * 4, [2] * 4], [(2, 4, 4)]),
        ([[1] * 4, [2] * 5], [(2, 5, 5)]),
        ([[1] * 3, [2] * 4], [(1, 3, 3), (1, 4, 4)]),
        ([[1] * 5, [2] * 3, [3] * 3, [4] * 5], [(2, 3, 3), (2, 5, 5)]),
        ([[1] * 4, [2] * 5, [3] * 5, [4] * 5], [(4, 5, 5)]),
        # roots and what follows them stand apart, however alike
        (trunk(2, 2, 2), [(1, 2, 2), (2, 2, 4)]),
        (trunk(2, 2, 4), [(1, 2, 2), (1, 2, 4), (1, 4, 6)]),
        (trunk(9, 4, 5), [(1, 9, 9), (2, 5, 14)]),
        # one token each, after 2 and 4: exactly a quarter is padding
        (trunk(2, 0, 1) + trunk(4, 0, 1, first=2), [(1, 2, 2), (1, 4, 4), (2, 1, 5)]),
        (trunk(2, 0, 1) + trunk(5, 0, 1, first=2), [(1, 2, 2), (1, 5, 5), (1, 1, 3), (1, 1, 6)]),
    ],
)
def test_stretches_are_read_together_where_little_is_padding(
    sequences: list[list[int]], shapes: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_tree, "SPARE", 0)
    assert [piece.shape for piece in planted(*sequences).pieces] == shapes


def test_siblings_stay_in_one_micro_batch_when_they_can() -> None:
    samples = conversations(groups=4)
    random.Random(0).shuffle(samples)
    whole = len(pack(samples).tree.ids)
    parts = split(samples, max_tokens=whole // 3, packed=True)
    assert len(parts) > 2 and sum(map(len, parts)) == len(samples)
    assert all(len(pack(part).tree.ids) <= whole // 3 for part in parts)
    again = sum(len(pack(part).tree.ids) for part in parts)
    assert whole <= again < sum(len(sample.ids) for sample in samples) - len(samples)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation gave, the gradients of weights aside."""

    def __init__(self, known: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.known, self.most = known, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple) else (found,):
            if isinstance(tensor, torch.Tensor) and tuple(tensor.shape) not in self.known:
                self.most = max(self.most, tensor.numel())
        return found


def test_logits_of_all_tokens_never_exist(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = conversations(groups=8)
    batch = pack(samples)
    monkeypatch.setattr(packed_pass, "rows_at_once", lambda *_: 30)
    policy = Policy("policy", family("llama"), tokenizer)
    assert policy.packed
    weights = {tuple(weight.shape) for weight in policy.parameters()}
    turned = {shape[::-1] for shape in weights}
    add_gradient(policy, batch, REINFORCE())  # what the machine can do is found out once
    with Largest(weights | turned) as seen:
        add_gradient(policy, batch, REINFORCE())
    assert seen.most < 0.6 * len(batch) * VOCABULARY


# -- what it does not know -------------------------------------------------------------------------


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2, n_positions=128
    )
    return transformers.GPT2LMHeadModel(config).eval()


def hooked() -> Any:
    model = family("llama")
    model.model.layers[0].register_forward_hook(lambda *_: None)
    return model


def dora() -> Any:
    import peft

    config = peft.LoraConfig(r=2, use_dora=True, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(family("llama"), config)


@pytest.mark.parametrize("make, reason", [
    (gpt2, "GPT2LMHeadModel is not one of"),
    (hooked, "forward hook"),
    (dora, "not plain LoRA"),
])  # fmt: skip
def test_others_take_the_general_way_with_one_warning(
    make: Callable[[], Any], reason: str, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    with pytest.raises(NotLean, match=reason):
        anatomy_of(model)
    adapter = "default" if hasattr(model, "peft_config") else None
    policy = Policy("policy", model, tokenizer, adapter=adapter)
    with caplog.at_level(logging.WARNING, logger="mrlm"):
        for _ in range(2):
            policy.forward(pack(conversations())).logprobs.sum().backward()
    warned = [record.getMessage() for record in caplog.records if record.name == "mrlm"]
    assert len(warned) == 1 and reason in warned[0]
    assert any(weight.grad is not None for weight in policy.parameters())


def test_a_model_that_computes_something_else_is_found_out(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = family("llama")
    model.model.layers[1].self_attn.scaling *= 2  # the lean forward looks at the first layer
    policy = Policy("policy", model, tokenizer)
    with caplog.at_level(logging.WARNING, logger="mrlm"):
        assert not policy.packed
    assert "log-probs of the fast path differ" in caplog.text


def test_lean_can_be_switched_off(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="mrlm"):
        assert not Policy("policy", family("llama"), tokenizer, lean=False).packed
    assert not caplog.records


# -- backends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 48), (1500, 3, 64)])
def test_the_norm_of_a_short_type_has_the_gradient_of_the_long_one(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(shape, generator=generator), torch.rand(shape[-1], generator=generator)
    x, weight = (each.bfloat16().requires_grad_() for each in (x, weight))
    exact = [each.detach().double().requires_grad_() for each in (x, weight)]
    back = torch.randn(shape, generator=generator).bfloat16()
    wanted = F.rms_norm(exact[0], weight.shape, exact[1], 1e-6)
    wanted.backward(back.double())
    found = Norm.apply(x, weight, 1e-6)
    found.backward(back)
    for ours, theirs in (
        (found.detach(), wanted.detach()),
        *((a.grad, b.grad) for a, b in zip((x, weight), exact, strict=True)),
    ):
        assert ours.dtype == torch.bfloat16
        assert float((ours.double() - theirs).norm() / theirs.norm()) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_stored_weights_give_products_in_their_own_precision(rows: int, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(rows)
    weights = [torch.randn(height, 384, generator=generator) for height in (384, 128, 8)]
    x, bias = torch.randn(rows, 384, generator=generator), torch.ones(520, dtype=dtype)
    for parts in (weights, weights[:1], weights[2:]):
        whole = torch.cat(parts)
        stored = matmul.stored([*parts], dtype, single=rows == 1)
        found = matmul.linear(x, stored, bias[: len(whole)])
        assert found.dtype == x.dtype
        wanted = x.to(dtype).double() @ whole.to(dtype).double().t() + 1
        error = (found.double() - wanted).abs().max() / wanted.abs().max()
        assert error < (1e-6 if dtype == torch.float32 else 4e-3)


def test_quick_products_are_exact_and_put_back() -> None:
    a, b = torch.randn(130, 70), torch.randn(90, 70)
    exact = a.double() @ b.double().t()
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    with cpu_backends.quick_products(torch.device("cpu"), cpu_backends.WORTHWHILE):
        gap = ((a @ b.t()).double() - exact).abs().max() / exact.abs().max()
    assert float(gap) < cpu_backends.EXACT
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["qwen2", "gemma2", "llama"])
@pytest.mark.parametrize("groups", [1, 30])
def test_blocks_of_rows_give_the_same_gradients(
    name: str, groups: int, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy("policy", family(name), tokenizer)
    batch = pack(conversations(groups=groups))
    loss = add_gradient(policy, batch, GRPO())
    expected = gradients(policy)
    multiplied: list[int] = []
    multiply = row_blocks.linears_in_blocks

    def counted(x: torch.Tensor, linears: Any) -> Any:
        multiplied.append(len(x))
        return multiply(x, linears)

    monkeypatch.setattr(row_blocks, "in_blocks", lambda: True)
    monkeypatch.setattr(forward, "linears_in_blocks", counted)
    again = add_gradient(policy, batch, GRPO())
    assert_close(gradients(policy), expected)
    assert float(again.total) == pytest.approx(float(loss.total), rel=1e-5)
    assert multiplied and not any(rows % row_blocks.FEWEST for rows in multiplied)


def test_training_goes_the_same_way_on_both(tokenizer: Any) -> None:
    """Three steps of a learner: weights stay together."""
    start = family("qwen2")
    ends = []
    for lean in (True, False):
        policy = Policy("policy", copy.deepcopy(start), tokenizer, lean=lean)
        learner = Learner(
            policy, None, GRPO(), settings=LearnerSettings(optimizer="sgd", learning_rate=0.1)
        )
        for step in range(3):
            asyncio.run(learner.update(conversations(step), learner.algorithm, step, 1))
        ends.append(torch.cat([weight.detach().flatten() for weight in policy.parameters()]))
    begun = torch.cat([weight.detach().flatten() for weight in start.parameters()])
    assert float((ends[0] - begun).norm()) > 1e-3
    assert float((ends[0] - ends[1]).norm() / (ends[0] - begun).norm()) < 1e-3
