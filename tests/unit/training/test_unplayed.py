"""What a step earns is named a reward only if the policies played it: not the reward of an expert
that demonstrates, and not one that stands in a data set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrlm import DPOTrainer, SFTTrainer, SPINTrainer
from mrlm.environments.games.matrix import MatrixEnvironment

ROW = {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}
PAIR = {"prompt": "1+1", "chosen": "2", "rejected": "3"}
SMALL: dict[str, Any] = {"batch_size": 2, "max_new_tokens": 4, "report_to": "none"}


def demonstrated(model: str, **more: Any) -> SFTTrainer:
    return SFTTrainer(model, MatrixEnvironment(game="climbing"), teacher="expert", **more)


def rows(model: str, **more: Any) -> SFTTrainer:
    return SFTTrainer(model, train_dataset=[ROW | {"reward": 0.5}] * 4, **more)


def pairs(model: str, **more: Any) -> DPOTrainer:
    return DPOTrainer(model, train_dataset=[PAIR] * 4, **more)


def answered(model: str, **more: Any) -> SPINTrainer:
    return SPINTrainer(model, train_dataset=[{"prompt": "1+1", "completion": "2"}] * 4, **more)


@pytest.mark.parametrize("made", [demonstrated, rows, pairs, answered])
def test_what_was_not_played_has_no_reward_of_the_policies(
    made: Callable[..., Any], tiny_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = made(tiny_path, output_dir=str(tmp_path / "run"), **SMALL)
    history = trainer.train(num_iterations=2).history
    names = {name for row in history for name in row}
    assert "loss" in names and "data/reward/mean" in names
    assert not {name for name in names if name.startswith("reward/")}
    (shown,) = (line for line in capsys.readouterr().out.splitlines() if "step 2/2" in line)
    assert "loss" in shown and "reward" not in shown


def test_what_the_policies_play_is_their_reward(tiny_path: str, tmp_path: Path) -> None:
    world = MatrixEnvironment(game="climbing")
    trainer = SFTTrainer(tiny_path, world, output_dir=str(tmp_path / "run"), **SMALL)
    (row,) = trainer.train(num_iterations=1).history
    assert "reward/mean" in row and "data/reward/mean" not in row
