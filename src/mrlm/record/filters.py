"""The filter language of recorded episodes: `reward<0 and agent:solver and cut and step:100-200`.
That of the page of a run (viewer/static/filter.js) is the same.

Terms are joined by `and` (which may be left out), `or`, `not` and parentheses:

- a number: `reward<0`, `solver.reward>=1`, `solver/correct=1` (a reward component), `step`,
  `turns`, `tokens`, with `<`, `<=`, `>`, `>=`, `=` or `!=`, or a range: `step:100-200`;
- a field: `agent:NAME`, `policy:NAME`, `env:NAME` (`environment:`), `task:ID`, `id:ID`,
  `status:done`, `stage:FOLDER`, `kind:eval`;
- a mark, a name of `MARKS`;
- any other word, or a text in double quotes: it occurs in a message (case does not matter).
"""

import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mrlm.core import registry
from mrlm.core.errors import ConfigError

Row = Mapping[str, Any]
Filter = Callable[[Row], bool]

TERM = re.compile(r'"(?P<text>[^"]*)"|(?P<word>[()]|(?:[^\s"()]|"[^"]*")+)')
NUMBER = re.compile(r"(?P<name>[^<>=!:]+)(?P<sign><=|>=|!=|<|>|=)(?P<value>-?[\d.]+(e-?\d+)?)")
OPEN = re.compile(r"(reward|step|turns|tokens|[^\s<>=!:]+\.reward)(<=|>=|!=|<|>|=)")
"""A comparison without its number."""
NUMBERS = ("reward", "step", "turns", "tokens")
"""Numbers of every episode."""
RANGE = re.compile(r"(-?\d+\.?\d*)(?:-(-?\d+\.?\d*))?")
JOINS = ("and", "or", "not")
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
    return sorted(_turns(row), key=lambda turn: (turn.get("step", 0), turn.get("order", 0)))


def _turns(row: Row) -> Iterable[Row]:
    agents = (row.get("agents") or {}).values()
    return (turn for agent in agents for turn in agent.get("turns") or ())


MARKS: Mapping[str, Filter] = {
    "cut": lambda row: any(turn.get("finish_reason") == "length" for turn in _turns(row)),
    "error": lambda row: bool(row.get("error")) or row.get("status") == "error",
    "failed": lambda row: MARKS["error"](row),
    "trained": lambda row: not evaluation(row) and any(turn.get("trained") for turn in _turns(row)),
    "eval": evaluation,
    "train": lambda row: not evaluation(row),
    "greedy": lambda row: bool(row.get("greedy")),
    "pruned": lambda row: bool(row.get("pruned")),
    "tokens": lambda row: any(isinstance(turn.get("ids"), str) for turn in _turns(row)),
    "lag": lambda row: any(turn.get("lag") for turn in _turns(row)),
    "played": lambda row: bool(row.get("played")),
    "replayed": lambda row: bool(row.get("replayed")),
}
"""Mark -> what it says of an episode: that a completion reached its limit (`cut`), a turn was
trained on, was sampled with older weights (`lag`) or has its tokens recorded, and so on; `played`
is a branch that a page has played, which no record has."""
FIELDS: Mapping[str, Callable[[Row, str], bool]] = {
    "agent": lambda row, value: value in row["agents"],
    "policy": lambda row, value: any(a["policy"] == value for a in row["agents"].values()),
    "env": lambda row, value: row["environment"] == value,
    "environment": lambda row, value: row["environment"] == value,
    "task": lambda row, value: str(row["task_id"]) == value,
    "id": lambda row, value: row["id"] == value,
    "status": lambda row, value: row["status"] == value,
    "kind": lambda row, value: evaluation(row) == (value == "eval"),
}


def number(row: Row, name: str) -> float | None:
    """A number of an episode: `reward`, `step`, `turns`, `tokens`, `<agent>.reward`, or a metric
    such as `<agent>/<component>`; `None` if it has none of that name."""
    if name in ("reward", "step"):
        return row[name]
    if name == "turns":
        return sum(1 for _ in _turns(row))
    if name == "tokens":
        return sum(turn.get("tokens") or len(turn.get("ids") or ()) for turn in _turns(row))
    agent, dot, rest = name.rpartition(".")
    if dot and rest == "reward":
        return row["agents"].get(agent, {}).get("reward")
    return row.get("metrics", {}).get(name)


def numbers_of(row: Row) -> set[str]:
    """The names that `number` knows of an episode."""
    return {*NUMBERS, *row.get("metrics", ()), *(f"{agent}.reward" for agent in row["agents"])}


NAMES: Mapping[str, Callable[[Row], Iterable[str]]] = {
    "number": numbers_of,
    "agent": lambda row: row["agents"],
    "policy": lambda row: {each["policy"] for each in row["agents"].values()},
    "env": lambda row: (row["environment"],),
    "environment": lambda row: (row["environment"],),
}
"""Part of a term -> the names that it can have in an episode."""


