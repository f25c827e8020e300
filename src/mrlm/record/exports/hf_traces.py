"""Session traces for the Hugging Face Hub (its Session Trace Simple Format): a JSONL file per
episode, which the Hub's viewer of traces and `datasets` read.

A session has the messages of all agents in the order in which they were spoken; `model` is the
agent and its policy.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mrlm.record.exports.files import write_each
from mrlm.record.exports.transcripts import Entry, Selection, transcript
from mrlm.record.reader import RecordedEpisode

HARNESS = "mrlm"


def write(chosen: Selection, output: Path) -> int:
    """`write_each` of sessions."""

    def lines(episode: RecordedEpisode) -> str:
        return "".join(json.dumps(line) + "\n" for line in session(episode))

    return write_each(chosen, output, ".jsonl", lines)


def session(episode: RecordedEpisode) -> Iterator[dict[str, Any]]:
    """The lines of a session: a header, then the messages. A header may have more fields than the
    format names."""
    row = episode.row
    reward = "failed" if episode.reward is None else f"reward {episode.reward:g}"
    yield {
        **{"type": "session", "harness": HARNESS, "id": f"{episode.id}@{episode.step}"},
        "name": f"{episode.id}, step {episode.step}, {reward}",
        **{"environment": row["environment"], "task_id": row["task_id"], "step": episode.step},
        **{"status": row["status"], "error": row.get("error"), "reward": episode.reward},
        "scores": row.get("metrics") or {},
        "agents": {
            name: {"policy": agent_row["policy"], "reward": agent_row["reward"]}
            for name, agent_row in row["agents"].items()
        },
    }
    for entry in transcript(episode):
        yield {"type": "message", **entry.facts, "message": _message(entry)}


def _message(entry: Entry) -> dict[str, Any]:
    made: dict[str, Any] = {"role": entry.role, "content": entry.text}
    if entry.turn is not None:
        policy = entry.turn.policy
        made["model"] = entry.agent if policy == entry.agent else f"{entry.agent} ({policy})"
    if entry.calls:
        made["toolCalls"] = [
            {
                "id": call.id,
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in entry.calls
        ]
    if entry.answers is not None:
        made["toolCallId"] = entry.answers
    return made
