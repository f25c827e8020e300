"""A program that samples with the lean engine on the fake accelerator, as
`test_engine_accelerated.py` starts it: it compares with the CPU, and prints what was counted."""

import functools
import json
import sys
from typing import Any
from unittest import mock

import torch
import transformers

import fake_accelerator
from lean_engines import adapters, assert_lean, assert_same, build, generate, ids_of, mixed
from mrlm.core.types import SamplingParams
from mrlm.engines.hf import HFEngine
from mrlm.engines.lean.engine import LeanEngine
from mrlm.engines.lean.fixed_batch import FixedBatch
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request


def same_as_on_the_cpu(family: str, tokenizer: Any) -> None:
    """In batches of five with the others waiting, also with what was cached before."""
    requests = mixed(1)
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


def general_as_on_the_cpu(family: str, tokenizer: Any) -> None:
    """By the general engine, whose host looks at results late."""
    requests = mixed(1)
    expected = generate(HFEngine({"policy": Policy("policy", build(family), tokenizer)}), requests)
    policy = Policy("policy", build(family).to("fake"), tokenizer)
    assert_same(generate(HFEngine({"policy": policy}, 5), requests), expected)


def tokens_of(engine: HFEngine, tokens: int) -> dict[str, Any]:
    """Sample so many tokens in 8 rows: what was waited for, the bytes that were copied, and the
    steps of the lean engine."""
    type(engine.policies["policy"]).eos_ids = property(lambda self: frozenset())  # type: ignore
    prompts = [[5, 6, 7, 8, 9] * 8, [5, 6, 7, 8, 9] * 4]
    requests = [Request("policy", prompts[i % 2], SamplingParams(tokens), i) for i in range(8)]
    generate(engine, requests[:2])
    before = engine.stats.steps if isinstance(engine, LeanEngine) else 0
    with fake_accelerator.counted() as found:
        completions = generate(engine, requests)
    assert {len(ids) for ids in ids_of(completions)} == {tokens}
    steps = engine.stats.steps - before if isinstance(engine, LeanEngine) else tokens
    return {"waits": sum(found.waits.values()), "moved": found.moved, "steps": steps}


def step_of(
    family: str, dtype: torch.dtype, tokenizer: Any, precision: Any = "fp32"
) -> dict[str, int]:
    """The kernels, new bytes and waits of one step: those of a layer, and those of the rest."""
    step, counts = FixedBatch.step, []

    def counted(batch: FixedBatch) -> None:
        with fake_accelerator.counted() as found:
            step(batch)
        counts.append((sum(found.kernels.values()), found.made, sum(found.waits.values())))

    found: list[tuple[int, ...]] = []
    for layers in (2, 4):
        model = build(family, num_hidden_layers=layers).to("fake", dtype)
        engine = LeanEngine(
            {"policy": Policy("policy", model, tokenizer, precision=precision)}, cache_mib=0
        )
        with mock.patch.object(FixedBatch, "step", counted):
            tokens_of(engine, 4)
        assert_lean(engine)
        found.append(counts[-1])
    (kernels, made, _), (more, wide, waits) = found
    layer = (more - kernels) // 2
    return {
        "layer": layer,
        "rest": kernels - 2 * layer,
        "bytes": (wide - made) // 2,
        "waits": waits,
    }


def accelerator() -> torch.library.Library:
    """The fake accelerator, with RMSNorm as one kernel without gradients, as CUDA has it."""
    fake_accelerator.register()
    found = torch.library.Library("aten", "IMPL")
    op = torch.ops.aten._fused_rms_norm.default
    found.impl("_fused_rms_norm", functools.partial(fake_accelerator._run, op), "PrivateUse1")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    library = accelerator()
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    for family in sys.argv[2:]:
        same_as_on_the_cpu(family, tokenizer)
    adapters_as_on_the_cpu(tokenizer)
    policy = Policy("policy", build("llama").to("fake"), tokenizer)
    engine = LeanEngine({"policy": policy}, cache_mib=0)
    steps = {
        family: step_of(family, dtype, tokenizer)
        for family, dtype in (
            ("llama", torch.float32),
            ("qwen3", torch.bfloat16),
            ("gemma2", torch.bfloat16),
        )
    }
    steps["mixed"] = step_of("qwen3", torch.float32, tokenizer, "bf16")
    general_as_on_the_cpu("llama", tokenizer)
    print(json.dumps({
        "tokens": [tokens_of(engine, tokens) for tokens in (48, 112)],
        "general": [tokens_of(HFEngine({"policy": policy}), tokens) for tokens in (8, 16)],
        "steps": steps,
    }))  # fmt: skip
