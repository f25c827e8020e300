"""Sampling from real architectures: what is recorded is what the trainer computes, and nothing
depends on which requests happen to share a batch."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lean_engines import SIZES, ask, ids_of
from mrlm import LLMEnvironment, Message, Role, SamplingParams
from mrlm.core.types import Completion, Turn
from mrlm.engines.hf import HFEngine
from mrlm.engines.lean.engine import LeanEngine
from mrlm.engines.shared.sampling import sample, truncated
from mrlm.learn.data.batch import merge, pack
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

LEARNED = {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "head_dim")}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", SIZES),
    "qwen2": ("Qwen2", {k: v for k, v in SIZES.items() if k != "head_dim"}),
    "llama": ("Llama", SIZES | {"tie_word_embeddings": False}),
    "mistral": ("Mistral", SIZES | {"sliding_window": 6}),
    "gemma2": (
        "Gemma2",
        SIZES
        | {
            "sliding_window": 6,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 8,
        },
    ),
    "gpt2": (
        "GPT2",
        {
            "vocab_size": 259,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 256,
            "bos_token_id": None,
            "eos_token_id": 2,
            "initializer_range": 0.3,
        },
    ),
    "gpt_neox": ("GPTNeoX", LEARNED),
    "opt": (
        "OPT",
        {
            "vocab_size": 259,
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "init_std": 0.3,
        },
    ),
}


def build(family: str) -> Any:
    """A random tiny model of a family; weights large enough for logits that differ."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name, sizes = FAMILIES[family]
    kind = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, kind)(config).eval()


def ragged(**sampling: Any) -> list[Request]:
    rng = np.random.default_rng(5)
    lengths = (3, 17, 1, 9, 9, 30)
    return [
        ask(rng.integers(3, 259, n).tolist(), seed, **sampling) for seed, n in enumerate(lengths)
    ]


def generate(engine: HFEngine, requests: list[Request]) -> list[Completion]:
    return asyncio.run(engine.generate(requests))


@pytest.fixture
def engine(model: Any, tokenizer: Any) -> HFEngine:
    return HFEngine.of(model, tokenizer)


class Scripted(torch.nn.Module):
    """Stands on the model's head: at every step the next token of a fixed text is certain."""

    def __init__(self, head: Any, tokens: list[int]) -> None:
        super().__init__()
        self.tokens, self.weight = tokens, head.weight
        self.calls = 0

    def forward(self, hidden: Any) -> Any:
        logits = torch.zeros(*hidden.shape[:-1], 259)
        logits[..., self.tokens[self.calls]] = 50.0
        self.calls += 1
        return logits


def scripted(model: Any, tokenizer: Any, text: str) -> HFEngine:
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"] + [2] * 20
    model.lm_head = Scripted(model.lm_head, tokens)
    return HFEngine.of(model, tokenizer)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_log_probs_are_the_trainers_own(
    family: str, temperature: float, tokenizer: Any
) -> None:
    policy = Policy("policy", build(family), tokenizer)
    engine = HFEngine({"policy": policy})
    requests = ragged(temperature=temperature, max_new_tokens=14)
    completions = generate(engine, requests)
    samples = [
        part
        for request, completion in zip(requests, completions, strict=True)
        for part in merge(
            [
                Turn(
                    "a",
                    "policy",
                    request.prompt_ids,
                    completion.token_ids,
                    completion.logprobs,
                    sampling=request.sampling,
                )
            ]
        )
    ]
    batch = pack(samples, pad_id=policy.pad_id)
    with policy.scoring():
        scored = policy.forward(batch).logprobs
    assert len({round(value, 3) for value in batch.old_logprobs.tolist()}) > 20
    torch.testing.assert_close(scored, batch.old_logprobs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_company_and_order_do_not_decide_what_is_said(family: str, tokenizer: Any) -> None:
    """Prompts of every length share a batch with rows that end early; each request alone says the
    same, whatever the order and the size of the batch."""
    engine = HFEngine.of(build(family), tokenizer)
    requests = [
        ask(request.prompt_ids, request.seed, max_new_tokens=limit)
        for request, limit in zip(ragged(), (12, 1, 7, 12, 2, 3), strict=True)
    ]
    alone = [generate(engine, [request])[0] for request in requests]
    together = generate(engine, requests)
    assert ids_of(together) == ids_of(alone)
    assert [len(completion.token_ids) for completion in together][1] == 1
    assert ids_of(generate(engine, requests[::-1]))[::-1] == ids_of(alone)
    engine.batch_size = 2
    assert ids_of(generate(engine, requests)) == ids_of(alone)
    for one, other in zip(together, alone, strict=True):
        assert one.text == other.text and one.finish_reason == other.finish_reason
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_each_seed_is_a_draw_of_its_own(engine: HFEngine) -> None:
    said = ids_of(generate(engine, [ask([5, 6, 7], seed) for seed in range(8)]))
    assert len({tuple(ids) for ids in said}) == 8
    again = ids_of(generate(engine, [ask([5, 6, 7], seed) for seed in range(8)]))
    assert said == again


def test_greedy_is_the_argmax_of_a_plain_forward(tokenizer: Any) -> None:
    model = build("llama")
    engine = HFEngine.of(model, tokenizer)
    prompts = [request.prompt_ids for request in ragged()]
    mixed = [ask(prompts[0], 1), *(ask(p, 7, temperature=0.0) for p in prompts)]
    for prompt, completion in zip(prompts, generate(engine, mixed)[1:], strict=True):
        ids = list(prompt)
        for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
            with torch.no_grad():
                scores = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            assert token == int(scores.argmax())
            assert logprob == pytest.approx(float(scores[token]), abs=1e-4)
            ids.append(token)


def test_the_ends_of_the_unit_interval_never_draw_what_is_cut() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]]).expand(2, -1)
    edge = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    tokens, logprobs = sample(logits, edge, torch.zeros(2, dtype=torch.bool))
    assert tokens.tolist() == [1, 2] and bool(logprobs.isfinite().all())


