"""Programs in examples/ run as they stand, each as a process of its own, on the embedded model and
on another family. Those that take arguments run with a step or two in this process, and at full
length in one of their own (`slow`), where what should have been learned has been."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ranks
from commands import Mrlm
from forking import Launcher
from places import ROOT
from servers import Process

FOLDER = ROOT / "examples"

SHORT: dict[str, str] = {
    "quickstart.simple_ppo": "--steps 1",
    "comlrl_story": "--steps 1 --turns 2",
    "custom_algorithm": "--steps 1",
    "debate_with_judge": "--steps 1 --shown 2",
    "evaluate_and_collect": "--steps 8 --episodes 64",
    "happo_game": "--steps 1",
    "heterogeneous_agents": "--steps 1",
    "lora_agents": "--steps 1",
    "outside_agents": "--with openai,openai --episodes 1",
    "qmix_game": "--steps 1",
    "remote_environment": "--steps 1 --shown 2",
    "router_r1_math_qwen": "--steps 1 --shown 1",
    "router_r1_training": "--steps 1 --shown 1",
    "self_play_poker": "--steps 1",
    "train_code_ppo": "--steps 1 --shown 2",
    "train_distributed_ppo": "--steps 1",
    "train_dpo_preferences": "--steps 1",
    "train_from_config": "stages.0.training.num_iterations=1 stages.1.training.num_iterations=1",
    "train_grpo_math": "--steps 1 --shown 2",
    "train_hybrid_sft_ppo": "--steps 1 --shown 2",
    "train_math_ppo": "--steps 1 --shown 2",
    "train_multi_environment": "--steps 1 --shown 2",
    "train_sft_world_model": "--steps 1",
    "train_tool_use_ppo": "--steps 1 --shown 2",
    "two_writers": "--steps 1 --shown 2",
    "world_model": "--steps 1 --shown 2",
}
"""Example -> arguments of its short form."""

LONG = {
    "all_trainers", "comlrl_story", "happo_game", "heterogeneous_agents", "lora_agents", "ppo_math",
    "quickstart.simple_ppo", "rlhf", "router_r1_math_qwen", "train_code_ppo", "train_grpo_math",
    "train_tool_use_ppo", "world_model", "train_math_ppo", "train_multi_environment",
    "train_hybrid_sft_ppo", "qmix_game", "remote_environment", "two_writers",
}  # fmt: skip
"""Those whose short form is left to the long one: others show the same parts."""

UNTRAINED = {"outside_agents"}
"""Those in which nothing is learned; `make test-extras` runs them with the libraries they show."""

SAYS = {
    "ppo_math": "reward", "rlhf": "reward", "all_trainers": "sft ok",
    "magrpo_collaboration": "reward", "own_loop": "grad True",
    "multi_agent_rollout": "The answer is 5", "custom_environment": "reward",
    "custom_workflow": "eval/reward/mean",
}  # fmt: skip
"""Those without arguments, and a word that each prints."""
ELSEWHERE = {"own_loop"}
"""Those that always run on another model, too."""
PROGRAMS = [FOLDER / f"{name}.py" for name in SAYS]

NUMBERS = re.compile(r"(?:reward|rating|loss|margins)\S* (-?[\d.]+)(?: -> (-?[\d.]+))+")


def output_of(launcher: Launcher, program: Path, folder: Path, model: str = "") -> str:
    started = launcher.start([str(program)], folder, MRLM_MODEL=model)
    assert started.wait() == 0, started.err.read_text()[-3000:]
    return started.out.read_text()


def test_every_example_is_run() -> None:
    found = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py")
    }
    assert found == {*SHORT, *SAYS}
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    missing = {path.name for path in FOLDER.rglob("*.*") if path.suffix in (".py", ".yaml")}
    assert not {name for name in missing if name not in page}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in SHORT]
)
def test_an_example_runs_in_its_short_form(
    name: str, gpt2_path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a model of another family, named by MRLM_MODEL."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("MRLM_MODEL", gpt2_path)
    arguments = SHORT[name].split()
    if name == "train_from_config":
        arguments = [str(FOLDER / "train_from_config.yaml"), *arguments]
    main: Callable[[list[str]], None] = importlib.import_module(name).main
    main(arguments)
    said = capsys.readouterr().out
    assert NUMBERS.search(said) or (name in UNTRAINED and "\nreward " in said)
    assert Path("outputs").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SHORT if name not in UNTRAINED])
def test_an_example_shows_what_it_says(name: str, tmp_path: Path, launcher: Launcher) -> None:
    """At full length: whatever it prints as `reward a -> b` has risen, and a loss has fallen."""
    program = FOLDER.joinpath(*name.split(".")).with_suffix(".py")
    said = output_of(launcher, program, tmp_path)
    found = [match for match in map(NUMBERS.search, said.splitlines()) if match]
    assert found
    for match in found:
        first, last = float(match[1]), float(match[2])
        assert (last < first) if match[0].startswith("loss") else (last > first), match[0]


@pytest.mark.slow
def test_several_processes_train_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started by torchrun with either strategy, two processes come to the numbers of one. What
    Adam makes of rounding grows from step to step, so weights are compared after the first stage
    and losses up to the first step of the second; the largest ratio of its four optimiser steps is
    compared less closely."""
    monkeypatch.syspath_prepend(str(FOLDER))
    one = tmp_path / "one"
    one.mkdir()
    monkeypatch.chdir(one)
    importlib.import_module("train_distributed_ppo").main(["--steps", "2"])
    assert "1 process(es), 1 thread(s) each" in capsys.readouterr().out
    for strategy in ("ddp", "fsdp"):
        under_torchrun(tmp_path / strategy, strategy)
        first, second = (
            ranks.differences(one / stage, tmp_path / strategy / stage, rows)
            for stage, rows in ((STAGES[0], None), (STAGES[1], 2))
        )
        weights = first.pop("final/model.safetensors")
        assert weights < 2e-4, (strategy, "the learning rate is 1e-3")
        assert max(first.values()) < 1e-5, (strategy, first)
        numbers = {name: gap for name, gap in second.items() if not name.startswith("final/")}
        assert {"loss", "reward/mean", "value_loss", "grad_norm"} <= numbers.keys()
        assert numbers.pop("ratio_max") < 1e-2, strategy
        assert max(numbers.values()) < 1e-3, (strategy, numbers)


