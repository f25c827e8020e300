"""The log of a process other than the main one: it keeps metrics in memory and writes no files."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from mrlm.core.episodes import Episode
from mrlm.record.plan import RecordPlan
from mrlm.tracking.payoffs import Payoffs
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

    def episodes(
        self,
        step: int,
        groups: Iterable[Iterable[Episode]],
        opponents: Mapping[str, str] | None = None,
    ) -> None:
        pass

    def payoffs(self, step: int, payoffs: Payoffs) -> None:
        pass

    def back(self, step: int, state: dict[str, Any]) -> None:
        self._rows = [row for row in self._rows if row["step"] <= step]

    def profile(self, row: Mapping[str, Any]) -> None:
        pass

    def progress(self, what: str, done: int, total: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def messages(self) -> AbstractContextManager[None]:
        return nullcontext()

    def state(self) -> dict[str, Any]:
        return {}

    def history(self) -> list[dict[str, Any]]:
        return list(self._rows)

    def close(self) -> None:
        pass
