"""Runs of two policies, and which of them moved in every step."""

from collections.abc import Iterable
from typing import Any

import torch

from mrlm import Callback, ExperimentConfig
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.core.episodes import Episode
from mrlm.runs import run_to_end


def settings(algorithm: str, steps: int = 2, **changes: Any) -> ExperimentConfig:
    """Two seats that speak at once, two policies, a few tokens."""
    base: dict[str, Any] = {
        "environments": [{"env_type": "played:Noise"}],
        "policies": {"short": {}, "long": {}},
        "training": {
            "algorithm": algorithm,
            "num_iterations": steps,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
        },
        "generation": {"max_new_tokens": 3},
    }
    return ExperimentConfig(**base).merged(changes)


def weights(run: Any) -> dict[str, torch.Tensor]:
    """Policy -> everything that it trains, in one row."""
    rows = {each.policy: each.weights_of.parameters() for each in run.learners}
    return {name: torch.cat([w.detach().flatten() for w in row]) for name, row in rows.items()}


class Watch(Callback):
    """Notes which policies moved in every step, and which agent spoke with which."""

    def __init__(self) -> None:
        self.moved: list[set[str]] = []
        self.spoke: list[dict[str, str]] = []
        self.trained: list[set[str]] = []

    def on_train_begin(self, run: Any) -> None:
        self.log = run.log.episodes
        run.log.episodes = self.note

    def note(self, step: int, groups: Iterable[Iterable[Episode]], *more: Any) -> None:
        turns = [turn for group in groups for episode in group for turn in episode.turns]
        self.spoke.append({turn.agent: turn.policy for turn in turns})
        self.trained.append({turn.agent for turn in turns if turn.advantages is not None})
        self.log(step, groups, *more)

    def on_step_begin(self, run: Any) -> None:
        self.before = weights(run)

    def on_step_end(self, run: Any, metrics: Any) -> None:
        after = weights(run)
        self.moved.append(
            {name for name in after if not torch.equal(after[name], self.before[name])}
        )


def watched(config: ExperimentConfig) -> tuple[Watch, list[dict[str, Any]]]:
    watch = Watch()
    return watch, run_to_end(build(config, LiveObjects(callbacks=[watch]))).history
