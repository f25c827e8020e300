"""Unlimited seeded tasks for tools, with known answers, the calls that lead to them, and a held-out
tenth. Answers are random, or concern a fictional country, so that no model can know them without
the tools."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.environments.shared.generators import difficulties
from mrlm.environments.shared.rows import is_held_out
from mrlm.environments.tools import atlas
from mrlm.environments.tools.calculator import calculate

Step = tuple[str, dict[str, Any]]
"""Name of a tool, and its arguments."""

NAMES = (
    *("note", "list", "plan", "memo", "page", "card"),
    *("sheet", "paper", "label", "draft", "index", "ledger"),
)
FOLDERS = ["box", "desk", "shelf", "attic", "cellar", "room"]
MAX_LEVEL = 4


@dataclass(frozen=True)
class ToolProblem:
    """A question that requires tools.

    Args:
        kind, level: its generator and difficulty.
        plan: the calls of the expert, in order.
        files: path -> content of the initial workspace.
    """

    question: str
    answer: str
    kind: str
    level: int
    plan: tuple[Step, ...]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def required(self) -> tuple[str, ...]:
        """The tools of the plan."""
        return tuple(dict.fromkeys(name for name, _ in self.plan))


class ToolTaskGenerator:
    """A generator of problems.

    Args:
        kind: `arithmetic` (chains of operations for the calculator), `lookup` (questions about the
            built-in atlas), `files` (numbers in files that point to one another), or `mixed`.
        levels: lowest and highest difficulty, 1 to 4.
        seed: another seed gives other problems.
        terse: questions of a few characters.

    Raises:
        ConfigError: an unknown kind or level.
    """

    def __init__(
        self,
        kind: str = "mixed",
        levels: Sequence[int] = (1, 2),
        seed: int = 0,
        terse: bool = False,
    ) -> None:
        kinds = (*KINDS, "mixed")
        if kind not in kinds:
            raise ConfigError(f"tasks: unknown kind {kind!r}; use {', '.join(kinds)}")
        self.kind = kind
        self.levels: tuple[int, int] = difficulties(levels, 1, MAX_LEVEL, "levels")
        self.seed = seed
        self.terse = terse

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of built-in tools that its problems need."""
        kinds = tuple(KINDS) if self.kind == "mixed" else (self.kind,)
        return tuple(dict.fromkeys(group for kind in kinds for group in NEEDS[kind]))

    def problem(self, seed: int, split: Split = "train") -> ToolProblem:
        """The problem of a seed."""
        rng = random.Random(f"tools/{self.seed}/{self.kind}/{split}/{seed}")
        while True:
            kind = rng.choice(list(KINDS)) if self.kind == "mixed" else self.kind
            level = rng.randint(*self.levels)
            problem = KINDS[kind](rng, level, self.terse)
            if is_held_out(f"{problem.question} {problem.answer}") == (split == "eval"):
                return problem


def _arithmetic(rng: random.Random, level: int, terse: bool) -> ToolProblem:
    size = (20, 100, 500, 1000)[level - 1]
    expression = str(rng.randint(2, size))
    words = [f"Start with {expression}."]
    for count in range(level):
        sign = rng.choice("+-*") if level > 1 else "+"
        number = rng.randint(2, 12 if sign == "*" else size)
        expression = f"({expression})" if count and sign == "*" else expression
        expression += f"{sign}{number}"
        words.append({"+": "Add", "-": "Subtract", "*": "Multiply by"}[sign] + f" {number}.")
    question = expression if terse else " ".join([*words, "What is the result?"])
    plan: tuple[Step, ...] = (("calculate", {"expression": expression}),)
    return ToolProblem(question, calculate(expression), "arithmetic", level, plan)


def _lookup(rng: random.Random, level: int, terse: bool) -> ToolProblem:
    table = atlas.entries()
    if level <= 2:
        entry = table[rng.choice(list(table))]
        question, number = rng.choice(list(entry.numbers.items()))
        if level == 1:
            return ToolProblem(question, str(number), "lookup", 1, (_look(entry.name),))
    if level == 3 or (level == 2 and rng.random() < 0.5):
        town = table[rng.choice(atlas.TOWNS)]
        length = next(iter(table[town.river].numbers.values()))
        question = f"How many km long is the river on which {town.name} lies?"
        plan = (_look(town.name), _look(town.river))
        return ToolProblem(question, str(length), "lookup", level, plan)
    one, two = (table[name] for name in rng.sample(atlas.TOWNS, 2))
    first, second = (next(iter(town.numbers.values())) for town in (one, two))
    question = f"How many years lie between the founding of {one.name} and of {two.name}?"
    expression = f"{max(first, second)}-{min(first, second)}"
    sum_up: Step = ("calculate", {"expression": expression})
    plan = (_look(one.name), _look(two.name), sum_up)
    return ToolProblem(question, calculate(expression), "lookup", level, plan)


def _look(name: str) -> Step:
    return "search", {"query": name}


def _files(rng: random.Random, level: int, terse: bool) -> ToolProblem:
    paths = [f"{folder}/{name}.txt" for folder in FOLDERS for name in NAMES]
    paths = rng.sample(paths, 8) if level > 1 else [f"{name}.txt" for name in rng.sample(NAMES, 4)]
    files = {path: f"The number is {rng.randint(1000, 9999)}." for path in paths}
    hops = level if level < 4 else 2
    chain = paths[:hops]
    for here, there in pairwise(chain):
        files[here] = f"See {there}."
    value = files[chain[-1]].split()[-1].rstrip(".")
    plan: list[Step] = [("read_file", {"path": path}) for path in chain]
    question = f"Which number does the file {chain[0]} lead to?"
    if terse:
        question = f"{chain[0]}?"
    if level == 4:
        other = paths[-1]
        expression = f"{value}+{files[other].split()[-1].rstrip('.')}"
        plan += [("read_file", {"path": other}), ("calculate", {"expression": expression})]
        question = f"What is the sum of the numbers that the files {chain[0]} and {other} lead to?"
        question = f"{chain[0]}+{other}?" if terse else question
        value = calculate(expression)
    return ToolProblem(question, value, "files", level, tuple(plan), dict(sorted(files.items())))


KINDS: dict[str, Callable[[random.Random, int, bool], ToolProblem]] = {
    "arithmetic": _arithmetic,
    "lookup": _lookup,
    "files": _files,
}
"""Kind -> sampler of a problem of a level."""

NEEDS: dict[str, tuple[str, ...]] = {
    "arithmetic": ("calculator",),
    "lookup": ("search", "calculator"),
    "files": ("files", "calculator"),
}
"""Kind -> the groups of built-in tools that its problems need."""