STAGES = [f"outputs/train_distributed_ppo/{name}" for name in ("1-words", "2-play")]


def under_torchrun(folder: Path, strategy: str) -> None:
    """The example in two processes that torchrun starts in a folder."""
    folder.mkdir()
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*start, str(FOLDER / "train_distributed_ppo.py"), "--steps", "2", "--strategy", strategy],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 process(es), 1 thread(s) each") == 1


@pytest.mark.parametrize(
    "program",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LONG)) for path in PROGRAMS],
    ids=lambda path: path.stem,
)
def test_an_example_runs(program: Path, tmp_path: Path, launcher: Launcher) -> None:
    assert SAYS[program.stem] in output_of(launcher, program, tmp_path)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem not in ELSEWHERE))
        for path in PROGRAMS
    ],
    ids=lambda path: path.stem,
)
def test_an_example_runs_on_another_model(
    program: Path, tmp_path: Path, gpt2_path: str, launcher: Launcher
) -> None:
    assert SAYS[program.stem] in output_of(launcher, program, tmp_path, gpt2_path)


def test_a_run_evaluates_on_a_server_that_is_started_beside_it(run: Mrlm) -> None:
    """The last lines of a shell script: a server in the background, `mrlm info` that waits for it,
    and a run whose world lives there."""
    server = Process("code", "math", "debate")
    try:
        told = run("info", "--server", server.address, "--wait", "60")
        assert told.code == 0 and "code, math, debate" in told.out, told
        worlds = f'eval_envs=[{{env_type: math, remote: true, server_address: "{server.address}"}}]'
        config = ROOT / "configs" / "code_generation_ppo.yaml"
        words = ["--config", config, "--output", "outputs/remote", "training.num_iterations=1"]
        done = run("train", *words, worlds)
        assert done.code == 0, done.err
    finally:
        server.kill()
    assert Path("outputs/remote/final").is_dir()
