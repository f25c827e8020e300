"""The log of a process other than the main one: it keeps metrics in memory and writes no files."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from mrlm.record.plan import RecordPlan
from mrlm.tracking.run_log import RunLog


class SilentLog(RunLog):
    """A log that writes nothing; the main process writes the log of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = RecordPlan()
        self.alarms = []
        self._rows: list[dict[str, Any]] = []

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._rows.append({"step": step, **metrics})

    def _nothing(self, *args: object, **named: object) -> None:
        pass

    episodes = payoffs = profile = progress = note = say = close = _nothing

    def back(self, step: int, state: dict[str, Any]) -> None:
        self._rows = [row for row in self._rows if row["step"] <= step]

    def messages(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self) -> dict[str, Any]:
        return {}

    def history(self) -> list[dict[str, Any]]:
        return list(self._rows)
