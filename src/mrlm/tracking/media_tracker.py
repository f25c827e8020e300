"""The base of trackers whose library has the interface of Weights & Biases."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.tracking.completions import COLUMNS, Table
from mrlm.tracking.payoffs import Payoffs
from mrlm.tracking.run_log import Tracker


class MediaTracker(Tracker):
    """Logs numbers, tables and histograms to `_run`, which a subclass opens."""

    _run: Any

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def samples(
        self, step: int, name: str, table: Table, numbers: Mapping[str, Sequence[float]]
    ) -> None:
        histogram = self._media.Histogram
        media = {f"{name}/{key}": histogram(list(values)) for key, values in numbers.items()}
        rows = [[row[column] for column in COLUMNS] for row in table]
        media[f"{name}/completions"] = self._media.Table(columns=list(COLUMNS), data=rows)
        self._run.log(media, step=step)

    def payoffs(self, step: int, payoffs: Payoffs) -> None:
        titles, rows = payoffs.table()
        self._run.log({"payoffs": self._media.Table(columns=titles, data=rows)}, step=step)

    def close(self) -> None:
        self._run.finish()

    @property
    def _media(self) -> Any:
        return importlib.import_module(str(self.library))
