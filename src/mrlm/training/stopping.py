"""Reactions to evaluations: ending a run that no longer improves, and keeping its best policies."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.learn.checkpoint import write_json
from mrlm.training.run import Callback, Run

BEST = "best"
"""Folder of the policies of the best evaluation, in the run's folder; `best.json` is beside it."""


class EarlyStopping(Callback):
    """Ends a run, with everything saved, after `patience` evaluations in a row that were no better
    than the best one before. A resumed run continues to count.

    Args:
        metric: of evaluations; `eval/` may be left out.
        patience: evaluations without an improvement.
        min_change: difference from which on a value is an improvement.
        maximize: whether larger values are better.

    Raises:
        ConfigError: `patience` is not above 0; from a run: it is never evaluated on the way, or the
            metric does not exist.
    """

    def __init__(
        self,
        metric: str = "reward/mean",
        patience: int = 3,
        min_change: float = 0.0,
        maximize: bool = True,
    ) -> None:
        if patience < 1:
            raise ConfigError(f"EarlyStopping: patience={patience} must be at least 1")
        self.metric: str = _name(metric)
        self.patience = patience
        self.min_change = min_change
        self.maximize = maximize
        self.best: float | None = None
        self.waited: int = 0

    def on_train_begin(self, run: Run) -> None:
        if not run.evaluates or run.config.evaluation.every is None:
            raise ConfigError(
                "EarlyStopping: the run is not evaluated on the way; set evaluation.every and "
                "evaluation.episodes"
            )
        self.best, self.waited = None, 0
        for row in run.log.history() if run.step else []:
            if row.get("step", 0) <= run.step and row.get(self.metric) is not None:
                self._count(float(row[self.metric]))

    def on_evaluate(self, run: Run, metrics: Mapping[str, float]) -> None:
        self._count(value_of(metrics, self.metric, "EarlyStopping"))
        if self.waited >= self.patience:
            log.warning(
                "stopped early: %s was not better than %g in %d evaluations",
                self.metric,
                self.best,
                self.waited,
            )
            run.stop()

    def _count(self, value: float) -> None:
        gain = 0.0 if self.best is None else (value - self.best) * (1 if self.maximize else -1)
        if self.best is None or gain > self.min_change:
            self.best, self.waited = value, 0
        else:
            self.waited += 1


class KeepBest(Callback):
    """Writes the policies of the best evaluation into `best/`, its step and value into `best.json`.

    Args:
        metric: of evaluations; larger is better.
        save: writes the policies of a run into a folder.
    """

    def __init__(self, metric: str, save: Callable[[Run, Path], object]) -> None:
        self.metric: str = _name(metric)
        self.save = save

    def on_evaluate(self, run: Run, metrics: Mapping[str, float]) -> None:
        value = value_of(metrics, self.metric, "evaluation.keep_best")
        file = run.folder / "best.json"
        if run.step and file.is_file() and value <= json.loads(file.read_text("utf-8"))["value"]:
            return
        self.save(run, run.folder / BEST)
        if run.peers.main:
            write_json(file, {"step": run.step, "metric": self.metric, "value": value})


@contextmanager
def watching(run: Run, save: Callable[[Run, Path], object]) -> Iterator[None]:
    """A context in which a run has the callbacks that its section `evaluation` names."""
    section, before = run.config.evaluation, run.callbacks
    named: list[Callback] = []
    if section.keep_best:
        metric = "reward/mean" if section.keep_best is True else section.keep_best
        named.append(KeepBest(metric, save))
    if section.early_stopping is not None:
        named.append(EarlyStopping(**section.early_stopping.model_dump()))
    run.callbacks = (*before, *named)
    try:
        yield
    finally:
        run.callbacks = before


def value_of(metrics: Mapping[str, float], name: str, where: str) -> float:
    """A metric of an evaluation. Raises `ConfigError`: it does not exist; names those that do."""
    if metrics.get(name) is None:
        names = ", ".join(sorted(metrics))
        raise ConfigError(f"{where}: the evaluation has no metric {name!r} (it has {names})")
    return float(metrics[name])


def _name(metric: str) -> str:
    return metric if metric.startswith("eval/") else f"eval/{metric}"
