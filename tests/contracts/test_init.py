"""`mrlm init` and `mrlm quickstart`: files and texts; tests/system/test_wheel.py trains them."""

import io
import json
import sys
import unittest
from pathlib import Path

import pytest
import yaml

from commands import Mrlm
from mrlm import experiment
from mrlm.cli.quickstart import CONFIG
from mrlm.config import ExperimentConfig, load_config
from mrlm.runs import TrainResult
from places import ROOT


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "team", raising=False)


def test_answers_of_a_pipe_are_those_of_options(run: Mrlm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("writer, editor,judge\n\n\ndebate\n\n"))
    asked = run("init", "asked")
    assert asked.code == 0, asked.err
    assert "agents, separated by commas [solver,reviewer]: writer, editor,judge\n" in asked.out
    assert "data (file, name or hub id; examples: sums) [examples]: examples\n" in asked.out
    options = ("--agents", "writer,editor,judge", "--workflow", "debate", "--yes")
    given = run("init", "given", *options)
    assert given.code == 0 and "[" not in given.out.splitlines()[0], given.err
    files = ("config.yaml", "tasks.jsonl", "{}.py", "test_{}.py")
    for file in files:
        first, second = (Path(name, file.format(name)) for name in ("asked", "given"))
        text = first.read_text().replace("asked", "given").replace("Asked", "Given")
        assert text == second.read_text()
    shown = yaml.safe_load(Path("given/config.yaml").read_text())
    assert list(shown["agents"]) == ["writer", "editor", "judge"]
    assert shown["workflow"] == {"name": "debate"}


def test_it_shows_prompts_with_masks_and_memory_and_its_test_passes(run: Mrlm) -> None:
    done = run("init", "sums", "--yes", "--device", "h100")
    assert done.code == 0, done.err
    assert "You are the reviewer.<|im_end|>" in done.out and "⟦...<|im_end|>⟧" in done.out
    assert "policy shared: 426.4K weights (whole), 2 agent(s)\non h100, it fits: " in done.out
    assert "  mrlm train --config sums/config.yaml\n" in done.out
    assert "  mrlm plan --config sums/config.yaml --device h100\n" in done.out
    result = unittest.TestResult()
    unittest.TestLoader().discover("sums").run(result)
    assert result.testsRun == 3 and result.wasSuccessful(), result.failures + result.errors
    again = run("init", "sums", "--yes")
    assert again.code == 2 and "config.yaml exists already; give another FOLDER" in again.err


def test_own_data_and_a_large_model(run: Mrlm) -> None:
    Path("rows.jsonl").write_text(json.dumps({"question": "Which?", "answer": "this"}) + "\n")
    words = ("--data", "rows.jsonl", "--model", "Qwen/Qwen3-8B", "--agents", "one")
    done = run("init", "far/own", *words, "--yes", "--device", "a6000")
    assert done.code == 0, done.err
    config = load_config("far/own/config.yaml")
    assert config.environments[0].parameters["dataset"] == str(Path("rows.jsonl").resolve())
    assert '"../../rows.jsonl"' in Path("far/own/config.yaml").read_text()
    assert config.training.algorithm == "grpo" and not config.stages
    assert config.workflow.name == "single_turn" and config.model.device == "auto"
    assert "it does NOT fit" in done.out and "note: it does not fit: fsdp, LoRA" in done.out
    assert not Path("far/own/tasks.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--agents", "a,a"), "--agents 'a,a': names must be different"),
        (("--agents", "a b"), "--agents 'a b'"),
        (("--data", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--data", "pairs.jsonl"), "answer"),
        (("--workflow", "chian"), "did you mean 'chain'"),
        (("--device", "h10"), "did you mean 'h100'"),
        (("--workflow", "cross"), "plays every combination"),
        (("--workflow", "turns"), "does not decide whose answer counts"),
    ],
)
def test_a_wrong_answer_writes_nothing(words: tuple[str, str], message: str, run: Mrlm) -> None:
    Path("pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    done = run("init", "team", *words, "--yes")
    assert done.code == 2 and message in done.err, done
    assert not Path("team").exists()


@pytest.mark.parametrize(
    ("folder", "message"), [("My-Team", "not a module name"), ("json", "an installed module")]
)
def test_the_name_of_the_folder_is_that_of_a_module(folder: str, message: str, run: Mrlm) -> None:
    done = run("init", folder, "--yes")
    assert done.code == 2 and message in done.err


def test_the_quickstart_is_the_config_of_the_repository(
    run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ExperimentConfig] = []

    def ran(config: ExperimentConfig, resume: object) -> TrainResult:
        seen.append(config)
        return TrainResult({}, [], Path(config.output_dir or "outputs/quickstart"))

    monkeypatch.setattr(experiment, "run_experiment", ran)
    whole, short = run("quickstart"), run("quickstart", "--steps", "2", "-o", "short")
    assert (ROOT / "configs" / "quickstart.yaml").resolve() == CONFIG.resolve()
    assert seen[0].resolved() == load_config(CONFIG).resolved()
    assert [stage.training.num_iterations for _, stage in seen[1].stage_configs()] == [2, 2]
    assert "try next:\n  mrlm view outputs/quickstart\n" in whole.out
    assert "  mrlm view short\n" in short.out
