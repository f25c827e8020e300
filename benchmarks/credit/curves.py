"""Learning curves in small games: policies follow the credit of an algorithm by plain gradient
ascent, and all algorithms may ask the game for the same number of joint steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.credit.exact import Solved
from benchmarks.credit.games import GAMES, Game, State, crowd
from benchmarks.credit.measure import Entry, annotate, plan_of, value_of
from benchmarks.credit.play import Played, Player
from mrlm.core.types import Turn
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.credit.groups import clear

POINTS = 12
"""Points of a curve after the first, at equal distances, at most."""
CRITIC_RATE = 0.2
"""How far a learned value moves to the mean return of a batch."""
_GROUP = {"group_size": 4, "scale_rewards": "none"}

RULES: tuple[Entry, ...] = (
    Entry("magrpo", {"group_size": 4, "gamma": 1.0}),
    Entry("mappo", {"whiten_advantages": False}, critic="learned"),
    Entry("mappo", {"whiten_advantages": False}),
    Entry("c3"),
    Entry("c3", {"alternatives": 1}),
    Entry("ccpo", _GROUP),
    Entry("sharp", _GROUP),
    Entry("sharp", {**_GROUP, "credit_by": "marginal"}),
    Entry("m_grpo", _GROUP),
)
"""Rules that are compared, without division by deviations: the first two give the shared advantage
and that of a critic."""


GAMES_LEARNED: Mapping[str, Game] = {**GAMES, "noisy8": crowd(8, noisy=True)}
"""The games that may be learned."""


@dataclass(frozen=True)
class Course:
    """How a game is learned.

    Args:
        game: its name.
        updates: of the policies.
        evaluations: joint steps for each of them, as near as whole groups of episodes come.
        rates: learning rates that are tried.
    """

    game: str
    updates: int
    evaluations: int
    rates: tuple[float, ...]

    @property
    def quick(self) -> Course:
        """A few updates with two of the rates."""
        return replace(self, updates=4, rates=self.rates[:2])


COURSES = {
    each.game: each
    for each in (
        Course("crowd8", 12, 36, (16.0, 64.0, 256.0)),
        Course("noisy8", 40, 72, (1.0, 4.0, 16.0, 64.0)),
        Course("chain", 30, 80, (2.0, 8.0, 32.0, 128.0)),
        Course("sparse4", 24, 64, (8.0, 32.0, 128.0)),
        Course("dense4", 24, 64, (2.0, 8.0, 32.0)),
    )
}
"""Games with more than two turns or agents."""


@dataclass
class Curve:
    """One run of a rule.

    Args:
        game, entry: where, and title of the rule.
        rate: learning rate.
        seed: of the first policies and of all draws.
        steps: evaluations so far, at every point.
        returns: expected return there, by enumeration.
        tuning: the run only served the choice of the rate.
    """

    game: str
    entry: str
    rate: float
    seed: int
    steps: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    tuning: bool = False

    @property
    def final(self) -> float:
        """The expected return in the end."""
        return self.returns[-1]

    @property
    def area(self) -> float:
        """The mean of the curve over its evaluations."""
        return float(np.trapezoid(self.returns, self.steps) / (self.steps[-1] - self.steps[0]))

    def record(self) -> dict[str, Any]:
        """The curve as JSON."""
        return asdict(self)


class _Values:
    """A tabular critic of the team: of every state the running mean of the returns from it on."""

    def __init__(self) -> None:
        self.known: dict[tuple[State, str], float] = {}

    def __call__(self, turn: Turn, state: State) -> float:
        return self.known.get((state, turn.agent), 0.0)

    def learn(self, played: Played) -> None:
        """Moves to the returns of a batch."""
        rest: dict[int, float] = {}
        for group in played.groups:
            for episode in group.valid:
                togo = np.cumsum(episode.step_rewards[::-1])[::-1]
                rest |= {id(turn): float(togo[turn.step]) for turn in episode.turns}
        found: dict[tuple[State, str], list[float]] = {}
        for turn, state in zip(played.turns, played.states, strict=True):
            found.setdefault((state, turn.agent), []).append(rest[id(turn)])
        for place, returns in found.items():
            before = self.known.get(place, fmean(returns))
            self.known[place] = before + CRITIC_RATE * (fmean(returns) - before)


def learn(course: Course, entry: Entry, rate: float, seed: int) -> Curve:
    """Trains tabular policies by a rule.

    Args:
        course: game and number of evaluations.
        entry: the rule.
        rate: learning rate.
        seed: of everything.
    """
    game, algorithm = GAMES_LEARNED[course.game], entry.build()
    plan, siblings = plan_of(algorithm, game)
    solved = Solved.random(game, seed)
    player, values = Player(solved, 1000 + seed), _Values()
    curve = Curve(course.game, entry.title, rate, seed, [0], [expected(solved)])
    cost = Player(solved, 0).play(plan, 1, siblings).evaluations  # games have a fixed length
    groups = max(1, round(course.evaluations / cost))
    spent, most = 0, course.updates * course.evaluations
    while spent < most:
        played = player.play(plan, groups, siblings)
        spent += played.evaluations
        clear(played.groups)
        player.solved = solved = _ascended(solved, played, algorithm, entry, values, rate)
        if spent >= most * len(curve.steps) / POINTS:
            curve.steps.append(spent)
            curve.returns.append(expected(solved))
    return curve


def _ascended(
    solved: Solved,
    played: Played,
    algorithm: Algorithm,
    entry: Entry,
    values: _Values,
    rate: float,
) -> Solved:
    """The game under policies that have made a step along the credit of a batch: per episode, and
    a decision with several answers counts as one."""

    def value(turn: Turn, state: State) -> float:
        if entry.critic == "learned":
            return values(turn, state)
        return value_of(algorithm, solved, turn, state)

    annotate(algorithm, played, value)
    algorithm.credit(played.groups)
    if entry.critic == "learned":
        values.learn(played)
    originals = [episode for group in played.groups for episode in group.valid]
    turns = sum(1 for episode in originals for _ in episode.turns) / len(originals)
    gradient = played.gradient(solved, turns / len(played.turns))
    logits = {
        place: x + rate * gradient[solved.places[place]] for place, x in solved.logits.items()
    }
    return Solved(solved.game, logits)


def expected(solved: Solved) -> float:
    """The expected return of the team."""
    agent = next(iter(solved.game.actions))
    return sum(chance * solved.value(state)[agent] for chance, state in solved.game.starts)


def compare(course: Course, entry: Entry, seeds: int, tuning: int) -> list[Curve]:
    """The runs of a rule in a game: some with every rate, and more with the one whose area was
    largest, from other seeds.

    Args:
        course: the game.
        entry: the rule.
        seeds: runs with the chosen rate.
        tuning: runs with every rate.
    """
    tried = [
        learn(course, entry, rate, 100 + seed) for rate in course.rates for seed in range(tuning)
    ]
    for curve in tried:
        curve.tuning = True
    best = max(course.rates, key=lambda r: fmean(c.area for c in tried if c.rate == r))
    return tried + [learn(course, entry, best, seed) for seed in range(seeds)]


def on_grid(curves: Sequence[Curve], points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Evaluations (P,) that all curves reach, and their returns there (N, P)."""
    steps = np.linspace(0, min(curve.steps[-1] for curve in curves), points + 1)
    return steps, np.array([np.interp(steps, c.steps, c.returns) for c in curves])
