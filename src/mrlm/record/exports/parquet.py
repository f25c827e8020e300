"""A parquet file with one row per turn, token columns as lists: for pyarrow, pandas, `datasets`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.record.exports.files import new_file
from mrlm.record.exports.transcripts import Selection, transcript
from mrlm.record.reader import RecordedEpisode, turn_record

BATCH = 2000
"""Turns in a row group."""

FIELDS: Mapping[str, str] = {
    **{"step": "int64", "group": "int64", "episode": "string", "evaluation": "bool"},
    **{"environment": "string", "task": "string", "answer": "string", "status": "string"},
    **{"team_reward": "double", "agent": "string", "policy": "string"},
    **{"joint_step": "int64", "order": "int64", "index": "int64", "version": "int64"},
    **{"lag": "int64", "finish_reason": "string", "trained": "bool"},
    **{"reward": "double", "advantage": "double", "return": "double", "tokens": "int64"},
    **{"why": "string", "messages": "messages", "text": "string", "tool_calls": "string"},
    **{"prompt_ids": "list<uint32>", "ids": "list<uint32>"},
}
"""Column -> type; `messages` are those that the agent read since its previous turn, with the fields
`MESSAGE`. Reward components (`component/<name>`, double) and token columns (their name,
list<float>) follow."""
MESSAGE = ("role", "content", "agent", "tool_calls")
"""Fields of a message, all of them texts; `tool_calls` is JSON."""


def write(chosen: Selection, output: Path) -> int:
    """Writes the episodes; returns their number. Raises `ConfigError`: the packages are missing, or
    the file cannot be written."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError('--format parquet needs pyarrow: pip install "mrlm[data]"') from error
    message = pa.struct([(name, pa.string()) for name in MESSAGE])
    kinds = {
        **{"int64": pa.int64(), "string": pa.string(), "bool": pa.bool_(), "double": pa.float64()},
        **{"messages": pa.list_(message), "list<uint32>": pa.list_(pa.uint32())},
    }
    components, columns = _names(chosen)
    schema = pa.schema(
        [(name, kinds[kind]) for name, kind in FIELDS.items()]
        + [(f"component/{name}", pa.float64()) for name in components]
        + [(name, pa.list_(pa.float32())) for name in columns]
    )
    count, waiting = 0, []
    with new_file(output) as path, pq.ParquetWriter(path, schema, compression="zstd") as file:
        for count, episode in enumerate(chosen.episodes(), start=1):  # noqa: B007
            waiting += _rows(episode, columns)
            if len(waiting) >= BATCH:
                file.write_table(pa.Table.from_pylist(waiting, schema))
                waiting = []
        file.write_table(pa.Table.from_pylist(waiting, schema))
    return count


def _names(chosen: Selection) -> tuple[list[str], list[str]]:
    """The names of all reward components and of all token columns."""
    components: set[str] = set()
    columns: set[str] = set()
    for episode in chosen.episodes():
        for agent in episode.row["agents"].values():
            for turn in agent.get("turns", ()):
                components |= (turn.get("components") or {}).keys()
                columns |= (turn.get("columns") or {}).keys()
    return sorted(components), sorted(columns)


def _rows(episode: RecordedEpisode, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    answer = (episode.row.get("task") or {}).get("answer")
    shared = {
        "evaluation": episode.evaluation,
        "answer": answer if answer is None or isinstance(answer, str) else json.dumps(answer),
    }
    read: dict[str, list[dict[str, Any]]] = {}
    for entry in transcript(episode):
        pending = read.setdefault(entry.agent, [])
        if entry.turn is None:
            calls = [
                {"function": {"name": call.name, "arguments": call.arguments}}
                for call in entry.calls
            ]
            fields = entry.role, entry.text, entry.sender, json.dumps(calls) if calls else None
            pending.append(dict(zip(MESSAGE, fields, strict=True)))
            continue
        turn = entry.turn
        token_columns = turn.columns
        components = turn.row.get("components") or {}
        yield (
            turn_record(episode, turn)
            | shared
            | {"finish_reason": turn.row.get("finish_reason"), "why": turn.row.get("why")}
            | {"messages": list(pending), "prompt_ids": turn.prompt_ids, "ids": turn.ids}
            | {f"component/{name}": value for name, value in components.items()}
            | {name: token_columns.get(name) for name in columns}
        )
        pending.clear()
