"""`python -m benchmarks.asynchrony`: steps per minute of a run whose world takes its time, by
`training.max_lag`, and how long learner and engines waited for each other."""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from mrlm.config import ExperimentConfig
from mrlm.core.environment import Environment
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.experiment import run_experiment

WARM = 3
"""Iterations that are not counted: libraries start, and pipelines fill."""


class Slow(Environment):
    """Asks for letters, some turns long; every step takes a while, as a tool or a server does.

    Args:
        seconds: that a step takes.
        turns: of the longest episodes; the shortest have half as many.
    """

    agents = ("speaker",)

    def __init__(self, seconds: float = 0.02, turns: int = 8) -> None:
        self.seconds, self.longest = seconds, turns

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        half = self.longest // 2
        self.turns, self.patience = 0, half + (seed or 0) % (self.longest - half + 1)
        return self._asked()

    def step(self, actions: dict[str, Message]) -> StepResult:
        time.sleep(self.seconds)
        self.turns += 1
        result = self._asked()
        letters = sum(map(str.isalpha, actions["speaker"].content))
        result.rewards = {"speaker": Reward(float(letters))}
        result.done = self.turns >= self.patience
        return result

    def _asked(self) -> StepResult:
        return StepResult({"speaker": Observation([Message(f"{self.turns}: letters?")])})


@dataclass(frozen=True, slots=True)
class Row:
    """One setting.

    Args:
        max_lag: of the run.
        rate: steps per minute.
        learner: share of the time in which the learner waited for play.
        engine: share of the time in which play rested.
        lag: mean age of the tokens that were learned from, in updates.
    """

    max_lag: int
    rate: float
    learner: float
    engine: float
    lag: float

    def __str__(self) -> str:
        return (
            f"| {self.max_lag} | {self.rate:.0f} | {self.learner:.0%} | {self.engine:.0%} | "
            f"{self.lag:.2f} |"
        )


def measure(max_lag: int, seconds: float, epochs: int, iterations: int, batch: int) -> Row:
    """Train for some iterations and say how it went."""
    with tempfile.TemporaryDirectory() as folder:
        config = ExperimentConfig(
            experiment_name=f"lag {max_lag}".replace(" ", "-"),
            output_dir=str(Path(folder) / "run"),
            environments=[{"env_type": "benchmarks.asynchrony:Slow", "seconds": seconds}],
            training={
                "algorithm": "grpo",
                "num_iterations": WARM + iterations,
                "batch_size": batch,
                "max_lag": max_lag,
                "learning_rate": 1e-4,
                "checks": "off",
                "report_to": "none",
            },
            grpo={"group_size": 4, "update_epochs": epochs},
            generation={"max_new_tokens": 8},
            workflow={"name": "turns", "max_turns": 16},
        )
        history = run_experiment(config).history[WARM:]
    spent = [row["seconds/play"] + row["seconds/learn"] for row in history]
    whole = sum(spent)
    waited = sum(row["seconds/waiting"] for row in history) if max_lag else None
    rested = sum(row["seconds/resting"] for row in history) if max_lag else None
    played, learned = (sum(row[f"seconds/{what}"] for row in history) for what in ("play", "learn"))
    return Row(
        max_lag,
        60 * len(history) / whole,
        (played if waited is None else waited) / whole,
        (learned if rested is None else rested) / whole,
        sum(row.get("lag/mean", 0.0) for row in history) / len(history),
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seconds", type=float, default=0.02, help="of a step of the world")
    parser.add_argument("--epochs", type=int, default=2, help="of every update")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4, help="tasks per iteration")
    chosen = parser.parse_args()
    logging.disable(logging.INFO)
    print("| max_lag | steps/min | learner waits | engine rests | mean lag |")
    print("|---|---|---|---|---|")
    for lag in chosen.lags:
        row = measure(lag, chosen.seconds, chosen.epochs, chosen.iterations, chosen.batch)
        print(row, flush=True)


if __name__ == "__main__":
    main()
