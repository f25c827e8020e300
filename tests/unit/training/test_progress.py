"""What a run says of its size, and how far a step is, through every entrance."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mrlm
from mrlm import ExperimentConfig, run_experiment
from mrlm.build.run_plan import RunPlan
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.tracking.run_log import RunLog

GAME = {"env_type": "matrix", "game": "xor", "normalized": True}
TRAINING = {"algorithm": "mappo", "num_iterations": 1, "batch_size": 4, "checks": "off"}
SIZE = "4 tasks x 1 sample = 4 episodes a step, 2 agents, 1 step"


def config(folder: Path, **more: Any) -> ExperimentConfig:
    return ExperimentConfig(
        output_dir=str(folder),
        environments=[GAME],
        training=TRAINING,
        generation={"max_new_tokens": 2},
        evaluation={"episodes": 3, "every": 1},
        **more,
    )


def counted(monkeypatch: pytest.MonkeyPatch, made: Counter[str], *kinds: type[Any]) -> None:
    """Count the calls of constructors by the names of their classes."""
    for kind in kinds:

        def init(self: Any, *args: Any, real: Any = kind.__init__, **named: Any) -> None:
            made[type(self).__name__] += 1
            real(self, *args, **named)

        monkeypatch.setattr(kind, "__init__", init)


def test_every_part_of_a_step_ends_with_all_of_its_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    def note(self: RunLog, what: str, done: int, total: int) -> None:
        seen.setdefault(what, []).append((done, total))

    monkeypatch.setattr(RunLog, "progress", note)
    result = run_experiment(config(tmp_path))
    assert SIZE in capsys.readouterr().out
    assert result.metrics["optimizer_steps"] > 0
    critic = next(name for name in seen if name.startswith("critic"))
    assert seen.keys() == {"episodes", "evaluation", "sequences", critic}
    for what, numbers in seen.items():
        done, total = zip(*numbers, strict=True)
        steps = zip(done, [*done[1:], 0], total, strict=True)
        assert all(one <= two or (one == most and two == 0) for one, two, most in steps), what
    assert seen["episodes"][-1] == (4, 4) and seen["evaluation"][-1] == (3, 3)


def test_stages_are_planned_once_and_stages_and_trainers_say_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: Counter[str] = Counter()
    counted(monkeypatch, made, ExperimentConfig, RunPlan, MatrixEnvironment)
    stages = [{"name": name, "training": TRAINING} for name in ("one", "two")]
    experiment = config(tmp_path / "stages", stages=stages)
    assert made == {"ExperimentConfig": 3}
    run_experiment(experiment)
    # two more configs are read to check the saved teams
    assert made == {"ExperimentConfig": 5, "RunPlan": 2, "MatrixEnvironment": 2}
    assert capsys.readouterr().out.count(SIZE) == 2
    mrlm.GRPOTrainer(
        train_dataset=[{"prompt": "Say A."}] * 4,
        reward_funcs=lambda completions, **_: [float(len(each)) for each in completions],
        args=mrlm.GRPOConfig(
            output_dir=str(tmp_path / "trainer"),
            num_iterations=1,
            batch_size=2,
            group_size=2,
            max_new_tokens=2,
        ),
    ).train()
    assert "2 prompts x 2 samples = 4 completions a step" in capsys.readouterr().out
