"""Conversion of core types to protocol messages and back: `to_x` makes the message of a value,
`x_of` is its inverse. Values of any type are sent as strict JSON. All of them raise `EpisodeError`,
with the name of the field, for what cannot be sent or is malformed. No network."""

import json
import math
import numbers
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mrlm.core.board import Html, bounded
from mrlm.core.errors import EpisodeError, no_constant
from mrlm.core.types import Message, Observation, Reward, Role, StepResult, Task
from mrlm.serving import mrlm_pb2 as pb

OPTIONAL = ("tool_call_id", "name", "reasoning", "weight")
MOST_DEPTH = 100
"""Most levels of nested lists and objects."""

# -- values of any kind ----------------------------------------------------------------------------


def to_json(value: Any, where: str) -> str:
    """Encode a value as JSON text; empty for `None`. Tuples become lists, and numbers of other
    libraries plain ones; keys must be text and numbers finite. `where` names it in errors."""
    if value is None:
        return ""
    try:
        return json.dumps(_plain(value, where), allow_nan=False, separators=(",", ":"))
    except ValueError as error:  # an integer of thousands of digits
        raise EpisodeError(f"{where} cannot be sent as JSON: {error}") from error


def json_of(text: str, where: str) -> Any:
    """Decode a JSON text; `None` for an empty one."""
    if not text:
        return None
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise EpisodeError(f"{where}: not valid JSON ({error})") from error


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise EpisodeError(f"{where} is {float(value)!r}, which JSON cannot represent")
        return float(value)
    if depth == MOST_DEPTH:
        raise EpisodeError(f"{where} is nested more than {MOST_DEPTH} levels deep")
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise EpisodeError(f"{where} has the key {key!r}; keys of JSON are text")
        return {key: _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    raise EpisodeError(
        f"{where} is a {type(value).__name__}, which JSON cannot hold; keep to text, numbers, "
        "lists and dictionaries there"
    )


def _object_of(text: str, where: str) -> dict[str, Any]:
    value = json_of(text, where)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise EpisodeError(f"{where} must be an object, not {type(value).__name__}")
    return value


@contextmanager
def _sending(what: str) -> Iterator[None]:
    """Build a protocol message inside; values that a field cannot hold become one clear error."""
    try:
        yield
    except (TypeError, ValueError) as error:  # UnicodeEncodeError is a ValueError
        raise EpisodeError(f"{what} cannot be sent: {error}") from error


# -- messages and tasks ----------------------------------------------------------------------------


def to_message(message: Message) -> pb.Message:
    """The protocol's message; the model call behind it is not sent."""
    whose = "the message" if message.agent is None else f"the message of {message.agent!r}"
    with _sending(whose):
        return pb.Message(
            content=message.content,
            role=str(message.role),
            agent=message.agent,
            tool_calls_json=to_json(message.tool_calls or None, f"tool_calls of {whose}"),
            metadata_json=to_json(message.metadata or None, f"metadata of {whose}"),
            tool_call_id=message.tool_call_id,
            name=message.name,
            reasoning=message.reasoning,
            weight=message.weight,
        )


def message_of(record: pb.Message) -> Message:
    """Inverse of `to_message`."""
    calls = json_of(record.tool_calls_json, "tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise EpisodeError("tool_calls must be a list of objects")
    try:
        role = Role(record.role)
    except ValueError as error:
        raise EpisodeError(
            f"unknown role {record.role[:40]!r} (known: {', '.join(Role)})"
        ) from error
    return Message(
        record.content,
        role,
        record.agent if record.HasField("agent") else None,
        tuple(calls),
        _object_of(record.metadata_json, "metadata"),
        **{name: getattr(record, name) for name in OPTIONAL if record.HasField(name)},
    )


def to_task(task: Task) -> pb.Task:
    """The protocol's task."""
    whose = f"task {task.id!r}"
    with _sending(whose):
        return pb.Task(
            id=task.id,
            prompt=[to_message(message) for message in task.prompt],
            answer_json=to_json(task.answer, f"{whose}: answer"),
            seed=task.seed,
            info_json=to_json(task.info or None, f"{whose}: info"),
        )


def task_of(record: pb.Task) -> Task:
    """Inverse of `to_task`."""
    return Task(
        record.id,
        [message_of(message) for message in record.prompt],
        json_of(record.answer_json, "answer"),
        record.seed,
        _object_of(record.info_json, "info"),
    )


# -- results of an environment ---------------------------------------------------------------------


def to_observation(observation: Observation, whose: str = "the observation") -> pb.Observation:
    """The protocol's observation; `whose` is its name in error messages."""
    with _sending(whose):
        return pb.Observation(
            messages=[to_message(message) for message in observation.messages],
            done=observation.done,
            info_json=to_json(observation.info or None, f"info of {whose}"),
        )


def observation_of(record: pb.Observation) -> Observation:
    """Inverse of `to_observation`."""
    return Observation(
        [message_of(message) for message in record.messages],
        record.done,
        _object_of(record.info_json, "info"),
    )


def to_reward(reward: Reward, whose: str = "the reward") -> pb.Reward:
    """The protocol's reward (NaN if unknown); `whose` is its name in error messages."""
    with _sending(whose):
        return pb.Reward(
            value=reward.value if reward.known else math.nan,
            components=reward.components,
            info_json=to_json(reward.info or None, f"info of {whose}"),
        )


def reward_of(record: pb.Reward) -> Reward:
    """Inverse of `to_reward`; the components are in the order of their names."""
    components = {name: record.components[name] for name in sorted(record.components)}
    info = _object_of(record.info_json, "info")
    if math.isnan(record.value):
        return Reward(0.0, components, info, known=False)
    return Reward(record.value, components, info)


def to_board(board: str | None) -> pb.Board:
    """The protocol's board, at most as long as it is recorded."""
    content = None if board is None else bounded(board)
    with _sending("the board"):
        return pb.Board(text=content, html=isinstance(board, Html))


def board_of(record: pb.Board) -> str | None:
    """Inverse of `to_board`."""
    if not record.HasField("text"):
        return None
    return Html(record.text) if record.html else record.text


def to_result(
    result: StepResult, state: str | None = None, board: pb.Board | None = None
) -> pb.StepResult:
    """The protocol's step result, with the whole state and the board if they were requested."""
    seen, agent_rewards = result.observations, result.rewards
    with _sending("the result of the step"):
        return pb.StepResult(
            speakers=list(seen),
            observations={
                agent: to_observation(one, f"the observation of {agent!r}")
                for agent, one in seen.items()
            },
            paid=list(agent_rewards),
            rewards={
                agent: to_reward(one, f"the reward of {agent!r}")
                for agent, one in agent_rewards.items()
            },
            done=result.done,
            truncated=result.truncated,
            info_json=to_json(result.info or None, "info of the step"),
            state=state,
            board=board,
        )


def result_of(record: pb.StepResult) -> StepResult:
    """Inverse of `to_result`; the state and the board, if there are any, stay in the record."""
    stray = {*record.speakers} ^ {*record.observations} or {*record.paid} ^ {*record.rewards}
    if stray:
        raise EpisodeError(f"the result of the step has two entries for {sorted(stray)[0]!r}")
    return StepResult(
        {agent: observation_of(record.observations[agent]) for agent in record.speakers},
        {agent: reward_of(record.rewards[agent]) for agent in record.paid},
        record.done,
        record.truncated,
        _object_of(record.info_json, "info of the step"),
    )
