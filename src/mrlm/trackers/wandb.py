"""Weights & Biases; a resumed run continues under the same id."""

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mrlm.tracking.media_tracker import MediaTracker

PROJECT = "mrlm"
"""Project of the runs unless `WANDB_PROJECT` says otherwise."""
TITLE = 63
"""Characters of the title of an alert."""


class WandB(MediaTracker):
    """Logs to Weights & Biases, with local files in the run's folder; `training.wandb` of the
    config are further arguments of `wandb.init`. Steps are never taken back there: those that a
    resumed run repeats keep the numbers they had."""

    library: ClassVar[str] = "wandb"

    def __init__(
        self, folder: Path, run_name: str, config: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        run_id = None if state is None else state["id"]
        arguments = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "name": run_name,
            "config": config,
            "dir": str(folder),
            "id": run_id,
            "resume": "allow" if run_id else None,
        }
        self._run = wandb.init(**arguments | (config.get("training", {}).get("wandb") or {}))

    @staticmethod
    def problem(settings: Mapping[str, Any]) -> str | None:
        """That there is no login; without one the library asks in the terminal, or fails."""
        import wandb  # pyright: ignore[reportMissingImports]

        mode = settings.get("mode") or os.environ.get("WANDB_MODE")
        if mode in ("offline", "dryrun", "disabled"):
            return None
        if "WANDB_API_KEY" in os.environ or "WANDB_IDENTITY_TOKEN_FILE" in os.environ:
            return None
        asks = "prompt" in inspect.signature(wandb.login).parameters
        if wandb.login(prompt=False, verify=False) if asks else wandb.api.api_key:
            return None
        return (
            "wandb has no login here; run `wandb login` or set WANDB_API_KEY, or log without a "
            "network with training.wandb: {mode: offline}"
        )

    def alert(self, title: str, text: str) -> None:
        self._run.alert(title=title[:TITLE], text=text, level="WARN", wait_duration=0)

    def state(self) -> dict[str, Any]:
        return {"id": self._run.id}


PLUGIN = WandB