def check_names(text: str, rows: Iterable[Row], stages: Sequence[str] = ()) -> None:
    """Checks that the numbers, agents, policies and environments of a filter exist in the rows of
    all episodes, which are read until every name has occurred, and its stages in `stages`. Raises
    `ConfigError`: no episode has a name; with the nearest one."""
    left: set[tuple[str, str]] = set()
    for match in TERM.finditer(text):
        word = match["word"] or ""
        kind, _, name = word.replace('"', "").partition(":")
        if comparison := NUMBER.fullmatch(word):
            left |= {("number", comparison["name"])} - {("number", name) for name in NUMBERS}
        elif kind in (*NAMES, "stage") and kind != "number" and name:
            left.add((kind, name))
    names_of = {kind: set(stages if kind == "stage" else ()) for kind, _ in left}
    left = {(kind, name) for kind, name in left if name not in names_of[kind]}
    for row in rows if left else ():
        for kind in names_of.keys() & NAMES.keys():
            names_of[kind].update(NAMES[kind](row))
        left = {(kind, name) for kind, name in left if name not in names_of[kind]}
        if not left:
            return
    if left:
        kind, name = min(left)
        what = f"{kind} of the filter {text!r}"
        raise ConfigError(registry.unknown(name, sorted(names_of[kind]), what))


def parse_filter(text: str, stage: str = "") -> Filter:
    """Makes a filter of the episodes of a stage of a text in the language of this module. Raises
    `ConfigError`: a term is incomplete."""
    parser = _Parser(text, stage)
    predicate = parser.either()
    if parser.words:
        raise ConfigError(f"filter {text!r}: a `)` without its `(`; remove it")
    return predicate


class _Parser:
    """Reads the terms of a filter from left to right; `words` are those that are left, a text in
    quotes as a tuple."""

    def __init__(self, text: str, stage: str) -> None:
        self.text = text
        self.stage = stage
        self.words: deque[str | tuple[str]] = deque(
            _keyword(match["word"]) if match["text"] is None else (match["text"],)
            for match in TERM.finditer(text)
        )

    def either(self) -> Filter:
        """Terms joined by `or`."""
        terms = [self.both()]
        while self.words and self.words[0] == "or":
            self.words.popleft()
            terms.append(self.both(needed="or"))
        return terms[0] if len(terms) == 1 else lambda row: any(term(row) for term in terms)

    def both(self, needed: str = "") -> Filter:
        """Terms joined by `and`."""
        terms: list[Filter] = []
        while self.words and self.words[0] not in ("or", ")"):
            if self.words[0] == "and":
                needed = str(self.words.popleft())
                continue
            terms.append(self.one())
            needed = ""
        if not terms and self.words and self.words[0] == "or":
            raise ConfigError(f"filter {self.text!r}: nothing precedes `or`; write a term: cut or")
        if needed:
            raise self._incomplete(needed)
        return lambda row: all(term(row) for term in terms)

    def one(self) -> Filter:
        """A term, the negation of one, or a filter in parentheses."""
        word = self.words.popleft()
        if isinstance(word, tuple):
            return _contains(*word)
        if word == "not":
            if not self.words or self.words[0] in ("and", "or", ")"):
                raise self._incomplete(word)
            term = self.one()
            return lambda row: not term(row)
        if word == "(":
            inner = self.either()
            if not self.words:
                raise ConfigError(f"filter {self.text!r}: a `(` without its `)`; close it")
            self.words.popleft()
            return inner
        return _term(word, self.stage)

    def _incomplete(self, word: str) -> ConfigError:
        return ConfigError(f"filter {self.text!r}: nothing follows `{word}`; write a term: not cut")


def _keyword(word: str) -> str:
    return word.lower() if word.lower() in JOINS else word


def _term(word: str, stage: str) -> Filter:
    if word.lower() in MARKS:
        return MARKS[word.lower()]
    match = NUMBER.fullmatch(word)
    if match:
        try:
            value = float(match["value"])
        except ValueError:
            raise ConfigError(f"filter term {word!r}: {match['value']!r} is not a number") from None
        sign = SIGNS[match["sign"]]
        return _comparison(match["name"], lambda actual: sign(actual, value))
    if OPEN.fullmatch(word):
        raise ConfigError(f"filter term {word!r} is incomplete; write a number after it: reward<1")
    name, colon, value = word.replace('"', "").partition(":")
    if colon and name in NUMBERS:
        if (ends := RANGE.fullmatch(value)) is None:
            how = f"{name}:100, or {name}:100-200 for a range"
            raise ConfigError(f"filter term {word!r}: write {how}")
        low, high = float(ends[1]), float(ends[2] or ends[1])
        return _comparison(name, lambda actual: low <= actual <= high)
    if colon and (name in FIELDS or name == "stage"):
        if not value:
            raise ConfigError(f"filter term {word!r} is incomplete; write {name}:NAME")
        field = FIELDS.get(name, lambda row, value: value == stage)
        return lambda row: field(row, value)
    return _contains(word.replace('"', ""))


def step_range(text: str) -> range:
    """The steps of `100` or `100-200`. Raises `ConfigError`: it is neither."""
    first, dash, last = text.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise ConfigError(f"steps {text!r} of --step: write 100, or 100-200 for a range")
    return range(int(first), int(last if dash else first) + 1)


def _comparison(name: str, holds: Callable[[float], bool]) -> Filter:
    def matches(row: Row) -> bool:
        actual = number(row, name)
        return actual is not None and holds(actual)

    return matches


def _contains(text: str) -> Filter:
    needle = text.casefold()

    def matches(row: Row) -> bool:
        agents = row["agents"].values()
        texts = [message["content"] for agent in agents for message in agent["messages"]]
        texts += [turn.get("text") for agent in agents for turn in agent.get("turns", ())]
        return any(needle in str(text).casefold() for text in texts if text)

    return matches
