"""Everything the README and the docs show is run."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from pathlib import Path

import pytest
import yaml

from forking import Launcher
from mrlm.build.run import build
from mrlm.config import parse_config
from mrlm.experiment import dry_run, run_experiment
from places import ROOT


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(blocks("README.md", "python"))))
def test_a_program_of_the_readme_runs(number: int, launcher: Launcher) -> None:
    Path("program.py").write_text(blocks("README.md", "python")[number])
    done = launcher.run([str(Path("program.py").absolute())], Path.cwd())
    assert done.code == 0, done.err[-2000:]


@pytest.mark.parametrize(
    "program",
    [
        *blocks("docs/own_loop.md", "python"),
        *blocks("docs/environments.md", "python")[:2],
        *blocks("docs/coming_from/rllib.md", "python"),
        *blocks("docs/coming_from/verifiers.md", "python"),
    ],
)
def test_a_program_of_own_loops_runs(program: str, launcher: Launcher) -> None:
    Path("program.py").write_text(program)
    done = launcher.run([str(Path("program.py").absolute())], Path.cwd())
    assert done.code == 0, done.err[-2000:]


def test_the_commands_of_the_readme_run_on_its_yaml_which_learns(launcher: Launcher) -> None:
    (text,) = blocks("README.md", "yaml")
    name = re.match(r"# (\S+\.yaml)", text)
    assert name
    Path(name[1]).write_text(text)
    commands = [
        line
        for block in blocks("README.md", "bash")
        for line in block.splitlines()
        if line.startswith("mrlm ")
    ]
    assert len(commands) >= 5
    for line in commands:
        done = launcher.run(shlex.split(line), Path.cwd())
        assert done.code == 0, (line, done.err[-2000:])
    assert Path("outputs/two_writers/final/first/model.safetensors").is_file()
    assert Path("eval.json").is_file() and Path("trajectories.json").is_file()
    file = Path("outputs/two_writers/2-together/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    warmup = Path("outputs/two_writers/1-warmup/metrics.jsonl").read_text()
    before = json.loads(warmup.splitlines()[0])
    assert statistics.mean(rewards[-10:]) > before["eval/reward/mean"] + 0.4


def test_the_readme_says_nothing_is_missing_that_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Not yet" not in text and "is an error that says so" not in text
    linked = re.findall(r"\]\((docs/[^)#]+)\)", text)
    assert linked and all((ROOT / page).is_file() for page in linked)


def test_a_small_model_with_a_default_learning_rate_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = {
        "output_dir": str(tmp_path / "run"),
        "environments": [{"env_type": "relay"}],
        "training": {"num_iterations": 1, "batch_size": 2},
        "generation": {"max_new_tokens": 2},
    }
    with caplog.at_level("WARNING", logger="mrlm"):
        build(parse_config(data))
        assert "default of grpo, 1e-06" in caplog.text and "hardly changes" in caplog.text
        caplog.clear()
        build(parse_config(data, ["training.learning_rate=1e-3"]))
    assert "learning_rate" not in caplog.text


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake (\w+)", (ROOT / "README.md").read_text()))
    assert {"quickstart", "test"} <= named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named - {"train"})


@pytest.mark.parametrize("number", range(len(blocks("docs/configuration.md", "yaml"))))
def test_a_configuration_of_the_docs_is_complete_and_runs(number: int) -> None:
    data = yaml.safe_load(blocks("docs/configuration.md", "yaml")[number])
    config = parse_config(data, (), "docs/configuration.md")
    text, problems = dry_run(config)
    assert "optimizer step" in text and not problems
    result = run_experiment(config)
    assert result.history and (result.run_folder / "final").exists()
