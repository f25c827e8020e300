"""Real runs with planted diseases are found by the rule that is meant to, and healthy ones raise no
alarm; what a run writes is what its folder shows, also after a resume."""

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
from benchmarks.learning.models import taught
from typer.testing import CliRunner

import ailing
import mrlm
from grids import quick
from mrlm import ExperimentConfig, run_experiment
from mrlm.cli import command_line
from mrlm.config.normalize import section_key
from mrlm.core.errors import CheckError, PluginError
from mrlm.doctor.alarm import ALARMS, alarms_in
from mrlm.tracking.run_log import Tracker


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that names the actions of the game alike, and stops."""
    return taught(tmp_path_factory.mktemp("doctor") / "base", "matrix", ailing.GAME, 0, 40)


def settings(base: Path, folder: Path, **changes: Any) -> ExperimentConfig:
    algorithm = changes.get("training.algorithm", "magrpo")
    given: dict[str, Any] = {section_key(algorithm): {"group_size": 8}}
    config = ExperimentConfig(
        output_dir=str(folder),
        model={"model_name_or_path": str(base)},
        environments=[ailing.GAME],
        policies={"row": {}, "column": {}},
        training=ailing.TRAINING | {"algorithm": algorithm},
        generation={"max_new_tokens": 3},
        evaluation={"episodes": 0},
        **given,
    )
    return config.merged(changes)


def of_class(name: str) -> list[dict[str, Any]]:
    return [{**ailing.GAME, "env_type": f"ailing:{name}"}]


DISEASES: dict[str, tuple[dict[str, Any], str, int]] = {
    "constant reward": ({"environments": of_class("Constant")}, "nothing_learned", 9),
    "swapped sign": ({"training.algorithm": "ailing:Descent"}, "cliff", 13),
    "masked stop token": ({"training.algorithm": "ailing:NeverStops"}, "template", 3),
    "stale sampler": ({"engine.name": "ailing:Stale", "training.checks": "off"}, "sampler", 5),
    "hackable component": ({"environments": of_class("Hackable")}, "reward_hacking", 16),
    "mute agent": ({}, "lazy_agent", 9),
}
"""Disease -> settings with it, the rule that finds it, and the steps that suffice."""


def doctor(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    found = CliRunner().invoke(command_line(), ["doctor", *arguments, "--json"])
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    if Path(arguments[0] if arguments else "--").is_dir():
        examined = rows.pop()
        assert examined["ready"] <= examined["rules"]
    return found.exit_code, rows


@pytest.mark.parametrize("name", quick(DISEASES, 2))
def test_a_planted_disease_is_found(name: str, base: Path, tmp_path: Path) -> None:
    changes, rule, steps = DISEASES[name]
    if name == "mute agent":
        silent = str(ailing.mute(base, tmp_path / "mute"))
        changes = {"policies": {"column": {"model": silent}}}
    changes = {**changes, "training.num_iterations": steps}
    run_experiment(settings(base, tmp_path / "run", **changes))
    code, alarms = doctor(str(tmp_path / "run"))
    assert code == 1
    assert alarms[0]["rule"] == rule, alarms
    assert alarms[0]["evidence"]
    if name == "mute agent":
        assert alarms[0]["agent"] == alarms[0]["policy"] == "column"
    run = mrlm.read_run(tmp_path / "run")
    for each in alarms[0]["evidence"]:
        assert run.episode(each["id"], each["step"])
    assert [json.loads(line) for line in (tmp_path / "run" / ALARMS).open()] == alarms


def test_a_healthy_run_has_no_alarm(base: Path, tmp_path: Path) -> None:
    run_experiment(settings(base, tmp_path / "run", **{"training.learning_rate": 1e-3}))
    assert doctor(str(tmp_path / "run")) == (0, [])
    assert not (tmp_path / "run" / ALARMS).exists()


@pytest.mark.slow
def test_a_resumed_run_leaves_the_alarms_of_an_undisturbed_one(base: Path, tmp_path: Path) -> None:
    """One is stopped before the alarm, the other after it, by going back to before it."""
    ill = {
        "environments": of_class("Constant"),
        "training.num_iterations": 9,
        "training.save_steps": 1,
        "training.save_total_limit": 10,
    }
    run_experiment(settings(base, tmp_path / "whole", **ill))
    whole = (tmp_path / "whole" / ALARMS).read_bytes()
    assert len(whole.splitlines()) == 1
    for step in (5, 9):
        broken = tmp_path / f"broken-{step}"
        run_experiment(settings(base, broken, **ill | {"training.num_iterations": step}))
        for late in (8, 9):
            shutil.rmtree(broken / f"checkpoint-{late}", ignore_errors=True)
        again = settings(base, broken, **ill | {"training.doctor_rules": {"capture": False}})
        run_experiment(again, resume=broken)
        assert (broken / ALARMS).read_bytes() == whole


def test_an_alarm_stops_a_run_after_a_checkpoint(base: Path, tmp_path: Path) -> None:
    changes = {"environments": of_class("Constant"), "training.doctor": "stop"}
    with pytest.raises(CheckError, match=r"nothing_learned at step 8.*checkpoint-8 is saved"):
        run_experiment(settings(base, tmp_path / "run", **changes))
    assert (tmp_path / "run" / "checkpoint-8").is_dir()
    assert [alarm.rule for alarm in alarms_in(tmp_path / "run")] == ["nothing_learned"]
    off = {"environments": of_class("Constant"), "training.doctor": "off"}
    run_experiment(settings(base, tmp_path / "off", **off))
    assert not (tmp_path / "off" / ALARMS).exists()
    assert [alarm.rule for alarm in mrlm.examine(tmp_path / "off")] == ["nothing_learned"]


def test_a_run_takes_thresholds(base: Path, tmp_path: Path) -> None:
    ill = {"environments": of_class("Constant"), "training.num_iterations": 4}
    rules = {"nothing_learned": {"steps": 3}}
    run_experiment(settings(base, tmp_path / "run", **ill, **{"training.doctor_rules": rules}))
    (found,) = alarms_in(tmp_path / "run")
    assert (found.rule, found.step) == ("nothing_learned", 3)
    assert mrlm.examine(tmp_path / "run") == [found]
    assert mrlm.examine(tmp_path / "run", {}) == []
    wrong = settings(base, tmp_path / "wrong", **{"training.doctor_rules": {"entropie": False}})
    with pytest.raises(PluginError, match="did you mean 'entropy'"):
        run_experiment(wrong)
    assert not (tmp_path / "wrong").exists()


class Alerts(Tracker):
    """Keeps the alerts that it is sent."""

    sent: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, *arguments: object) -> None:
        pass

    def log(self, step: int, metrics: object) -> None:
        pass

    def alert(self, title: str, text: str) -> None:
        self.sent.append((title, text))

    def state(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def test_trackers_and_the_log_are_sent_an_alarm_once(base: Path, tmp_path: Path) -> None:
    Alerts.sent.clear()
    tracker = {"training.report_to": ["test_doctor_runs:Alerts"], "training.num_iterations": 12}
    run_experiment(settings(base, tmp_path / "run", environments=of_class("Constant"), **tracker))
    ((title, text),) = Alerts.sent
    assert title == "nothing_learned at step 8" and "all advantages are 0" in text
    assert (tmp_path / "run" / "run.log").read_text().count("doctor: nothing_learned") == 1


def test_a_config_is_checked_before_a_run(base: Path, tmp_path: Path) -> None:
    settings(base, tmp_path / "run").save(tmp_path / "sound.yaml")
    code, checks = doctor("--config", str(tmp_path / "sound.yaml"))
    shown = {check["check"]: check for check in checks}
    assert code == 0 and shown["episodes"]["text"] == "4 were played"
    assert "⟦" in shown["prompts"]["text"] and shown["stop token"]["verdict"] == "ok"
    settings(base, tmp_path / "run", environments=of_class("Constant")).save(tmp_path / "c.yaml")
    assert {c["check"]: c["verdict"] for c in doctor("-c", str(tmp_path / "c.yaml"))[1]}[
        "reward"
    ] == "warn"
    settings(base, tmp_path / "run", environments=of_class("Breaks")).save(tmp_path / "b.yaml")
    code, checks = doctor("--config", str(tmp_path / "b.yaml"), "generation.max_new_tokens=1")
    assert code == 1 and "out of order" in checks[-1]["text"]
    assert not (tmp_path / "run").exists()


def test_the_machine_is_checked() -> None:
    code, checks = doctor()
    names = [check["check"] for check in checks]
    assert names == ["versions", "gpu", "memory", "threads", "sandbox", "browser", "ports", "disk"]
    assert code == int(any(check["verdict"] == "fail" for check in checks))


def test_what_cannot_be_examined_is_one_error(tmp_path: Path) -> None:
    found = CliRunner().invoke(command_line(), ["doctor", str(tmp_path)])
    assert found.exit_code == 2 and "not a run folder" in found.stderr
    found = CliRunner().invoke(command_line(), ["doctor", "--centralised", str(tmp_path)])
    assert found.exit_code == 2 and "give its folder first" in found.stderr
