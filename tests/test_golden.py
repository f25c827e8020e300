"""Equal seeds, equal bits: the losses of every algorithm agree between runs of one process and
between processes.

What is compared are runs with each other, on the machine the tests run on; no number is stored,
because the last bits of a sum differ between machines.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mrlm import Environment, Message, Observation, Reward, StepResult, load_config, run_experiment
from mrlm.core import registry

NAMES = registry.names("algorithms")
PAIRS = [{"prompt": f"{i}+1?", "chosen": f"it is {i + 1}", "rejected": "no"} for i in range(8)]
ANSWERS = [{"prompt": f"{i}+1?", "completion": f"it is {i + 1}"} for i in range(8)]
ROWS = {"dpo": PAIRS, "reward_model": PAIRS, "sft": ANSWERS, "spin": ANSWERS}
TREES = {"at_grpo"}
"""Algorithms that compare answers to one state."""
PROGRAM = """
import json, sys
from mrlm import load_config, run_experiment
for path in json.loads(sys.argv[1]):
    run_experiment(load_config(path))
"""


class Letters(Environment):
    """Two agents speak one after the other; each is paid for what a random model writes often."""

    agents = ("a", "b")
    max_turns = 2

    def reset(self, task: Any = None, seed: int | None = None) -> StepResult:
        self.waiting = ["b"]
        return StepResult({"a": Observation([Message(f"number {(seed or 0) % 10}")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        ((agent, message),) = actions.items()
        paid = Reward(sum(ord(letter) % 2 for letter in message.content) / 6)
        seen = {name: Observation([Message(message.content)]) for name in self.waiting}
        self.waiting = []
        return StepResult(seen, {agent: paid}, done=not seen)


def config_of(name: str, folder: Path, output: str) -> Path:
    """A config of three iterations with everything small, written as a file."""
    config: dict[str, Any] = {
        "experiment_name": name,
        "output_dir": str(folder / output),
        "training": {
            "algorithm": name,
            "num_iterations": 3,
            "batch_size": 8,
            "learning_rate": 1.0e-3,
            "seed": 11,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 6},
    }
    if name in ROWS:
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
        config["data"] = {"dataset": str(data)}
    else:
        config["environments"] = [{"env_type": "test_golden:Letters"}]
    if name in TREES:
        config["workflow"] = {"name": "tree", "branches": 2}
    path = folder / f"{name}-{output}.json"
    path.write_text(json.dumps(config))
    return path


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if row.get("loss") is not None]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder where one other process ran every algorithm, in this order."""
    folder = tmp_path_factory.mktemp("elsewhere")
    paths = [str(config_of(name, folder, f"{name}-run")) for name in NAMES]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(paths)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_equal_bit_by_bit(name: str, elsewhere: Path, tmp_path: Path) -> None:
    runs = []
    for output in ("one", "two"):
        run_experiment(load_config(config_of(name, tmp_path, output)))
        runs.append(losses(tmp_path / output))
    assert len(runs[0]) == 3 and all(map(math.isfinite, runs[0]))
    assert len(set(runs[0])) > 1, "the losses of three iterations should not all be equal"
    assert runs[0] == runs[1] == losses(elsewhere / f"{name}-run")


def test_another_seed_gives_other_losses(elsewhere: Path, tmp_path: Path) -> None:
    config = load_config(config_of("ppo", tmp_path, "other"), ["training.seed=12"])
    run_experiment(config)
    assert losses(tmp_path / "other") != losses(elsewhere / "ppo-run")
