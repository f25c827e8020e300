"""The writer of episodes: during a run, step by step, and of a record at once."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from mrlm.config import ExperimentConfig
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.records import task_record
from mrlm.core.replacing import replacing
from mrlm.record.files import EpisodeFile
from mrlm.record.plan import RecordPlan
from mrlm.record.reader import METRICS
from mrlm.record.redaction import redacted, secrets
from mrlm.record.rows import episode_row, finite, without_tokens

Groups = Iterable[Iterable[Episode]]


def write_episodes(
    file: EpisodeFile,
    plan: RecordPlan,
    step: int,
    groups: Groups,
    opponents: Mapping[str, str] | None = None,
    *,
    hidden: Sequence[str] = (),
    most: int | None = None,
) -> tuple[list[dict[str, Any]], bool]:
    """Writes the episodes of a step, one after the other, as far as the plan chooses them. Returns
    the rows of the recorded episodes, and whether the file was thinned.

    Args:
        opponents: opponent -> the past player it represents.
        hidden: secrets, which are redacted in texts, together with the tokens of their episode.
        most: number of rows that are returned, the first ones; by default all.

    Raises:
        OSError: the file cannot be written.
    """
    chosen = list(plan.chosen(groups))
    tasks = {id(episode.task): episode.task for _, episode, _ in chosen}  # siblings share one
    posed = {key: task_record(task) for key, task in tasks.items()}
    made = (
        _shown(
            episode_row(
                episode, opponents, group=number, tokens=tokens, task=posed[id(episode.task)]
            ),
            hidden,
        )
        for number, episode, tokens in chosen
    )
    first = list(islice(made, most))
    evaluation = any(episode.id.startswith("eval/") for _, episode, _ in chosen)
    return first, file.append(step, chain(first, made), evaluation=evaluation)


def _shown(row: dict[str, Any], hidden: Sequence[str]) -> dict[str, Any]:
    cleaned = redacted(row, hidden) if hidden else row
    return row if cleaned == row else without_tokens(cleaned)


def check_new(folder: str | os.PathLike[str]) -> Path:
    """The folder of a new record. Raises `ConfigError`: it has files already."""
    path = Path(folder).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"record {path}: it exists already; give a folder that is new or empty")
    return path


def write_record(
    folder: Path,
    groups: Groups,
    config: ExperimentConfig,
    metrics: Mapping[str, float],
    vocabulary: Callable[[Path], object],
    *,
    step: int = 0,
    opponents: Mapping[str, str] | None = None,
) -> None:
    """Writes the record of an evaluation or a collection, whole or not at all: every episode, with
    all tokens unless `record.tokens` is `none`.

    Args:
        folder: a new or empty folder.
        vocabulary: writes the vocabulary into a folder.
        step: the step of the weights.
        opponents: opponent -> the past player it represents.

    Raises:
        ConfigError: it cannot be written.
    """
    tokens = "none" if config.record.tokens == "none" else "all"
    plan = replace(RecordPlan(**dict(config.record)), tokens=tokens, keep="all", max_gb=None)
    try:
        with replacing(folder) as temporary:
            temporary.mkdir(parents=True)
            config.save(temporary / "config.yaml")
            file = plan.open(temporary, 0)
            write_episodes(file, plan, step, groups, opponents, hidden=secrets())
            if tokens != "none":
                vocabulary(temporary)
            numbers = {name: finite(value) for name, value in metrics.items()}
            line = {"step": step, "time": round(time.time(), 3), **numbers}
            (temporary / METRICS).write_text(json.dumps(line) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"record {folder} cannot be written: {error.strerror}") from error
