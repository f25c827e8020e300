"""Requests for engines, and lean engines of several families that answer as the reference does."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from mrlm.core.types import Completion, SamplingParams
from mrlm.engines.hf import HFEngine
from mrlm.engines.lean.engine import LeanEngine
from mrlm.learn.policy.lora import BASE, add_adapter
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

SIZES: dict[str, Any] = {
    "vocab_size": 259, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
    "initializer_range": 0.3,
}  # fmt: skip


def ask(prompt: list[int], seed: int = 0, **sampling: Any) -> Request:
    return Request("policy", prompt, SamplingParams(**{"max_new_tokens": 12, **sampling}), seed)


def ids_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


SMALL: dict[str, Any] = SIZES | {"initializer_range": 0.1}
WINDOWS: dict[str, Any] = {"sliding_window": 6, "query_pre_attn_scalar": 8}
CAPS: dict[str, Any] = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", SMALL),
    "llama_tied": ("LlamaConfig", "LlamaForCausalLM", SMALL | {"tie_word_embeddings": True}),
    "llama_biased": (
        "LlamaConfig",
        "LlamaForCausalLM",
        SMALL | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
    ),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {key: value for key, value in SMALL.items() if key != "head_dim"},
    ),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", SMALL | {"num_key_value_heads": 1}),
    "mistral": ("MistralConfig", "MistralForCausalLM", SMALL | {"sliding_window": 6}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", SMALL),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", SMALL | WINDOWS | CAPS),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", SMALL | WINDOWS),
}
SETTINGS: list[dict[str, Any]] = [
    {}, {"temperature": 0.5}, {"temperature": 0.0}, {"top_k": 5},
    {"top_p": 0.7, "temperature": 1.5}, {"min_p": 0.2}, {"stop": ("a", "e", "o")},
    {"max_new_tokens": 1}, {"max_new_tokens": 30},
]  # fmt: skip


def build(family: str, **changes: Any) -> Any:
    """A random tiny model; also what starts at zero or one is random."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config, kind, sizes = FAMILIES[family]
    model = getattr(transformers, kind)(getattr(transformers, config)(**(sizes | changes))).eval()
    if family == "gemma2":
        model.set_attn_implementation("eager")  # as models are loaded
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            assert parameter.abs().max() > 0, name
    return model


def engines(policy: Policy, **settings: Any) -> tuple[HFEngine, LeanEngine]:
    return HFEngine({policy.name: policy}), LeanEngine({policy.name: policy}, **settings)


def generate(engine: HFEngine, requests: list[Request]) -> list[Completion]:
    return asyncio.run(engine.generate(requests))


def mixed(count: int = 3, policy: str = "policy") -> list[Request]:
    """Every setting, with prompts of many lengths, some of them the same."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(3, 259, n).tolist() for n in (3, 17, 1, 9, 30)]
    return [
        Request(
            policy,
            prompts[(seed + len(SETTINGS) * round) % len(prompts)],
            SamplingParams(**{"max_new_tokens": 12 + round, **setting}),
            100 * round + seed,
        )
        for round in range(count)
        for seed, setting in enumerate(SETTINGS)
    ]


def assert_same(ours: list[Completion], theirs: list[Completion], gap: float = 1e-5) -> None:
    assert ids_of(ours) == ids_of(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=gap)
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert one.policy_version == other.policy_version


def assert_lean(engine: LeanEngine) -> None:
    """The decoder was used, not the general path."""
    assert engine.stats.steps > 0 and not engine.general


def adapters(model: Any, tokenizer: Any) -> dict[str, Policy]:
    """Adapters of several ranks on different modules, and the base they share."""
    shapes = {
        "one": {"r": 2, "target_modules": "all-linear"},
        "two": {"r": 5, "target_modules": ["q_proj", "v_proj", "down_proj"]},
        "three": {"r": 3, "target_modules": ["up_proj", "k_proj", "o_proj"]},
    }
    for name, shape in shapes.items():
        model = add_adapter(model, name, {"alpha": 7, "dropout": 0.1, **shape})
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.normal_(0, 0.3)
    found = {name: Policy(name, model, tokenizer, adapter=name) for name in shapes}
    return found | {"base": Policy("base", model, tokenizer, adapter=BASE)}
