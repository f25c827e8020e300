"""A run folder read back: `read_run`."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from mrlm.core.errors import ConfigError
from mrlm.record.files import INDEX, Part, episode_file, parts_of, rows_of
from mrlm.record.opening import check_folder, parsed_line, run_file
from mrlm.record.packing import unpack
from mrlm.record.vocabulary import read_vocabulary

METRICS = "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn of a record.

    Args:
        agent: the agent that acted.
        policy: its policy.
        text: the completion.
        row: all that is recorded of it, as in `docs/record.md`.
        prompt_ids: (P,) all tokens of its prompt; `None` if tokens are not recorded.
        completion_ids: (T,) sampled tokens; `None` if tokens are not recorded.
    """

    agent: str
    policy: str
    text: str
    row: Mapping[str, Any]
    prompt_ids: np.ndarray | None = None
    completion_ids: np.ndarray | None = None

    @property
    def ids(self) -> np.ndarray | None:
        """Its `completion_ids`, by their name in the rows of a record."""
        return self.completion_ids

    @property
    def trained(self) -> bool:
        return bool(self.row.get("trained", True))

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Recorded columns by name, each (T,) float32; `mask` is 1 where tokens are trained."""
        if self.ids is None:
            return {}
        length = len(self.ids)
        arrays = {
            name: unpack(column, length) for name, column in self.row.get("columns", {}).items()
        }
        return arrays | {"mask": np.full(length, self.trained, np.float32)}


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode of a record; `row` is as in `docs/record.md`."""

    row: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def step(self) -> int:
        return int(self.row["step"])

    @property
    def reward(self) -> float | None:
        return self.row["reward"]

    @property
    def evaluation(self) -> bool:
        return self.id.startswith("eval/")

    @cached_property
    def turns(self) -> list[RecordedTurn]:
        """The turns of all agents in the order in which they were taken."""
        unordered = [turn for name in self.row["agents"] for turn in self.agent_turns(name)]
        return sorted(
            unordered, key=lambda turn: (turn.row.get("step", 0), turn.row.get("order", 0))
        )

    def agent_turns(self, agent: str) -> list[RecordedTurn]:
        """The turns of one agent. Episodes of earlier versions have ids, and no columns."""
        record = self.row["agents"][agent]
        previous: list[int] = []
        turns = []
        for turn in record.get("turns", ()):
            ids, prompt = turn.get("ids"), None
            if isinstance(ids, list):  # schema 1
                ids = np.asarray(ids, np.int64)
            elif ids is not None:
                ids = unpack(ids).astype(np.int64)
                shared, rest = turn["prompt"]
                prompt = np.asarray([*previous[:shared], *unpack(rest).tolist()], np.int64)
                previous = [*prompt.tolist(), *ids.tolist()]
            index = turn.get("message")
            text = turn.get("text") if index is None else record["messages"][index]["content"]
            turns.append(RecordedTurn(agent, record["policy"], text or "", turn, prompt, ids))
        return turns


