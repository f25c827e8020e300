"""Which differences of log-probs rounding to 16 bits explains: a pretrained model has large logits,
and no fixed number of nats fits all models."""

import asyncio
from typing import Any

import pytest
import torch

from lean_engines import build
from mrlm.core.types import SamplingParams
from mrlm.engines.lean.engine import AGREE, LeanEngine
from mrlm.learn.fast.repeatable import without_cudnn
from mrlm.learn.policy.own_forward import AGREEMENT, rounding_explains
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request


def test_errors_of_one_size_are_rounding_and_a_shift_is_not() -> None:
    draws = torch.Generator().manual_seed(0)
    exact = -10 * torch.rand(12, generator=draws)
    one, other = (exact + 0.15 * torch.randn(12, generator=draws) for _ in range(2))
    assert rounding_explains(one, other, exact) and rounding_explains(other, one, exact)
    assert not rounding_explains(one, other + 1, exact)
    assert not rounding_explains(one + 1, other, exact)
    assert not rounding_explains(one, other + 1, exact + 1), "both are equally far from it"


def sharp(tokenizer: Any, louder: float = 1.0) -> Policy:
    """A policy with large logits, in bfloat16; a block may be another one than its class says."""
    model = build("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(60)
        model.model.norm.weight.mul_(6)
    if louder != 1.0:
        block = model.model.layers[1].mlp
        kind = type(block)
        body = {"forward": lambda self, x: kind.forward(self, x) * louder}
        block.__class__ = type("Louder", (kind,), body)
    return Policy("policy", model, tokenizer, precision="bf16")


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every difference is above the fixed limits."""
    monkeypatch.setitem(AGREEMENT, torch.bfloat16, 0.0)
    monkeypatch.setitem(AGREE, torch.bfloat16, 0.0)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("louder", "fast"), [(1.0, True), (1.5, False)])
def test_rounding_keeps_the_fast_path_and_another_model_does_not(
    tokenizer: Any, louder: float, fast: bool
) -> None:
    policy = sharp(tokenizer, louder)
    assert policy.packed is fast
    engine = LeanEngine({"policy": policy})
    request = Request("policy", [5, 9, 7, 11], SamplingParams(max_new_tokens=4), 0)
    asyncio.run(engine.generate([request]))
    assert bool(engine.stats.steps) is fast


def test_attention_on_a_gpu_is_without_cudnn() -> None:
    """It is the likely cause of gradients that were NaN."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
