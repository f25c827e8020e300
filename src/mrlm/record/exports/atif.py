"""Trajectories in Harbor's Agent Trajectory Interchange Format (ATIF, version 1.7): a JSON file per
episode.

The episode of one agent is one trajectory. Of several agents each has a trajectory of its own, in
`subagent_trajectories`, to which the steps of the episode refer in the order in which they acted.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrlm.record.exports.files import write_each
from mrlm.record.exports.transcripts import Entry, Selection, conversation, numbers, transcript
from mrlm.record.reader import RecordedEpisode, RecordedTurn

SCHEMA = "ATIF-v1.7"
"""The first version with embedded trajectories of several agents."""
SOURCES: Mapping[str, str] = {"system": "system", "user": "user", "assistant": "agent"}


def write(chosen: Selection, output: Path) -> int:
    """`write_each` of trajectories."""
    return write_each(
        chosen, output, ".json", lambda episode: json.dumps(trajectory(episode), allow_nan=False)
    )


def trajectory(episode: RecordedEpisode) -> dict[str, Any]:
    """The trajectory of an episode."""
    acting = [agent for agent, agent_row in episode.row["agents"].items() if agent_row.get("turns")]
    about = {
        **{"step": episode.step, "group": episode.row.get("group")},
        **{"environment": episode.row["environment"], "task_id": episode.row["task_id"]},
        **{"status": episode.row["status"], "error": episode.row.get("error")},
        **{"reward": episode.reward, "scores": dict(episode.row.get("metrics") or {})},
    }
    if len(acting) == 1:
        made = _of_agent(episode, acting[0])
    else:
        made = _head("mrlm", f"record {episode.row.get('schema', 1)}") | {
            "steps": _numbered(_joint_steps(episode)),
            "subagent_trajectories": [_of_agent(episode, agent) for agent in acting],
        }
    name = f"{episode.id}@{episode.step}"
    return made | {"session_id": name, "trajectory_id": name, "extra": about}


def _head(name: str, version: str, **more: str) -> dict[str, Any]:
    return {"schema_version": SCHEMA, "agent": {"name": name, "version": version, **more}}


def _of_agent(episode: RecordedEpisode, agent: str) -> dict[str, Any]:
    """The trajectory of one agent: its conversation, with tokens where they are recorded."""
    agent_row = episode.row["agents"][agent]
    made = _numbered(_steps(conversation(episode, agent)))
    turns = episode.agent_turns(agent)
    total = {
        "total_completion_tokens": sum(turn.row.get("tokens") or 0 for turn in turns),
        "total_steps": len(made),
        "extra": {"reward": agent_row["reward"]},
    }
    weights = max((turn.row.get("version") or 0 for turn in turns), default=0)
    head = _head(agent, f"weights {weights}", model_name=str(agent_row["policy"]))
    return head | {"trajectory_id": agent, "steps": made, "final_metrics": total}


def _steps(entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """The messages of an agent as steps; answers of tools are observations of the step that called
    them."""
    step: dict[str, Any] | None = None
    for entry in entries:
        if entry.role == "tool" and step is not None and step["source"] == "agent":
            calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
            answered = {"source_call_id": entry.answers} if entry.answers in calls else {}
            results = step.setdefault("observation", {"results": []})["results"]
            results.append({**answered, "content": entry.text})
            continue
        if step is not None:
            yield step
        step = _step(entry)
    if step is not None:
        yield step


def _step(entry: Entry) -> dict[str, Any]:
    source = SOURCES.get(entry.role, "user")
    step: dict[str, Any] = {"source": source, "message": entry.text, "extra": entry.facts}
    if source == "agent" and entry.calls:
        step["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
            for call in entry.calls
        ]
    if entry.turn is not None:
        step["metrics"] = _metrics(entry.turn)
    return step


def _metrics(turn: RecordedTurn) -> dict[str, Any]:
    """The tokens of a turn; columns other than log-probs are under `extra`."""
    made: dict[str, Any] = {"completion_tokens": turn.row.get("tokens")}
    if turn.ids is None or turn.prompt_ids is None:
        return made
    columns = {name: numbers(column) for name, column in turn.columns.items()}
    made |= {"prompt_tokens": len(turn.prompt_ids), "prompt_token_ids": turn.prompt_ids.tolist()}
    made |= {"completion_token_ids": turn.ids.tolist(), "extra": columns}
    if None not in columns.get("logprobs", [None]):
        made["logprobs"] = columns.pop("logprobs")
    return made


def _joint_steps(episode: RecordedEpisode) -> Iterator[dict[str, Any]]:
    """The steps of an episode of several agents: the task, then a reference for every turn."""
    prompt = (episode.row.get("task") or {}).get("prompt") or ()
    places: dict[str, int] = {}
    for message in prompt:
        role = "system" if message["role"] == "system" else "user"
        yield {"source": role, "message": message["content"]}
    steps = {  # agent -> `step_id` of every turn in its trajectory
        agent: [step["step_id"] for step in _of_agent(episode, agent)["steps"] if "metrics" in step]
        for agent in episode.row["agents"]
    }
    for entry in transcript(episode):
        if entry.turn is None:
            continue
        index = places[entry.agent] = places.get(entry.agent, -1) + 1
        reference = {"trajectory_id": entry.agent, "extra": {"step_id": steps[entry.agent][index]}}
        yield {
            "source": "agent",
            "model_name": entry.turn.policy,
            "message": entry.text,
            "llm_call_count": 0,
            "observation": {"results": [{"subagent_trajectory_ref": [reference]}]},
            "extra": entry.facts,
        }
    if not prompt and not places:
        yield {"source": "system", "message": str(episode.row.get("error") or "no turns")}


def _numbered(steps: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]
