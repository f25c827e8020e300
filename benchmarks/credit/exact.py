"""Values and policy gradient of a game under fixed policies, by enumeration."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.credit.games import Game, State

Place = tuple[str, Hashable]
"""An agent and what it sees: its policy has logits of their own there."""


def softmax(x: np.ndarray) -> np.ndarray:
    """Probabilities (A,) of logits (A,)."""
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def cumulative(chances: Sequence[float] | np.ndarray) -> list[float]:
    """Cumulative probabilities, the last of which is 1."""
    found = np.cumsum(chances)
    return (found / found[-1]).tolist()


@dataclass
class Solved:
    """A game under fixed policies.

    Args:
        game: the game.
        logits: of every place (A,).
    """

    game: Game
    logits: Mapping[Place, np.ndarray]
    _values: dict[State, dict[str, float]] = field(default_factory=dict)
    _advantages: dict[tuple[State, str], np.ndarray] = field(default_factory=dict)

    @classmethod
    def random(cls, game: Game, seed: int, spread: float = 0.5) -> Solved:
        """The game under policies with normally distributed logits."""
        rng = np.random.default_rng(seed)
        logits: dict[Place, np.ndarray] = {}
        for state in states(game):
            for agent in game.acting(state):
                seen = game.seen(state, agent)
                if (agent, seen) not in logits:
                    count = game.actions[agent]
                    repeats = np.array([act == seen for act in range(count)])
                    logits[agent, seen] = rng.normal(0, spread, count) + game.lean * repeats
        return cls(game, logits)

    @cached_property
    def policies(self) -> dict[Place, np.ndarray]:
        """Probabilities (A,) of every place."""
        return {place: softmax(x) for place, x in self.logits.items()}

    @cached_property
    def draws(self) -> dict[Place, tuple[list[float], list[float]]]:
        """Cumulative and log probabilities of every place, to sample from."""
        return {
            place: (cumulative(policy), np.log(policy).tolist())
            for place, policy in self.policies.items()
        }

    @cached_property
    def places(self) -> dict[Place, slice]:
        """Entries of the gradient that belong to a place."""
        found, start = {}, 0
        for place, x in self.logits.items():
            found[place] = slice(start, start + len(x))
            start += len(x)
        return found

    @cached_property
    def size(self) -> int:
        """Number of logits."""
        return sum(map(len, self.logits.values()))

    def policy(self, state: State, agent: str) -> np.ndarray:
        """The policy (A,) of an agent in a state."""
        return self.policies[agent, self.game.seen(state, agent)]

    def chance(self, state: State, acts: tuple[int, ...]) -> float:
        """Probability of a joint action."""
        pairs = zip(self.game.acting(state), acts, strict=True)
        return float(np.prod([self.policy(state, agent)[act] for agent, act in pairs]))

    def worth(self, state: State, acts: tuple[int, ...]) -> dict[str, float]:
        """Agent -> expected return of a joint action."""
        total = dict.fromkeys(self.game.actions, 0.0)
        for chance, after, rewards in self.game.step(state, acts):
            later = {} if after is None else self.value(after)
            for agent, reward in self.game.paid(state, rewards).items():
                total[agent] += chance * (reward + later.get(agent, 0.0))
        return total

    def value(self, state: State) -> dict[str, float]:
        """Agent -> expected return from a state on: the team's, or in games against each other the
        agent's own."""
        if state not in self._values:
            total = dict.fromkeys(self.game.actions, 0.0)
            for acts in self.game.joint(state):
                chance = self.chance(state, acts)
                for agent, worth in self.worth(state, acts).items():
                    total[agent] += chance * worth
            self._values[state] = total
        return self._values[state]

    def advantage(self, state: State, agent: str, act: int) -> float:
        """Expected return of an agent's action, over what the others do, less the state's."""
        key = (state, agent)
        if key not in self._advantages:
            table = np.zeros(self.game.actions[agent])
            place = self.game.acting(state).index(agent)
            for acts in self.game.joint(state):
                chance = self.chance(state, acts) / self.policy(state, agent)[acts[place]]
                table[acts[place]] += chance * self.worth(state, acts)[agent]
            self._advantages[key] = table - self.value(state)[agent]
        return float(self._advantages[key][act])

    @cached_property
    def reach(self) -> dict[State, float]:
        """Expected visits of every state."""
        found = dict.fromkeys(states(self.game), 0.0)
        for chance, state in self.game.starts:
            found[state] += chance
        for state in found:  # by number of joint steps
            for acts in self.game.joint(state):
                for chance, after, _ in self.game.step(state, acts):
                    if after is not None:
                        found[after] += found[state] * self.chance(state, acts) * chance
        return found

    @cached_property
    def gradient(self) -> np.ndarray:
        """The gradient (size,) of every agent's expected return with respect to its own logits."""
        total = np.zeros(self.size)
        for state, visits in self.reach.items():
            for acts in self.game.joint(state):
                chance, worth = visits * self.chance(state, acts), self.worth(state, acts)
                for agent, act in zip(self.game.acting(state), acts, strict=True):
                    self.add_score(total, state, agent, act, chance * worth[agent])
        return total

    def add_score(
        self, total: np.ndarray, state: State, agent: str, act: int, weight: float
    ) -> None:
        """Adds the weighted gradient of the log-prob of an action."""
        where = self.places[agent, self.game.seen(state, agent)]
        total[where] -= weight * self.policy(state, agent)
        total[where.start + act] += weight

    @cached_property
    def seen_values(self) -> dict[Place, float]:
        """Expected return of an agent given what it sees."""
        sums: dict[Place, float] = {}
        visits: dict[Place, float] = {}
        for state, reach in self.reach.items():
            for agent in self.game.acting(state):
                place = (agent, self.game.seen(state, agent))
                sums[place] = sums.get(place, 0.0) + reach * self.value(state)[agent]
                visits[place] = visits.get(place, 0.0) + reach
        return {place: value / visits[place] for place, value in sums.items()}


def states(game: Game) -> list[State]:
    """All states of a game, by number of joint steps before them."""
    found = dict.fromkeys(state for _, state in game.starts)
    pending = list(found)
    for state in pending:
        for acts in game.joint(state):
            for _, after, _ in game.step(state, acts):
                if after is not None and after not in found:
                    found[after] = None
                    pending.append(after)
    return sorted(found, key=lambda state: state[0])
