"""A log of Inspect (`EvalLog`, version 2, a `.eval` file): a sample per episode, with rewards and
their components as scores.

The messages of all agents are in the order in which they were spoken; their `metadata` has the
agent.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from mrlm.record.exports.files import new_file
from mrlm.record.exports.transcripts import Entry, Selection, transcript
from mrlm.record.reader import RecordedEpisode, RecordedRun

SUMMARY = ("id", "epoch", "uuid", "input", "target", "metadata", "scores", "model_usage")
"""Fields of a sample that its summary repeats."""
STOPS: Mapping[str, str] = {"stop": "stop", "length": "max_tokens"}


def write(chosen: Selection, output: Path) -> int:
    """Writes one file; returns the number of episodes. Raises `ConfigError`: it cannot be
    written."""
    totals, summaries = _Totals(), []
    with new_file(output) as path, ZipFile(path, "w", ZIP_DEFLATED) as file:
        for episode in chosen.episodes():
            made = sample(episode)
            totals.add(episode)
            summary = {name: made[name] for name in SUMMARY} | {"completed": True}
            summaries.append(summary | {"message_count": len(made["messages"])})
            file.writestr(f"samples/{made['id']}_epoch_{made['epoch']}.json", _json(made))
        file.writestr("summaries.json", _json(summaries))
        file.writestr("header.json", _json(_header(chosen.run, totals)))
    return totals.count


def sample(episode: RecordedEpisode) -> dict[str, Any]:
    """The sample of an episode. An id occurs once per step, which is the sample's epoch."""
    row = episode.row
    entries = transcript(episode)
    name = f"{episode.id}@{episode.step}"
    messages = [_message(entry) | {"id": f"{name}/{index}"} for index, entry in enumerate(entries)]
    task = row.get("task") or {}
    answer = task.get("answer", "")
    made: dict[str, Any] = {
        **{"id": episode.id, "epoch": episode.step, "uuid": name},
        "input": [{"role": m["role"], "content": m["content"]} for m in task.get("prompt", ())],
        "target": answer if isinstance(answer, str) else json.dumps(answer),
        "messages": messages,
        "scores": {name: {"value": value} for name, value in _scores(episode).items()},
        "metadata": {
            **{"step": episode.step, "group": row.get("group"), "task_id": row["task_id"]},
            **{"environment": row["environment"], "status": row["status"]},
        },
        "model_usage": _usage(episode),
    }
    turns = [
        (entry.turn, message)
        for entry, message in zip(entries, messages, strict=True)
        if entry.turn is not None
    ]
    if turns:
        last, message = turns[-1]
        reason = STOPS.get(last.row.get("finish_reason", ""), "unknown")
        choice = {"message": message, "stop_reason": reason}
        made["output"] = {"model": last.policy, "choices": [choice], "completion": last.text}
    if row.get("error"):
        text = str(row["error"])
        made["error"] = {"message": text, "traceback": text, "traceback_ansi": text}
    return made


@dataclass(slots=True)
class _Totals:
    """Counts and scores of the samples written so far."""

    count: int = 0
    failed: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    policies: dict[str, None] = field(default_factory=dict)
    environments: dict[str, None] = field(default_factory=dict)

    def add(self, episode: RecordedEpisode) -> None:
        """Adds an episode."""
        self.count += 1
        self.failed += episode.row["status"] == "error"
        for name, value in _scores(episode).items():
            self.values.setdefault(name, []).append(value)
        agents = episode.row["agents"].values()
        self.policies |= dict.fromkeys(str(agent["policy"]) for agent in agents)
        self.environments[episode.row["environment"]] = None


def _header(run: RecordedRun, totals: _Totals) -> dict[str, Any]:
    """The log without its samples."""
    began = next((row["time"] for row in run.metrics if "time" in row), 0.0)
    created = datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds")
    name = run.folder.resolve().name
    results = {
        "total_samples": totals.count,
        "completed_samples": totals.count - totals.failed,
        "scores": [_mean(name, values_found) for name, values_found in totals.values.items()],
    }
    spec = {
        **{"created": created, "task": name, "run_id": name, "task_id": name, "config": {}},
        "dataset": {"name": ", ".join(totals.environments), "samples": totals.count},
        "model": ", ".join(totals.policies),
    }
    empty: dict[str, Any] = {"plan": {}, "stats": {}}  # readers require them
    return {"version": 2, "status": "success", "eval": spec, **empty, "results": results}


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _scores(episode: RecordedEpisode) -> dict[str, float]:
    """The team's reward, those of the agents, and their components."""
    scores = {"reward": episode.reward}
    scores |= {f"{name}/reward": agent["reward"] for name, agent in episode.row["agents"].items()}
    scores |= episode.row.get("metrics") or {}
    return {name: value for name, value in scores.items() if value is not None}


def _mean(name: str, values: list[float]) -> dict[str, Any]:
    mean = {"name": "mean", "value": sum(values) / len(values)}
    return {"name": name, "scorer": name, "metrics": {"mean": mean}, "scored_samples": len(values)}


def _usage(episode: RecordedEpisode) -> dict[str, dict[str, int]]:
    """Policy -> tokens that it sampled."""
    used: Counter[str] = Counter()
    for turn in episode.turns:
        used[turn.policy] += turn.row.get("tokens") or 0
    return {name: {"output_tokens": n, "total_tokens": n} for name, n in used.items()}


def _message(entry: Entry) -> dict[str, Any]:
    made: dict[str, Any] = {
        **{"role": entry.role, "content": entry.text, "metadata": entry.facts},
        "source": "generate" if entry.turn is not None else "input",
    }
    if entry.turn is not None:
        made["model"] = entry.turn.policy
    if entry.role == "assistant" and entry.calls:
        made["tool_calls"] = [
            {"id": call.id, "function": call.name, "arguments": call.arguments, "type": "function"}
            for call in entry.calls
        ]
    if entry.answers is not None:
        made["tool_call_id"] = entry.answers
    return made
