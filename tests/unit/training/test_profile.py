"""The profile of a run: every moment counted once, for what was really going on."""

import asyncio
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import mrlm
from mrlm import Callback
from mrlm.config import ExperimentConfig, parse_config
from mrlm.core import timing
from mrlm.core.environment import Environment
from mrlm.core.sync_async import in_thread, run_async
from mrlm.core.timing import OTHER, PHASES, Profile, count, profiling, span
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.experiment import run_experiment
from mrlm.tracking.run_log import PROFILE
from mrlm.training.profiler import ABOUT, LEARNING, Report

pytestmark = pytest.mark.system

WAIT = 0.2
CLOCKED = ("time", "tokens_per_second", "seconds/play", "seconds/learn")
TINY: dict[str, Any] = {
    "environments": [{"env_type": "test_profile:Letters"}],
    "policies": {"first": {"lora": {"r": 2}}, "second": {"lora": {"r": 2}}},
    "training": {
        "algorithm": "reinforce",
        "num_iterations": 2,
        "batch_size": 4,
        "report_to": "none",
    },
    "generation": {"max_new_tokens": 3},
}


class Letters(Environment):
    """Two seats speak once, and both are always paid something, so there is always something to
    learn."""

    agents = ("first", "second")
    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult(dict.fromkeys(self.agents, Observation([Message("say")])))

    def step(self, actions: dict[str, Message]) -> StepResult:
        paid = {agent: Reward(1.0 + len(said.content)) for agent, said in actions.items()}
        return StepResult(rewards=paid, done=True)


class Slow(Letters):
    """Every step takes a while, for every episode at the same time."""

    blocking = True

    def step(self, actions: dict[str, Message]) -> StepResult:
        time.sleep(WAIT)
        return super().step(actions)


class Watch(Callback):
    """Keeps when steps begin, and what they log."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.metrics: list[Any] = []

    def on_step_begin(self, run: Any) -> None:
        self.begun.append(time.perf_counter())

    def on_step_end(self, run: Any, metrics: Any) -> None:
        self.metrics.append(metrics)


def config(folder: Path, **changes: Any) -> ExperimentConfig:
    base = parse_config(TINY | {"output_dir": str(folder)})
    return base.merged({"training.profile": True, **changes})


def profile_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / PROFILE).read_text().splitlines()]


def spent(row: dict[str, Any], *phases: str) -> float:
    chosen = phases or tuple(row["seconds"])
    return sum(sum(row["seconds"].get(phase, {}).values()) for phase in chosen)


class Clock:
    """What the profile takes for the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


# -- what is counted for what ----------------------------------------------------------------------


def test_the_deepest_phase_counts_and_all_of_them_make_the_whole(clock: Clock) -> None:
    with profiling() as profile:
        with span("play"):
            clock.passes(1)
            with span("sampling", "p"):
                clock.passes(2)
        clock.passes(4)
        with span("evaluation"):
            clock.passes(8)
            with span("play"), span("sampling", "p"):
                clock.passes(16)
        assert profile.take() == (
            {("play", ""): 1.0, ("sampling", "p"): 2.0, (OTHER, ""): 4.0, ("evaluation", ""): 24.0},
            {},
        )
        clock.passes(3)
        assert profile.take()[0] == {(OTHER, ""): 3.0}


def test_what_goes_on_side_by_side_shares_the_time(clock: Clock) -> None:
    with profiling() as profile:
        with span("environment", "x"), span("environment", "x"), span("environment", "y"):
            clock.passes(6)
            with span("sampling", "p"):
                clock.passes(8)
        seconds, _ = profile.take()
    assert {key: value for key, value in seconds.items() if value} == {
        ("environment", "x"): 3.0 + 2.0,
        ("environment", "y"): 3.0 + 2.0,
        ("sampling", "p"): 4.0,
    }


def test_tokens_of_an_evaluation_are_counted_apart() -> None:
    with profiling() as profile:
        count("sampled", "a", 3)
        count("sampled", "a", 4)
        with span("evaluation"):
            count("sampled", "a", 5)
        assert profile.take()[1] == {("sampled", "a"): 7, ("eval/sampled", "a"): 5}


def test_tasks_and_threads_report_to_the_profile_they_were_started_under(clock: Clock) -> None:
    async def work() -> None:
        def blocked() -> None:
            with span("environment", "thread"):
                clock.passes(2)

        async def task() -> None:
            with span("sampling", "task"):
                clock.passes(4)

        await in_thread(blocked)
        await asyncio.create_task(task())
        await asyncio.to_thread(count, "sampled", "a", 1)

    async def notebook() -> None:
        run_async(work())  # a loop is running already

    for start in (lambda: run_async(work()), lambda: asyncio.run(notebook())):
        with profiling() as profile:
            start()
            seconds, counts = profile.take()
        assert {key: value for key, value in seconds.items() if value} == {
            ("environment", "thread"): 2.0,
            ("sampling", "task"): 4.0,
        }
        assert counts == {("sampled", "a"): 1}


def test_two_profiles_at_once_do_not_mix() -> None:
    found: dict[str, set[tuple[str, str]]] = {}
    barrier = threading.Barrier(2)

    def run(name: str) -> None:
        with profiling() as profile:
            barrier.wait()
            with span("forward", name):
                barrier.wait()
            found[name] = {key for key in profile.take()[0] if key[0] != OTHER}

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": {("forward", "a")}, "b": {("forward", "b")}}


def test_an_accelerator_is_waited_for() -> None:
    calls: list[int] = []
    with profiling(lambda: calls.append(1)), span("forward"):
        assert len(calls) == 1
    assert len(calls) == 2


