"""A recorded run for exports: one agent, several agents, tools, failures, unusual values."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrlm.record.packing import pack_column, pack_ids
from recorded import write

LINE = "one\u2028line \ud83d"  # a separator of lines, and half of a character
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
BARE = {"name": "add", "arguments": '{"a": 2}'}
"""Tool calls as chat templates have them, with and without an id."""


def message(role: str, content: str, agent: str | None = None, *calls: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "agent": agent} | (
        {"tool_calls": list(calls)} if calls else {}
    )


def turn(place: int | None, step: int, order: int = 0, **more: Any) -> dict[str, Any]:
    return {
        **{"message": place, "step": step, "order": order, "index": step, "version": 3, "lag": 0},
        **{"finish_reason": "stop", "sampling": {}, "trained": True, "reward": 0.5},
        **{"components": {"correct": 1.0}, "advantage": 0.25, "return": 0.5, "tokens": 2},
        **{"digest": "0" * 16, "why": "0.5 - mean of 2 siblings 0.25 = +0.25"},
    } | more


def tokens(known: int = 0) -> dict[str, Any]:
    columns = {"logprobs": [-0.5, -0.25], "entropies": [float("nan"), 0.5], "advantages": 0.25}
    return {
        "prompt": [known, pack_ids([7, 8])],
        "ids": pack_ids([3, 4]),
        "columns": {name: pack_column(column, 2) for name, column in columns.items()},
    }


def row(step: int, name: str, agents: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        **{"step": step, "schema": 2, "group": 0, "id": name, "environment": "sums"},
        **{"task_id": "t/1", "status": "done", "reward": 1.0, "step_rewards": [1.0], "error": None},
        "task": {"prompt": [message("system", "Add."), message("user", "1+2=")], "answer": 3},
        **{"metrics": {"solver/correct": 1.0}, "agents": dict(agents)},
    } | more


def agent(policy: str, messages: list[Any], turns: list[Any], reward: Any = 0.5) -> dict[str, Any]:
    return {"policy": policy, "reward": reward, "messages": messages, "turns": turns}


def make(folder: Path) -> Path:
    """Writes the run: an agent with tools, two agents that alternate, one without turns."""
    solver = [
        *(message("system", "Add."), message("user", "1+2=")),
        message("assistant", "", "solver", CALL, BARE),
        *(message("tool", "5"), message("tool", "6")),
        message("assistant", "It is 3.", "solver"),
        message("user", "Thanks."),
    ]
    one = agent("base", solver, [turn(2, 0, **tokens()), turn(5, 1, **tokens(4))])
    asked = [message("user", "1+2="), message("assistant", "three?", "a"), message("user", "b: no")]
    first = agent("p", [*asked, message("assistant", "3", "a")], [turn(1, 0), turn(3, 1)])
    second = agent(
        "past-7",
        [message("user", "a: three?", "a"), message("assistant", LINE, "b")],
        [turn(1, 0, 1, trained=False, advantage=None), turn(None, 1, 1, text="late")],
        None,
    )
    rows = [
        row(0, "eval/sums/0/0", {"solver": one}),
        row(1, "train/sums/0/0", {"b": second, "a": first}, reward=-1.0),
        row(1, "train/sums/0/1", {"a": agent("p", [], [])}, status="error", error="x.py\nbroke"),
    ]
    for each in rows[2:]:
        each["reward"] = None
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, rows)
    line = json.dumps({"step": 0, "time": 1_700_000_000.0, "reward/mean": 0.0})
    (folder / "metrics.jsonl").write_text(line + "\n")
    return folder


SPOKEN = ["three?", LINE.replace("\ud83d", "?"), "3", "late"]
"""The turns of the episode of two agents, in order."""