@dataclass
class RecordedRun:
    """A run folder, read on demand.

    Args:
        folder: the folder.

    Examples:
        >>> run = read_run("outputs/quickstart")  # doctest: +SKIP
        >>> run.metrics[-1]["reward/mean"]  # doctest: +SKIP
        >>> for episode in run.episodes(range(100, 110)):  # doctest: +SKIP
        ...     for turn in episode.turns:
        ...         turn.agent, turn.text, turn.columns["advantages"]
    """

    folder: Path
    parts: list[Part] = field(init=False)
    """The places of the episodes of each step."""

    def __post_init__(self) -> None:
        self.parts = parts_of(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics, a row per step."""
        return list(json_rows(self.folder, METRICS))

    @cached_property
    def vocabulary(self) -> dict[str, list[bytes]]:
        """Policy -> bytes of its tokens, in order of their ids."""
        return read_vocabulary(self.folder)

    @cached_property
    def _of_step(self) -> dict[int, list[Part]]:
        """Step -> its parts, so that reading one step does not look at all of them."""
        step_parts: dict[int, list[Part]] = {}
        for part in self.parts:
            step_parts.setdefault(part.step, []).append(part)
        return step_parts

    @property
    def steps(self) -> list[int]:
        """The steps with episodes."""
        return sorted(self._of_step)

    def rows(
        self, steps: Sequence[int] | None = None, id: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The rows of episodes; `steps` and `id` limit them."""
        chosen = self.parts
        if steps is not None:
            wanted = steps if isinstance(steps, range) else set(steps)
            chosen = [x for step in self.steps if step in wanted for x in self._of_step[step]]
        yield from rows_of(self.folder, chosen, id)

    def episodes(self, steps: Sequence[int] | None = None) -> Iterator[RecordedEpisode]:
        """The episodes, step by step; `steps` limits them."""
        yield from (RecordedEpisode(row) for row in self.rows(steps))

    def groups(self, steps: Sequence[int] | None = None) -> Iterator[list[RecordedEpisode]]:
        """The episodes group by group: siblings that an algorithm compared."""

        def key(episode: RecordedEpisode) -> tuple[Any, ...]:
            number = episode.row.get("group")
            task = episode.row["task_id"] if number is None else number
            return episode.step, episode.evaluation, task

        for _, members in groupby(self.episodes(steps), key):
            yield list(members)

    def episode(self, id: str, step: int | None = None) -> RecordedEpisode:
        """One episode by its id; `step` chooses if it occurs in several. Raises `KeyError`: it is
        not in the record."""
        for row in self.rows(None if step is None else [step], id):
            return RecordedEpisode(row)
        raise KeyError(f"{self.folder}: no episode {id!r} is recorded")

    def frame(self, steps: Sequence[int] | None = None) -> Any:
        """A pandas frame with one row per turn: numbers and texts, no token columns. Raises
        `ImportError`: pandas is not installed."""
        import pandas as pd

        rows = [
            turn_record(episode, turn) for episode in self.episodes(steps) for turn in episode.turns
        ]
        return pd.DataFrame(rows)


def json_rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON lines of a run, read as they are used, without an incomplete last
    line; none without the file."""
    path = run_file(folder, name)
    if path is not None:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from (parsed_line(line, path) for line in file if line.endswith("\n"))


def turn_record(episode: RecordedEpisode, turn: RecordedTurn) -> dict[str, Any]:
    """Numbers and texts of a turn and of its episode, flat."""
    messages, place = episode.row["agents"][turn.agent].get("messages", ()), turn.row.get("message")
    numbers = ("order", "index", "version", "lag", "trained", "advantage", "return", "tokens")
    return {
        "step": episode.step,
        "episode": episode.id,
        "group": episode.row.get("group"),
        "environment": episode.row["environment"],
        "task": episode.row["task_id"],
        "status": episode.row["status"],
        "team_reward": episode.reward,
        "agent": turn.agent,
        "policy": turn.policy,
        "joint_step": turn.row.get("step"),
        **{name: turn.row.get(name) for name in numbers},
        "reward": turn.row.get("reward"),
        "text": turn.text,
        "tool_calls": calls_text(messages[place]) if place is not None else None,
    }


def calls_text(message: Mapping[str, Any]) -> str | None:
    """The tool calls of a recorded message as JSON; `None` if it has none."""
    calls = message.get("tool_calls")
    return json.dumps(calls, ensure_ascii=False) if calls else None


def read_run(folder: str | os.PathLike[str]) -> RecordedRun:
    """Reads the record of a run: its metrics, episodes, turns and token columns. Episodes are read
    on demand; a run that is still written, or was killed, is read up to its last whole part.

    Args:
        folder: a run folder, or that of a stage.

    Raises:
        ConfigError: it has neither metrics nor episodes.
    """
    path = Path(folder).expanduser()
    if episode_file(path) is None and not (path / METRICS).is_file():
        stages = sorted(metrics_path.parent.name for metrics_path in path.glob(f"*/{METRICS}"))
        fix = f"; it has stages, give one: {', '.join(stages)}" if stages else ""
        check_folder(path)
        raise ConfigError(f"{path}: not a run folder, no {METRICS} and no {INDEX}{fix}")
    return RecordedRun(path)
