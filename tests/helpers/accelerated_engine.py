"""A program that samples with the lean engine on the fake accelerator, as
`test_engine_accelerated.py` starts it: it compares with the CPU, and prints what was counted."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import transformers

import fake_accelerator
from mrlm.core.types import SamplingParams
from mrlm.engines.lean.engine import LeanEngine
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request
from test_engine_hf import ids_of
from test_engine_lean import adapters, assert_lean, assert_same, build, generate, mixed


def same_as_on_the_cpu(family: str, tokenizer: Any) -> None:
    """In batches of five with the others waiting, also with what was cached before."""
    requests = mixed(2)
    expected = generate(
        LeanEngine({"policy": Policy("policy", build(family), tokenizer)}), requests
    )
    policy = Policy("policy", build(family).to("fake"), tokenizer)
    engine = LeanEngine({"policy": policy}, batch_size=5)
    for _ in range(2):
        assert_same(generate(engine, requests), expected)
    assert_lean(engine)


def adapters_as_on_the_cpu(tokenizer: Any) -> None:
    """Adapters of one base in one batch, and one alone."""
    expected: list[Any] = []
    for device in ("cpu", "fake"):
        torch.manual_seed(0)
        policies = adapters(build("llama"), tokenizer)
        for policy in policies.values():
            policy.model.to(device)
        engine = LeanEngine(policies)
        for names in (list(policies), ["two"]):
            found = generate(engine, [r for name in names for r in mixed(1, name)])
            if device == "cpu":
                expected.append(found)
            else:
                assert_same(found, expected.pop(0))
        assert_lean(engine)


def waits(tokenizer: Any, tokens: int) -> dict[str, Any]:
    """Sample so many tokens in 8 rows: what was waited for, the kernels, and the steps."""
    policy = Policy("policy", build("llama").to("fake"), tokenizer)
    type(policy).eos_ids = property(lambda self: frozenset())  # type: ignore[assignment]
    engine = LeanEngine({"policy": policy}, cache_mib=0)
    prompts = [[5, 6, 7, 8, 9] * 8, [5, 6, 7, 8, 9] * 4]
    requests = [Request("policy", prompts[i % 2], SamplingParams(tokens), i) for i in range(8)]
    generate(engine, requests[:2])
    before = engine.stats.steps
    with fake_accelerator.counted() as found:
        completions = generate(engine, requests)
    assert {len(ids) for ids in ids_of(completions)} == {tokens}
    kernels = sum(found.kernels.values())
    steps = engine.stats.steps - before
    return {"waits": sum(found.waits.values()), "kernels": kernels, "steps": steps}


if __name__ == "__main__":
    torch.set_num_threads(1)
    fake_accelerator.register()
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    for family in sys.argv[2:]:
        same_as_on_the_cpu(family, tokenizer)
    adapters_as_on_the_cpu(tokenizer)
    print(json.dumps([waits(tokenizer, tokens) for tokens in (48, 112)]))
