"""A run whose losses are not finite any more goes back to its last good checkpoint."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from logged_rows import logged
from mrlm import Callback, load_config, replay, run_experiment
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.config import ExperimentConfig, parse_config
from mrlm.core.errors import NonFiniteError
from mrlm.learn.checkpoint import checkpoints, read_state
from mrlm.learn.data.batch import Batch, Loss, Outputs
from mrlm.training.rollback import rollbacks
from recorded import episodes as recorded

SURE = -4.5
"""Mean log-prob of its own words from which the policy below breaks; it begins at -5.5."""


class Fragile(REINFORCE):
    """Its loss is finite only as long as the policy has not become too sure of itself."""

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        loss = super().loss(batch, outputs)
        if float(outputs.logprobs.detach().mean()) > SURE:
            loss.total = loss.total * torch.tensor(math.nan)
        return loss


def config(folder: Path, **training: Any) -> ExperimentConfig:
    """One that is too quick: after four steps the policy is too sure."""
    return parse_config(
        {
            "experiment_name": "fragile",
            "output_dir": str(folder),
            "environments": [{"env_type": "talking:Pair", "name": "letters"}],
            "agents": {"first": {"policy": "one"}, "second": {"policy": "one"}},
            "training": {
                "algorithm": "test_rollback:Fragile",
                "num_iterations": 9,
                "learning_rate": 0.02,
                "save_steps": 1,
                "rollback": 2,
                "rollback_factor": 0.1,
                "report_to": "none",
                **training,
            },
            "generation": {"max_new_tokens": 4},
            "evaluation": {"episodes": 2, "every": 3},
        },
        [],
        "the test",
    )


@pytest.fixture(scope="module")
def cured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has gone back twice, the second time further."""
    folder = tmp_path_factory.mktemp("cured") / "run"
    run_experiment(config(folder))
    return folder


class Killed(BaseException):
    """The run ends at once and saves nothing."""


def test_it_goes_back_learns_more_slowly_and_comes_to_its_end(cured: Path) -> None:
    rows = logged(cured)
    assert [row["step"] for row in rows] == list(range(10))
    assert all(row["loss"] is not None for row in rows[1:])
    (only,) = rollbacks(cured)
    assert (only.count, only.to) == (2, 3)
    assert only.at > 4 and "3 steps in a row were not finite" in only.why
    assert [row["rollbacks"] for row in rows[1:]] == [0, 0, 0, 2, 2, 2, 2, 2, 2]
    assert [row["learning_rate"] for row in rows[1:]] == pytest.approx([0.02] * 3 + [0.0002] * 6)
    episodes = recorded(cured)
    keys = [(each["step"], each["id"]) for each in episodes]
    assert len(set(keys)) == len(keys), "what was played in vain is no part of the log"
    assert (cured / "nonfinite-one.pt").is_file(), "the batch stays"
    assert all(read_state(each)["parts"]["run"]["rollbacks"] == 2 for each in checkpoints(cured))


@pytest.mark.parametrize("when", ["decided", pytest.param("back", marks=pytest.mark.slow)])
def test_a_run_that_is_killed_while_it_goes_back_comes_to_the_same(
    when: str, cured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the decision and before anything was removed; and when it had just gone back."""

    class Kill(Callback):
        def on_step_begin(self, run: Any) -> None:
            if run.rollbacks == 2:
                raise Killed

    def killed(folder: Path) -> None:
        raise Killed

    run = config(tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        if when == "decided":
            patch.setattr("mrlm.training.rollback.remove_folder", killed)
        run_experiment(run, callbacks=[] if when == "decided" else [Kill()])
    run_experiment(run, resume=tmp_path / "run")
    assert logged(tmp_path / "run") == logged(cured)


@pytest.mark.slow
def test_when_it_may_not_go_back_again_it_ends_and_may_later(cured: Path, tmp_path: Path) -> None:
    once = config(tmp_path / "run", rollback=1)
    with pytest.raises(NonFiniteError, match=r"not finite.*after 1 rollbacks"):
        run_experiment(once)
    run_experiment(config(tmp_path / "run"), resume=tmp_path / "run")
    assert logged(tmp_path / "run") == logged(cured)


def test_without_a_checkpoint_it_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"no good checkpoint .* \(training.save_steps"):
        run_experiment(config(tmp_path / "run", save_steps=None))


@pytest.mark.slow
def test_it_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"in a row were not finite; the batch is in") as end:
        run_experiment(config(tmp_path / "run", rollback=0))
    assert "training.rollback=" not in str(end.value)
    assert "rollbacks" not in logged(tmp_path / "run")[1]


@pytest.mark.parametrize("step", [2, 4, 9])
def test_what_was_played_before_and_after_is_played_again(step: int, cured: Path) -> None:
    lines = recorded(cured)
    episode = next(line["id"] for line in lines if line["step"] == step and "train" in line["id"])
    for each in checkpoints(cured):  # from the beginning, through the rollback
        each.rename(each.with_name(f"kept-{each.name}"))
    try:
        found = replay(cured, episode)
    finally:
        for each in cured.glob("kept-*"):
            each.rename(each.with_name(each.name.removeprefix("kept-")))
    assert found.same and not found.notes, str(found)
    assert load_config(cured / "config.yaml").training.rollback == 2
