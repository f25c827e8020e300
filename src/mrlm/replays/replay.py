"""Re-execution of a logged episode: training is repeated from the last checkpoint before it up to
its step, in a separate folder, and the episode is compared with the log."""

from __future__ import annotations

import io
import json
import os
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrlm.build.async_play import beside_play
from mrlm.build.policies import LiveObjects
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.sync_async import run_async
from mrlm.record.reader import RecordedEpisode
from mrlm.record.redaction import redacted, secrets
from mrlm.replays.differences import differing
from mrlm.replays.rebuilding import (
    FoundError,
    Watch,
    chosen,
    config_of,
    find,
    go,
    origin_of,
    rebuilt,
)
from mrlm.runs import policies_of, threads
from mrlm.training.metrics import component_sums
from mrlm.training.run import Run


@dataclass(slots=True)
class Replay:
    """A re-executed episode.

    Args:
        episode: the episode of the re-execution.
        step: its step in the log.
        origin: the source of the weights, as a sentence.
        logged: its row in the log.
        played: the same row of the re-execution; with columns, as `record.tokens: all` has it.
        differences: the differences, the first one first; empty if there are none.
        notes: remarks on the comparison.
    """

    episode: Episode
    step: int
    origin: str
    logged: dict[str, Any]
    played: dict[str, Any]
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def recorded(self) -> RecordedEpisode:
        """The re-executed row, read: `recorded.turns[0].columns["advantages"]` are numbers."""
        return RecordedEpisode(self.played)

    @property
    def same(self) -> bool:
        """Whether the re-execution equals the log."""
        return not self.differences

    def record(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "step": self.step,
            "origin": self.origin,
            "same": self.same,
            "differences": self.differences,
            "notes": self.notes,
            "episode": self.played,
            "logged": self.logged,
        }

    def __str__(self) -> str:
        played = self.played
        lines = [
            f"episode {played['id']} of step {self.step}, environment {played['environment']}, "
            f"task {played['task_id']}: {played['status']}",
            self.origin,
        ]
        for name, agent in played["agents"].items():
            lines += ["", f"-- {name} (policy {agent['policy']}) --"]
            for message in agent["messages"]:
                speaker = message["agent"] or message["role"]
                lines.append(f"{speaker}: {message['content']}")
        lines += ["", f"reward {_number(played['reward'])}"]
        parts = component_sums(self.episode)
        for name, agent in played["agents"].items():
            made = "".join(f", {key} {value:g}" for key, value in parts.get(name, {}).items())
            lines.append(f"  {name} {_number(agent['reward'])}{made}")
        lines += [*([""] if self.notes else []), *(f"note: {note}" for note in self.notes), ""]
        turns = [turn for agent in played["agents"].values() for turn in agent["turns"]]
        count = sum(turn["tokens"] for turn in turns)
        if self.same:
            lines.append(f"equal to the log: {len(turns)} turns, {count} tokens, all rewards")
        else:
            lines += ["different from the log:", *(f"  {each}" for each in self.differences)]
        return "\n".join(lines)


def replay(
    run: str | os.PathLike[str],
    episode: str,
    step: int | None = None,
    *,
    columns: bool = False,
    parts: LiveObjects | None = None,
) -> Replay:
    """Re-execute an episode of a run, with the weights it was played with, and compare it with the
    log. The run's folder is not changed.

    Args:
        run: a run folder, or that of a stage.
        episode: its `id` in the record.
        step: its `step` there, if the id occurs in several.
        columns: also train on it again, so that `played` has the columns of all its tokens, the
            bits that a run with `record.tokens: all` records.
        parts: live objects that replaced sections of the config, in their initial state.

    Raises:
        ConfigError: the episode does not exist or is ambiguous; or the run cannot be rebuilt.
    """
    folder, rows = find(Path(run), episode)
    logged, notes = chosen(rows, episode, step, columns)
    number, evaluated = logged["step"], episode.startswith("eval/")
    if number == 0 and not evaluated:
        raise ConfigError(
            f"{folder}: episode {episode!r} was collected; `mrlm replay` repeats those of "
            "training runs and of evaluations"
        )
    config, needed = config_of(folder, parts), number if evaluated else number - 1
    origin = origin_of(folder, needed)
    if config.distributed.enabled:
        notes.append("the run was distributed; it is played again in one process")
    watch = Watch(folder, episode, number, columns)
    with (
        tempfile.TemporaryDirectory(prefix="mrlm-replay-") as place,
        redirect_stdout(io.StringIO()),
    ):
        made, said = rebuilt(folder, config, parts, watch, origin, Path(place))
        begun = made.step
        _play(made, watch, evaluated)
    if watch.found is None:
        raise ConfigError(
            f"{folder}: step {number} was played again, and episode {episode!r} was not in it; the "
            "run's config, its data or its environments have changed"
        )
    played = json.loads(json.dumps(redacted(watch.line, secrets())))
    differences = list(differing(logged, played))
    notes += [*said, *watch.notes]
    return Replay(
        watch.found,
        number,
        _weights_note(origin, begun, needed),
        logged,
        played,
        differences,
        notes,
    )


