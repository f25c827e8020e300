"""Trackio, a local-first tracker; a resumed run goes on under the same name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrlm.trackers._extra import library


class Trackio:
    """Logs to Trackio, in the project `mrlm`.

    Args:
        folder: not needed here.
        run_name: name of the run.
        config: the resolved config.
        state: name of the run that is continued.
    """

    def __init__(
        self, folder: Path, run_name: str, config: dict[str, Any], state: dict[str, Any] | None
    ) -> None:
        self._library = library("trackio")
        self._name = run_name if state is None else state["name"]
        resume = "never" if state is None else "must"
        self._library.init(project="mrlm", name=self._name, config=config, resume=resume)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        self._library.log(dict(metrics), step=step)

    def state(self) -> dict[str, Any]:
        """The name under which the run can be continued."""
        return {"name": self._name}

    def close(self) -> None:
        """Write everything out."""
        self._library.finish()


PLUGIN = Trackio
