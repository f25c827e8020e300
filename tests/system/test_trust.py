"""Whoever reads a config of a stranger: no code of it runs, at any door, before it is trusted."""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Mrlm
from mrlm import load_config
from mrlm.config.trust import mark
from mrlm.core import registry
from mrlm.core.errors import ConfigError, PluginError

CODE = """\
import os, pathlib
pathlib.Path(os.environ["EVIDENCE"]).write_text("it ran")
from mrlm.algorithms.grpo import GRPO
from mrlm.environments.games.matrix import PLUGIN as E
"""
YAML = """\
environments: [{env_type: 'stranger:E', game: xor}]
policies: {p: {trainable: false, model: mrlm/tiny}}
agents: {a: {policy: p}, b: {policy: p}}
"""
DOORS = {
    "train": "train -c {}/team.yaml",
    "dry": "train --dry-run -c {}/team.yaml",
    "resume": "train --resume {}",
    "eval": "eval -c {}/team.yaml",
    "model": "eval --model {}",
    "collect": "collect -o x.json -c {}/team.yaml",
    "play": "play -c {}/team.yaml",
    "plan": "plan -c {}/team.yaml",
    "doctor": "doctor -c {}/team.yaml",
    "run": "doctor {}",
    "serve": "serve -c {}/team.yaml",
    "policies": "serve --policies-of {}/team.yaml",
    "replay": "replay {} -e train/0",
    "why": "why {} -e train/0",
}


@pytest.fixture
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that was pulled, a whole run: its modules write a file when they are imported."""
    folder = tmp_path / "pulled"
    (folder / "final").mkdir(parents=True)
    mark(folder, "stranger/team")
    (folder / "stranger.py").write_text(CODE)
    (folder / "team.yaml").write_text(YAML)
    rules = "training: {algorithm: 'stranger:GRPO', doctor_rules: {'stranger:E': {}}}\n"
    (folder / "config.yaml").write_text(YAML + rules)
    (folder / "final" / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 0.1}\n')
    row = {"schema": 2, "id": "train/0", "step": 1, "agents": {}, "status": "completed"}
    (folder / "episodes.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("EVIDENCE", str(tmp_path / "evidence"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield folder
    sys.modules.pop("stranger", None)
    os.environ.pop("_MRLM_TRUST", None)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("inside", [False, True])
def test_no_door_imports_a_strangers_code(
    door: str, inside: bool, pulled: Path, run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if inside:
        monkeypatch.chdir(pulled)
    done = run(*DOORS[door].format("." if inside else pulled).split())
    assert done.code == 2 and "Traceback" not in done.err
    assert "pulled from stranger/team; read the file, then add --trust" in done.err, done.err
    assert not Path(os.environ["EVIDENCE"]).exists() and "stranger" not in sys.modules


@pytest.mark.parametrize(
    "text", ["stranger:E", "'stranger :E'", "'str\u0430nger:E'", "'stranger: E'", "'1x:E'"]
)
def test_every_name_that_could_be_imported_is_asked_for(pulled: Path, text: str) -> None:
    (pulled / "team.yaml").write_text(YAML.replace("'stranger:E'", text), encoding="utf-8")
    with pytest.raises((ConfigError, PluginError)):
        config = load_config(pulled / "team.yaml")
        registry.load("environments", config.environments[0].env_type)
    assert not Path(os.environ["EVIDENCE"]).exists()


def test_a_strangers_modules_stand_in_for_no_library(pulled: Path) -> None:
    (pulled / "plain.yaml").write_text("environments: [{env_type: relay}]")
    load_config(pulled / "plain.yaml")
    importlib.invalidate_caches()
    assert importlib.util.find_spec("stranger") is None  # type: ignore[attr-defined]


def test_trust_is_given_aloud_and_code_is_named(pulled: Path, run: Mrlm) -> None:
    done = run("plan", "--trust", "-c", pulled / "team.yaml", "training.algorithm=grpo")
    assert Path(os.environ["EVIDENCE"]).exists(), done.err
    line = f"{pulled / 'stranger.py'} is imported, as stranger:E names it"
    assert done.err.count(line) == 1, done.err
    assert load_config(pulled / "team.yaml", trust=True).environments
    (pulled / "link").symlink_to(pulled / "team.yaml")
    outside = pulled.parent / "link.yaml"
    outside.symlink_to(pulled / "team.yaml")
    os.environ.pop("_MRLM_TRUST")
    for file in (pulled / "link", outside):
        with pytest.raises(ConfigError, match="--trust"):
            load_config(file)
