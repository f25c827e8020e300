"""The learning curves are what they say, and in their short form algorithms really improve."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.learning import configs, report, runs
from benchmarks.learning.__main__ import main
from benchmarks.learning.configs import ConfigJob
from benchmarks.learning.runs import Curve, Job, config_of, jobs_of, prepare, train
from benchmarks.learning.table import GAMES, TABLE
from benchmarks.learning.worlds import Alone

from mrlm import Message, check_environment
from mrlm.core import registry
from mrlm.environments.relay import RelayEnvironment
from places import ROOT

QUIET = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of models that name either action of `xor` alike, one per seed."""
    folder = tmp_path_factory.mktemp("learning")
    for seed in range(2):
        prepare(Job("grpo", "xor", seed, str(folder)))
    return folder


def run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.learning", *options]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=560
    )


@pytest.mark.parametrize(
    "algorithm", ["sft", *(pytest.param(n, marks=pytest.mark.slow) for n in ("grpo", "ippo"))]
)
def test_algorithms_learn_xor_in_their_short_form(
    algorithm: str, taught: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From models that name either action alike, a policy gradient, an actor with a critic and
    imitation find the joint action that pays, from both seeds."""
    monkeypatch.setattr(runs, "EPISODES", 128)
    for seed in range(2):
        curve = train(Job(algorithm, "xor", seed, str(taught), quick=True))
        assert not curve.error
        assert 0.3 < curve.rewards[0] < 0.7 and curve.gain > 0.1, curve
        assert curve.steps == sorted(curve.steps) and curve.steps[-1] == 24
        assert curve.tokens > 0 and curve.seconds > 0


def test_a_run_that_fails_is_a_curve_with_its_reason(tmp_path: Path) -> None:
    curve = train(Job("grpo", "xor", 0, str(tmp_path)))  # its model was never made
    assert "models/xor-0" in curve.error and not curve.rewards
    assert not report.findings([curve])


@pytest.mark.slow
def test_algorithms_learn_climbing_with_intervals(tmp_path: Path) -> None:
    """The long form on one game: three seeds, lower 95 % bound of the improvement above 0."""
    names = ("mappo", "dpo")
    done = run(
        *("--games", "climbing", "--seeds", "3", "--output", str(tmp_path)),
        *("--algorithms", *names),
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("| learns |") == len(names)


def test_every_algorithm_is_tried_on_something_it_can_win() -> None:
    assert set(TABLE) == set(registry.names("algorithms"))
    for name, entry in TABLE.items():
        assert entry.games and set(entry.games) <= set(GAMES), name


def test_jobs_are_every_seed_of_every_game_and_the_baseline_of_teams(tmp_path: Path) -> None:
    jobs = jobs_of(["grpo", "dpo"], None, 5, tmp_path)
    assert [job.seed for job in jobs if (job.algorithm, job.game) == ("dpo", "xor")] == [*range(5)]
    assert [job.seed for job in jobs if job.game == "relay"] == [0, 1, 2]
    assert [job.seed for job in jobs if job.game == "alone"] == [0, 1, 2]
    assert not [job for job in jobs_of(["dpo"], None, 1, tmp_path) if job.game == "alone"]
    with pytest.raises(ValueError, match="no entry 'nothing'"):
        jobs_of(["nothing"], None, 1, tmp_path)
    with pytest.raises(ValueError, match="no game 'chess'"):
        jobs_of(None, ["chess"], 1, tmp_path)


def test_the_keys_of_the_matrix_games_are_not_those_of_relay(tmp_path: Path) -> None:
    """A critic's rate that suits the smaller model stays with it: none goes beyond ten times its
    policy's, and on `relay` it is what the library makes of that."""
    jobs = jobs_of(None, None, 1, tmp_path)
    assert {job.kind for job in jobs} == {"matrix", "relay"}
    for job in jobs:
        training = config_of(job).training
        assert training.learning_rate
        assert (training.critic_learning_rate or 0.0) <= 10 * training.learning_rate, job
        assert job.kind == "matrix" or training.critic_learning_rate is None, job


def curves(ends: list[float], algorithm: str = "grpo", game: str = "xor") -> list[Curve]:
    return [
        Curve(algorithm, game, seed, [0, 10], [0.5, end], tokens=7, seconds=1.0)
        for seed, end in enumerate(ends)
    ]


def test_a_verdict_follows_from_the_interval_over_seeds(tmp_path: Path) -> None:
    def verdict(ends: list[float]) -> str:
        (found,) = report.findings(curves(ends))
        return found.verdict

    assert verdict([0.7, 0.71, 0.72]) == "learns"
    assert verdict([0.9, 0.3, 0.9]) == "does not learn", "one seed of three fails"
    assert verdict([0.9]) == "one seed"
    (found,) = report.findings(curves([0.7, 0.8, 0.9]))
    assert found.gain == pytest.approx((0.3, 0.3 - 4.302653 * 0.1 / 3**0.5, 0.5484), abs=1e-4)


def test_a_run_that_is_done_again_replaces_the_older_one(tmp_path: Path) -> None:
    report.merge(tmp_path, curves([0.6, 0.7]))
    kept = report.merge(tmp_path, curves([0.9])[:1])
    assert [curve.rewards[-1] for curve in kept] == [0.9, 0.7]
    assert report.merge(tmp_path, []) == kept


def test_the_single_agent_gets_the_sums_of_the_team() -> None:
    alone, team = Alone(max_number=5), RelayEnvironment(max_number=5)
    check_environment(alone)
    for split in ("train", "eval"):
        one, both = alone.task(7, split), team.task(7, split)
        assert one.answer == both.answer and one.info == both.info
        opening = alone.reset(one).observations["alone"].messages
        assert opening[0].content == "{a}+{b}+{c}=".format(**both.info)
        said = Message(alone.expert("alone", opening) or "")
        assert alone.step({"alone": said}).rewards["alone"].value == 1.0
        alone.reset(one)
        assert alone.step({"alone": Message("x")}).rewards["alone"].value == 0.0


def test_a_config_file_runs_and_keeps_its_results_apart(tmp_path: Path) -> None:
    """`--games writing` runs the file, from a seed, and its last stage is the curve."""
    job = ConfigJob("writing", 3, str(tmp_path), quick=True)
    assert job.algorithm == "magrpo" and "training.seed=3" in configs.changes_of(job)
    curve = configs.train(job)
    assert not curve.error and curve.steps == [0, 2] and curve.tokens > 0
    assert (curve.algorithm, curve.game, curve.seed) == ("magrpo", "writing", 3)
    failed = configs.train(ConfigJob("nothing", 0, str(tmp_path)))
    assert "nothing.yaml" in failed.error and not failed.rewards


def test_config_files_are_run_where_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--list", "--games", "debate", "xor", "--algorithms", "dpo", "--seeds", "1"]
    assert main(given) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["xor", "debate"]
    assert all(configs.path_of(name).is_file() for name in configs.CONFIGS)


def test_what_would_be_run_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in QUIET:  # importing the program sets them for good
        monkeypatch.setenv(name, "1")
    main = importlib.import_module("benchmarks.learning.__main__").main
    assert main(["--list", "--algorithms", "dpo", "--seeds", "2"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["dpo", game, "seed", str(seed)] for game in TABLE["dpo"].games for seed in range(2)
    ]


def test_a_page_gets_the_table_and_the_pictures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = "\n".join(report.TABLE_MARKS)
    page.write_text(f"# x\n{marks}\n<!-- curve: grpo -->\n\nafter\n")
    found = report.findings(curves([0.7, 0.8]))
    for _ in range(2):  # writing it again changes nothing
        report.write_page(page, found, "a machine", {"grpo": tmp_path / "learning" / "grpo.png"})
    text = page.read_text()
    assert text.count("| grpo | xor | 2 | 0.50 | 0.75 |") == 1 and "Measured on a machine" in text
    assert text.count("](learning/grpo.png)\n\nafter") == 1
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no line"):
        report.write_page(page, found, "a machine", {})


def test_pictures_are_drawn_where_they_can_be(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    paths = report.plots(tmp_path, curves([0.7, 0.8]))
    assert paths["grpo"].stat().st_size > 2000
