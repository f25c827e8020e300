"""The tiny model improves at the games with state: a base that names moves alike is trained from
three seeds, and the lower 95 % bound of what it gains is above 0."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.learning.answers import answer_logprobs

from logged_rows import lower_bound
from mrlm import Callback, load_config, run_experiment
from mrlm.core.statistics import mean_interval
from mrlm.core.types import Message
from mrlm.environments.poker.hands import read_policy
from mrlm.environments.poker.leduc import LeducEnvironment, leduc_exploitability
from places import ROOT

QUIET = ["training.report_to=none", "training.threads=1"]


class Exploited(Callback):
    """The exploitability of the policy at every evaluation."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_evaluate(self, run: Any, metrics: Mapping[str, float]) -> None:
        policy = run.learners[0].weights_of

        def chances(messages: list[Message], words: Sequence[str]) -> list[float]:
            return [math.exp(x) for x in answer_logprobs(policy, messages, words, ended=False)]

        env = LeducEnvironment(style="short")
        self.found.append(leduc_exploitability(read_policy(env, chances)))


def base(name: str, folder: Path) -> Path:
    """A model after the first stage of a config."""
    config = load_config(ROOT / "configs" / f"{name}.yaml", [*QUIET, f"output_dir={folder / name}"])
    run_experiment(config.merged({"stages": [{"name": "words", **config.stages[0].changes}]}))
    return next((folder / name).rglob("final/model.safetensors")).parent


def played(name: str, model: Path, seed: int, folder: Path, *callbacks: Callback) -> list[Any]:
    """The history of the last stage of a config from a seed, evaluated before and after."""
    more = [f"output_dir={folder / f'{name}-{seed}'}", f"training.seed={seed}"]
    config = load_config(ROOT / "configs" / f"{name}.yaml", [*QUIET, *more])
    changes = {"name": "play", **config.stages[-1].changes}
    model_changes = {"model_name_or_path": str(model)}
    merged = config.merged({"model": model_changes, "stages": [changes]})
    return run_experiment(merged, callbacks=list(callbacks)).history


def evaluated(history: list[Any], metric: str) -> float:
    """How much a metric of evaluations rises."""
    found = [row[metric] for row in history if row.get(metric) is not None]
    return found[-1] - found[0]


@pytest.mark.slow
def test_self_play_makes_a_leduc_player_less_exploitable(tmp_path: Path) -> None:
    model, gains = base("leduc", tmp_path), []
    for seed in range(3):
        read = Exploited()
        played("leduc", model, seed, tmp_path, read)
        gains.append(read.found[0] - read.found[-1])
    assert lower_bound(gains) > 0, gains


@pytest.mark.slow
def test_two_agents_play_hanabi_better_on_orders_that_are_held_out(tmp_path: Path) -> None:
    model = base("hanabi", tmp_path)
    histories = [played("hanabi", model, seed, tmp_path) for seed in range(3)]
    gains = [evaluated(history, "eval/reward/mean") for history in histories]
    assert lower_bound(gains) > 0, gains


@pytest.mark.slow
def test_a_player_of_connect_four_copies_the_solver_on_positions_that_are_held_out(
    tmp_path: Path,
) -> None:
    model = base("connect_four", tmp_path)
    histories = [played("connect_four", model, seed, tmp_path) for seed in range(5)]
    gains = [evaluated(history, "eval/reward/mean") for history in histories]
    _, low, _ = mean_interval(gains)
    assert low > 0, gains