def test_a_span_that_fails_ends() -> None:
    with profiling() as profile:
        with pytest.raises(ZeroDivisionError), span("forward"):
            _ = 1 / 0
        assert not profile._active


def test_without_a_profile_a_span_is_nothing() -> None:
    assert span("forward", "p") is span("sampling", "q"), "one object, which does nothing"
    with span("forward"), span("no such phase"):
        count("trained", "a", 3)
    assert timing._current.get() is None


# -- runs ------------------------------------------------------------------------------------------


def test_a_run_and_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch, folder = Watch(), tmp_path / "run"
    changes = {"evaluation": {"every": 1, "episodes": 2, "at_start": True}}
    run_experiment(config(folder, **changes), callbacks=[watch])
    rows = profile_of(folder)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert spent(rows[0], "evaluation") > 0 and "play" not in rows[0]["seconds"]
    for row, metrics in zip(rows[1:], watch.metrics, strict=True):
        assert set(row["seconds"]) <= {*PHASES, OTHER}
        assert {"play", "environment", "credit", "sync", "evaluation", "logging"} <= set(
            row["seconds"]
        )
        played = spent(row, "play", "prompts", "sampling", "environment")
        learned = spent(row, *LEARNING, "annotate", "old_logprobs", "credit", "sync")
        assert 0 < played < metrics["seconds/play"] + metrics["seconds/learn"]
        assert 0 < learned < metrics["seconds/play"] + metrics["seconds/learn"]
        assert set(row["seconds"]["optimizer"]) == {"first", "second"}
        tokens = row["tokens"]
        for agent in ("first", "second"):
            assert 0 < tokens["trained"][agent] == tokens["sampled"][agent] <= 4 * 3
            assert row["seconds"]["prompts"][agent] > 0
            assert tokens["read"][agent] > 0 and tokens["eval/sampled"][agent] > 0
    assert "saving" in rows[2]["seconds"] and "saving" not in rows[1]["seconds"]
    printed = capsys.readouterr().out
    for word in ("2 steps", "before the first step", "sampled share", "tokens/s trained"):
        assert word in printed, word
    shares = [float(line.split()[3].rstrip("%")) for line in printed.splitlines() if " s  " in line]
    assert sum(shares) == pytest.approx(100.0, abs=1.0)


@pytest.mark.parametrize(
    ("algorithm", "settings", "passes"),
    [
        ("ppo", {"kl_coef": 0.1}, {"values": "first", "ref_logprobs": "first"}),
        ("mappo", {}, {"values": "critic of 'team'", "backward": "critic of 'team'"}),
    ],
)
def test_passes_of_critics_and_references_are_told_apart(
    algorithm: str, settings: dict[str, Any], passes: dict[str, str], tmp_path: Path
) -> None:
    changes = {"training.algorithm": algorithm, algorithm: settings, "training.num_iterations": 1}
    run_experiment(config(tmp_path / "run", **changes))
    row = profile_of(tmp_path / "run")[-1]
    for phase, whose in passes.items():
        assert row["seconds"][phase][whose] > 0, phase


def test_it_changes_nothing_and_without_it_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profiled = run_experiment(config(tmp_path / "with"))
    monkeypatch.setattr(Profile, "shift", None)  # whoever calls it fails
    capsys.readouterr()
    plain = run_experiment(config(tmp_path / "without", **{"training.profile": False}))
    assert not list((tmp_path / "without").glob(f"**/{PROFILE}"))
    assert "profile" not in capsys.readouterr().out
    for row, other in zip(profiled.history, plain.history, strict=True):
        assert {key: row[key] for key in row if key not in CLOCKED} == {
            key: other[key] for key in other if key not in CLOCKED
        }


def test_an_interrupted_run_shows_the_steps_it_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupt(Callback):
        """Ctrl-C, once or twice, at the beginning of the second step."""

        def __init__(self, times: int) -> None:
            self.times = times

        def on_step_begin(self, run: Any) -> None:
            for _ in range(self.times if run.step == 1 else 0):
                os.kill(os.getpid(), signal.SIGINT)

    for times, finished in ((1, 2), (2, 1)):  # the second one ends it at once
        folder = tmp_path / str(times)
        with pytest.raises(KeyboardInterrupt):
            settings = config(folder, **{"training.num_iterations": 9})
            run_experiment(settings, callbacks=[Interrupt(times)])
        assert f": {finished} steps, " in capsys.readouterr().out
        assert [row["step"] for row in profile_of(folder)] == list(range(finished + 1))


# -- the table -------------------------------------------------------------------------------------


def test_every_phase_is_explained() -> None:
    assert set(ABOUT) == {*PHASES, OTHER}


def test_every_span_of_the_source_is_a_phase() -> None:
    """A span of another name would raise in a profiled run only."""
    package = Path(mrlm.__file__).parent
    texts = (path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    used = {name for text in texts for name in re.findall(r"\bspan\(\s*\"(\w+)\"", text)}
    assert used <= PHASES.keys() and len(used) > 12


def test_the_table_says_who_where_there_are_several() -> None:
    report = Report("r")
    assert str(report) == "profile of r: no step was finished"
    seconds = {"play": {"": 1.0}, "forward": {"p": 2.0, "q": 1.0}, "head": {"q": 4.0}}
    for step in (1, 2):
        report.add({"step": step, "seconds": seconds | {"environment": {"w": 2.0}}, "tokens": {}})
    text = str(report)
    assert "profile of r: 2 steps, 10.000 s each" in text and "tokens" not in text
    assert "30.0%  blocks of the models (p 67%, q 33%)" in text
    assert "their gradient (q 100%)" in text, "of the two it was this one"
    assert "resets and steps of environments\n" in text + "\n", "there is only one"