def test_draws_of_the_engine_follow_the_model(engine: HFEngine) -> None:
    """One step of the engine with a thousand seeds has the model's own frequencies."""
    (policy,) = engine.policies.values()
    with torch.no_grad():
        probs = policy.model(torch.tensor([[9, 8, 7]])).logits[0, -1].softmax(-1)
    drawn = generate(engine, [ask([9, 8, 7], seed, max_new_tokens=1) for seed in range(2000)])
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in drawn]), minlength=259)
    halves = [probs.argsort()[i::4] for i in range(4)]
    for part in halves:
        share = float(probs[part].sum())
        spread = (share * (1 - share) / 2000) ** 0.5
        assert abs(float(counts[part].sum()) / 2000 - share) < 4.5 * spread


PROBS = [0.05, 0.4, 0.1, 0.3, 0.15]


@pytest.mark.parametrize(
    "settings, kept",
    [
        ({"top_k": 2}, {1, 3}), ({"top_k": 1}, {1}), ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.6}, {1, 3}), ({"top_p": 0.72}, {1, 3, 4}), ({"top_p": 1e-9}, {1}),
        ({"min_p": 0.3}, {1, 3, 4}), ({"min_p": 1.0}, {1}), ({"top_k": 4, "min_p": 0.5}, {1, 3}),
        ({}, {0, 1, 2, 3, 4}),
    ],
)  # fmt: skip
def test_cuts_keep_exactly_their_set(settings: dict[str, float], kept: set[int]) -> None:
    logits = torch.tensor([PROBS, PROBS[::-1]]).log()
    columns = {"top_p": 1.0, "top_k": 0.0, "min_p": 0.0} | settings
    given = {
        key: torch.tensor([value, {"top_p": 1.0}.get(key, 0.0)]) for key, value in columns.items()
    }
    cut = truncated(logits, **given)
    assert set(cut[0].isfinite().nonzero()[:, 0].tolist()) == kept
    assert torch.equal(cut[1], logits[1])
    tokens, logprobs = sample(
        cut[:1].expand(200, -1),
        torch.linspace(0, 0.999, 200, dtype=torch.float64),
        torch.zeros(200, dtype=torch.bool),
    )
    assert set(tokens.tolist()) == kept
    mass = sum(PROBS[i] for i in kept)
    expected = torch.tensor([PROBS[i] / mass for i in tokens.tolist()]).log()
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)


def test_a_cut_row_leaves_its_neighbours_alone(engine: HFEngine) -> None:
    plain, cut = ask([5, 6, 7], 1), ask([5, 6, 8], 2, top_k=1)
    together = generate(engine, [plain, cut])
    assert together[0].token_ids == generate(engine, [plain])[0].token_ids
    assert together[1].logprobs == pytest.approx([0.0] * len(together[1].logprobs))
    greedy = generate(engine, [ask([5, 6, 8], 9, temperature=0.0)])[0]
    assert together[1].token_ids == greedy.token_ids and greedy.logprobs[0] < -0.1


def test_the_end_token_is_kept_and_ends_the_row(model: Any, tokenizer: Any) -> None:
    (said,) = generate(scripted(model, tokenizer, "hi"), [ask([5])])
    assert said.token_ids == [*tokenizer("hi")["input_ids"], 2]
    assert said.text == "hi" and said.finish_reason == "stop" and len(said.logprobs) == 3


def test_every_end_token_of_the_generation_settings_ends(model: Any, tokenizer: Any) -> None:
    model.generation_config.eos_token_id = [100, 101]
    tokens = tokenizer("hi")["input_ids"]
    for end in (2, 100, 101):
        model_head = model.lm_head
        engine = scripted(model, tokenizer, "hi")
        model.lm_head.tokens[2] = end
        (said,) = generate(engine, [ask([5])])
        assert said.token_ids == [*tokens, end] and said.finish_reason == "stop"
        model.lm_head = model_head


