"""Models cut over processes by FSDP2: the same numbers as whole ones, and checkpoints that any
number of processes reads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ranks
from alike import written
from forking import Launcher
from mrlm import distributed, load_config, run_experiment
from mrlm.build.run import build
from mrlm.core.errors import ConfigError
from mrlm.distributed.sharded import blocks_of, check
from mrlm.learn.checkpoint import checkpoints
from mrlm.learn.policy.policy import Policy

GENERAL = {"model": {"lean": False}, "policies": {"p": {}}}
ONE = {"agents": {"a": {"policy": "p"}, "b": {"policy": "p"}}}
CRITIC = {
    "ppo": {"critic": "separate", "num_minibatches": 2, "update_epochs": 1},
    "training": {
        "max_grad_norm": 0.05,
        "max_tokens_per_microbatch": 192,
        "save_steps": 1,
        "optimizer": "adamw",
        "learning_rate": 1e-5,
    },
}
"""A policy and a critic of its own: several micro-batches, clipped, with moments to be kept."""


def cut(sharding: str = "full", **more: Any) -> dict[str, Any]:
    return {
        "distributed": {"enabled": True, "strategy": "fsdp", "fsdp": {"sharding": sharding, **more}}
    }


def config(folder: Path, output: str, *changes: dict[str, Any]) -> Path:
    return written(folder, "ppo", output, GENERAL, ONE, CRITIC, *changes)


def losses(folder: Path, *names: str) -> list[list[float]]:
    """What every step of a run came to."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[row[key] for key in names or ("loss", "grad_norm", "value_loss")] for row in rows]


@pytest.fixture
def world_of_one() -> Any:
    """This process as a world of its own."""
    distributed.start(0, 1, device="cpu")
    yield
    distributed.stop()


def test_two_processes_cut_it_and_one_puts_it_together(
    tmp_path: Path, launcher: Launcher, world_of_one: None
) -> None:
    paths = [config(tmp_path, "cut", cut()), config(tmp_path, "kept", cut("grad_op"))]
    ranks.run_all(launcher, 2, paths, tmp_path / "world")
    run_experiment(load_config(config(tmp_path, "alone")))
    alone, two = tmp_path / "ppo-alone", tmp_path / "ppo-cut"
    for other in (two, tmp_path / "ppo-kept"):
        for row, same in zip(losses(alone), losses(other), strict=True):
            assert same == pytest.approx(row, rel=1e-3, abs=1e-4)
        changes = [losses(folder, "weight_change") for folder in (alone, other)]
        assert changes[1] == [pytest.approx(row, rel=1e-4) for row in changes[0]]
    place = checkpoints(two)[-1]
    assert place.name == "checkpoint-1" and any((place / "shards").iterdir())
    # what two wrote, one reads, in shards or whole, and comes to the same
    for name, how in (("shards", cut()), ("whole", {})):
        again = config(tmp_path, name, how)
        run_experiment(load_config(again), resume=place)
        rows = losses(tmp_path / f"ppo-{name}")
        assert rows[-1] == pytest.approx(losses(alone)[-1], rel=1e-3, abs=1e-4)


def test_the_moments_of_an_optimiser_are_read_bit_by_bit(
    tmp_path: Path, world_of_one: None
) -> None:
    path = config(tmp_path, "first", cut(), {"training": {"num_iterations": 1}})
    run_experiment(load_config(path))
    (place,) = checkpoints(tmp_path / "ppo-first")
    more = {"training": {"num_iterations": 2}}
    runs = [
        build(load_config(config(tmp_path, name, how, more)), resume=place)
        for name, how in (("shards", cut()), ("whole", {}))
    ]
    states = [run.learners[0].optimizer_state()[0] for run in runs]
    assert states[0].keys() == states[1].keys() and len(states[0]) > 10
    for name, value in states[0].items():
        cut_here: Any = value
        whole = cut_here.full_tensor() if hasattr(value, "full_tensor") else value
        assert torch.equal(whole, states[1][name]), name
    assert any(bool(value.any()) for value in states[1].values())
    policies = [run.learners[0].weights().model for run in runs]
    for mine, other in zip(*(policy.parameters() for policy in policies), strict=True):
        assert torch.equal(mine, other)
    for run in runs:
        run.log.close()


def test_what_cannot_be_cut_is_refused(model: Any, tokenizer: Any) -> None:
    assert len(blocks_of(model)) == model.config.num_hidden_layers
    policy = Policy("p", model, tokenizer, precision="fp16")
    with pytest.raises(ConfigError, match="bf16"):
        check(policy)
    policy.precision, policy.adapter = "fp32", "a"
    with pytest.raises(ConfigError, match=r"'p' is an adapter.*strategy=ddp"):
        check(policy)


@pytest.mark.slow
def test_two_and_four_processes_come_to_what_one_does(tmp_path: Path, launcher: Launcher) -> None:
    """With steps of SGD, which do not blow up the last digits as moments near zero do."""
    sgd = {"training": {"optimizer": "sgd", "learning_rate": 0.05, "num_iterations": 3}}
    two = [config(tmp_path, name, cut(name), sgd) for name in ("full", "grad_op")]
    ranks.run_all(launcher, 2, two, tmp_path / "two")
    ranks.run_all(launcher, 4, [config(tmp_path, "four", cut(), sgd)], tmp_path / "four")
    run_experiment(load_config(config(tmp_path, "alone", sgd)))
    alone = losses(tmp_path / "ppo-alone")
    assert len(alone) == 3 and all(row[1] > 1 for row in alone)
    for name in ("full", "grad_op", "four"):
        for row, same in zip(alone, losses(tmp_path / f"ppo-{name}"), strict=True):
            assert same == pytest.approx(row, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_four_processes_read_what_two_wrote(tmp_path: Path, launcher: Launcher) -> None:
    ranks.run_all(launcher, 2, [config(tmp_path, "two", cut())], tmp_path / "a")
    program = tmp_path / "on.py"
    program.write_text(
        "import sys\nfrom mrlm import load_config, run_experiment\n"
        "run_experiment(load_config(sys.argv[1]), resume=sys.argv[2])\n"
    )
    place = checkpoints(tmp_path / "ppo-two")[-1]
    path = config(tmp_path, "four", cut("hybrid"))
    words = [str(program), str(path), str(place)]
    world = ranks.World(launcher, 4, words, tmp_path / "b", LOCAL_WORLD_SIZE="2")
    assert world.wait() == [0] * 4, world.said(0)
    rows = losses(tmp_path / "ppo-four")
    assert rows[-1] == pytest.approx(losses(tmp_path / "ppo-two")[-1], rel=1e-3, abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("offload", [False, True])
def test_a_device_computes_shards_in_bf16(tmp_path: Path, offload: bool) -> None:
    """nccl, mixed precision, and shards in the processor's memory."""
    half = {"training": {"precision": "bf16", "checks": "warn"}, "model": {"device": "cuda"}}
    distributed.start(0, 1, device="cuda")
    try:
        for name, how in (("cut", cut(cpu_offload=offload)), ("whole", {})):
            run_experiment(load_config(config(tmp_path, name, half, how)))
    finally:
        distributed.stop()
    for row, same in zip(losses(tmp_path / "ppo-whole"), losses(tmp_path / "ppo-cut"), strict=True):
        assert same == pytest.approx(row, rel=0.1, abs=0.05)
