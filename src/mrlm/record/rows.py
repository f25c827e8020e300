"""The row of an episode in `episodes.jsonl`, schema 2, as `docs/record.md` describes it.

A row has nothing that depends on the clock, so that a resumed run writes the same bytes.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np

from mrlm.core.board import Html, board_tree
from mrlm.core.episodes import Episode
from mrlm.core.messages import write_message
from mrlm.core.prefixes import shared_prefix
from mrlm.core.records import task_record
from mrlm.core.sampling import FIELDS
from mrlm.core.types import COLUMNS, Rollout, SamplingParams, Turn
from mrlm.record.packing import pack_column, pack_ids

SCHEMA = 2

RECORDED = [name for name, about in COLUMNS.items() if about["recorded"]]


def episode_row(
    episode: Episode,
    opponents: Mapping[str, str] | None = None,
    *,
    group: int | None = None,
    tokens: bool = True,
    task: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Makes the row of an episode.

    Args:
        opponents: opponent -> the past player it represents.
        group: number of its group in the step.
        tokens: whether its tokens and boards are recorded; otherwise only digests of tokens.
        task: the record of its task, where siblings share it.
    """
    marks: dict[str, Any] = {
        "greedy": episode.greedy,
        "pruned": episode.pruned,
        "path": list(episode.path),
        "missing": sorted(episode.missing),
        "answers": episode.answers,
    }
    if episode.replayed is not None:
        marks["replayed"] = {**asdict(episode.replayed), "agents": [*episode.replayed.agents]}
    return {
        "schema": SCHEMA,
        "group": group,
        "id": episode.id,
        "environment": episode.environment,
        "task_id": episode.task.id,
        "task": task_record(episode.task) if task is None else task,
        "status": episode.status,
        "reward": finite(episode.reward),
        "step_rewards": [finite(value) for value in episode.step_rewards],
        "metrics": {name: finite(value) for name, value in sorted(episode.metrics.items())},
        "error": episode.error,
        **{name: value for name, value in marks.items() if value},
        **({"boards": _boards(episode)} if tokens and episode.boards else {}),
        "agents": {
            name: _agent(rollout, opponents or {}, tokens)
            for name, rollout in episode.rollouts.items()
        },
    }


def without_tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without its tokens, which would reveal what its texts hide."""
    agents = {
        name: agent | {"turns": [_hidden(turn) for turn in agent["turns"]]}
        for name, agent in row["agents"].items()
    }
    return {**row, "agents": agents}


def digest(ids: Sequence[int]) -> str:
    """A digest of token ids in sixteen hexadecimal digits."""
    text = ",".join(map(str, ids))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def finite(value: float | None) -> float | None:
    """A number for JSON: `None` if it is not finite."""
    if value is None or isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def _boards(episode: Episode) -> list[dict[str, Any]]:
    return [
        {"step": step} | ({"tree": board_tree(it)} if isinstance(it, Html) else {"text": it})
        for step, it in episode.boards
    ]


def _agent(rollout: Rollout, opponents: Mapping[str, str], tokens: bool) -> dict[str, Any]:
    places = {  # a copied turn has the same completion
        id(message.turn.completion_ids): index
        for index, message in enumerate(rollout.messages)
        if message.turn is not None
    }
    places |= {id(message): index for index, message in enumerate(rollout.messages)}  # of a row
    turns: list[dict[str, Any]] = []
    previous: list[int] = []
    for turn in rollout.turns:
        index = places.get(id(turn.completion_ids), places.get(id(turn.message)))
        turns.append(_turn(turn, index, previous if tokens else None))
        if tokens:
            previous = [*turn.prompt_ids, *turn.completion_ids]
    return {
        "policy": opponents.get(rollout.policy or "", rollout.policy),
        "reward": finite(rollout.reward),
        "messages": [write_message(message) for message in rollout.messages],
        "turns": turns,
    }


def _turn(turn: Turn, number: int | None, previous: list[int] | None) -> dict[str, Any]:
    """A turn; `previous` are the tokens of the agent's previous turn, `None` without tokens. The
    text is recorded here if it is not in the agent's last conversation (`number` is `None`), and of
    a policy behind an API, which has no tokens to identify it."""
    ids = turn.completion_ids
    row: dict[str, Any] = {
        "message": number,
        "step": turn.step,
        "order": turn.order,
        "index": turn.index,
        "version": turn.version,
        "lag": turn.lag,
        "finish_reason": turn.finish_reason,
        "sampling": _sampling(turn.sampling),
        "trained": turn.trained,
        "reward": finite(turn.reward),
        "components": {name: finite(value) for name, value in turn.components.items()},
        "advantage": mean_of(turn.advantages),
        "return": mean_of(turn.returns),
        "tokens": len(ids),
        "digest": digest(ids),
    }
    if turn.why is not None:
        row["why"] = turn.why
    if (number is None or not ids) and turn.message is not None:
        row["text"] = turn.message.content
    if previous is None or not ids:
        return row
    shared = shared_prefix(previous, turn.prompt_ids)
    columns = {name: getattr(turn, name) for name in RECORDED}
    columns |= turn.trace or {}
    packed = {name: pack_column(column, len(ids)) for name, column in columns.items()}
    return row | {
        "prompt": [shared, pack_ids(turn.prompt_ids[shared:])],
        "ids": pack_ids(ids),
        "columns": {name: column for name, column in packed.items() if column is not None},
    }


def mean_of(column: Any) -> float | None:
    """The mean of a column, or `None`."""
    if column is None or isinstance(column, float) or np.ndim(column) == 0:
        return finite(column)
    numbers = [float(value) for value in column]
    return finite(sum(numbers) / len(numbers)) if numbers else None


@lru_cache(maxsize=64)
def _sampling(sampling: SamplingParams) -> Mapping[str, Any]:
    """The sampling settings that are not the default ones; not to be changed."""
    chosen = {n: x for n, e in FIELDS.items() if (x := getattr(sampling, n)) != e.default}
    return chosen | ({"stop": list(sampling.stop)} if sampling.stop else {})


def _hidden(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in turn.items() if key not in ("prompt", "ids", "columns")}
