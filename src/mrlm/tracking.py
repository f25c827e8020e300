"""What a run writes down: metrics and episodes as JSON lines, always; the console; and the trackers
a user asked for. It knows nothing of what the numbers mean."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mrlm.console import ConsoleLog
from mrlm.core import registry
from mrlm.core.records import message_record
from mrlm.core.types import Episode

METRICS = "metrics.jsonl"
EPISODES = "episodes.jsonl"

SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)


class Tracker(Protocol):
    """Where metrics go besides the run folder; one file in `trackers/` each.

    A tracker is constructed with `(folder, run_name, config, state)`: the run's folder, its name,
    the resolved config and what `state` returned before the run was interrupted (else `None`).
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the finite metrics of a step."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON-able state that a resumed run needs to go on in the same place."""
        ...

    def close(self) -> None:
        """Write everything out."""
        ...


class RunLog:
    """The log of one run.

    Args:
        folder: the run's folder; `metrics.jsonl` and `episodes.jsonl` are written there. Numbers
            that are not finite become `null`.
        run_name: what the run is called on the console and by trackers.
        config: the resolved config, for trackers.
        total_steps: iterations of the run.
        trackers: names of plug-ins of the wing `trackers`.
        resume_step: first step that will be logged; what was logged from there on is removed, so
            that a resumed run's log is that of an undisturbed one.
        state: what `state()` returned when the run was saved.
        every: steps between lines on the console.
    """

    def __init__(
        self,
        folder: Path,
        run_name: str,
        config: dict[str, Any],
        total_steps: int,
        trackers: Sequence[str] = (),
        *,
        resume_step: int | None = None,
        state: dict[str, Any] | None = None,
        every: int = 1,
    ) -> None:
        self.folder = folder
        state = state or {}
        self._every = every
        self._secrets = _secrets()
        for name in (METRICS, EPISODES):
            rewind(folder / name, 0 if resume_step is None else resume_step)
        self._metrics = (folder / METRICS).open("a", encoding="utf-8")
        self._episodes = (folder / EPISODES).open("a", encoding="utf-8")
        self._trackers: dict[str, Tracker] = {}
        for name in trackers:
            plugin = registry.load("trackers", name)
            self._trackers[name] = plugin(folder, run_name, config, state.get(name))
        self._console = ConsoleLog(run_name, total_steps, start=resume_step or 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""
        finite = {key: value for key, value in metrics.items() if math.isfinite(value)}
        row = {key: finite.get(key) for key in metrics}
        line = {"step": step, "time": round(time.time(), 3), **row}
        self._metrics.write(json.dumps(line, allow_nan=False) + "\n")
        self._metrics.flush()
        for tracker in self._trackers.values():
            tracker.log(step, finite)
        self._console.log(step, finite, shown=step % self._every == 0)

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        """Write what was played in a step; known secrets in texts are blacked out."""
        for episode in episodes:
            text = json.dumps({"step": step, **_summary(episode)}, allow_nan=False)
            for secret in self._secrets:
                text = text.replace(json.dumps(secret)[1:-1], "[secret]")
            self._episodes.write(text + "\n")
        self._episodes.flush()

    def state(self) -> dict[str, Any]:
        """State of the trackers, for checkpoints."""
        return {name: tracker.state() for name, tracker in self._trackers.items()}

    def history(self) -> list[dict[str, Any]]:
        """Everything that was logged, also before the run was resumed."""
        lines = (self.folder / METRICS).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Write everything out and end the display."""
        self._console.close()
        for tracker in self._trackers.values():
            tracker.close()
        self._metrics.close()
        self._episodes.close()


def rewind(path: Path, step: int) -> None:
    """Keep the lines of a JSONL file that belong to steps before `step`; a torn last line goes."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if row["step"] < step:
            kept.append(line + "\n")
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(kept)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _summary(episode: Episode) -> dict[str, Any]:
    agents = {
        name: {
            "reward": rollout.reward,
            "messages": [message_record(message) for message in rollout.messages],
        }
        for name, rollout in episode.rollouts.items()
    }
    return {
        "id": episode.id,
        "environment": episode.environment,
        "task_id": episode.task.id,
        "status": episode.status,
        "reward": episode.reward,
        "error": episode.error,
        "agents": agents,
    }


def _secrets() -> list[str]:
    """Values of environment variables whose names say that they are secret."""
    return [
        value for name, value in os.environ.items() if SECRET_NAME.search(name) and len(value) >= 8
    ]
