"""The lean engine says what the general engine says, with the same log-probs, whatever shares a
batch, waits for a place or was read before."""

import asyncio
import logging
import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lean_engines import (
    FAMILIES,
    adapters,
    ask,
    assert_lean,
    assert_same,
    build,
    engines,
    generate,
    ids_of,
    mixed,
)
from mrlm.core.types import SamplingParams
from mrlm.engines.hf import HFEngine
from mrlm.engines.lean import decoder, kv_blocks
from mrlm.engines.lean.attention import LANES
from mrlm.engines.lean.engine import LeanEngine
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request


@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_what_the_general_engine_says(family: str, tokenizer: Any) -> None:
    """All at once, and in batches of five with the others waiting; in any order."""
    general, lean = engines(Policy("policy", build(family), tokenizer))
    requests = mixed()
    expected = generate(general, requests)
    assert len({tuple(ids) for ids in ids_of(expected)}) > 20
    assert_same(generate(lean, requests), expected)
    together = lean.stats.steps
    lean.batch_size = 5
    assert_same(generate(lean, requests[::-1])[::-1], expected)
    assert_lean(lean)
    waves = sum(sorted((len(ids) for ids in ids_of(expected)), reverse=True)[::5])
    assert together < lean.stats.steps - together < waves


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("length", [LANES - 1, LANES, LANES + 1])
def test_columns_that_no_prompt_fills_are_not_seen(
    family: str, length: int, tokenizer: Any
) -> None:
    general, lean = engines(Policy("policy", build(family), tokenizer))
    rng = np.random.default_rng(length)
    texts = [rng.integers(3, 259, length).tolist() for _ in range(3)]
    texts[2][: length // 2] = texts[1][: length // 2]
    requests = [ask(text, seed) for seed, text in enumerate(2 * texts)]
    assert_same(generate(lean, requests), generate(general, requests))
    assert_lean(lean)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_turns_are_not_read_again(family: str, tokenizer: Any) -> None:
    """Three turns of four episodes of one task: each reads only what is new to it."""
    general, lean = engines(Policy("policy", build(family), tokenizer))
    rng = np.random.default_rng(1)
    task = rng.integers(3, 259, 25).tolist()
    texts, known = [task] * 4, 0
    for turn in range(3):
        requests = [ask(t, 7 * turn + i, max_new_tokens=40) for i, t in enumerate(texts)]
        before = (lean.stats.cached, lean.stats.read, lean.stats.shared)
        said = generate(lean, requests)
        assert_same(said, generate(general, requests))
        cached, read, shared = np.subtract(
            (lean.stats.cached, lean.stats.read, lean.stats.shared), before
        )
        assert cached + read + shared == sum(map(len, texts))
        expected = (0, 25, 75) if turn == 0 else (known, sum(map(len, texts)) - known, 0)
        assert (cached, read, shared) == expected
        known = sum(
            len(text) + (len(c.token_ids) - 1 if len(c.token_ids) > 16 else 0)
            for text, c in zip(texts, said, strict=True)
        )
        texts = [
            [*text, *c.token_ids, *rng.integers(3, 259, 5).tolist()]
            for text, c in zip(texts, said, strict=True)
        ]
    assert_lean(lean)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_steps_of_fixed_shapes_say_the_same(
    family: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they run on a GPU, where they are recorded as graphs."""
    policy = Policy("policy", build(family), tokenizer)
    expected = generate(LeanEngine({"policy": policy}, batch_size=8), mixed())
    monkeypatch.setattr(decoder, "PROCESSORS", set())
    monkeypatch.setattr(kv_blocks, "FIRST", 8)
    lean = LeanEngine({"policy": policy}, batch_size=8)
    assert_same(generate(lean, mixed()), expected)
    assert_lean(lean)


@pytest.mark.parametrize("processors", [{"cpu"}, set()])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_beginnings_of_prompts_are_read_once_wherever_they_part(
    family: str, processors: set[str], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that part early, late, or are the beginning of others; some of it is cached."""
    monkeypatch.setattr(decoder, "PROCESSORS", processors)
    model = build(family)
    policies = {name: Policy(name, model, tokenizer) for name in ("a", "b")}
    lean, general = LeanEngine(policies), HFEngine(policies)
    rng = random.Random(5)
    texts = [[rng.randrange(3, 259) for _ in range(40)]]
    for _ in range(11):
        text = rng.choice(texts)
        cut = rng.randrange(1, len(text))
        texts.append([*text[:cut], *(rng.randrange(3, 259) for _ in range(rng.randrange(30)))])
    requests = [
        Request(name, text, SamplingParams(4), seed)
        for seed, text in enumerate(texts)
        for name in "ab"
    ]
    known: set[tuple[object, ...]] = set()
    for part in (requests[:4], requests):
        before = lean.stats.read
        assert_same(generate(lean, part), generate(general, part))
        ids = [(each.policy, *each.prompt_ids) for each in part]
        distinct = {text[: n + 1] for text in ids for n in range(1, len(text))}
        least = len(distinct - known)
        assert (
            least <= lean.stats.read - before <= least + len(part)
        )  # the last token is always read
        known |= distinct
    assert_lean(lean)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("batch_size", [5, 64])
def test_answers_that_begin_alike_are_computed_once(
    family: str, batch_size: int, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight answers to each of three prompts, most of which are equal; adapters differ."""
    policies = adapters(build(family), tokenizer)
    rng = random.Random(5)
    texts = [[rng.randrange(3, 259) for _ in range(size)] for size in (5, 9, 20)]
    likely = SamplingParams(12, temperature=0.1, min_p=0.7)
    requests = [
        Request(name, text, likely, seed)
        for name in ("one", "base")
        for text in texts
        for seed in range(8)
    ]
    plain, sizes = decoder.Decoder.forward, []

    def counted(self: decoder.Decoder, x: Any, *rest: Any, **named: Any) -> Any:
        sizes.append(len(x))
        return plain(self, x, *rest, **named)

    lean = LeanEngine(policies, batch_size=batch_size)
    generate(lean, requests[:1])
    monkeypatch.setattr(decoder.Decoder, "forward", counted)
    found = generate(lean, requests)
    tokens = sum(len(each.token_ids) - 1 for each in found)
    computed = sum(sizes) - 2 * sum(map(len, texts))
    assert computed < (0.7 if batch_size == 64 else 0.95) * tokens
    for own, other in zip(found, generate(HFEngine(policies), requests), strict=True):
        assert own.token_ids == other.token_ids
        assert own.logprobs == pytest.approx(other.logprobs, abs=1e-4)  # ten times the rounding
    assert_lean(lean)


@pytest.mark.parametrize("family", ["llama_biased", "gemma2"])
def test_adapters_of_one_base_share_a_batch(family: str, tokenizer: Any) -> None:
    policies = adapters(build(family), tokenizer)
    general, lean = HFEngine(policies), LeanEngine(policies)
    requests = [r for name in policies for r in mixed(1, name)]
    expected = generate(general, requests)
    together = generate(lean, requests)
    assert_same(together, expected)
    assert_lean(lean)
    steps = lean.stats.steps
    assert steps <= 30
    for name in policies:
        own = [i for i, request in enumerate(requests) if request.policy == name]
        alone = generate(LeanEngine(policies), [requests[i] for i in own])
        assert_same(alone, [expected[i] for i in own])
    assert len({tuple(together[i].token_ids) for i in range(0, len(requests), 9)}) == 4


@pytest.mark.parametrize("last", ["one", "three", "base"])
def test_rows_outlast_those_of_other_adapters(last: str, tokenizer: Any) -> None:
    """What is left of a batch, and prompts that are read apart, have one adapter of several."""
    policies = adapters(build("qwen2"), tokenizer)
    general, lean = HFEngine(policies), LeanEngine(policies)
    requests = [
        Request(name, [5, 6, seed], SamplingParams(max_new_tokens=20 if name == last else 2), seed)
        for name in policies
        for seed in (7, 8)
    ]
    assert_same(generate(lean, requests), generate(general, requests))
    assert_lean(lean)


def test_an_adapter_that_learns_is_noticed_and_the_others_keep_what_they_read(
    tokenizer: Any,
) -> None:
    policies = adapters(build("qwen3"), tokenizer)
    general, lean = HFEngine(policies), LeanEngine(policies)
    prompt = list(range(5, 30))
    requests = [Request(name, prompt, SamplingParams(5), 3) for name in policies]
    generate(lean, requests)
    with torch.no_grad():
        for parameter in policies["two"].parameters():
            parameter.add_(0.05)
    read = lean.stats.read
    assert_same(generate(lean, requests), generate(general, requests))
    assert lean.stats.read - read == 25 + 1 + 1 + 1


def test_policies_with_weights_of_their_own(tokenizer: Any) -> None:
    policies = {
        "a": Policy("a", build("llama"), tokenizer),
        "b": Policy("b", build("qwen3"), tokenizer),
        "c": Policy("c", build("llama_tied"), tokenizer),
    }
    requests = [
        r for rows in zip(*(mixed(1, name) for name in policies), strict=True) for r in rows
    ]
    lean = LeanEngine(policies)
    assert_same(generate(lean, requests), generate(HFEngine(policies), requests))
    assert_lean(lean)


def stepped(model: Any, kind: str) -> None:
    """One step of an optimiser; the fused one does not count versions up."""
    optimizer = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.5),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.01),
        "fused": lambda: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True),
    }[kind]()
    model(input_ids=torch.arange(5, 40)[None], labels=torch.arange(5, 40)[None]).loss.backward()
    optimizer.step()


@pytest.mark.parametrize("kind", ["sgd", "adamw", "fused"])
def test_a_step_of_the_optimiser_is_noticed(kind: str, tokenizer: Any) -> None:
    policy = Policy("policy", build("qwen2"), tokenizer)
    general, lean = engines(policy)
    requests = [ask(list(range(5, 30)), seed) for seed in range(3)]
    before = generate(lean, requests)
    stepped(policy.model, kind)
    read = lean.stats.read
    after = generate(lean, requests)
    assert_same(after, generate(general, requests))
    assert after[0].logprobs != before[0].logprobs
    assert lean.stats.read - read == 25, "what was read with the old weights must not serve"


def written(weight: torch.Tensor) -> None:
    """Past every counter of versions, and far from the first numbers."""
    weight.detach().view(-1).numpy()[-40:] += 0.5


@pytest.mark.parametrize("name", [name for name, _ in build("llama").named_parameters()])
def test_a_write_that_nobody_counts_is_noticed_in_a_loop_of_ones_own(
    name: str, tokenizer: Any
) -> None:
    policy = Policy("policy", build("llama"), tokenizer)
    general, lean = engines(policy)
    vocabulary = policy.model.config.vocab_size
    requests = [ask([5, 6, vocabulary - 1, vocabulary - 2], seed) for seed in range(3)]
    before = generate(lean, requests)
    weight = policy.model.get_parameter(name)
    version = weight._version
    written(weight)
    assert weight._version == version
    after = generate(lean, requests)
    assert_same(after, generate(general, requests))
    assert [each.logprobs for each in before] != [each.logprobs for each in after]


def test_versions_decide_where_writes_are_told(tokenizer: Any) -> None:
    """The same write is seen when `load_weights` says so, and not before."""
    policy = Policy("policy", build("llama"), tokenizer)
    general, told = HFEngine({"policy": policy}), LeanEngine({"policy": policy})
    told.unseen_writes = False
    requests = [ask([5, 6, 7], seed) for seed in range(3)]
    before = generate(told, requests)
    written(policy.model.get_parameter("model.layers.0.mlp.up_proj.weight"))
    assert_same(generate(told, requests), before)
    for engine in (general, told):
        asyncio.run(engine.load_weights("policy", policy, 1))
    after = generate(told, requests)
    assert_same(after, generate(general, requests))
    assert after[0].logprobs != pytest.approx(before[0].logprobs, abs=1e-3)


def test_new_weights_by_name_forget_what_was_read(tokenizer: Any) -> None:
    policy = Policy("policy", build("llama"), tokenizer)
    lean = LeanEngine({"policy": policy})
    requests = [ask(list(range(5, 30)))]
    assert generate(lean, requests)[0].policy_version == 0
    generate(lean, requests)
    assert lean.stats.cached == 24
    asyncio.run(lean.load_weights("policy", policy, 4))
    assert generate(lean, requests)[0].policy_version == 4
    assert lean.stats.cached == 24


def test_training_does_not_see_what_evaluation_read(tokenizer: Any) -> None:
    """A resumed run does not repeat an evaluation, and must go on bit by bit."""
    lean = LeanEngine({"policy": Policy("policy", build("llama"), tokenizer)})
    for split, cached in (("train", 0), ("eval", 0), ("train", 24), ("eval", 48)):
        request = ask(list(range(5, 30)))
        request.key = (0, split, "world", 3)
        generate(lean, [request])
        assert lean.stats.cached == cached


@pytest.mark.parametrize("mib", [0, 1])
def test_what_is_kept_stays_within_its_bound(mib: int, tokenizer: Any) -> None:
    policy = Policy("policy", build("llama", num_hidden_layers=6, head_dim=64), tokenizer)
    general, lean = engines(policy, cache_mib=mib)
    rng = np.random.default_rng(0)
    for _ in range(3):
        requests = [ask(rng.integers(3, 259, 40).tolist(), s, max_new_tokens=20) for s in range(8)]
        assert_same(generate(lean, requests), generate(general, requests))
        (base,) = lean._bases.values()
        pool = base.cache.pool
        assert pool.numel() * pool.element_size() <= mib * 2**20
        assert base.cache.held == (len(pool) if mib else 0)
    assert_lean(lean)


@pytest.mark.parametrize("precision, dtype", [("bf16", "float32"), ("fp32", "bfloat16")])
def test_half_precision(precision: Any, dtype: str, tokenizer: Any) -> None:
    """Log-probs of what it says are near those of the general path in the same precision."""
    for family in ("llama", "gemma3"):
        model = build(family).to(getattr(torch, dtype))
        policy = Policy("policy", model, tokenizer, precision=precision)
        lean = LeanEngine({"policy": policy})
        requests = [ask(list(range(9, 30)), seed) for seed in range(4)]
        gaps = []
        for request, said in zip(requests, generate(lean, requests), strict=True):
            ids = torch.tensor([[*request.prompt_ids, *said.token_ids]])
            with policy.scoring(), policy.active():
                scores = model(input_ids=ids).logits[0, 20:-1].float().log_softmax(-1)
            own = scores.gather(1, ids[0, 21:, None])[:, 0]
            gaps.append((own - torch.tensor(said.logprobs)).abs())
        assert float(torch.cat(gaps).mean()) < 0.02
        assert_lean(lean)


# -- models that are not lean ----------------------------------------------------------------------


def test_a_model_of_another_family_is_sampled_by_the_general_engine(
    gpt2_path: str, model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    other = transformers.AutoModelForCausalLM.from_pretrained(gpt2_path)
    policies = {"a": Policy("a", model, tokenizer), "b": Policy("b", other, tokenizer)}
    lean = LeanEngine(policies)
    requests = [r for rows in zip(mixed(1, "a"), mixed(1, "b"), strict=True) for r in rows]
    with caplog.at_level(logging.WARNING, "mrlm"):
        for _ in range(2):
            assert_same(generate(lean, requests), generate(HFEngine(policies), requests))
        assert not policies["b"].packed  # learning finds the same, and says nothing more
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "GPT2LMHeadModel takes the general path" in warning
    assert lean.stats.prompt == 2 * sum(len(r.prompt_ids) for r in requests if r.policy == "a")


def test_a_model_that_it_computes_differently_is_not_sampled_by_it(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What nothing but its results tells: a block with a forward of its own."""
    model = build("llama")
    block = model.model.layers[1].mlp
    kind = type(block)
    louder = {"forward": lambda self, x: kind.forward(self, x) * 1.01}
    block.__class__ = type("Louder", (kind,), louder)
    general, lean = engines(Policy("policy", model, tokenizer))
    requests = mixed(1)
    with caplog.at_level(logging.WARNING, "mrlm"):
        for _ in range(2):
            assert_same(generate(lean, requests), generate(general, requests))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "log-probs differ by" in warning and lean.stats.steps == 0


def test_a_hook_that_comes_later_is_called(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = build("llama")
    general, lean = engines(Policy("policy", model, tokenizer))
    requests = mixed(1)
    assert_same(generate(lean, requests), generate(general, requests))
    model.model.layers[0].register_forward_hook(lambda *args: args[-1] * 1.5)
    changed = generate(general, requests)
    assert_same(generate(lean, requests), changed)


def test_half_floats_go_the_general_way(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy("policy", build("llama"), tokenizer, precision="fp16")
    with caplog.at_level(logging.WARNING, "mrlm"):
        generate(LeanEngine({"policy": policy}), [ask([5, 6])])
    assert "torch.float16" in caplog.text
