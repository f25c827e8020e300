"""The episodes of an export, and the messages of all agents of an episode in the order in which
they were spoken."""

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from mrlm.record.filters import Filter
from mrlm.record.reader import RecordedEpisode, RecordedRun, RecordedTurn

OBSERVATION = "observation"
"""The `finish_reason` of a turn that is a part of the conversation that a world model predicts."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The episodes of a run that are exported: those whose rows `accepts` accepts."""

    run: RecordedRun
    accepts: Filter

    def episodes(self) -> Iterator[RecordedEpisode]:
        """The episodes, in the order of the record."""
        return (RecordedEpisode(_encodable(row)) for row in self.run.rows() if self.accepts(row))


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A tool call of a message, with an id that is unique in the episode; `arguments` that are not
    an object are the value of `arguments`."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of an episode in the conversation of `agent`, with its role (`system`, `user`,
    `assistant` or `tool`), the agent that wrote it if another one did, its turn if it was sampled,
    its tool calls, and the id of the tool call that it answers."""

    agent: str
    role: str
    text: str
    sender: str | None = None
    turn: RecordedTurn | None = None
    calls: tuple[RecordedCall, ...] = ()
    answers: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Numbers of the turn; the agent alone for a message that was not sampled."""
        fields = {"agent": self.agent} | ({"sender": self.sender} if self.sender else {})
        if self.turn is None:
            return fields
        row = self.turn.row
        names = ("step", "order", "index", "version", "trained", "reward", "advantage", "return")
        return (
            fields
            | {"policy": self.turn.policy}
            | {name: row[name] for name in names if row.get(name) is not None}
            | {"components": dict(row.get("components") or {})}
        )


def transcript(episode: RecordedEpisode) -> list[Entry]:
    """The messages of all agents. Those that an agent reads precede its turn; those that it read
    last come at the end."""
    parts = {agent: deque(_conversation(episode, agent)) for agent in episode.row["agents"]}
    spoken = [entry for turn in episode.turns for entry in parts[turn.agent].popleft()]
    return spoken + [entry for left in parts.values() for part in left for entry in part]


def conversation(episode: RecordedEpisode, agent: str) -> list[Entry]:
    """The messages of one agent."""
    return [entry for part in _conversation(episode, agent) for entry in part]


def numbers(column: np.ndarray) -> list[float | None]:
    """A column for JSON, with six decimals; `None` where it is not finite."""
    return [round(value, 6) if math.isfinite(value) else None for value in column.tolist()]


def _encodable(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row that can be written as UTF-8; halves of characters become `?`."""
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode(errors="replace"))
    return row


def _conversation(episode: RecordedEpisode, agent: str) -> Iterator[list[Entry]]:
    """The messages of an agent up to each of its turns, and those after the last one."""
    messages = episode.row["agents"][agent].get("messages", ())
    waiting: deque[str] = deque()  # tool calls without an answer

    def entry(index: int, turn: RecordedTurn | None = None) -> Entry:
        message = messages[index]
        calls = tuple(
            _call(record, f"{agent}-{index}-{number}")
            for number, record in enumerate(message.get("tool_calls") or ())
        )
        waiting.extend(call.id for call in calls)
        answers = message.get("tool_call_id")
        if message["role"] == "tool" and waiting:
            answers = answers if answers in waiting else waiting[0]
            waiting.remove(answers)
        sender = message.get("agent")
        sender = None if sender == agent else sender
        role, text = message["role"], message["content"]
        return Entry(agent, role, text, sender, turn, calls, answers)

    read = 0
    for turn in episode.agent_turns(agent):
        position = turn.row.get("message")
        if position is None:  # a message that the agent's conversation does not keep
            observed = turn.row.get("finish_reason") == OBSERVATION  # part of a message
            yield [] if observed else [Entry(agent, "assistant", turn.text, turn=turn)]
            continue
        before = [entry(offset) for offset in range(read, position)]
        yield [*before, entry(position, turn)]
        read = max(read, position + 1)
    yield [entry(offset) for offset in range(read, len(messages))]


def _call(record: Mapping[str, Any], name: str) -> RecordedCall:
    """A call as chat templates have it: `function` with `name` and `arguments`, or these alone."""
    function = record.get("function") or record
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with suppress(ValueError):  # then it is kept as it was written
            arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    return RecordedCall(str(record.get("id") or name), str(function.get("name", "")), arguments)
