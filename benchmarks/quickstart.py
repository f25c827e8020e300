"""The step of the quickstart: processor time of an iteration of both of its stages, as users run
them. It uses names only that earlier revisions have too, so that `--against` can measure those."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrlm import Callback, Trainer
from mrlm.config import ExperimentConfig, load_config

CONFIG = Path("configs/quickstart.yaml")
STEPS = (80, 40)
"""Iterations of either stage: enough of the first that the second plays with answers of the right
form."""
FIRST = 8
"""Iterations of a stage that are not counted."""


class Stopwatch(Callback):
    """Takes the processor time of every iteration, its logging included.

    Attributes:
        seconds: of each.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, run: Any) -> None:
        self._began = time.process_time()

    def on_step_end(self, run: Any, metrics: Mapping[str, float]) -> None:
        self.seconds.append(time.process_time() - self._began)


def stages(root: Path, quick: bool = False, models: Path | None = None) -> dict[str, float]:
    """Stage -> seconds of processor time of an iteration.

    Args:
        root: the working copy that is imported from.
        quick: a few iterations only.
        models: folder of the models that stages begin with, which the first process of a
            comparison fills: what a step costs depends on how many groups of answers tie.
    """
    config = load_config(root / CONFIG)
    means: dict[str, float] = {}
    model: str | None = None
    with tempfile.TemporaryDirectory(prefix="mrlm-bench-") as temporary:
        for (name, stage), steps in zip(config.stage_configs(), STEPS, strict=True):
            folder = Path(temporary) / name
            seconds = _seconds(stage, 3 if quick else steps, folder, model)
            counted = seconds[1 if quick else FIRST :]
            means[name] = sum(counted) / len(counted)
            trained = (models or Path(temporary)) / f"after-{name}"
            if not trained.exists():
                shutil.copytree(folder / "final", trained)
            model = str(trained)
    return means


def _seconds(stage: ExperimentConfig, steps: int, folder: Path, model: str | None) -> list[float]:
    """Seconds of every iteration of a stage, which begins with the models of the one before."""
    watch = Stopwatch()
    changes: dict[str, Any] = {
        "stages": [],
        "output_dir": str(folder),
        "training": {"num_iterations": steps, "report_to": "none"},
        "evaluation": {"episodes": 0},
    }
    Trainer(config=stage.merged(changes), model=model, callbacks=[watch]).train()
    return watch.seconds