@pytest.mark.parametrize(
    "text, stop, expected, count",
    [
        ("one two three", ("two",), "one ", 7),
        ("one two three", ("three", "ne"), "o", 3),
        ("one two three", ("four",), "one two three", 14),
        ("日本 stop", ("本",), "日", 6),
        ("x" * 80 + "!", ("x" * 70,), "", 70),
    ],
)
def test_stop_strings_end_the_row_and_are_cut_from_the_text(
    model: Any, tokenizer: Any, text: str, stop: tuple[str, ...], expected: str, count: int
) -> None:
    engine = scripted(model, tokenizer, text)
    (said,) = generate(engine, [ask([5], stop=stop, max_new_tokens=90)])
    assert said.text == expected and said.finish_reason == "stop"
    assert len(said.token_ids) == len(said.logprobs) == count


def test_the_token_limit_ends_with_length(model: Any, tokenizer: Any) -> None:
    (one,) = generate(scripted(model, tokenizer, "hello"), [ask([5], max_new_tokens=1)])
    assert one.text == "h" and one.finish_reason == "length" and len(one.token_ids) == 1


@pytest.mark.parametrize("kind", [HFEngine, LeanEngine])
def test_every_forward_pass_is_progress(kind: Any, model: Any, tokenizer: Any) -> None:
    """The limit of a call is one of silence only as far as an engine reports what it does."""
    engine = kind.of(model, tokenizer)
    seen: list[int] = []
    hooked = model.lm_head.register_forward_hook(lambda *_: seen.append(engine.progress))
    (answer,) = asyncio.run(engine.generate([ask([5, 6, 7], temperature=0.0)]))
    hooked.remove()
    assert engine.progress >= len(answer.token_ids) > 1
    assert seen == sorted(set(seen))


def test_an_end_token_at_the_limit_is_a_stop(model: Any, tokenizer: Any) -> None:
    (said,) = generate(scripted(model, tokenizer, "hi"), [ask([5], max_new_tokens=3)])
    assert said.token_ids[-1] == 2 and said.finish_reason == "stop"


def test_context_and_versions(model: Any, tokenizer: Any) -> None:
    short = Policy("short", build("gpt2"), tokenizer)
    policy = Policy("policy", model, tokenizer)
    engine = HFEngine({"policy": policy, "short": short})
    assert engine.max_context == 256 and policy.max_context == 8192
    assert generate(engine, [ask([5])])[0].policy_version == 0
    asyncio.run(engine.load_weights("policy", policy, 3))
    versions = [
        completion.policy_version
        for completion in generate(
            engine, [ask([5]), Request("short", [5], SamplingParams(4), 0), ask([6])]
        )
    ]
    assert versions == [3, 0, 3]


def test_new_weights_are_sampled_from_at_once(model: Any, tokenizer: Any) -> None:
    engine = HFEngine.of(model, tokenizer)
    before = generate(engine, [ask([5, 6], temperature=0.0)])[0].logprobs
    with torch.no_grad():
        model.model.norm.weight.mul_(2.0)
    assert generate(engine, [ask([5, 6], temperature=0.0)])[0].logprobs != before


def test_sampling_leaves_mode_and_global_randomness_alone(model: Any, tokenizer: Any) -> None:
    model.train()
    torch.manual_seed(4)
    state = torch.get_rng_state()
    generate(HFEngine.of(model, tokenizer), [ask([5])])
    assert model.training and torch.equal(torch.get_rng_state(), state)


def test_a_path_is_enough_to_ask(tiny_path: str, gpt2_path: str) -> None:
    question = [Message("2+3?")]
    for path in (tiny_path, gpt2_path):
        engine = HFEngine.of(path)
        said = engine.respond(question, SamplingParams(8, 0.0))
        assert said.role is Role.ASSISTANT
        (policy,) = engine.policies.values()
        prompt = policy.chat.prompt(question).ids
        (expected,) = generate(engine, [ask(prompt, temperature=0.0, max_new_tokens=8)])
        assert said.content == expected.text


def test_an_llm_environment_speaks(model: Any, tokenizer: Any, tiny_path: str) -> None:
    settings = {"max_new_tokens": 8, "temperature": 0.0}
    live = LLMEnvironment(model, tokenizer, generation_config=settings)
    expected = HFEngine.of(model, tokenizer).respond([Message("2+3?")], SamplingParams(8, 0.0))
    assert live.respond(Message("2+3?")) == expected
    assert (
        LLMEnvironment(tiny_path, generation_config=settings).respond([Message("2+3?")]) == expected
    )
    assert len(live.respond(Message("2+3?"), max_new_tokens=1).content) <= 1
    told = LLMEnvironment(model, tokenizer, system_prompt="Be brief.", generation_config=settings)
    with_system = [Message("Be brief.", Role.SYSTEM), Message("2+3?")]
    assert told.respond(Message("2+3?")) == live.respond(with_system) == told.respond(with_system)
