"""The list of episodes that the page searches: one number or code per episode and column."""

from collections.abc import Mapping
from typing import Any

from mrlm.record.filters import MARKS, evaluation, number

LONGEST_TEXT = 4000
"""Characters of an episode's messages that the list has, for search."""
FLAGS = ("cut", "error", "trained", "eval", "greedy", "pruned", "tokens", "lag", "played")
FLAGS += ("replayed",)
"""Marks of an episode, in the order of their bits."""
CODED = ("stage", "environment", "task", "status", "group", "policies")


class EpisodeList:
    """Columns of the episodes of a page."""

    def __init__(self) -> None:
        names = (*CODED, "step", "id", "reward", "tokens", "turns", "flags", "text")
        self.columns: dict[str, list[Any]] = {name: [] for name in names}
        self.codes: dict[str, dict[str, int]] = {name: {} for name in CODED}
        self.rewards: dict[str, list[float | None]] = {}
        self.metrics: dict[str, list[float | None]] = {}
        self.shortened: bool = False
        """Whether the text of an episode is longer than the list has."""

    def __len__(self) -> int:
        return len(self.columns["step"])

    def add(self, stage: str, row: Mapping[str, Any], of: str = "") -> None:
        """Adds an episode of a stage by its row; `of` is the episode of which it is a branch that a
        page has played."""
        agents: Mapping[str, Any] = row.get("agents") or {}
        text, marked = _text(agents), {**row, "played": of}
        self.shortened |= len(text) > LONGEST_TEXT
        values = {
            "step": row.get("step") or 0,
            "id": row["id"],
            "reward": row.get("reward"),
            "tokens": number(row, "tokens"),
            "turns": number(row, "turns"),
            "flags": sum(1 << bit for bit, name in enumerate(FLAGS) if MARKS[name](marked)),
            "text": text[:LONGEST_TEXT],
        }
        coded = {
            "stage": stage,
            "environment": row.get("environment") or "",
            "task": str(row.get("task_id") or ""),
            "status": row.get("status") or "",
            "group": group_key(stage, {**row, "group": f"branches of {of}"} if of else row),
            "policies": "\n".join(str(agent.get("policy")) for agent in agents.values()),
        }
        for name, value in coded.items():
            values[name] = self.codes[name].setdefault(value, len(self.codes[name]))
        before = len(self)
        for name, value in values.items():
            self.columns[name].append(value)
        rewards = {name: agent.get("reward") for name, agent in agents.items()}
        _append(self.rewards, rewards, before)
        _append(self.metrics, row.get("metrics") or {}, before)

    def record(self) -> dict[str, Any]:
        """The list as JSON."""
        codes = {name: list(values) for name, values in self.codes.items()}
        return {
            "columns": self.columns,
            "codes": codes,
            "rewards": list(self.rewards.items()),
            "metrics": list(self.metrics.items()),
        }


def _append(
    columns: dict[str, list[float | None]], values: Mapping[str, float | None], before: int
) -> None:
    """Adds a value to each column; a new column is empty for the rows before."""
    for name in values:
        if name not in columns:
            columns[name] = [None] * before
    for name, column in columns.items():
        column.append(values.get(name))


def group_key(stage: str, row: Mapping[str, Any]) -> str:
    """A name of an episode's group that no other group of the run has."""
    group = row.get("group")
    name = str(row["id"])
    kind = "eval" if evaluation(row) else "train"
    last = name.rpartition("/")[0] or name if group is None else str(group)
    return f"{stage}/{row.get('step') or 0}/{kind}/{last}"


def _text(agents: Mapping[str, Any]) -> str:
    """The messages of an episode, each once, completions first."""
    completions: dict[str, None] = {}
    read: dict[str, None] = {}
    for name, agent in agents.items():
        for message in agent.get("messages") or ():
            content = message.get("content")
            if isinstance(content, str):
                (completions if message.get("agent") == name else read)[content] = None
        completions |= dict.fromkeys(
            turn["text"] for turn in agent.get("turns") or () if turn.get("text")
        )
    return " \u00b7 ".join([*completions, *(text for text in read if text not in completions)])
