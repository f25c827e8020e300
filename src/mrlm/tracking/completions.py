"""Completions and distributions of a step, for trackers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mrlm.record.reader import calls_text

MOST = 16
"""Completions of a step."""
LONGEST = 2000
"""Characters of a text."""

COLUMNS = ("episode", "agent", "prompt", "completion", "reward", "components", "advantage")

Table = list[dict[str, Any]]
"""Rows with the keys `COLUMNS`."""


def completions(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The completions of a step's first episodes, as they are recorded: a row per turn in the order
    they were made."""
    table: Table = []
    for row in rows:
        turn_rows = list(_of_episode(row))
        if len(table) + len(turn_rows) > MOST and table:
            break
        table += turn_rows
    return table[:MOST]


def distributions(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """`rewards/<agent>`: its rewards in the episodes of a step; `advantages/<agent>`: the mean
    advantages of its turns; `lengths/<agent>`: their tokens."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, agent in row["agents"].items():
            _add(values, f"rewards/{name}", agent["reward"])
            for turn in agent["turns"]:
                _add(values, f"advantages/{name}", turn["advantage"])
                _add(values, f"lengths/{name}", turn["tokens"])
    return values


def markdown(table: Table) -> str:
    """A table in Markdown; line ends and bars in its cells are escaped."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(_cell(row[name]) for name in COLUMNS) + " |" for row in table]
    return "\n".join(lines)


def _of_episode(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    turns = [
        (turn["step"], turn["order"], name, turn)
        for name, agent in row["agents"].items()
        for turn in agent["turns"]
    ]
    for *_, name, turn in sorted(turns, key=lambda each: each[:2]):
        messages, index = row["agents"][name]["messages"], turn["message"]
        completion = turn.get("text") if index is None else messages[index]["content"]
        if completion is None:  # an observation, which is in the prompt of the next turn
            continue
        if index is not None and (calls := calls_text(messages[index])):
            completion = f"{completion}\n{calls}".strip()
        yield {
            "episode": row["id"],
            "agent": name,
            "prompt": str(messages[index - 1]["content"])[:LONGEST] if index else "",
            "completion": str(completion or "")[:LONGEST],
            "reward": turn["reward"],
            "components": json.dumps(turn["components"]),
            "advantage": turn["advantage"],
        }


def _add(values: dict[str, list[float]], name: str, value: float | None) -> None:
    if value is not None:
        values.setdefault(name, []).append(float(value))


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    for char, escape in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("\r", ""), ("\n", "<br>")):
        text = text.replace(char, escape)
    return text
