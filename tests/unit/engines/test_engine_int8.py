"""Sampling with products in 8 bits: what is computed, and what a run asks for in return."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mrlm.config.loading import load_config
from mrlm.core.errors import ConfigError
from mrlm.core.types import SamplingParams
from mrlm.engines.lean.engine import LeanEngine
from mrlm.experiment import run_experiment
from mrlm.learn.fast import int8, matmul
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

CONFIG = """
model: {model_name_or_path: mrlm/tiny}
environments: [{env_type: matrix, game: xor}]
engine: {int8: true}
generation: {max_new_tokens: 2}
training: {algorithm: grpo, num_iterations: 2, batch_size: 2}
grpo: {group_size: 4, importance: token}
"""


def test_products_are_those_of_rounded_numbers() -> None:
    torch.manual_seed(0)
    x, weights, bias = (
        torch.randn(7, 96),
        [torch.randn(20, 96), torch.randn(12, 96)],
        torch.ones(32),
    )
    x[3] = 0.0
    made = int8.rounded(weights)
    assert made.values.dtype == torch.int8
    assert made.values.abs().amax(1).tolist() == [127] * 32
    near = made.values * made.scales[:, None] * 127
    torch.testing.assert_close(near, torch.cat(weights), atol=4.5 / 254, rtol=0)
    unit = x.abs().amax(1, True).clamp(min=1e-9) / 127
    exact = ((x / unit).round() * unit) @ near.t() + bias
    found = matmul.linear(x, made, bias)
    torch.testing.assert_close(found, exact, atol=2e-5, rtol=0)
    for row in range(7):  # other rows change nothing
        assert torch.equal(matmul.linear(x[row : row + 1], made, bias)[0], found[row])
    gap = float((found - x @ torch.cat(weights).t() - bias).abs().mean())
    assert 0.01 < gap < 0.15  # of a deviation of ten


def test_samples_are_near_those_of_the_weights(model: Any, tokenizer: Any) -> None:
    policy = Policy("policy", model, tokenizer)
    lean, exact = LeanEngine({"policy": policy}, int8=True), LeanEngine({"policy": policy})
    rng = np.random.default_rng(5)
    requests = [
        Request("policy", rng.integers(3, 259, n).tolist(), SamplingParams(max_new_tokens=12), n)
        for n in (3, 17, 1, 9, 30)
    ]
    said = asyncio.run(lean.generate(requests))
    again = asyncio.run(lean.generate(requests[::-1]))[::-1]
    assert [one.logprobs for one in said] == [one.logprobs for one in again]
    assert lean.stats.steps > 0 and not lean.general
    gaps: list[float] = []
    for request, one in zip(requests, said, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *one.token_ids]])
        with torch.no_grad():
            scores = policy.model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1]
        own = scores.float().log_softmax(-1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
        gaps += (own - torch.tensor(one.logprobs)).abs().tolist()
    assert 1e-5 < np.mean(gaps) < 0.05
    assert (exact.tolerance("policy"), lean.tolerance("policy")) == (1e-4, 1.0)


def written(folder: Path, *changes: str) -> Any:
    (folder / "run.yaml").write_text(CONFIG, encoding="utf-8")
    return load_config(folder / "run.yaml", [f"output_dir={folder / 'run'}", *changes])


def test_a_run_trains_with_importance_weights(tmp_path: Path) -> None:
    result = run_experiment(written(tmp_path))
    gaps = [row["mismatch_kl"] for row in result.history if "mismatch_kl" in row]
    assert len(gaps) == 2 and all(1e-9 < gap < 0.05 for gap in gaps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["grpo.importance=auto"], "grpo does not correct for them; set importance=token"),
        (["grpo.importance=none"], "grpo does not correct for them"),
        (["engine.name=hf"], "engine.int8: changes nothing because"),
    ],
)
def test_a_run_without_a_correction_is_refused(
    changes: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_experiment(written(tmp_path, *changes))


def test_it_is_for_a_processor(model: Any, tokenizer: Any) -> None:
    policy = Policy("policy", copy.deepcopy(model).to("meta"), tokenizer)
    with pytest.raises(ConfigError, match="policy 'policy' is on meta"):
        LeanEngine({"policy": policy}, int8=True)
