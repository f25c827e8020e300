"""Runs on a device that is not the CPU: every tensor is made on the right one, and every algorithm
computes there what it computes on the CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.models import make_model, make_tokenizer
from benchmarks.worlds import FixedWorld

import ranks
from alike import CASES, written
from forking import Launcher
from mrlm import ExperimentConfig, Trainer, load_config, run_experiment
from tiny_runs import NAMES

QUICK = {"dpo", "ippo-lora"}
"""Rows, and episodes with critics and adapters; the others are slow tests."""
RUNS = "test_a_run_on_an_accelerator_computes_what_it_computes_on_the_cpu"
MOMENTS = "test_moments_on_the_host_change_no_number"
ONE_STEP = {"training": {"num_iterations": 1}}
ADAM = {"training": {"optimizer": "adamw", "num_iterations": 1}}
PROGRAM = """
import json, sys
import fake_accelerator
from mrlm import load_config, run_experiment
fake_accelerator.register()
for path in json.loads(sys.argv[1]):
    more = ["training.optimizer_offload=true"] * path.endswith("adam-host.json")
    run_experiment(load_config(path, ["model.device=fake", *more]))
"""
PLANTED = """
import torch
import fake_accelerator
device = fake_accelerator.register()
x = torch.ones(2, 3, device=device, requires_grad=True)
(x[:, 1:] * 2).sum().backward()
assert x.grad.tolist() == [[0, 2, 2]] * 2
assert (x * torch.tensor(2.0)).device == device
with torch.no_grad():
    x[0].mul_(3)
assert x.tolist() == [[3, 3, 3], [1, 1, 1]]
mistakes = {
    "add": lambda: x + torch.ones(3),
    "cat": lambda: torch.cat([x, torch.ones(1, 3)]),
    "gather": lambda: x.gather(1, torch.zeros(2, 1, dtype=torch.int64)),
    "mask": lambda: x.masked_fill(torch.ones(2, 3, dtype=torch.bool), 0.0),
    "linear": lambda: torch.nn.functional.linear(x, torch.ones(4, 3)),
    "write": lambda: x.detach().scatter_(1, torch.zeros(2, 1, dtype=torch.int64, device=device),
                                         torch.ones(2, 1)),
    "index": lambda: torch.ones(4)[torch.zeros(1, dtype=torch.int64, device=device)],
    "numpy": lambda: x.detach().numpy(),
}
for name, mistake in mistakes.items():
    try:
        mistake()
    except (RuntimeError, TypeError):
        continue
    raise AssertionError(name)
waits = {
    "_local_scalar_dense": lambda: float(x.detach().sum()),
    "nonzero": lambda: x.detach().nonzero(),
    "_copy_from": lambda: x.detach().cpu(),
    "index": lambda: x.detach()[x.detach() > 1],
}
for name, wait in waits.items():
    with fake_accelerator.counted() as found:
        wait()
    assert any(each.startswith(name + " ") for each in found.waits), (name, found)
with fake_accelerator.counted() as found:
    (x.detach() * 2).exp_()[0].sum()
assert dict(found.kernels) == {"mul": 1, "exp": 1, "sum": 1} and not found.waits, found
"""


def in_process(launcher: Launcher, text: str, folder: Path, *words: str) -> None:
    program = folder / "program.py"
    program.write_text(text)
    done = launcher.run([str(program), *words], folder, PYTHONPATH=ranks.IMPORTS)
    assert done.code == 0, done.err[-3000:]


def test_a_tensor_of_the_wrong_device_is_noticed(launcher: Launcher, tmp_path: Path) -> None:
    in_process(launcher, PLANTED, tmp_path)


def assert_alike(one: Path, other: Path, most: float) -> None:
    """Metrics and weights of two runs, up to rounding."""
    found = ranks.differences(one, other)
    for metric in [each for each in found if each.startswith("rewards/accuracies")]:
        del found[metric]  # the signs of numbers that are 0 at first
    for metric in [each for each in found if each.startswith("clip_fraction")]:
        assert found.pop(metric) < 0.02  # a token whose ratio is at the edge of the clip range
    assert max(found.values()) < most, {k: v for k, v in found.items() if v > most / 20}


@pytest.fixture(scope="module")
def accelerated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, launcher: Launcher
) -> Path:
    """Folder where one process ran everything that is asked for on the fake accelerator."""
    folder = tmp_path_factory.mktemp("accelerated")
    asking: list[Any] = [item for item in request.session.items if RUNS in item.nodeid]
    names = [item.callspec.params["name"] for item in asking]
    paths = [str(written(folder, name, "there", ONE_STEP)) for name in names]
    if any(MOMENTS in item.nodeid for item in request.session.items):
        paths += [str(written(folder, "ippo", f"adam-{x}", ADAM)) for x in ("there", "host")]
    in_process(launcher, PROGRAM, folder, json.dumps(paths))
    return folder


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
    for name in dict.fromkeys([*CASES, *NAMES])
])  # fmt: skip
def test_a_run_on_an_accelerator_computes_what_it_computes_on_the_cpu(
    name: str, accelerated: Path, tmp_path: Path
) -> None:
    run_experiment(load_config(written(tmp_path, name, "here", ONE_STEP)))
    assert_alike(tmp_path / f"{name}-here", accelerated / f"{name}-there", 2e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
    for name in dict.fromkeys([*CASES, *NAMES])
])  # fmt: skip
def test_a_run_on_a_gpu_computes_what_it_computes_on_the_cpu(name: str, tmp_path: Path) -> None:
    for place in ("cpu", "cuda"):
        words = [f"model.device={place}", "training.precision=fp32"]
        run_experiment(load_config(written(tmp_path, name, place, ONE_STEP), words))
    assert_alike(tmp_path / f"{name}-cpu", tmp_path / f"{name}-cuda", 1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_run_on_a_gpu_repeats_itself_bit_for_bit(precision: str, tmp_path: Path) -> None:
    """Also one that is interrupted and resumed."""

    def play(name: str, iterations: int, resume: Any = None) -> Path:
        data: dict[str, Any] = {"output_dir": str(tmp_path / name), "grpo": {"group_size": 4}}
        data |= {"model": {"device": "cuda"}, "generation": {"max_new_tokens": 200}}
        data["training"] = {"algorithm": "grpo", "precision": precision, "batch_size": 2}
        data["training"] |= {"num_iterations": iterations, "learning_rate": 1e-3, "checks": "off"}
        shared = make_model("1M", 0, "cuda")
        trainer = Trainer(
            config=ExperimentConfig(experiment_name="same", **data),
            agents=dict.fromkeys("ab", shared),
            tokenizer=make_tokenizer("1M"),
            environment=FixedWorld("1M", tuple("ab"), 64, 2, None),
            share_policy=True,
        )
        trainer.train(resume_from_checkpoint=resume)
        return tmp_path / name

    whole, again, cut = play("whole", 4), play("again", 4), play("cut", 2)
    play("cut", 4, str(cut))
    for other in (again, cut):
        found = ranks.differences(whole, other)
        assert found and not any(found.values()), {k: v for k, v in found.items() if v}


@pytest.mark.slow
def test_moments_on_the_host_change_no_number(accelerated: Path) -> None:
    host, there = (accelerated / f"ippo-adam-{place}" for place in ("host", "there"))
    found = ranks.differences(host, there)
    assert found and not any(found.values()), found
    configs = [(folder / "config.yaml").read_text() for folder in (host, there)]
    assert ["optimizer_offload: true" in text for text in configs] == [True, False]
