"""The profile of a run: every moment counted once, for what was really going on."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mrlm.config import parse_config
from mrlm.core import timing
from mrlm.core.environment import Environment
from mrlm.core.timing import IDLE, PHASES, count, profiling, span
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.profile import ABOUT, FILE, read_profile, report
from mrlm.runs import run_experiment

WAIT = 0.2


class Slow(Environment):
    """Every step takes a while, for every episode at the same time."""

    agents = ("a", "b")

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult(dict.fromkeys(self.agents, Observation([Message("say")])))

    def step(self, actions: dict[str, Message]) -> StepResult:
        time.sleep(WAIT)
        return StepResult(rewards=dict.fromkeys(self.agents, Reward(0.5)), done=True)


def settings(folder: Path, **training: Any) -> Any:
    return parse_config(
        {
            "environments": [{"env_type": "test_profile:Slow"}],
            "policies": {"p": {}},
            "agents": {"a": {"policy": "p"}, "b": {"policy": "p"}},
            "training": {
                "algorithm": "reinforce",
                "num_iterations": 2,
                "batch_size": 8,
                "report_to": "none",
                **training,
            },
            "generation": {"max_new_tokens": 3},
            "evaluation": {"every": 1, "episodes": 2},
            "output_dir": str(folder / "run"),
        }
    )


def test_a_run_and_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    started = time.perf_counter()
    run_experiment(settings(tmp_path, profile=True))
    whole = time.perf_counter() - started
    rows = read_profile(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2]
    spent = [{phase: sum(by.values()) for phase, by in row["seconds"].items()} for row in rows]
    assert sum(sum(each.values()) for each in spent) <= whole
    for each in spent:
        assert {"sampling", "environment", "forward", "head", "backward", "optimizer"} <= set(each)
        assert {"evaluation", "sync", "credit", "play"} <= set(each)
        # eight episodes wait side by side: that is one wait
        assert WAIT <= each["environment"] < 4 * WAIT
        assert each["evaluation"] >= WAIT
    for row in rows:
        tokens = row["tokens"]
        assert set(tokens["sampled"]) == {"a", "b"}
        assert tokens["sampled"]["a"] <= 8 * 3 + 2 * 2 * 3 and tokens["read"]["a"] > 0
        assert tokens["trained"]["a"] <= tokens["sampled"]["a"]
    printed = capsys.readouterr().out
    assert "profile of 2 steps" in printed and "environment" in printed and "sampled" in printed


def test_without_it_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    run_experiment(settings(tmp_path))
    assert not list(tmp_path.glob(f"**/{FILE}"))
    assert timing._profile is None


def test_the_deepest_phase_counts_and_all_of_them_make_the_whole() -> None:
    with profiling() as profile:
        started = time.perf_counter()
        with span("play"):
            time.sleep(0.05)
            with span("sampling", "p"):
                time.sleep(0.05)
        time.sleep(0.02)
        with span("evaluation"), span("play"), span("sampling", "p"):
            time.sleep(0.03)
        seconds, _ = profile.take()
        whole = time.perf_counter() - started
    assert set(seconds) == {("play", ""), ("sampling", "p"), (IDLE, ""), ("evaluation", "")}
    assert sum(seconds.values()) == pytest.approx(whole, abs=0.01)
    assert seconds["sampling", "p"] >= 0.05 and seconds["evaluation", ""] >= 0.03


def test_what_happens_at_the_same_time_shares_the_time() -> None:
    def work(world: str) -> None:
        with span("environment", world):
            barrier.wait()
            time.sleep(0.1)
            barrier.wait()

    barrier = threading.Barrier(4)
    with profiling() as profile:
        started = time.perf_counter()
        threads = [threading.Thread(target=work, args=(name,)) for name in ("x", "x", "y", "z")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds, _ = profile.take()
        whole = time.perf_counter() - started
    assert sum(seconds.values()) == pytest.approx(whole, abs=0.01)
    assert {name for phase, name in seconds if phase == "environment"} == {"x", "y", "z"}


def test_an_accelerator_is_waited_for() -> None:
    calls = []
    with profiling(lambda: calls.append(1)), span("forward"):
        pass
    assert len(calls) == 2


def test_spans_cost_nothing_and_say_nothing_without_a_profile() -> None:
    with span("forward", "p"):
        count("trained", "a", 3)
    with pytest.raises(ZeroDivisionError), profiling() as profile, span("forward"):
        _ = 1 / 0
    assert timing._profile is None and not profile._active


def test_every_phase_is_explained() -> None:
    assert set(ABOUT) == {*PHASES, IDLE}
    row = {"step": 1, "seconds": {"play": {"": 1.0}, "forward": {"p": 2.0, "q": 1.0}}, "tokens": {}}
    text = report([json.loads(json.dumps(row))])
    assert "4.000 s each" in text and "75.0%" in text and "(p 67%, q 33%)" in text
    assert report([]) == "profile: no step was finished"
