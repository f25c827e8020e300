"""Where Linux ends: what only it has is missing, and the GPU has no float64."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from forking import Launcher
from mrlm.core.errors import ModelError
from mrlm.learn.policy.loading import pick_device
from places import ROOT

QUICKSTART = """
import psutil, rich.console, sysconfig, tensorboardX, torch, transformers, typer, zoneinfo
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM
sysconfig.get_config_vars()
import other_system
other_system.become()
import sys
from mrlm.sandbox import open_sandbox
try:
    open_sandbox()
except Exception as error:
    print(error)
from mrlm import ExperimentConfig, run_experiment
for env in ("code", "class_completion", "code_collaboration"):
    try:
        run_experiment(ExperimentConfig(environments=[{"env_type": env}], output_dir="none"))
    except Exception as error:
        print(type(error).__name__, error)
sys.argv = ["mrlm", "quickstart", "--steps", "1", "--quiet"]
from mrlm.__main__ import main
main()
"""
NO_FLOAT64 = """
import json, sys
import fake_accelerator
from mrlm import load_config, run_experiment
from mrlm.learn.fast import double
fake_accelerator.register(float64=False)
double.WITHOUT_FLOAT64.add("fake")
short = ["stages.0.training.num_iterations=1", "stages.1.training.num_iterations=1",
         "evaluation.episodes=2", "model.device=fake"]
for path in json.loads(sys.argv[1]):
    run_experiment(load_config(path, [*short, f"experiment_name={len(path)}"]))
"""


def test_the_quickstart_needs_nothing_that_only_linux_has(tmp_path: Path) -> None:
    helpers = str(ROOT / "tests" / "helpers")
    ended = subprocess.run(
        [sys.executable, "-c", QUICKSTART],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([helpers, *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    for env in ("code", "class_completion", "code_collaboration"):  # before models are loaded
        assert f"ConfigError environment {env!r} runs programs that a model writes" in ended.stdout
    assert not (tmp_path / "none").exists()
    assert "on Linux only, not on darwin" in ended.stdout and "isolation: docker" in ended.stdout
    assert (tmp_path / "outputs" / "quickstart" / "final").is_dir()


@pytest.mark.parametrize("names", [
    ["grpo"],
    pytest.param(["ippo", "mappo", "qmix", "sac", "maporl", "matpo"], marks=pytest.mark.slow),
])  # fmt: skip
def test_runs_need_no_float64_on_their_device(
    names: list[str], launcher: Launcher, tmp_path: Path
) -> None:
    paths = [str(ROOT / "configs" / f"{name}.yaml") for name in names]
    (tmp_path / "program.py").write_text(NO_FLOAT64)
    helpers = str(ROOT / "tests" / "helpers")
    words = [str(tmp_path / "program.py"), json.dumps(paths)]
    ended = launcher.run(words, tmp_path, PYTHONPATH=helpers)
    assert ended.code == 0, ended.err[-2000:]


def test_the_gpu_of_a_mac_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="no Mac with a GPU"):
        pick_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto").type == "mps" and pick_device("mps").type == "mps"
