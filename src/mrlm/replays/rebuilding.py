"""Rebuilding a recorded run to play an episode of it again: finding the episode, the config without
what does not affect weights, and a callback that waits for the episode."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrlm.build.lock import unlock
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.config import ExperimentConfig, load_config
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.experiment import MODELS
from mrlm.learn.checkpoint import checkpoints, step_of, verify
from mrlm.record.files import COMPRESSED, PLAIN, episode_file, rows_of
from mrlm.record.plan import RecordPlan
from mrlm.record.reader import METRICS, json_rows
from mrlm.record.rows import episode_row
from mrlm.replays.recorded_engine import Recorded, recorded_words
from mrlm.train import train
from mrlm.training.iteration import evaluate
from mrlm.training.metrics import remote_engines
from mrlm.training.rollback import rollbacks
from mrlm.training.run import Callback, Run

COMPARED = ("loss", "grad_norm", "reward/mean")
"""Metrics that identify a repeated step with that of the log."""


class FoundError(Exception):
    """The episode was played and, for its columns, trained on; nothing later is needed."""


class Watch(Callback):
    """Waits for an episode, or for the weights after `until` steps, and compares the steps before
    with those of the log. With columns the re-execution records all tokens of its step, and `read`
    takes its row from there."""

    def __init__(
        self, folder: Path, episode: str, step: int, columns: bool, until: int | None = None
    ) -> None:
        self.episode: str = episode
        self.step: int = step
        self.columns: bool = columns
        self.until: int | None = until
        self.found: Episode | None = None
        self.line: dict[str, Any] = {}
        self.notes: list[str] = []
        self._returns = rollbacks(folder)
        self._logged = {row["step"]: row for row in json_rows(folder, METRICS)}

    def on_step_begin(self, run: Run) -> None:
        traced = self.columns and run.step + 1 == self.step
        run.log.record = RecordPlan("all", "all" if traced else "evaluations")
        for rollback in self._returns:
            if rollback.to == run.step and rollback.count > run.rollbacks:
                run.ease(rollback.count)
        if run.step == self.until:
            raise FoundError

    def on_episodes(self, run: Run, step: int, episodes: Sequence[Episode]) -> None:
        for candidate in episodes if step == self.step else ():
            if candidate.id == self.episode and self.found is None:
                self.found = candidate
                self.line = {"step": step, **episode_row(candidate, run.population.standing())}
                if not self.columns or candidate.id.startswith("eval/"):
                    raise FoundError

    def read(self, folder: Path) -> None:
        """Takes the row from the record of the re-execution."""
        if self.columns and self.found is not None:
            rows = (row for row in rows_of(folder, id=self.episode) if row["step"] == self.step)
            self.line = next(rows)

    def on_step_end(self, run: Run, metrics: Mapping[str, float]) -> None:
        logged = self._logged.get(run.step, {})
        for name in COMPARED:
            if name in logged and name in metrics and logged[name] != metrics[name]:
                self.notes.append(
                    f"step {run.step} of the training did not come out as it is logged ({name} "
                    f"{metrics[name]!r}, logged {logged[name]!r}): other hardware, other threads "
                    "or other libraries compute other bits"
                )
                self._logged = {}  # later steps differ as a consequence
                break
        if self.found is not None:
            raise FoundError


async def go(run: Run, step: int, evaluated: bool) -> None:
    """Train up to a step, and evaluate there if the episode is from an evaluation."""
    run.total_steps = step if evaluated else step + 1  # the last step would be evaluated
    await train(run)
    if evaluated:
        run.log.record = RecordPlan("all")
        await evaluate(run)


# -- finding the episode ---------------------------------------------------------------------------


def find(run: Path, episode: str) -> tuple[Path, list[dict[str, Any]]]:
    """The folder whose log has an episode, and its rows: for a pipeline, that of a stage."""
    run = run.expanduser()
    folders = [run] if (run / "config.yaml").is_file() else []
    stages = sorted(path.parent for path in run.glob("*/config.yaml"))
    folders = folders or [stage for stage in stages if not _begun_anew(stage)]
    logs = [folder for folder in folders if episode_file(folder) is not None]
    if not logs:
        raise ConfigError(
            f"{run}: not a run folder: config.yaml, {COMPRESSED} or {PLAIN} does not exist"
        )
    matches = {folder: rows for folder in logs if (rows := list(rows_of(folder, id=episode)))}
    if not matches:
        some = next((row["id"] for row in rows_of(logs[0])), "none")
        raise ConfigError(
            f"{run}: episode {episode!r} is not recorded; ids there look like {some!r}"
        )
    if len(matches) > 1:
        raise ConfigError(
            f"{run}: several stages have an episode {episode!r}; give the folder of one: "
            f"{', '.join(map(str, matches))}"
        )
    return next(iter(matches.items()))


def _begun_anew(stage: Path) -> bool:
    """Whether a folder is the remains of a stage that was killed before its first checkpoint."""
    name, dot, number = stage.name.rpartition(".")
    return bool(dot) and number.isdigit() and stage.with_name(name).is_dir()


def chosen(
    rows: Sequence[dict[str, Any]], episode: str, step: int | None, columns: bool
) -> tuple[dict[str, Any], list[str]]:
    """The requested row, and remarks on it. Columns are those of a step that trained on it."""
    steps = sorted({row["step"] for row in rows})
    if step is not None and step not in steps:
        raise ConfigError(
            f"--step {step}: episode {episode!r} is logged in step {', '.join(map(str, steps))}"
        )
    notes = []
    if len(steps) > 1 and episode.startswith("train/") and not columns:
        step = steps[0]
        notes.append(f"it was played in step {step}, kept, and trained on in later steps too")
    if step is None and len(steps) > 1:
        step_list = ", ".join(map(str, steps[:20])) + (", ..." if len(steps) > 20 else "")
        raise ConfigError(
            f"episode {episode!r} is logged in steps {step_list}; choose one with --step"
        )
    chosen_step = steps[0] if step is None else step
    return next(row for row in rows if row["step"] == chosen_step), notes


# -- rebuilding the run ----------------------------------------------------------------------------


def config_of(folder: Path, parts: LiveObjects | None) -> ExperimentConfig:
    """The config of a run. Raises `ConfigError`: what it played was live objects, and they are not
    given."""
    config = load_config(folder / "config.yaml")
    if parts is None and not config.environments and config.data.dataset is None:
        raise ConfigError(
            f"{folder}: the environments or rows of this run were live objects of a program; give "
            "parts=mrlm.build.policies.LiveObjects(environments=[...]) with them"
        )
    return config


def rebuilt(
    folder: Path,
    config: ExperimentConfig,
    parts: LiveObjects | None,
    watch: Watch,
    origin: Path | None,
    workdir: Path,
) -> tuple[Run, list[str]]:
    """A run again, in another folder and from a checkpoint; notes on policies behind an API."""
    models = _with_models(folder, parts, watch)
    made = build(_quiet(config, workdir / "run"), models, origin, checked=False)
    unlock(made.folder)  # no other process knows it
    try:
        return made, _record_apis(made, folder)
    except BaseException:
        made.log.close()
        raise


def origin_of(folder: Path, step: int) -> Path | None:
    """The newest undamaged checkpoint at or before a step; `None` is the initial state."""
    early = (checkpoint for checkpoint in checkpoints(folder) if step_of(checkpoint) <= step)
    return next((checkpoint for checkpoint in early if verify(checkpoint) is None), None)


def _quiet(config: ExperimentConfig, run_folder: Path) -> ExperimentConfig:
    """The config of a run in another folder with nothing that does not affect the weights."""
    changes: dict[str, Any] = {
        "output_dir": str(run_folder),
        "distributed.enabled": False,
        "training.report_to": [],
        "training.profile": False,
        "training.checks": "off",
        "training.save_steps": None,
        "record.tokens": "all",  # any episode may be the one that is shown
    }
    if not config.opponents.on:  # else past players are sampled by the results of evaluations
        changes |= {"evaluation.every": None, "evaluation.at_start": False}
    for name, section in config.policies.items():
        if section.endpoint is not None:  # no API is called
            changes[f"policies.{name}.endpoint.api_key_env"] = None
    return config.merged(changes)


def _with_models(folder: Path, parts: LiveObjects | None, watch: Callback) -> LiveObjects:
    """Parts of the run, with the models that a stage took over from the previous one."""
    live = parts or LiveObjects()
    taken: dict[str, Any] = {}
    if (folder / MODELS).is_file():
        for name, path in json.loads((folder / MODELS).read_text(encoding="utf-8")).items():
            if not (folder / path).is_dir():
                raise ConfigError(f"{folder / path}: the model that the stage began with is gone")
            taken[name] = (str((folder / path).resolve()), None)
    return replace(live, models={**taken, **live.models}, callbacks=(watch,))


def _record_apis(run: Run, folder: Path) -> list[str]:
    """Let policies behind an API return recorded completions; returns notes on it."""
    remote = list(remote_engines(run.engines))
    if not remote:
        return []
    if run.population:
        raise ConfigError(
            f"{folder}: games against past players are not logged in full, so a run with "
            f"opponents and policies behind an API ({', '.join(remote)}) cannot be played again"
        )
    words = recorded_words(rows_of(folder))
    for name in remote:
        run.engines[name] = Recorded(name, words, run)
    names = ", ".join(remote)
    return [
        f"behind an API ({names}) nothing can be sampled again: the recorded completions were used"
    ]