def _play(run: Run, watch: Watch, evaluated: bool) -> None:
    """Train a rebuilt run until the episode was played, and take its row."""
    try:
        with threads(run.config, policies_of(run)), beside_play(run):
            run_async(go(run, watch.step, evaluated))
    except FoundError:
        pass
    except TrainingError as error:
        if watch.found is None:
            raise
        watch.notes.append(f"the update after it failed: {error}")
    finally:
        run.log.close()
    watch.read(run.folder)


def _weights_note(origin: Path | None, begun: int, needed: int) -> str:
    """The source of the weights of a re-execution, as a sentence."""
    start = "the initial weights" if origin is None else origin.name
    repeated = needed - begun
    again = f", then {repeated} steps of training again" if repeated else ""
    return f"played with the weights after {needed} steps: {start}{again}"
class _Watch(Callback):
    """Waits for an episode, or for the weights after `until` steps, and compares the steps before
    with those of the log. With columns the re-execution records all tokens of its step, and `read`
    takes its row from there."""

    def __init__(
        self, folder: Path, episode: str, step: int, columns: bool, until: int | None = None
    ) -> None:
        self.episode, self.step, self.columns, self.until = episode, step, columns, until
        self.found: Episode | None = None
        self.line: dict[str, Any] = {}
        self.notes: list[str] = []
        self._returns = rollbacks(folder)
        rows = (json.loads(line) for line in _whole_lines(folder / METRICS))
        self._logged = {row["step"]: row for row in rows}

    def on_step_begin(self, run: Run) -> None:
        wanted = self.columns and run.step + 1 == self.step
        run.log.record = RecordPlan("all", "all" if wanted else "evaluations")
        for each in self._returns:
            if each.to == run.step and each.count > run.rollbacks:
                run.ease(each.count)
        if run.step == self.until:
            raise _FoundError

    def on_episodes(self, run: Run, step: int, episodes: Sequence[Episode]) -> None:
        for each in episodes if step == self.step else ():
            if each.id == self.episode and self.found is None:
                self.found = each
                self.line = {"step": step, **episode_row(each, run.population.standing())}
                if not self.columns or each.id.startswith("eval/"):
                    raise _FoundError

    def read(self, folder: Path) -> None:
        """Takes the row from the record of the re-execution."""
        if self.columns and self.found is not None:
            rows = (row for row in rows_of(folder, id=self.episode) if row["step"] == self.step)
            self.line = next(rows)

    def on_step_end(self, run: Run, metrics: Mapping[str, float]) -> None:
        known = self._logged.get(run.step, {})
        for name in COMPARED:
            if name in known and name in metrics and known[name] != metrics[name]:
                self.notes.append(
                    f"step {run.step} of the training did not come out as it is logged ({name} "
                    f"{metrics[name]!r}, logged {known[name]!r}): other hardware, other threads "
                    "or other libraries compute other bits"
                )
                self._logged = {}  # later steps differ as a consequence
                break
        if self.found is not None:
            raise _FoundError


