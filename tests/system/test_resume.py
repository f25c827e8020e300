"""A run that was stopped, killed or interrupted goes on as if nothing had happened."""

import json
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from forking import Launcher, Started
from grids import quick
from logged_rows import CONFIG, Stop, logged
from mrlm import ExperimentConfig, load_config, run_experiment
from mrlm.core.errors import ConfigError
from mrlm.learn.checkpoint import checkpoints, verify
from mrlm.training.checks import check_first_step


def write(path: Path, **training: Any) -> Path:
    config = json.loads(json.dumps(CONFIG))
    config["training"] |= training
    path.write_text(yaml.safe_dump(config))
    return path


def command(config: Path, folder: Path, resume: bool) -> list[str]:
    more = ["--resume", str(folder)] if resume else []
    return ["mrlm", "train", "--config", str(config), "--output", str(folder), *more]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    config = write(folder / "config-in.yaml")
    run_experiment(load_config(config, [f"output_dir={folder / 'run'}"]))
    return config, logged(folder / "run")


@pytest.mark.slow  # `test_golden.py` has the same with every algorithm
def test_two_runs_of_one_config_log_the_same_numbers(
    undisturbed: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    config, expected = undisturbed
    run_experiment(load_config(config, [f"output_dir={tmp_path / 'run'}"]))
    assert logged(tmp_path / "run") == expected
    assert [row["step"] for row in expected] == list(range(9))
    assert all(row["loss"] is not None for row in expected[1:])


@pytest.mark.slow
def test_a_run_that_was_stopped_in_the_middle_goes_on_bit_by_bit(
    undisturbed: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    config, expected = undisturbed

    loaded = load_config(config, [f"output_dir={tmp_path / 'run'}"])
    run_experiment(loaded, callbacks=[Stop(3)])
    assert [row["step"] for row in logged(tmp_path / "run")] == [0, 1, 2, 3]
    run_experiment(loaded, resume=tmp_path / "run")
    assert logged(tmp_path / "run") == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("mappo", {"critic_warmup": 4}),
        ("ippo", {"critic": "separate", "rewards": "team", "critic_warmup": 2}),
    ],
)
def test_a_critic_with_a_network_of_its_own_goes_on_bit_by_bit(
    algorithm: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Beside a whole model and an adapter with dropout, stopped during the warm-up and after it."""
    config = {key: value for key, value in CONFIG.items() if key != "ppo"}
    config["training"] = CONFIG["training"] | {"algorithm": algorithm, "num_iterations": 6}
    config[algorithm] = {"num_minibatches": 2, "update_epochs": 2, **settings}
    config["environments"] = [{"env_type": "talking:Pair"}]
    (tmp_path / "in.yaml").write_text(yaml.safe_dump(config))

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_experiment(load_config(tmp_path / "in.yaml", [f"output_dir={whole}"]))
    loaded = load_config(tmp_path / "in.yaml", [f"output_dir={parts}"])
    run_experiment(loaded, callbacks=[Stop(1, 4)])
    run_experiment(loaded, callbacks=[Stop(1, 4)], resume=parts)
    run_experiment(loaded, resume=parts)
    expected = logged(whole)
    assert logged(parts) == expected
    assert [row["step"] for row in expected] == list(range(7))
    assert all(row["value_loss"] > 0 for row in expected[1:])
    assert expected[1]["critic_warmup"] == 1.0 and "loss" not in expected[1]
    assert expected[-1]["critic_warmup"] == 0.0 and "loss" in expected[-1]
    assert not list((parts / "final").rglob("*critic*"))


def test_an_older_checkpoint_serves_when_the_newest_is_damaged(
    undisturbed: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    config, expected = undisturbed
    loaded = load_config(config, [f"output_dir={tmp_path / 'run'}"])
    run_experiment(loaded)
    newest = checkpoints(tmp_path / "run")[0]
    weights = next((newest / "policies" / "first").glob("*.safetensors"))
    whole = bytearray(weights.read_bytes())
    whole[len(whole) // 2] ^= 1
    weights.write_bytes(bytes(whole))
    run_experiment(loaded, resume=tmp_path / "run")
    assert logged(tmp_path / "run") == expected


def test_a_checkpoint_that_was_about_to_be_removed_goes_when_the_run_is_resumed(
    undisturbed: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """A kill between the last checkpoint and the removal of the oldest: no other one is written."""
    config, expected = undisturbed
    folder = tmp_path / "run"
    shutil.copytree(config.parent / "run", folder)
    kept = checkpoints(folder)
    shutil.copytree(kept[-1], folder / "checkpoint-5")
    run_experiment(load_config(config, [f"output_dir={folder}"]), resume=folder)
    assert checkpoints(folder) == kept
    assert logged(folder) == expected


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 0)) for seed in range(10)]
)
def test_kill_minus_nine_loses_nothing(
    seed: int, undisturbed: tuple[Path, list[dict[str, Any]]], tmp_path: Path, launcher: Launcher
) -> None:
    """Killed at a random moment (while playing, learning or writing) and started again."""
    config, expected = undisturbed
    folder, rng = tmp_path / "run", random.Random(seed)
    killed = launcher.start(command(config, folder, False), tmp_path)
    wait_for(folder / "metrics.jsonl", rng.randrange(1, 7), killed)
    time.sleep(rng.random() * 0.2)
    killed.send(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    again = launcher.start(command(config, folder, bool(checkpoints(folder))), tmp_path)
    assert again.wait() == 0, again.err.read_text()[-2000:]
    assert logged(folder) == expected
    assert not list(folder.glob(".*tmp*"))
    assert all(verify(path) is None for path in checkpoints(folder))


def wait_for(lines: Path, number: int, process: Started) -> None:
    """Return once a file has more lines than that."""
    while process.runs:
        if lines.exists() and len(lines.read_bytes().splitlines()) > number:
            break
        time.sleep(0.01)


@pytest.mark.parametrize("number", quick([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_an_interrupted_run_saves_itself_and_exits_130(
    number: int, tmp_path: Path, launcher: Launcher
) -> None:
    config = write(tmp_path / "in.yaml", num_iterations=500, save_steps=None)
    folder = tmp_path / "run"
    process = launcher.start(command(config, folder, False), tmp_path)
    wait_for(folder / "metrics.jsonl", 2, process)
    process.send(number)
    assert process.wait() == 130, process.err.read_text()[-2000:]
    said = process.err.read_text()
    lines = [line for line in said.splitlines() if line.startswith("interrupted")]
    assert len(lines) == 1 and "Traceback" not in said
    (saved,) = checkpoints(folder)
    assert verify(saved) is None
    steps = [row["step"] for row in logged(folder)]
    assert saved.name == f"checkpoint-{steps[-1]}"


def test_another_config_is_refused_with_what_differs(tmp_path: Path) -> None:
    config = write(tmp_path / "in.yaml", num_iterations=1)
    folder = tmp_path / "run"
    run_experiment(load_config(config, [f"output_dir={folder}"]))
    other = load_config(config, [f"output_dir={folder}", "training.learning_rate=0.5"])
    with pytest.raises(ConfigError, match=r"training.learning_rate: 0.001 -> 0.5"):
        run_experiment(other, resume=folder)
    longer = load_config(config, [f"output_dir={folder}", "training.num_iterations=2"])
    assert [row["step"] for row in run_experiment(longer, resume=folder).history] == [0, 1, 2]


@pytest.mark.parametrize("policies", [{}, CONFIG["policies"]], ids=["usual", "named"])
def test_a_later_stage_goes_on_with_the_models_that_it_took_over(
    policies: dict[str, Any], tmp_path: Path
) -> None:
    stages = [{"name": n, "training": {"num_iterations": k}} for n, k in (("a", 1), ("b", 3))]
    config = ExperimentConfig(**CONFIG | {"policies": policies, "stages": stages, "evaluation": {}})
    run_experiment(config.merged({"output_dir": str(tmp_path / "whole")}))
    run_experiment(config.merged({"output_dir": str(tmp_path / "parts")}), callbacks=[Stop(2)])
    folder = (tmp_path / "parts").rename(tmp_path / "moved")
    assert len(logged(folder / "2-b")) == 2
    parts = config.merged({"output_dir": str(folder)})
    other = parts.merged({"training.learning_rate": 0.5})
    with pytest.raises(ConfigError, match=r"another config.*:\n  training\.learning_rate: .*$"):
        run_experiment(other, resume=folder)
    run_experiment(parts, resume=folder)
    assert logged(folder / "2-b") == logged(tmp_path / "whole" / "2-b")


def test_a_trainer_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training twice is training once for as long, and checks the first step once."""
    from mrlm import MAGRPOTrainer
    from mrlm.environments.relay import RelayEnvironment

    def trainer(name: str) -> Any:
        words = {"num_generations": 2, "max_new_tokens": 2, "report_to": "none"}
        return MAGRPOTrainer(
            environment=RelayEnvironment(), output_dir=str(tmp_path / name), batch_size=2, **words
        )

    checks = Mock(wraps=check_first_step)
    monkeypatch.setattr(sys.modules["mrlm.train"], "check_first_step", checks)
    parts = trainer("parts")
    parts.evaluate(episodes=2)
    parts.train(num_iterations=2)
    parts.train(num_iterations=1)
    assert checks.call_count == 1
    parts.save_model(tmp_path / "saved")
    trainer("whole").train(num_iterations=3)
    assert logged(tmp_path / "parts") == logged(tmp_path / "whole")
    again = trainer("parts")
    result = again.train(num_iterations=4, resume_from_checkpoint=True)
    assert [row["step"] for row in result.history] == [1, 2, 3, 4]
    assert (tmp_path / "saved" / "second" / "config.json").is_file()
