"""Re-execution of a logged episode: training is repeated from the last checkpoint before it up to
its step, in a separate folder, and the episode is compared with the log."""

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
from mrlm.replays import rebuilding
from mrlm.replays.differences import differing
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
            lines += [
                "different from the log:",
                *(f"  {difference}" for difference in self.differences),
            ]
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
    folder, rows = rebuilding.find(Path(run), episode)
    logged, notes = rebuilding.chosen(rows, episode, step, columns)
    number, evaluated = logged["step"], episode.startswith("eval/")
    if number == 0 and not evaluated:
        raise ConfigError(
            f"{folder}: episode {episode!r} was collected; `mrlm replay` repeats those of "
            "training runs and of evaluations"
        )
    config, needed = rebuilding.config_of(folder, parts), number if evaluated else number - 1
    origin = rebuilding.origin_of(folder, needed)
    if config.distributed.enabled:
        notes.append("the run was distributed; it is played again in one process")
    watch = rebuilding.Watch(folder, episode, number, columns)
    with (
        tempfile.TemporaryDirectory(prefix="mrlm-replay-") as workdir,
        redirect_stdout(io.StringIO()),
    ):
        made, api_notes = rebuilding.rebuilt(folder, config, parts, watch, origin, Path(workdir))
        begun = made.step
        _play(made, watch, evaluated)
    if watch.found is None:
        raise ConfigError(
            f"{folder}: step {number} was played again, and episode {episode!r} was not in it; the "
            "run's config, its data or its environments have changed"
        )
    played = json.loads(json.dumps(redacted(watch.line, secrets())))
    differences = list(differing(logged, played))
    notes += [*api_notes, *watch.notes]
    return Replay(
        watch.found,
        number,
        _weights_note(origin, begun, needed),
        logged,
        played,
        differences,
        notes,
    )


def _play(run: Run, watch: rebuilding.Watch, evaluated: bool) -> None:
    """Train a rebuilt run until the episode was played, and take its row."""
    try:
        with threads(run.config, policies_of(run)), beside_play(run):
            run_async(rebuilding.go(run, watch.step, evaluated))
    except rebuilding.FoundError:
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


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
