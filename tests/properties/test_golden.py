"""Equal seeds, equal bits: the losses and weights of every algorithm agree between runs of one
process and between processes.

What is compared are runs with each other, on the machine the tests run on; no number is stored,
because the last bits of a sum differ between machines.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from forking import Launcher
from mrlm import load_config, run_experiment
from mrlm.learn.checkpoint import MANIFEST
from places import IMPORTS
from tiny_runs import KINDS, config_of, some

pytestmark = pytest.mark.system

TWICE: set[str] = set()
"""Those that are always run a second time in this process: none, since two processes run them in
opposite orders; all are slow tests."""
ELSEWHERE = "test_equal_bit_by_bit_in_two_processes"
PROGRAM = """
import json, sys
sys.path += {!r}.split({!r})
from mrlm import load_config, run_experiment
for path in json.loads(sys.argv[1]):
    run_experiment(load_config(path))
"""


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


@pytest.mark.slow
def test_another_seed_gives_other_losses(tmp_path: Path) -> None:
    for seed in (11, 12):
        config = load_config(config_of("ppo", tmp_path, f"{seed}"), [f"training.seed={seed}"])
        run_experiment(config)
    assert losses(tmp_path / "11") != losses(tmp_path / "12")
    assert weights(tmp_path / "11") != weights(tmp_path / "12")
