"""The log of a run: metrics and episodes as JSON lines, the console, and the configured trackers.
Independent of the meaning of metrics."""

import importlib.util
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, ClassVar, TextIO

from mrlm.core import registry
from mrlm.core.episodes import Episode
from mrlm.core.errors import PluginError, TrainingError
from mrlm.core.log import log
from mrlm.core.user_errors import title
from mrlm.doctor.alarm import ALARMS, Alarm
from mrlm.doctor.examination import Examination
from mrlm.doctor.recent import MOST
from mrlm.doctor.rule import Rule
from mrlm.learn.checkpoint import after_room
from mrlm.record.files import EpisodeFile
from mrlm.record.plan import RecordPlan
from mrlm.record.reader import METRICS, json_rows
from mrlm.record.redaction import redacted, secrets
from mrlm.record.rows import finite
from mrlm.record.tail import rewind
from mrlm.record.writer import write_episodes
from mrlm.tracking.completions import Table, completions, distributions
from mrlm.tracking.console import ConsoleLog
from mrlm.tracking.log_file import RUN_LOG, LogFile, logging_to
from mrlm.tracking.payoffs import Payoffs

PROFILE = "profile.jsonl"


class Tracker:
    """A destination of metrics besides the run folder; one file in `trackers/` each.

    A tracker is constructed with `(folder, run_name, config, state)`: the run's folder, its name,
    the resolved config and what `state` returned before the run was interrupted (else `None`).
    """

    library: ClassVar[str | None] = None
    """The library it imports."""

    @staticmethod
    def problem(settings: Mapping[str, object]) -> str | None:
        """The reason why it cannot start, or `None`; called before anything is written, with the
        section of `training` that has the tracker's name, if there is one."""
        return None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the finite metrics of a step."""
        raise NotImplementedError

    def samples(
        self, step: int, name: str, table: Table, numbers: Mapping[str, Sequence[float]]
    ) -> None:
        """Log completions of a step of `train` or `eval`, and distributions (name -> its numbers);
        nothing, if the tracker has no place for them."""

    def payoffs(self, step: int, payoffs: Payoffs) -> None:
        """Log the pay-off matrix of self-play; nothing, if the tracker has no place for it."""

    def alert(self, title: str, text: str) -> None:
        """Send an alarm of a rule to the user; nothing, if the tracker has no alerts."""

    def state(self) -> dict[str, Any]:
        """JSON-able state with which a resumed run continues."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush and close."""
        raise NotImplementedError


def check_trackers(names: Sequence[str], settings: Mapping[str, Any] | None = None) -> None:
    """Check that trackers exist and can be used with the settings of the section `training`. Raises
    `PluginError`: a tracker does not exist, or its library is not installed."""
    for name in names:
        plugin = registry.load("trackers", name)
        if not (inspect.isclass(plugin) and issubclass(plugin, Tracker)):
            continue  # a user's function or class, which declares nothing
        needs = plugin.library
        if needs is not None and importlib.util.find_spec(needs) is None:
            raise PluginError(
                f"training.report_to: the library of tracker {name!r} is not installed: "
                f"pip install 'mrlm[{name}]'"
            )
        problem = plugin.problem((settings or {}).get(name) or {})
        if problem is not None:
            raise PluginError(f"training.report_to: {problem}")


