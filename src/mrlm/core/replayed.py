"""Replays of played episodes in which a decision differs: which are played, the mark of each, and
Shapley values from their outcomes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

ReplayKind = Literal["alternatives", "silence", "coalitions"]
"""The change. `alternatives`: one turn of an agent is sampled again. `silence`: all messages of one
agent are empty. `coalitions`: all messages of every set of agents are."""
SHAPLEY_AGENTS = 5
"""Most agents for which all coalitions are played."""


@dataclass(frozen=True, slots=True)
class Replays:
    """The replays of every episode. Turns before the change, and those taken at the same time, are
    as in the episode; later ones are sampled again.

    Args:
        kind: what is changed.
        count: replays of each change.
        decisions: turns of an episode that are changed one at a time (`alternatives`), chosen at
            random; `None`: all.
    """

    kind: ReplayKind
    count: int = 1
    decisions: int | None = None

    def number(self, agents: int, turns: int) -> int:
        """Most replays of an episode of so many trained agents with `turns` turns each."""
        if self.kind == "alternatives":
            every = agents * turns
            return self.count * (every if self.decisions is None else min(every, self.decisions))
        sets = 2**agents - 1 if self.kind == "coalitions" and agents <= SHAPLEY_AGENTS else agents
        return self.count * sets


@dataclass(frozen=True, slots=True)
class ReplayMark:
    """The mark of an episode that replays another one.

    Args:
        of: id of the other episode.
        kind: what is changed.
        agents: the agents with changed turns.
        index: `Turn.index` of the changed turn; `None`: all turns.
    """

    of: str
    kind: ReplayKind
    agents: tuple[str, ...]
    index: int | None = None


def coalitions(agents: Sequence[str]) -> list[frozenset[str]]:
    """The sets of agents that are replaced together: all of them for a Shapley value, each alone
    where there are too many."""
    most = len(agents) if len(agents) <= SHAPLEY_AGENTS else 1
    sizes = range(1, most + 1)
    return [frozenset(members) for size in sizes for members in combinations(agents, size)]


def shapley(agents: Sequence[str], worth: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Shapley values: the mean marginal contribution of an agent over all orders in which agents
    join (Shapley 1953). They sum to the outcome with all of
    them minus that with none.

    Args:
        worth: the outcome with a coalition as it played, and all others replaced.
    """
    count = len(agents)
    values = dict.fromkeys(agents, 0.0)
    for agent in agents:
        others = [other for other in agents if other != agent]
        for size in range(count):
            weight = 1 / (count * math.comb(count - 1, size))
            for joined in map(frozenset, combinations(others, size)):
                values[agent] += weight * (worth(joined | {agent}) - worth(joined))
    return values
