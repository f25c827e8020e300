"""Micro-batches that memory determines: their size, and that a step does not depend on it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mrlm import ExperimentConfig, run_experiment
from mrlm.build import microbatch
from mrlm.planning.memory import activations, logits, tokens_in
from mrlm.planning.model_shape import ModelShape

SHAPE = ModelShape(576, 30, 49_152, 1536, 576, 192)


def config(folder: Path, steps: int, **training: Any) -> ExperimentConfig:
    return ExperimentConfig(
        output_dir=str(folder),
        environments=[{"env_type": "math", "difficulty_range": [1, 1]}],
        training={
            "algorithm": "ppo",
            "num_iterations": steps,
            "batch_size": 8,
            "learning_rate": 0.1,
            "optimizer": "sgd",
            "save_steps": 1,
            **training,
        },
        generation={"max_new_tokens": 4},
        evaluation={"episodes": 0},
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "final" / "model.safetensors")


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("size", [0, 1 << 29, 1 << 33, 1 << 36])
def test_they_fit(size: int, lean: bool) -> None:
    tokens = tokens_in(size, SHAPE, 4, lean=lean)
    assert 256 <= tokens <= 16_384

    def taken(tokens: int) -> int:
        return activations(SHAPE, tokens, 4) + logits(SHAPE, tokens, lean)

    assert taken(tokens) <= size or tokens == 256
    assert taken(2 * tokens) > size or tokens == 16_384


@pytest.mark.system
def test_a_run_has_the_numbers_of_any_other_and_resumes_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mrlm")
    large = run_experiment(config(tmp_path / "large", 2))
    assert "micro-batches have" not in caplog.text
    monkeypatch.setattr(microbatch, "free_memory", lambda device: 1 << 20)
    whole = run_experiment(config(tmp_path / "whole", 2))
    assert "micro-batches have at most 256 tokens" in caplog.text
    run_experiment(config(tmp_path / "parts", 1))
    monkeypatch.setattr(microbatch, "free_memory", lambda device: 1 << 40)
    run_experiment(config(tmp_path / "parts", 2), resume=tmp_path / "parts")
    for name, weight in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weight, weights(tmp_path / "large")[name], rtol=0, atol=1e-6)
        assert torch.equal(weight, weights(tmp_path / "parts")[name])
    assert whole.metrics["loss"] == pytest.approx(large.metrics["loss"], abs=1e-6)
