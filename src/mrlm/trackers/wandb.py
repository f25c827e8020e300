"""Weights & Biases; a resumed run goes on under the same id."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

PROJECT = "mrlm"
"""Where runs go unless `WANDB_PROJECT` says otherwise."""


class WandB:
    """Logs to Weights & Biases. Steps are never taken back there: those that a resumed run repeats
    keep the numbers they had.

    Args:
        folder: the run's folder; local files go there.
        run_name: name of the run.
        config: the resolved config; `training.wandb` in it are further arguments of `wandb.init`.
        state: id of the run that is continued.
    """

    library: ClassVar[str] = "wandb"

    def __init__(
        self, folder: Path, run_name: str, config: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        known = None if state is None else state["id"]
        given = config.get("training", {}).get("wandb") or {}
        arguments = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "name": run_name,
            "config": config,
            "dir": str(folder),
            "id": known,
            "resume": "allow" if known else None,
        }
        self._run = wandb.init(**{**arguments, **given})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def state(self) -> dict[str, Any]:
        """The id under which the run can be continued."""
        return {"id": self._run.id}

    def close(self) -> None:
        """Write everything out."""
        self._run.finish()


PLUGIN = WandB
