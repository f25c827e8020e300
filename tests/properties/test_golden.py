"""Equal seeds, equal bits: the losses and weights of every algorithm agree between runs of one
process and between processes.

What is compared are runs with each other, on the machine the tests run on; no number is stored,
because the last bits of a sum differ between machines.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from forking import Launcher
from mrlm import Environment, Message, Observation, Reward, StepResult, load_config, run_experiment
from mrlm.core import registry
from mrlm.learn.checkpoint import MANIFEST
from places import IMPORTS

NAMES = registry.names("algorithms")
PAIRS = [{"prompt": f"{i}+1?", "chosen": f"it is {i + 1}", "rejected": "no"} for i in range(8)]
ANSWERS = [{"prompt": f"{i}+1?", "completion": f"it is {i + 1}"} for i in range(8)]
ROWS = {"dpo": PAIRS, "reward_model": PAIRS, "sft": ANSWERS, "spin": ANSWERS}
SMALLER = {
    **{name: {"group_size": 4} for name in ("grpo", "dr_mas", "marshal", "matpo", "rema")},
    "maporl": {"num_minibatches": 2},
}
"""Settings of those whose own are large."""
TREES = {"at_grpo"}
"""Algorithms that compare answers to one state."""
KINDS = {"sft", "dpo", "grpo", "ppo", "mappo", "qmix", "spiral"}
"""One of each kind; the others are slow tests."""
TWICE = {"grpo"}
"""Those that are always run a second time in this process; the others are slow tests."""
ELSEWHERE = "test_equal_bit_by_bit_in_two_processes"
PROGRAM = """
import json, sys
sys.path += {!r}.split({!r})
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
    """A config of two iterations with everything small, written as a file."""
    config: dict[str, Any] = {
        "experiment_name": name,
        "output_dir": str(folder / output),
        "training": {
            "algorithm": name,
            "num_iterations": 2,
            "batch_size": 4,
            "learning_rate": 1.0e-3,
            "seed": 11,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 6},
    }
    if name in SMALLER:
        config[name] = SMALLER[name]
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


def losses(folder: Path) -> list[tuple[float, float]]:
    """The loss of every iteration, and the norm of its gradient."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("loss") is not None]
    return [(row["loss"], row["grad_norm"]) for row in rows]


def weights(folder: Path) -> dict[str, str]:
    """File -> digest of the policies that came of a run."""
    digests = json.loads((folder / "final" / MANIFEST).read_text())
    return {file: digest for file, digest in digests.items() if file.endswith(".safetensors")}


@pytest.fixture(scope="module")
def elsewhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, launcher: Launcher
) -> Path:
    """Folder where one other process ran every algorithm that is asked for, the last one first:
    what runs leave behind in a process is another thing there than here."""
    folder = tmp_path_factory.mktemp("elsewhere")
    asking: list[Any] = [item for item in request.session.items if ELSEWHERE in item.nodeid]
    names = [item.callspec.params["name"] for item in asking]
    paths = [str(config_of(name, folder, f"{name}-run")) for name in reversed(names)]
    program = folder / "program.py"
    program.write_text(PROGRAM.format(IMPORTS, os.pathsep))
    done = launcher.run([str(program), json.dumps(paths)], folder)
    assert done.code == 0, done.err[-3000:]
    return folder


def assert_equal(one: Path, two: Path) -> None:
    assert losses(one) == losses(two)
    assert weights(one) == weights(two) != {}


def some(kinds: set[str]) -> list[Any]:
    """All algorithms; those that are not of `kinds` are slow tests."""
    return [pytest.param(n, marks=[pytest.mark.slow] * (n not in kinds)) for n in NAMES]


@pytest.mark.parametrize("name", some(KINDS))
def test_equal_bit_by_bit_in_two_processes(name: str, elsewhere: Path, tmp_path: Path) -> None:
    run_experiment(load_config(config_of(name, tmp_path, "here")))
    found = losses(tmp_path / "here")
    assert len(found) == 2 and all(math.isfinite(number) for row in found for number in row)
    assert found[0] != found[1], "iterations should not be alike"
    assert_equal(tmp_path / "here", elsewhere / f"{name}-run")


@pytest.mark.parametrize("name", some(TWICE))
def test_equal_bit_by_bit_in_one_process(name: str, tmp_path: Path) -> None:
    for output in ("one", "two"):
        run_experiment(load_config(config_of(name, tmp_path, output)))
    assert_equal(tmp_path / "one", tmp_path / "two")


def test_another_seed_gives_other_losses(tmp_path: Path) -> None:
    for seed in (11, 12):
        config = load_config(config_of("ppo", tmp_path, f"{seed}"), [f"training.seed={seed}"])
        run_experiment(config)
    assert losses(tmp_path / "11") != losses(tmp_path / "12")
    assert weights(tmp_path / "11") != weights(tmp_path / "12")
