"""Programs in examples/ run as they stand, each as a process of its own, on the embedded model and
on another family. (Those that take arguments are run by `test_examples.py`.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Mrlm
from commands import run as run_here  # noqa: F401
from example_programs import SAYS, run
from forking import Launcher
from places import ROOT
from servers import Process

ELSEWHERE = {"magrpo_collaboration", "own_loop"}
"""Those that always run on another model, too."""
EXAMPLES = [ROOT / "examples" / f"{name}.py" for name in SAYS]


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(program: Path, tmp_path: Path, launcher: Launcher) -> None:
    assert SAYS[program.stem] in run(launcher, program, tmp_path)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem not in ELSEWHERE))
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
def test_an_example_runs_on_another_model(
    program: Path, tmp_path: Path, gpt2_path: str, launcher: Launcher
) -> None:
    assert SAYS[program.stem] in run(launcher, program, tmp_path, gpt2_path)


def test_a_run_evaluates_on_a_server_that_is_started_beside_it(run_here: Mrlm) -> None:  # noqa: F811
    """The last lines of a shell script: a server in the background, `mrlm info` that waits for it,
    and a run whose world lives there."""
    server = Process("code", "math", "debate")
    try:
        told = run_here("info", "--server", server.address, "--wait", "60")
        assert told.code == 0 and "code, math, debate" in told.out, told
        worlds = f'eval_envs=[{{env_type: math, remote: true, server_address: "{server.address}"}}]'
        config = EXAMPLES[0].parent.parent / "configs" / "code_generation_ppo.yaml"
        words = ["--config", config, "--output", "outputs/remote", "training.num_iterations=1"]
        done = run_here("train", *words, worlds)
        assert done.code == 0, done.err
    finally:
        server.kill()
    assert Path("outputs/remote/final").is_dir()
