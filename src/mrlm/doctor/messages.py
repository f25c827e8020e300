"""Messages of agents in the recorded episodes of a step, as rules read them."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from mrlm.doctor.recent import Row, Rows, is_training

MARKS = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")
"""Control tokens of known templates, as text."""


@dataclass(slots=True)
class Written:
    """An agent's messages in a step.

    Args:
        count: their number.
        marked: episodes of those with a mark of a template, and the mark.
        trained: number of those of training.
        empty: number of those of training without a text or a call of a tool.
    """

    count: int = 0
    marked: list[tuple[Row, str]] = field(default_factory=list)
    trained: int = 0
    empty: int = 0


def written(rows: Rows) -> dict[str, Written]:
    """agent -> its messages, for `RecentEpisodes.by_step`: without white space around them, and a
    call of a tool is one. Demonstrations are left out."""
    messages_of: dict[str, Written] = defaultdict(Written)
    for row in rows:
        trained = is_training(row)
        for name, agent in row["agents"].items():
            statistics, messages = messages_of[name], agent["messages"]
            for turn in agent["turns"]:
                index = turn.get("message")
                if index is not None:
                    message = messages[index]
                    calls = map(str, message.get("tool_calls") or ())
                    text = message["content"].strip() + "".join(calls)
                elif "text" in turn:
                    text = turn["text"].strip()
                else:
                    continue
                statistics.count += 1
                statistics.trained += trained
                statistics.empty += trained and not text
                if ("<" in text or "[" in text) and (mark := MARKS.search(text)):
                    statistics.marked.append((row, mark[0]))
    return messages_of


def heard(rows: Rows) -> dict[tuple[str, str], tuple[int, int]]:
    """(speaker, listener) -> the groups of a step in which the first message of the speaker, which
    the listener read before its own, differs between episodes; and those of them in which the
    listener's first message does not. For `RecentEpisodes.by_step`."""
    pairs: dict[tuple[str, str], dict[str, list[tuple[str, str]]]] = {}
    for row in rows:
        if not is_training(row):
            continue
        first = {name: _first(agent) for name, agent in row["agents"].items()}
        for listener, (own, read) in first.items():
            for speaker, (text, _) in first.items():
                if speaker != listener and text and text in read:
                    groups = pairs.setdefault((speaker, listener), {})
                    groups.setdefault(row["id"].rpartition("/")[0], []).append((text, own))
    found = {}
    for pair, groups in pairs.items():
        varied = [each for each in groups.values() if len({text for text, _ in each}) > 1]
        found[pair] = len(varied), sum(len({own for _, own in each}) == 1 for each in varied)
    return found


def _first(agent: Row) -> tuple[str, str]:
    """An agent's first message, and all that it read before it."""
    place = next((t["message"] for t in agent["turns"] if t.get("message") is not None), None)
    if place is None:
        return "", ""
    before = "\n".join(each["content"] for each in agent["messages"][:place])
    return agent["messages"][place]["content"].strip(), before
