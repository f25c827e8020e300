"""A config means the same wherever it is started, and a run folder may be moved: paths are those of
the config file, and data that has changed is noticed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import Mrlm
from mrlm.config import ExperimentConfig, load_config

CONFIG: dict[str, Any] = {
    "experiment_name": "moved",
    "model": {"model_name_or_path": "models/base"},
    "environments": [{"env_type": "math", "dataset": "data/rows.jsonl"}],
    "training": {"num_iterations": 1, "batch_size": 2, "report_to": "none"},
    "grpo": {"group_size": 2},
    "generation": {"max_new_tokens": 2},
}


@pytest.fixture
def project(tiny_path: str) -> Path:
    """A project folder beside the current one: data, a model, a config."""
    folder = Path("project").absolute()
    shutil.copytree(tiny_path, folder / "models/base")
    (folder / "data").mkdir()
    rows = [json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) for n in range(12)]
    (folder / "data/rows.jsonl").write_text("\n".join(rows))
    (folder / "x.yaml").write_text(yaml.safe_dump(CONFIG))
    return folder


def train(run: Mrlm, *arguments: object) -> str:
    done = run("train", *arguments)
    assert done.code == 0, done.err
    return done.err


def test_paths_are_relative_to_the_config_file(project: Path, run: Mrlm) -> None:
    train(run, "--config", project / "x.yaml", "--output", "run")
    assert Path("run/final/model.safetensors").is_file()
    config = load_config(project / "x.yaml")
    assert config.model.model_name_or_path == str(project / "models/base")
    assert config.environments[0].parameters["dataset"] == str(project / "data/rows.jsonl")


def test_an_override_and_a_fallback_are_relative_to_the_current_folder(project: Path) -> None:
    shutil.copy(project / "data/rows.jsonl", "here.jsonl")
    config = load_config(project / "x.yaml", ["environments.0.dataset=here.jsonl"])
    assert config.environments[0].parameters["dataset"] == os.path.abspath("here.jsonl")
    (project / "y.yaml").write_text(
        yaml.safe_dump({**CONFIG, "environments": [{"env_type": "math", "dataset": "here.jsonl"}]})
    )
    found = load_config(project / "y.yaml").environments[0].parameters["dataset"]
    assert found == os.path.abspath("here.jsonl")
    names = {"model_name_or_path": "owner/model"}, {"env_type": "math", "dataset": "gsm8k"}
    (project / "z.yaml").write_text(
        yaml.safe_dump({**CONFIG, "model": names[0], "environments": [names[1]]})
    )
    config = load_config(project / "z.yaml")
    assert config.model.model_name_or_path == "owner/model"
    assert config.environments[0].parameters["dataset"] == "gsm8k"


def test_a_project_that_is_moved_as_a_whole_resumes_and_evaluates(
    project: Path, run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    train(run, "--config", "x.yaml", "--output", "runs/a")
    written = yaml.safe_load(Path("runs/a/config.yaml").read_text())
    assert written["environments"][0]["dataset"] == "../../data/rows.jsonl"
    place = project.with_name("elsewhere")
    monkeypatch.chdir(project.parent)
    project.rename(place)
    train(run, "--resume", place / "runs/a", "training.num_iterations=2")
    done = run("eval", "--model", place / "runs/a", "--num-episodes", "2")
    assert done.code == 0, done.err


@pytest.mark.slow
def test_a_run_folder_that_is_moved_alone_finds_its_data(
    project: Path, run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    train(run, "--config", "x.yaml", "--output", "runs/a")
    Path("deeper/and/deeper").mkdir(parents=True)
    Path("runs/a").rename("deeper/and/deeper/b")
    train(run, "--resume", "deeper/and/deeper/b", "training.num_iterations=2")
    # with the config it was started with, too
    more = ["--output", "deeper/and/deeper/b", "training.num_iterations=3"]
    train(run, "--config", "x.yaml", "--resume", "deeper/and/deeper/b", *more)
    rows = Path("deeper/and/deeper/b/metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2, 3]


def test_a_run_is_not_resumed_with_other_data(project: Path, run: Mrlm) -> None:
    train(run, "--config", project / "x.yaml", "--output", "run")
    file = project / "data/rows.jsonl"
    before = file.read_text()
    file.write_text(before.replace('"answer": "3"', '"answer": "4"'))
    resume = ["train", "--resume", "run", "training.num_iterations=2"]
    done = run(*resume)
    assert done.code == 2 and "data/rows.jsonl' has changed since the run began" in done.err
    file.unlink()
    done = run(*resume)
    assert done.code == 2 and "data/rows.jsonl" in done.err and "Traceback" not in done.err
    file.write_text(before)
    assert run(*resume).code == 0


def test_adapters_of_a_moved_project_find_their_base(
    project: Path, run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    train(run, "--config", "x.yaml", "--output", "runs/a", "model.lora.r=2")
    place = project.with_name("elsewhere")
    monkeypatch.chdir(project.parent)
    project.rename(place)
    done = run("eval", "--model", place / "runs/a", "--num-episodes", "2")
    assert done.code == 0, done.err
    train(run, "--resume", place / "runs/a", "training.num_iterations=2")


@pytest.mark.slow
def test_a_moved_pipeline_resumes(
    project: Path, run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [{"name": "one"}, {"name": "two", "data": {}}]
    (project / "x.yaml").write_text(yaml.safe_dump({**CONFIG, "stages": stages[:2]}))
    monkeypatch.chdir(project)
    train(run, "--config", "x.yaml", "--output", "runs/p")
    place = project.with_name("elsewhere")
    monkeypatch.chdir(project.parent)
    project.rename(place)
    again = ["--config", place / "x.yaml", "--resume", place / "runs/p"]
    assert "stage two is finished" in train(run, *again, "--output", place / "runs/p")
    done = run("eval", "--model", place / "runs/p/2-two", "--num-episodes", "2")
    assert done.code == 0, done.err


def test_a_config_of_python_is_saved_so_that_it_means_the_same(project: Path) -> None:
    config = ExperimentConfig(**CONFIG).merged({"data": {"dataset": "project/data/rows.jsonl"}})
    config.save(project / "saved.yaml")
    assert load_config(project / "saved.yaml").data.dataset == str(project / "data/rows.jsonl")