class RunLog:
    """The log of one run.

    A tracker that fails during the run (a server that is gone) is dropped with a warning;
    `metrics.jsonl` has all metrics. A tracker that cannot start is an error.

    Args:
        folder: the run's folder with `metrics.jsonl` and the episodes. Non-finite numbers are
            written as `null`.
        run_name: name of the run on the console and in trackers.
        config: the resolved config, for trackers.
        total_steps: iterations of the run.
        trackers: names of plug-ins in `trackers`.
        resume_step: first step that will be logged; rows from there on are removed, so that a
            resumed run's log is that of an uninterrupted one. `None` starts both files from
            scratch.
        state: the result of `state()` when the run was saved.
        every: steps between lines on the console.
        show: names or patterns of the metrics on the console; empty: numbers by agent.
        record: which episodes and tokens are recorded.
        rules: those that examine every step; their alarms go to `alarms.jsonl`, once each.
    """

    def __init__(
        self,
        folder: Path,
        run_name: str,
        config: Mapping[str, object],
        total_steps: int,
        trackers: Sequence[str] = (),
        *,
        resume_step: int | None = None,
        state: dict[str, Any] | None = None,
        every: int = 1,
        show: Sequence[str] = (),
        record: RecordPlan | None = None,
        rules: Mapping[str, Rule] | None = None,
    ) -> None:
        self.folder = folder
        self.alarms: list[Alarm] = []
        """Those of the last step."""
        self._rules: dict[str, Rule] = dict(rules or {})
        self.record: RecordPlan = record or RecordPlan()
        self._every = every
        self._secrets = secrets()
        training = config.get("training")
        check_trackers(trackers, training if isinstance(training, Mapping) else None)
        self._names: list[str] = list(trackers)
        self._about: tuple[str, Any] = (run_name, redacted(config, self._secrets))
        self._trackers: dict[str, Tracker] = {}
        self._open(0 if resume_step is None else resume_step, state or {})
        self._console = ConsoleLog(run_name, total_steps, resume_step or 0, show)

    def _open(self, first: int, state: dict[str, Any]) -> None:
        """Continue, or start, with step `first`."""
        self._kept: dict[str, Any] = dict(state.get("trackers", state))  # 0.1.0 had these alone
        for name in self._names:
            plugin = registry.load("trackers", name)
            try:
                self._trackers[name] = plugin(self.folder, *self._about, self._kept.get(name))
            except Exception as error:  # any error of a tracker's library
                reason = title(error).splitlines()[0]
                raise PluginError(
                    f"training.report_to: the tracker {name!r} cannot start: {reason}"
                ) from error
        for name in (METRICS, PROFILE, ALARMS):
            rewind(self.folder / name, first)
        self._metrics: TextIO = (self.folder / METRICS).open("a", encoding="utf-8")
        self._episodes: EpisodeFile = self.record.open(self.folder, first)
        self._profile: TextIO | None = None
        self._examination = Examination(self._rules, config=self._about[1])
        if first and self._rules:
            self._examination.resume(self.folder, state.get("doctor"))

    def back(self, step: int, state: dict[str, Any]) -> None:
        """Remove the rows after a step, as for a run that is resumed from there, with the result of
        `state()` after that step."""
        self._close_files()
        self._open(step + 1, state)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write the metrics of a step. Raises `TrainingError`: the run folder cannot be written."""
        numbers = {name: finite(value) for name, value in metrics.items()}
        line = {"step": step, "time": round(time.time(), 3), **numbers}
        self._append(self._metrics, [line])
        known = {name: value for name, value in numbers.items() if value is not None}
        self._tell(f"at step {step}", lambda tracker: tracker.log(step, known))
        self._console.log(step, known, shown=step % self._every == 0)
        self._examine(line)

    @property
    def rules_ready(self) -> tuple[int, int]:
        """Rules that had enough to look at, and all rules."""
        return len(self._examination.ready), len(self._rules)

    def _examine(self, line: Mapping[str, Any]) -> None:
        """Call the rules with the metrics of a step, and report new alarms."""
        self.alarms = self._examination.examine(line) if self._rules else []
        if not self.alarms:
            return
        path = self.folder / ALARMS
        try:
            with path.open("a", encoding="utf-8") as file:
                self._append(file, [alarm.row() for alarm in self.alarms])
        except OSError as error:
            raise self._unwritable(path, error) from error
        for alarm in self.alarms:
            log.warning("doctor: %s", alarm)
            when = f"at step {alarm.step}"
            message = f"{alarm.rule} {when}", str(alarm)
            self._tell(when, lambda tracker, message=message: tracker.alert(*message))

    def episodes(
        self,
        step: int,
        groups: Iterable[Iterable[Episode]],
        opponents: Mapping[str, str] | None = None,
    ) -> None:
        """Write the episodes of a step, as far as `record` chooses them; known secrets in texts are
        redacted, together with their tokens. `opponents` maps an opponent to the past player it
        represents. Raises `TrainingError`: the run folder cannot be written."""
        try:
            rows, thinned = write_episodes(
                self._episodes,
                self.record,
                step,
                groups,
                opponents,
                hidden=self._secrets,
                most=None if self._trackers else MOST,
            )
        except OSError as error:
            raise self._unwritable(self._episodes.path, error) from error
        name = "eval" if rows and rows[0]["id"].startswith("eval/") else "train"
        if self._rules and (name == "eval" or step % self._episodes.every == 0):
            self._examination.see({"step": step, **row} for row in rows[:MOST])
        if thinned:
            self._examination.keep(self._episodes.every)
            self.note(
                "the episodes of this run exceed record.max_gb: one in "
                f"{self._episodes.every} training steps is kept"
            )
        if rows and self._trackers:
            samples = completions(rows), distributions(rows)
            self._tell(f"at step {step}", lambda tracker: tracker.samples(step, name, *samples))

    def payoffs(self, step: int, payoffs: Payoffs) -> None:
        """Log the pay-off matrix of self-play to the trackers; nothing without players."""
        if payoffs.players:
            self._tell(f"at step {step}", lambda tracker: tracker.payoffs(step, payoffs))

    def profile(self, row: Mapping[str, object]) -> None:
        """Write the durations of the parts of a step; the file is created by the first call."""
        if self._profile is None:
            self._profile = (self.folder / PROFILE).open("a", encoding="utf-8")
        self._append(self._profile, [row])

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how much of a part of a step is done, on the console."""
        self._console.progress(what, done, total)

    def note(self, text: str) -> None:
        """Show a sentence on the console."""
        self._console.note(redacted(text, self._secrets))

    def say(self, text: str) -> None:
        """Print lines on the console that stay there after `close`."""
        self._console.say(redacted(text, self._secrets))

    def messages(self) -> AbstractContextManager[None]:
        """A context in which messages of the library are also written to `run.log`, and the error
        that ends it."""
        return logging_to(LogFile(self.folder / RUN_LOG, self._secrets))

    def state(self) -> dict[str, Any]:
        """State for checkpoints: of the trackers (one that is not in use keeps its earlier state),
        and of the rules, so that a run continues without reading its metrics."""
        trackers = {name: tracker.state() for name, tracker in self._trackers.items()}
        doctor = self._examination.state_dict() if self._rules else None
        return {"trackers": self._kept | trackers, "doctor": doctor}

    def history(self) -> list[dict[str, Any]]:
        """All rows of metrics, including those before a resume."""
        return list(json_rows(self.folder, METRICS))

    def close(self) -> None:
        """Flush all files and end the display."""
        self._console.close()
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._metrics, self._profile):
            if file is not None:
                with suppress(OSError):  # a failed write was reported when it happened
                    file.close()
        self._tell("while it was closed", lambda tracker: tracker.close())

    def _tell(self, when: str, send: Callable[[Tracker], object]) -> None:
        """Call every tracker; drop one that fails, with a warning."""
        for name, tracker in list(self._trackers.items()):
            try:
                send(tracker)
            except Exception as error:  # any error of a tracker's library
                self._kept[name] = self._trackers.pop(name).state()
                try:
                    tracker.close()  # a server that works shows the run as ended
                except Exception as another:
                    log.debug("tracker %r could not be closed: %r", name, another)
                text = "tracker %r failed %s and is dropped from this run (%r); %s has all metrics"
                log.warning(text, name, when, error, self.folder / METRICS)

    def _append(self, file: TextIO, lines: Sequence[Mapping[str, object]]) -> None:
        """Write whole lines, and flush."""
        try:
            # non-ASCII is escaped: no control code of a model's text reaches a terminal
            file.write("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
            file.flush()
        except OSError as error:
            raise self._unwritable(Path(file.name), error) from error

    def _unwritable(self, path: Path, error: OSError) -> TrainingError:
        reason = f"{error.strerror}; {after_room(self.folder)}"
        return TrainingError(f"{path} cannot be written: {reason}")