async def _go(run: Run, step: int, evaluated: bool) -> None:
    """Train up to a step, and evaluate there if the episode is from an evaluation."""
    run.total_steps = step if evaluated else step + 1  # the last step would be evaluated
    await train(run)
    if evaluated:
        run.log.record = RecordPlan("all")
        await evaluate(run)


# -- finding the episode ---------------------------------------------------------------------------


def _find(run: Path, episode: str) -> tuple[Path, list[dict[str, Any]]]:
    """The folder whose log has an episode, and its rows: for a pipeline, that of a stage."""
    folders = [run] if (run / "config.yaml").is_file() else []
    stages = sorted(path.parent for path in run.glob("*/config.yaml"))
    folders = folders or [each for each in stages if not _begun_anew(each)]
    logs = [folder for folder in folders if episode_file(folder) is not None]
    if not logs:
        raise ConfigError(
            f"{run}: not a run folder: config.yaml, {COMPRESSED} or {PLAIN} does not exist"
        )
    found = {folder: rows for folder in logs if (rows := _rows(folder, episode))}
    if not found:
        some = next((row["id"] for row in rows_of(logs[0])), "none")
        raise ConfigError(
            f"{run}: episode {episode!r} is not recorded; ids there look like {some!r}"
        )
    if len(found) > 1:
        raise ConfigError(
            f"{run}: several stages have an episode {episode!r}; give the folder of one: "
            f"{', '.join(map(str, found))}"
        )
    return next(iter(found.items()))


def _begun_anew(stage: Path) -> bool:
    """Whether a folder is the remains of a stage that was killed before its first checkpoint."""
    name, dot, number = stage.name.rpartition(".")
    return bool(dot) and number.isdigit() and stage.with_name(name).is_dir()


def _rows(folder: Path, episode: str) -> list[dict[str, Any]]:
    return list(rows_of(folder, id=episode))


def _whole_lines(path: Path) -> Iterator[str]:
    """The complete lines of a file that may be being written."""
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            yield from (line for line in file if line.endswith("\n"))


def _chosen(
    rows: Sequence[dict[str, Any]], episode: str, step: int | None, columns: bool
) -> tuple[dict[str, Any], list[str]]:
    """The requested row, and remarks on it. Columns are those of a step that trained on it."""
    steps = sorted({row["step"] for row in rows})
    if step is not None and step not in steps:
        raise ConfigError(
            f"--step {step}: episode {episode!r} is logged in step {', '.join(map(str, steps))}"
        )
    notes = []
    if (
        len(steps) > 1 and episode.startswith("train/") and not columns
    ):  # it was kept and trained on again
        step = steps[0]
        notes.append(f"it was played in step {step}, kept, and trained on in later steps too")
    if step is None and len(steps) > 1:
        shown = ", ".join(map(str, steps[:20])) + (", ..." if len(steps) > 20 else "")
        raise ConfigError(f"episode {episode!r} is logged in steps {shown}; choose one with --step")
    wanted = steps[0] if step is None else step
    return next(row for row in rows if row["step"] == wanted), notes


# -- rebuilding the run ----------------------------------------------------------------------------


def _origin(folder: Path, step: int) -> Path | None:
    """The newest undamaged checkpoint at or before a step; `None` is the initial state."""
    early = (each for each in checkpoints(folder) if step_of(each) <= step)
    return next((each for each in early if verify(each) is None), None)


def _quiet(config: ExperimentConfig, place: Path) -> ExperimentConfig:
    """The config of a run in another folder with nothing that does not affect the weights."""
    changes: dict[str, Any] = {
        "output_dir": str(place),
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
    known = parts or LiveObjects()
    taken: dict[str, Any] = {}
    if (folder / MODELS).is_file():
        for name, path in json.loads((folder / MODELS).read_text(encoding="utf-8")).items():
            if not (folder / path).is_dir():
                raise ConfigError(f"{folder / path}: the model that the stage began with is gone")
            taken[name] = (str((folder / path).resolve()), None)
    return replace(known, models={**taken, **known.models}, callbacks=(watch,))


def _record_apis(run: Run, folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
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
    said = ", ".join(remote)
    return [
        f"behind an API ({said}) nothing can be sampled again: the recorded completions were used"
    ]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
