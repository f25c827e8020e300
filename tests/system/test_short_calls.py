"""A trainer that is called again and again: what is saved when, in real programs."""

import signal
from pathlib import Path

import pytest

from forking import Launcher
from mrlm import ExperimentConfig, Trainer
from mrlm.learn.checkpoint import checkpoints, step_of

PROGRAM = """
import os, signal, sys
from mrlm import Trainer
from mrlm.config import load_config

trainer = Trainer(config=load_config(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    trainer.train(num_iterations=1)
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def settings(folder: Path, **training: object) -> ExperimentConfig:
    return ExperimentConfig(
        model={"model_name_or_path": "mrlm/tiny"},
        environments=[{"env_type": "relay"}],
        policies={"base": {}},
        training={"algorithm": "sft", "learning_rate": 1e-3, "report_to": "none", **training},
        sft={"teacher": "expert"},
        output_dir=str(folder),
    )


def saved(folder: Path) -> list[int]:
    """Steps of the checkpoints."""
    return sorted(map(step_of, checkpoints(folder)))


def run(launcher: Launcher, folder: Path, calls: int, end: str, **training: object) -> int:
    config = folder.parent / "config.yaml"
    settings(folder, **training).save(config)
    program = folder.parent / "program.py"
    program.write_text(PROGRAM)
    return launcher.run([str(program), str(config), str(calls), end], folder.parent).code


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_a_program_that_ends_leaves_its_last_step(launcher: Launcher, tmp_path: Path) -> None:
    assert run(launcher, tmp_path / "run", 4, "ends") == 0
    assert saved(tmp_path / "run") == [1, 4], "that of the first call, and that of the last"
    model = tmp_path / "run" / "checkpoint-4"
    policies = {path.read_bytes() for path in model.rglob("model.safetensors")}
    assert weights(tmp_path / "run" / "final") in policies


def test_a_program_that_is_killed_continues_from_the_checkpoint_that_was_due(
    launcher: Launcher, tmp_path: Path
) -> None:
    assert run(launcher, tmp_path / "run", 5, "killed", save_steps=2) == -signal.SIGKILL
    assert saved(tmp_path / "run") == [2, 4]
    trainer = Trainer(config=settings(tmp_path / "run", save_steps=2))
    result = trainer.train(num_iterations=6, resume_from_checkpoint=True)
    assert [row["step"] for row in result.history] == [1, 2, 3, 4, 5, 6]


def test_calls_save_when_they_are_told_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trainer = Trainer(config=settings(folder))
    trainer.train(num_iterations=1)
    first = weights(folder / "final")
    trainer.train(num_iterations=1)
    assert saved(folder) == [1] and weights(folder / "final") == first
    trainer.save()
    assert saved(folder) == [1, 2] and weights(folder / "final") != first
    before = (folder / "final").stat().st_ino
    trainer.save()  # nothing is unsaved
    assert (folder / "final").stat().st_ino == before
    trainer.train(num_iterations=1, save=True)
    assert saved(folder) == [2, 3]
    trainer.train(num_iterations=1)
    del trainer
    assert saved(folder) == [3, 4], "a trainer that is dropped saves its last step"


def test_the_first_call_may_leave_it_to_the_end(tmp_path: Path) -> None:
    trainer = Trainer(config=settings(tmp_path / "run"))
    trainer.train(num_iterations=1, save=False)
    assert saved(tmp_path / "run") == [] and not (tmp_path / "run" / "final").exists()
    trainer.train(num_iterations=2, resume_from_checkpoint=True)
    assert saved(tmp_path / "run") == [1, 2], "it was saved before it was read"


def test_a_call_that_fails_saves_no_half_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    trainer = Trainer(config=settings(folder))
    trainer.train(num_iterations=1)
    trainer.train(num_iterations=1)

    def fails(groups: object) -> None:
        raise RuntimeError("half way")

    monkeypatch.setattr(type(trainer.run.algorithm), "credit", lambda self, groups: fails(groups))
    with pytest.raises(RuntimeError, match="half way"):
        trainer.train(num_iterations=1)
    trainer.save()
    assert saved(folder) == [1]


def test_a_folder_that_another_run_has_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    first, second = (Trainer(config=settings(folder)) for _ in range(2))
    for _ in range(2):
        first.train(num_iterations=1)
    second.train(num_iterations=1)  # the folder of the first is moved aside
    first.save()
    assert saved(folder) == [1] and "is used by another run" in caplog.text
