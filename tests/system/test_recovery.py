"""What a checkpoint holds is everything; signals end runs in order; and short forms of the
campaigns of `make soak`."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from forking import Launcher
from mrlm import Callback, run_experiment
from mrlm.config import ExperimentConfig, parse_config
from mrlm.experiment import at_most
from mrlm.learn.checkpoint import checkpoints
from mrlm.record.files import rows_of
from recovery.disks import cut_off, limits
from recovery.flips import flipped
from recovery.runs import (
    REPLAYS,
    TEAM,
    TRAINING,
    Runner,
    Undisturbed,
    course,
    differing,
    litter,
    undisturbed,
)

RELAY = {"environments": [{"env_type": "relay"}]}
GAME = {
    "environments": [{"env_type": "tic_tac_toe", "max_turns": 4}],
    "agents": {"x": {"policy": "player"}, "o": {"policy": "player"}},
}


def config(folder: Path, algorithm: str = "reinforce", **more: Any) -> ExperimentConfig:
    data = {
        **RELAY,
        "experiment_name": "kept",
        "output_dir": str(folder),
        "training": {
            **TRAINING,
            "algorithm": algorithm,
            "num_iterations": 4,
            "save_steps": 2,
            "save_total_limit": 3,
        },
        "generation": {"max_new_tokens": 3},
        **more,
    }
    return parse_config(data, [], "the test")


class Killed(BaseException):
    """The run ends at once and saves nothing."""


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        pytest.param("cory", {"cory": {"kl_coef": 0.1}}, marks=pytest.mark.slow),
        pytest.param("spiral", GAME, marks=pytest.mark.slow),
        ("sft", {"sft": {"collect_every": 3}}),
    ],
    ids=["moving moments", "baselines of roles", "collected episodes"],
)
def test_a_killed_run_comes_to_the_same_files(
    algorithm: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Metrics, episodes, final weights, and every file of every checkpoint, bit by bit."""

    class Kill(Callback):
        def on_step_end(self, run: Any, metrics: Any) -> None:
            if run.step == 3:
                raise Killed

    run_experiment(config(tmp_path / "whole", algorithm, **more))
    with pytest.raises(Killed):
        run_experiment(config(tmp_path / "run", algorithm, **more), callbacks=[Kill()])
    run_experiment(config(tmp_path / "run", algorithm, **more), resume=tmp_path / "run")
    whole, found = course(tmp_path / "whole"), course(tmp_path / "run")
    assert not differing(found, whole)
    assert {"checkpoint-2/manifest.json", "checkpoint-4/manifest.json"} <= set(whole)


# -- signals ---------------------------------------------------------------------------------------


class Signal(Callback):
    """Sends this process signals at a chosen moment of its second step."""

    def __init__(self, when: str, *numbers: int) -> None:
        self.when, self.numbers = when, numbers

    def _maybe(self, when: str, run: Any) -> None:
        if when == self.when and run.step in (1, 2):
            self.when = "never again"
            for number in self.numbers:
                os.kill(os.getpid(), number)

    def on_step_begin(self, run: Any) -> None:
        self._maybe("step", run) if run.step else None

    def on_evaluate(self, run: Any, metrics: Any) -> None:
        self._maybe("evaluation", run)

    def on_save(self, run: Any, folder: Path) -> None:
        self._maybe("saving", run)


@pytest.mark.parametrize(
    ("when", "step"), [pytest.param("evaluation", 2, marks=pytest.mark.slow), ("saving", 3)]
)
def test_sigusr1_saves_at_the_next_step_and_nothing_is_lost(
    when: str, step: int, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"evaluation": {"episodes": 2, "every": 2}}
    run_experiment(config(tmp_path / "whole", **more))
    own = config(tmp_path / "run", **more)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(own, callbacks=[Signal(when, signal.SIGUSR1)])
    assert checkpoints(tmp_path / "run")[0].name == f"checkpoint-{step}"
    run_experiment(own, resume=tmp_path / "run")
    whole, found = course(tmp_path / "whole"), course(tmp_path / "run")
    assert differing(found, whole) in ("", "checkpoint-3/manifest.json")


