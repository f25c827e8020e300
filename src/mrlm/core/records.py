"""Episodes as plain data, for checkpoints: everything a gradient needs, no live object."""

import copy
import json
from dataclasses import asdict, replace
from typing import Any

from mrlm.core.board import Html
from mrlm.core.episodes import Episode
from mrlm.core.messages import read_message, write_message
from mrlm.core.types import Message, Role, Rollout, SamplingParams, Task, Turn

LONGEST = 4000
"""Characters of an answer or `info`, as JSON, up to which they are recorded."""
_EPISODE = ("id", "reward", "step_rewards", "status", "environment", "metrics", "policies")
_ROLLOUT = ("agent", "policy", "task_id", "tail_ids", "rewritten")
_TURN = (
    *("agent", "policy", "prompt_ids", "completion_ids", "logprobs", "reward", "step", "index"),
    *("node", "version", "finish_reason", "trained", "components", "opening", "order"),
)


def episode_record(episode: Episode) -> dict[str, Any]:
    """A JSON-serialisable record of an episode, without credit columns, which are recomputed."""
    return {name: getattr(episode, name) for name in _EPISODE} | {
        "task": episode.task.id,
        "task_fields": task_record(episode.task),
        "path": list(episode.path),
        "boards": [(step, board, isinstance(board, Html)) for step, board in episode.boards],
        "missing": sorted(episode.missing),
        "rollouts": {name: _rollout_record(rollout) for name, rollout in episode.rollouts.items()},
    }


def episode_of(record: dict[str, Any]) -> Episode:
    """Inverse of `episode_record`."""
    fields = {name: copy.copy(record[name]) for name in _EPISODE if name in record}
    return Episode(
        **fields,
        task=_task_of(record["task"], record.get("task_fields", {})),
        rollouts={name: _rollout_of(rollout) for name, rollout in record["rollouts"].items()},
        path=tuple(record["path"]),
        boards=[(step, Html(x) if html else x) for step, x, html in record.get("boards", ())],
        missing=frozenset(record.get("missing", ())),
    )


def task_record(task: Task) -> dict[str, Any]:
    """The prompt and answer of a task, and its `info`; answers and `info` that are not JSON or
    longer than `LONGEST` are left out."""
    row: dict[str, Any] = {"prompt": [write_message(message) for message in task.prompt]}
    for name, value in (("answer", task.answer), ("info", task.info)):
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue
        if value not in (None, {}) and len(text) <= LONGEST:
            row[name] = value
    return row


def _task_of(name: str, row: dict[str, Any]) -> Task:
    """The task of a record; one of an earlier version has only its name."""
    prompt = [read_message(message, "a record") for message in row.get("prompt", ())]
    return Task(name, prompt, answer=row.get("answer"), info=dict(row.get("info", {})))


def _rollout_record(rollout: Rollout) -> dict[str, Any]:
    places = {
        id(message.turn.completion_ids): index  # copies of a turn share its ids
        for index, message in enumerate(rollout.messages)
        if message.turn is not None
    }
    return {name: getattr(rollout, name) for name in _ROLLOUT} | {
        "messages": [write_message(message) for message in rollout.messages],
        "turns": [
            {name: getattr(turn, name) for name in _TURN}
            | {
                "text": turn.message.content if turn.message else "",
                "message": places.get(id(turn.completion_ids)),
                "sampling": asdict(turn.sampling),
            }
            for turn in rollout.turns
        ],
    }


def _rollout_of(record: dict[str, Any]) -> Rollout:
    turns = []
    messages = [read_message(message, "a record") for message in record["messages"]]
    for fields in record["turns"]:
        sampling = SamplingParams(**fields["sampling"])
        turn = Turn(**{name: fields[name] for name in _TURN}, sampling=sampling)
        turn.message = Message(fields["text"], Role.ASSISTANT, agent=turn.agent, turn=turn)
        index = fields.get("message")  # not in records of earlier versions
        if index is not None:
            turn.message = messages[index] = replace(messages[index], turn=turn)
        turns.append(turn)
    fields_known = {name: copy.copy(record[name]) for name in _ROLLOUT if name in record}
    return Rollout(**fields_known, turns=turns, messages=messages)
