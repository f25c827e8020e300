"""MLflow; a resumed run goes on under the same id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mrlm.trackers._extra import library

LONGEST = 500
"""Characters MLflow takes in the value of a parameter."""


class MLflow:
    """Logs to MLflow, in the experiment `mrlm`.

    Args:
        folder: not needed here.
        run_name: name of the run.
        config: the resolved config, logged as parameters.
        state: id of the run that is continued.
    """

    def __init__(
        self, folder: Path, run_name: str, config: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        self._library = library("mlflow")
        self._library.set_experiment("mrlm")
        known = None if state is None else state["id"]
        self._run = self._library.start_run(run_id=known, run_name=run_name)
        if known is None:
            self._library.log_params(dict(_flat(config)))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        self._library.log_metrics(dict(metrics), step=step)

    def state(self) -> dict[str, Any]:
        """The id under which the run can be continued."""
        return {"id": self._run.info.run_id}

    def close(self) -> None:
        """Write everything out."""
        self._library.end_run()


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)[:LONGEST]


PLUGIN = MLflow
