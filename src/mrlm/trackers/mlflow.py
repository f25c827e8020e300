"""MLflow; a resumed run continues under the same id."""

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mrlm.tracking.completions import Table
from mrlm.tracking.payoffs import Payoffs
from mrlm.tracking.run_log import Tracker

EXPERIMENT = "mrlm"
"""Experiment of the runs unless `MLFLOW_EXPERIMENT_NAME` says otherwise."""
LONGEST = 500
"""Characters MLflow takes in the value of a parameter."""
LONGEST_NAME = 250
"""Characters MLflow takes in the name of a metric."""
AT_ONCE = 100
"""Parameters MLflow takes in one call."""


class MLflow(Tracker):
    """Logs to MLflow, through a client of its own: a run the user has open stays as it is. The
    resolved config is logged as parameters."""

    library: ClassVar[str] = "mlflow"

    def __init__(
        self, folder: Path, run_name: str, config: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        self._client, self._entities = mlflow.MlflowClient(), mlflow.entities
        if state is not None:
            self._id: str = state["id"]
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(self._experiment(), run_name=run_name).info.run_id
        settings = [self._entities.Param(_name(key), value) for key, value in _flat(config)]
        for start in range(0, len(settings), AT_ONCE):
            self._client.log_batch(self._id, params=settings[start : start + AT_ONCE])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now, kind = int(time.time() * 1000), self._entities.Metric
        rows = [kind(_name(key), value, now, step) for key, value in metrics.items()]
        self._client.log_batch(self._id, metrics=rows)

    def samples(
        self, step: int, name: str, table: Table, numbers: Mapping[str, Sequence[float]]
    ) -> None:
        """Log a JSON artifact per step; MLflow has no histograms over steps."""
        artifact = {"step": step, "completions": table, "distributions": dict(numbers)}
        self._client.log_dict(self._id, artifact, f"completions/{name}/{step:06}.json")

    def payoffs(self, step: int, payoffs: Payoffs) -> None:
        """Log a JSON artifact and a picture per step."""
        artifact = {"step": step, "players": payoffs.players, "scores": payoffs.scores}
        self._client.log_dict(self._id, artifact, f"payoffs/{step:06}.json")
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder) / f"{step:06}.png"
            picture.write_bytes(payoffs.png())
            self._client.log_artifact(self._id, str(picture), "payoffs")

    def state(self) -> dict[str, Any]:
        return {"id": self._id}

    def close(self) -> None:
        self._client.set_terminated(self._id)

    def _experiment(self) -> str:
        """The id of the experiment, which is made if it is not there."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        if (experiment := self._client.get_experiment_by_name(name)) is not None:
            return experiment.experiment_id
        return self._client.create_experiment(name)


def _name(text: str) -> str:
    """A key as MLflow takes it: letters, digits and some signs, of a path that is its own shortest
    form, at most `LONGEST_NAME` characters."""
    parts = re.sub(r"[^\w\-./ :]", "_", text).split("/")
    parts = [part if part.strip(".") else f"_{part}" for part in parts]
    return "/".join(parts)[:LONGEST_NAME]


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)[:LONGEST]


PLUGIN = MLflow
