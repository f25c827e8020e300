"""Small games whose policy gradient is known exactly: few states, a table of actions in each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

State = Any
"""A hashable tuple, whose first entry is the number of joint steps before it."""
Outcome = tuple[float, State, tuple[float, ...]]
"""Probability, next state (`None` at the end), and the reward of each agent."""


@dataclass(frozen=True)
class Game:
    """A game with finitely many states.

    Args:
        name: its name in tables.
        about: what it tests.
        actions: agent -> number of actions.
        starts: first states with their probabilities; a task is one of them.
        acting: state -> agents that act in it, at the same time.
        seen: state and agent -> what the agent sees.
        step: state and one action for each acting agent -> outcomes.
        own: agents are judged by their own rewards rather than by the team's, which is the mean.
        lean: added to the logit of the action that repeats what an agent sees, so that a game in
            which nobody knows anything yet has a gradient.
    """

    name: str
    about: str
    actions: Mapping[str, int]
    starts: Sequence[tuple[float, State]]
    acting: Callable[[State], tuple[str, ...]]
    seen: Callable[[State, str], Hashable]
    step: Callable[[State, tuple[int, ...]], list[Outcome]]
    own: bool = False
    lean: float = 0.0

    def joint(self, state: State) -> Iterator[tuple[int, ...]]:
        """All joint actions of a state."""
        return product(*(range(self.actions[agent]) for agent in self.acting(state)))

    def paid(self, state: State, rewards: tuple[float, ...]) -> dict[str, float]:
        """Agent -> what a joint step counts for it."""
        if self.own:
            return dict(zip(self.actions, rewards, strict=True))
        return dict.fromkeys(self.actions, sum(rewards) / len(rewards))


CLIMBING = (np.array([[11.0, -30, 0], [-30, 7, 6], [0, 0, 5]]) + 30) / 41
XOR = np.array([[0.0, 1.0], [1.0, 0.0]])
IRRELEVANT = np.tile(np.array([[0.0], [0.5], [1.0]]), (1, 3))


def matrix(name: str, about: str, table: np.ndarray, noisy: bool = False) -> Game:
    """One joint step of two agents; `noisy` pays 1 with the probability in the table."""

    def step(state: State, acts: tuple[int, ...]) -> list[Outcome]:
        mean = float(table[acts])
        if noisy:
            return [(mean, None, (1.0, 1.0)), (1 - mean, None, (0.0, 0.0))]
        return [(1.0, None, (mean, mean))]

    sizes = dict(zip("ab", table.shape, strict=True))
    return Game(name, about, sizes, [(1.0, (0,))], _both, lambda state, agent: 0, step)


def rounds(name: str, about: str, dense: bool, turns: int = 4, scale: float = 1.0) -> Game:
    """Two agents act together for some turns; each should choose the parity of the turn. Paid in
    every turn, or for all of them at the end."""

    def step(state: State, acts: tuple[int, ...]) -> list[Outcome]:
        turn, right = state
        now = sum(act == (turn + k) % 2 for k, act in enumerate(acts)) / 2
        last = turn + 1 == turns
        paid = now if dense else (right + now) / turns if last else 0.0
        after = None if last else (turn + 1, 0 if dense else right + now)
        return [(1.0, after, (scale * paid, scale * paid))]

    sizes = {"a": 2, "b": 2}
    return Game(name, about, sizes, [(1.0, (0, 0))], _both, lambda state, agent: state[0], step)


def crowd(number: int, noisy: bool = False) -> Game:
    """Agents that are paid for the share of them that is right; `noisy` pays 1 with that
    probability."""
    names = tuple("abcdefgh"[:number])

    def step(state: State, acts: tuple[int, ...]) -> list[Outcome]:
        share = sum(acts) / number
        if noisy:
            return [(share, None, (1.0,) * number), (1 - share, None, (0.0,) * number)]
        return [(1.0, None, (share,) * number)]

    rewarded = "rewarded with 0 or 1 at random" if noisy else "rewarded"
    return Game(
        f"{'noisy' if noisy else 'crowd'}{number}",
        f"{number} agents, {rewarded} by the share of them that is right",
        dict.fromkeys(names, 2),
        [(1.0, (0,))],
        lambda state: names,
        lambda state, agent: 0,
        step,
    )


def chain(number: int = 3) -> Game:
    """A bit that the first agent sees is passed on from agent to agent; the last one answers."""
    names = tuple("abcdefgh"[:number])

    def step(state: State, acts: tuple[int, ...]) -> list[Outcome]:
        place, secret, _ = state
        if place + 1 < number:
            return [(1.0, (place + 1, secret, acts[0]), (0.0,) * number)]
        return [(1.0, None, (float(acts[0] == secret),) * number)]

    return Game(
        "chain",
        f"a bit is passed on by {number} agents, one after another; rewarded at the end",
        dict.fromkeys(names, 2),
        [(0.5, (0, secret, 0)) for secret in range(2)],
        lambda state: (names[state[0]],),
        lambda state, agent: state[2] if state[0] else state[1],
        step,
        lean=1.0,
    )


def private() -> Game:
    """Each of two agents sees a bit; both are paid for an exclusive or that equals their and."""

    def step(state: State, acts: tuple[int, ...]) -> list[Outcome]:
        paid = float((acts[0] ^ acts[1]) == (state[1] & state[2]))
        return [(1.0, None, (paid, paid))]

    starts = [(0.25, (0, first, second)) for first in range(2) for second in range(2)]
    return Game(
        "private",
        "each of two agents sees one of two bits",
        {"a": 2, "b": 2},
        starts,
        _both,
        lambda state, agent: state[1] if agent == "a" else state[2],
        step,
    )


def contextual(states: int = 4) -> Game:
    """A matrix game that differs from task to task, on a level that no action changes."""
    rng = np.random.default_rng(5)
    tables = [rng.normal(size=(2, 2)) + 3 * number for number in range(states)]

    def step(state: State, acts: tuple[int, ...]) -> list[Outcome]:
        paid = float(tables[state[1]][acts])
        return [(1.0, None, (paid, paid))]

    return Game(
        "contextual",
        "tasks of different difficulty, which a critic may know",
        {"a": 2, "b": 2},
        [(1 / states, (0, number)) for number in range(states)],
        _both,
        lambda state, agent: state[1],
        step,
    )


def duel(stones: int = 5) -> Game:
    """Nim: who takes the last stone has won."""

    def step(state: State, acts: tuple[int, ...]) -> list[Outcome]:
        turn, left = state[0], state[1] - acts[0] - 1
        if left > 0:
            return [(1.0, (turn + 1, left), (0.0, 0.0))]
        return [(1.0, None, (1.0, -1.0) if turn % 2 == 0 else (-1.0, 1.0))]

    return Game(
        "duel",
        f"nim of {stones} stones against each other, own rewards",
        {"a": 2, "b": 2},
        [(1.0, (0, stones))],
        lambda state: ("ab"[state[0] % 2],),
        lambda state, agent: state,
        step,
        own=True,
    )


def _both(state: State) -> tuple[str, ...]:
    return ("a", "b")


GAMES = {
    game.name: game
    for game in (
        matrix("climbing", "one step, two agents, a matrix with cliffs", CLIMBING),
        matrix("xor", "one step; what is rewarded, is so only together", XOR),
        matrix("irrelevant", "one step; what the second agent does never matters", IRRELEVANT),
        matrix("noisy", "climbing, rewarded with 0 or 1 at random", CLIMBING, noisy=True),
        rounds("dense4", "four turns, each of them rewarded", dense=True),
        rounds("sparse4", "four turns, rewarded together at the end", dense=False),
        rounds("scaled4", "dense4, rewards a hundred times as large", dense=True, scale=100.0),
        chain(),
        contextual(),
        private(),
        crowd(2),
        crowd(8),
        duel(),
    )
}
"""Name -> game."""
