"""What a run has logged, what it has gained, and a run to be resumed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from mrlm import Callback
from mrlm.core.statistics import mean_interval

CONFIG: dict[str, Any] = {
    "experiment_name": "resumed",
    "environments": [{"env_type": "relay"}],
    "policies": {"first": {}, "second": {"lora": {"r": 4, "dropout": 0.1}}},
    "training": {
        "algorithm": "ppo", "num_iterations": 8, "batch_size": 4, "learning_rate": 1.0e-3,
        "lr_scheduler_type": "linear", "save_steps": 1, "save_total_limit": 3, "report_to": "none",
    },
    "ppo": {"num_minibatches": 2, "update_epochs": 2, "kl_coef": 0.05, "kl_target": 0.1},
    "generation": {"max_new_tokens": 4},
    "evaluation": {"episodes": 8, "every": 3},
}  # fmt: skip
TIMES = ("time", "tokens_per_second", "seconds/play", "seconds/learn")


class Stop(Callback):
    """Ends a run after some of its steps."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_step_end(self, run: Any, metrics: Any) -> None:
        if run.step in self.steps:
            run.stop()


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def gain(history: list[dict[str, Any]]) -> float:
    """Sampled reward of the last three steps over that of the first three."""
    rewards = [row["reward/mean"] for row in history if row.get("reward/mean") is not None]
    return float(np.mean(rewards[-3:]) - np.mean(rewards[:3]))


def lower_bound(gains: list[float]) -> float:
    """Lower 95 % bound of the mean over seeds."""
    return mean_interval(gains)[1]


def state_of(folder: Path) -> dict[str, str]:
    """File -> what it holds."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