def test_the_second_signal_ends_a_run_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(
            config(tmp_path / "run"), callbacks=[Signal("step", signal.SIGTERM, signal.SIGTERM)]
        )
    assert not checkpoints(tmp_path / "run")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_between_two_stages_interrupts_too(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrlm.experiment.build", lambda *given: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(config(tmp_path / "run"))


def test_a_pipeline_that_is_finished_says_so_and_what_it_came_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever starts a killed run again need not know how far it came."""
    stages = [{"name": "only", "training": {"num_iterations": 1}}]
    own = config(tmp_path / "run", stages=stages)
    done = run_experiment(own)
    with caplog.at_level("INFO", logger="mrlm"):
        again = run_experiment(own, resume=tmp_path / "run")
    assert again.metrics == done.metrics and again.run_folder == done.run_folder
    assert "every stage is finished" in caplog.text


def test_a_stage_that_a_shorter_run_ended_is_not_called_finished_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stages: list[Any] = [{"name": x, "training": {"num_iterations": 2}} for x in ("one", "two")]
    own = config(tmp_path / "run", stages=stages)
    run_experiment(at_most(own, 1))
    run_experiment(own, resume=tmp_path / "run")
    assert "stage one ended after 1 of 2 iterations and is not trained on" in caplog.text
    assert "stage two ended" not in caplog.text
    last = [checkpoints(tmp_path / "run" / x)[0].name for x in ("1-one", "2-two")]
    assert last == ["checkpoint-1", "checkpoint-2"]


# -- short forms of the campaigns ------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, launcher: Launcher
) -> tuple[Runner, Undisturbed]:
    runner = Runner(TEAM, tmp_path_factory.mktemp("team"), launcher)
    return runner, undisturbed(runner)


Whole = tuple[Runner, Undisturbed]


@pytest.mark.slow
def test_killed_runs_come_to_what_undisturbed_ones_do(
    whole: Whole, launcher: Launcher, tmp_path: Path
) -> None:
    runner = Runner(TEAM, tmp_path / "run", launcher)
    points = ["renamed:2", "logging:2", "recording:3", "recording:4", "sampling:4"]
    runner.clear()
    for point in points:
        assert runner.go(MRLM_DIES=point) == -signal.SIGKILL, runner.said()
    assert runner.go() == 0, runner.said()
    assert not differing(course(runner.folder), whole[1].course)
    assert not litter(runner.folder)


@pytest.mark.parametrize(
    "points",
    [
        ("replaying:11",),
        pytest.param(("replaying:3", "replaying:11", "recording:2"), marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_killed_while_it_replays_comes_to_the_same_bits(
    points: tuple[str, ...], launcher: Launcher, tmp_path: Path
) -> None:
    """Metrics, weights, checkpoints, and the record with its replays; killed amid replays, also
    before there is a checkpoint, and while the record is written."""
    runner = Runner(REPLAYS, tmp_path / "run", launcher)
    whole = undisturbed(runner)
    replays = [row for row in rows_of(runner.folder) if "replayed" in row]
    assert len(replays) == 3 * 2 * 2 * 2  # iterations, tasks, episodes, alternatives
    credit = [
        turn["advantage"] for row in replays for a in row["agents"].values() for turn in a["turns"]
    ]
    assert sum(map(bool, credit)) > len(replays) / 2
    runner.clear()
    for point in points:
        assert runner.go(MRLM_DIES=point) == -signal.SIGKILL, runner.said()
    assert runner.go() == 0, runner.said()
    assert not differing(course(runner.folder), whole.course)
    assert not litter(runner.folder)


def test_no_flipped_bit_is_overlooked(whole: Whole) -> None:
    found = flipped(60, whole[0].folder, seed=1)
    assert (found.survived, found.wrong) == (60, []) and len(found.tried) >= 3


@pytest.mark.parametrize("which", [pytest.param("log", marks=pytest.mark.slow), "largest"])
def test_a_write_that_fails_ends_with_an_error_and_costs_nothing(
    which: str, whole: Whole, launcher: Launcher, tmp_path: Path
) -> None:
    """The log cannot grow; or the largest file cannot be written."""
    runner, alone = whole
    log = (runner.folder / "episodes.jsonl.gz").stat().st_size
    size = log * 2 // 3 if which == "log" else limits(runner.folder, least=log)[-1]
    runner = Runner(TEAM, tmp_path / "cut", launcher)
    found = cut_off([size], alone, runner)
    assert (found.survived, found.wrong) == (1, [])
