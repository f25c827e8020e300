"""The filter language of recorded episodes: `reward<0 and agent:solver and cut and step:100-200`.

Terms are joined by `and`, and negated by `not`:

- a number: `reward<0`, `solver.reward>=1`, `solver/correct=1` (a reward component), `step`,
  `turns`, `tokens`, with `<`, `<=`, `>`, `>=`, `=` or `!=`;
- a field: `agent:NAME`, `policy:NAME`, `env:NAME`, `task:ID`, `id:ID`, `status:done`,
  `step:100-200`;
- a mark: `cut` (a completion reached its limit), `failed`, `greedy`, `eval`, `train`;
- any other word, or a text in double quotes: it occurs in a message (case does not matter).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from mrlm.core.errors import ConfigError

Row = Mapping[str, Any]
Filter = Callable[[Row], bool]

TERM = re.compile(r'"(?P<text>[^"]*)"|(?P<word>[^\s"]+)')
NUMBER = re.compile(r"(?P<name>[^<>=!:]+)(?P<sign><=|>=|!=|<|>|=)(?P<value>-?[\d.]+(e-?\d+)?)")
SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def evaluation(row: Row) -> bool:
    """Whether an episode is of an evaluation."""
    return str(row["id"]).startswith("eval/")


def turns_of(row: Row) -> list[Row]:
    """The turns of all agents of an episode, in the order in which they were taken."""
    found = [turn for agent in row["agents"].values() for turn in agent.get("turns", ())]
    return sorted(found, key=lambda turn: (turn.get("step", 0), turn.get("order", 0)))


MARKS: Mapping[str, Filter] = {
    "cut": lambda row: any(turn.get("finish_reason") == "length" for turn in turns_of(row)),
    "failed": lambda row: row["status"] == "error",
    "greedy": lambda row: bool(row.get("greedy")),
    "eval": evaluation,
    "train": lambda row: not evaluation(row),
}
FIELDS: Mapping[str, Callable[[Row, str], bool]] = {
    "agent": lambda row, value: value in row["agents"],
    "policy": lambda row, value: any(a["policy"] == value for a in row["agents"].values()),
    "env": lambda row, value: row["environment"] == value,
    "task": lambda row, value: row["task_id"] == value,
    "id": lambda row, value: row["id"] == value,
    "status": lambda row, value: row["status"] == value,
}


def number(row: Row, name: str) -> float | None:
    """A number of an episode: `reward`, `step`, `turns`, `tokens`, `<agent>.reward`, or a metric
    such as `<agent>/<component>`; `None` if it has none of that name."""
    if name in ("reward", "step"):
        return row[name]
    if name == "turns":
        return len(turns_of(row))
    if name == "tokens":
        return sum(turn.get("tokens", 0) for turn in turns_of(row))
    agent, dot, rest = name.rpartition(".")
    if dot and rest == "reward":
        return row["agents"].get(agent, {}).get("reward")
    return row.get("metrics", {}).get(name)


def parse_filter(text: str) -> Filter:
    """Makes a filter of a text in the language of this module.

    Raises:
        ConfigError: a term is incomplete.
    """
    terms: list[Filter] = []
    negated = False
    for match in TERM.finditer(text):
        word = match["word"]
        if word == "not":
            negated = not negated
            continue
        if word == "and":
            continue
        term = _contains(match["text"]) if word is None else _term(word)
        terms.append(_not(term) if negated else term)
        negated = False
    if negated:
        raise ConfigError(
            f"filter {text!r}: nothing follows `not`; write a term, such as `not cut`"
        )
    return lambda row: all(term(row) for term in terms)


def _term(word: str) -> Filter:
    if word in MARKS:
        return MARKS[word]
    found = NUMBER.fullmatch(word)
    if found:
        try:
            value = float(found["value"])
        except ValueError:
            raise ConfigError(f"filter term {word!r}: {found['value']!r} is not a number") from None
        return _comparison(found["name"], SIGNS[found["sign"]], value)
    name, colon, value = word.partition(":")
    if colon and name == "step":
        return _steps(word, value)
    if colon and name in FIELDS:
        if not value:
            raise ConfigError(f"filter term {word!r} is incomplete; write {name}:NAME")
        field = FIELDS[name]
        return lambda row: field(row, value)
    return _contains(word)


def _steps(word: str, value: str) -> Filter:
    first, dash, last = value.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise ConfigError(f"filter term {word!r}: write step:100 or step:100-200")
    low, high = int(first), int(last) if dash else int(first)
    return lambda row: low <= row["step"] <= high


def _comparison(name: str, sign: Callable[[float, float], bool], value: float) -> Filter:
    def matches(row: Row) -> bool:
        known = number(row, name)
        return known is not None and sign(known, value)

    return matches


def _contains(text: str) -> Filter:
    wanted = text.casefold()

    def matches(row: Row) -> bool:
        messages = (m for agent in row["agents"].values() for m in agent["messages"])
        return any(wanted in str(message["content"]).casefold() for message in messages)

    return matches


def _not(term: Filter) -> Filter:
    return lambda row: not term(row)
