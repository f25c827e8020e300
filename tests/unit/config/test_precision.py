"""`training.precision: auto`: the precision that a run gets on a machine, its record, and the text
about it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mrlm.build.policies import LiveObjects
from mrlm.build.precision import decided, precision_text, set_tf32, with_precision
from mrlm.build.run import arithmetic_of, plan_of
from mrlm.config import ExperimentConfig, load_config
from mrlm.core.errors import ConfigError
from mrlm.experiment import dry_run, run_experiment
from mrlm.learn.policy.own_forward import rounds_to_tf32
from mrlm.planning import memory
from mrlm.planning.memory import MemoryLoad
from mrlm.planning.model_shape import known_shape

GPU_POOL = {"enabled": True, "strategy": "ray", "ray": {
    "pools": {"big": {"GPU": 1}}, "policies": {"policy": {"learner": "big"}},
}}  # fmt: skip


def config_of(precision: str | None = None, **more: Any) -> ExperimentConfig:
    training = {} if precision is None else {"precision": precision}
    return ExperimentConfig(environments=[{"env_type": "math"}], training=training, **more)


def machine(monkeypatch: pytest.MonkeyPatch, cuda: bool, bf16: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda emulated: bf16 or emulated)


@pytest.mark.parametrize(
    ("cuda", "bf16", "more", "found"),
    [
        (False, False, {}, "fp32"),
        (True, True, {}, "bf16"),
        (True, False, {}, "fp32"),
        (True, True, {"model": {"device": "cpu"}}, "fp32"),
        (True, True, {"model": {"device": "cuda:1"}}, "bf16"),
        (True, True, {"model": {"torch_dtype": "float16"}}, "fp32"),
        (False, False, {"distributed": GPU_POOL}, "bf16"),
    ],
)
def test_the_device_decides(
    cuda: bool, bf16: bool, more: dict[str, Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, cuda, bf16)
    assert config_of().training.precision == "auto"
    assert with_precision(config_of(**more)).training.precision == found


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_is_set_stays(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, True)
    config = config_of(precision)
    assert with_precision(config) is config and decided(config, "cuda") is config


def test_a_live_model_decides_by_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, True)
    models = {"policy": (torch.nn.Linear(2, 2), None)}
    assert with_precision(config_of(), models).training.precision == "fp32"
    elsewhere = SimpleNamespace(
        parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda", 0))])
    )
    found = with_precision(config_of(), {"policy": (elsewhere, None)})
    assert found.training.precision == "bf16"
    assert with_precision(config_of(), {"policy": ("a/path", None)}).training.precision == "bf16"


def test_the_choice_is_in_the_plan_of_a_run_and_not_among_what_was_written() -> None:
    plan = plan_of(config_of(), LiveObjects())
    assert plan.config.training.precision == "fp32"
    assert not plan.config.training.wrote("precision")
    assert plan.config.resolved()["training"]["precision"] == "fp32"


def test_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    text, problems = dry_run(config_of())
    assert not problems and "precision: fp32 (training.precision: auto)\n" in text
    machine(monkeypatch, True)
    asked = config_of()
    said = precision_text(asked, with_precision(asked))
    assert said.startswith("precision: bf16 (training.precision: auto)") and "TF32" in said
    assert precision_text(config_of("fp32"), config_of("fp32")) == "precision: fp32"


def test_a_run_of_another_machine_is_not_resumed(tmp_path: Path) -> None:
    """A run that began in bf16 on a GPU, where there is none."""
    begun = config_of("bf16", output_dir=str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    begun.save(tmp_path / "run" / "config.yaml")
    again = config_of(output_dir=str(tmp_path / "run"))
    with pytest.raises(
        ConfigError, match=r"training.precision: .*bf16.* -> .*fp32.*: auto decides"
    ):
        run_experiment(again, resume=str(tmp_path / "run"))
    assert load_config(tmp_path / "run" / "config.yaml").training.precision == "bf16"


def test_bytes_of_cast_weights() -> None:
    """All of them on a CPU until the backward pass; of one block, and of the head, on a GPU."""
    shape = known_shape("Qwen/Qwen2.5-7B")
    assert shape is not None
    cpu, gpu = (MemoryLoad(width=4, computed=2, accelerated=each) for each in (False, True))
    assert memory.casts(shape, cpu) == 2 * shape.body
    blocks = 2 * shape.body // shape.layers
    assert memory.casts(shape, gpu) == pytest.approx(blocks + 2 * shape.vocab * shape.hidden)
    assert memory.casts(shape, MemoryLoad(width=2, computed=2, accelerated=True)) == 0
    assert (
        memory.logits(shape, 1 << 14, True, True) <= 2 << 30 < memory.logits(shape, 1 << 14, False)
    )
    plan = arithmetic_of(plan_of(config_of(), LiveObjects()))
    assert plan.job.computed == 4 and not plan.job.accelerated


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
def test_a_gpu_computes_in_bf16(tmp_path: Path) -> None:
    more = {"output_dir": str(tmp_path / "run"), "generation": {"max_new_tokens": 4}}
    config = config_of(**more).merged({"training": {"num_iterations": 1, "batch_size": 2}})
    run_experiment(config)
    assert load_config(tmp_path / "run" / "config.yaml").training.precision == "bf16"
    assert torch.backends.cuda.matmul.allow_tf32
    again = config.merged(
        {"training": {"precision": "fp32"}, "output_dir": str(tmp_path / "exact")}
    )
    run_experiment(again)
    assert not torch.backends.cuda.matmul.allow_tf32


def test_a_bf16_run_alone_rounds_products_to_tf32() -> None:
    device = torch.device("cuda")
    for precision, rounds in (("bf16", True), ("fp32", False)):
        set_tf32(precision)
        assert rounds_to_tf32(device) == torch.backends.cudnn.allow_tf32 == rounds
        assert not rounds_to_tf32(torch.device("cpu"))
