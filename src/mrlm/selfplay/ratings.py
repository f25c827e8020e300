"""Ratings of players from pairwise scores: a table of results, maximum-likelihood ratings with
intervals, and ratings that are updated game by game.

A score is 1 for a win, 0.5 for a draw, 0 for a loss. It knows neither games nor models.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mrlm.core.progress import aligned
from mrlm.core.statistics import Interval, Z

ANCHOR = 1000.0
"""Rating of the reference player."""
SCALE = 400.0 / math.log(10.0)
"""Rating points of one unit of log-odds: 400 points are odds of 10 to 1 (Elo 1978)."""
LONGEST = 2.0
"""Maximum change of a strength in one step of the fit, in units of log-odds."""
STEP = 8.0
"""Maximum change of a moving rating in one game, in points (Elo's K)."""


@dataclass(slots=True)
class Tally:
    """Results of one player against another: the games, and the sums of its scores and of its
    returns minus the other's."""

    games: float = 0.0
    score: float = 0.0
    reward: float = 0.0

    @property
    def mean_score(self) -> float:
        return self.score / self.games

    @property
    def mean_reward(self) -> float:
        return self.reward / self.games


class Results:
    """Results between all pairs of players; each pair is stored once.

    Examples:
        >>> results = Results()
        >>> results.add("new", "old", 1.0, reward=2.0)
        >>> results.between("old", "new")
        Tally(games=1.0, score=0.0, reward=-2.0)
    """

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], Tally] = {}

    def add(self, player: str, other: str, score: float, reward: float = 0.0) -> None:
        """Add a game; a `ValueError` for a player against itself, or a score outside 0..1."""
        if player == other or not 0.0 <= score <= 1.0:
            raise ValueError(f"no result: {player!r} against {other!r}, score {score!r}")
        turned = (other, player) in self._pairs
        key = (other, player) if turned else (player, other)
        tally = self._pairs.setdefault(key, Tally())
        tally.games += 1.0
        tally.score += 1.0 - score if turned else score
        tally.reward += -reward if turned else reward

    def between(self, player: str, other: str) -> Tally:
        """Results of `player` against `other`; zeros without games."""
        tally = self._pairs.get((player, other))
        if tally is not None:
            return Tally(tally.games, tally.score, tally.reward)
        turned = self._pairs.get((other, player), Tally())
        return Tally(turned.games, turned.games - turned.score, 0.0 - turned.reward)

    def players(self) -> list[str]:
        """All players, in the order of their first games."""
        return list(dict.fromkeys(name for pair in self._pairs for name in pair))

    def pairs(self) -> Iterable[tuple[str, str, Tally]]:
        """Each pair with games, once."""
        return ((one, other, tally) for (one, other), tally in self._pairs.items())

    def state_dict(self) -> list[list[Any]]:
        return [[a, b, t.games, t.score, t.reward] for (a, b), t in self._pairs.items()]

    def load_state_dict(self, state: Sequence[Sequence[Any]]) -> None:
        self._pairs = {(a, b): Tally(*numbers) for a, b, *numbers in state}


def fitted(
    results: Results, anchor: str, prior: float = 1.0, settled: Mapping[str, Interval] | None = None
) -> dict[str, Interval]:
    """Maximum-likelihood ratings (Bradley and Terry 1952; a draw counts as half a win), with 95 %
    intervals from the Fisher information.

    Args:
        results: of any number of players; those not connected with the anchor by games have no
            rating.
        anchor: the player rated exactly 1000; the intervals of the others are those of their
            distance to it.
        prior: drawn games added to every pair with games, so that a player that has won every game
            has a finite rating; 0 for the plain maximum, which must exist.
        settled: players without further games (snapshots that were left out), with their last
            ratings, which they keep: games against them count, and the cost grows with the number
            of all others only. Their own intervals widen those of the others, as if all of them
            were off in the same direction: they were measured against one another.
    """
    settled = {name: known for name, known in (settled or {}).items() if name != anchor}
    reached = _connected(results, anchor)
    names = [name for name in reached if name not in settled]
    index_of = {name: number for number, name in enumerate(names)}
    games, score = np.zeros((len(names),) * 2), np.zeros((len(names),) * 2)
    fixed = _against(results, index_of, settled, prior)
    for one, other, tally in results.pairs():
        if one in index_of and other in index_of:
            i, j = index_of[one], index_of[other]
            games[i, j] = games[j, i] = tally.games + prior
            score[i, j] = tally.score + prior / 2
            score[j, i] = tally.games - tally.score + prior / 2
    strength = np.zeros(len(names))
    for _ in range(200):
        gradient, information = _slope(strength, games, score, fixed)
        step = np.zeros(len(names))
        step[1:] = np.linalg.solve(information[1:, 1:], gradient[1:])
        longest = float(np.abs(step).max())
        # limit the step: far out, where all games are won, the curvature is close to 0
        strength += step * (LONGEST / max(LONGEST, longest))
        if longest < 1e-10:
            break
    _, information = _slope(strength, games, score, fixed)
    spread = np.zeros(len(names))
    inverse = np.linalg.inv(information[1:, 1:])
    carried = inverse @ _carried(strength, fixed)[1:]
    spread[1:] = np.sqrt(np.diag(inverse) + np.square(carried))
    ratings: dict[str, Interval] = {}
    for name, mean, half in zip(names, SCALE * strength, Z * SCALE * spread, strict=True):
        rating = ANCHOR + float(mean)
        ratings[name] = (rating, rating - float(half), rating + float(half))
    return ratings | {name: settled[name] for name in reached if name in settled}


def _against(
    results: Results, index: Mapping[str, int], settled: Mapping[str, Interval], prior: float
) -> np.ndarray:
    """Games of players (with their indices in `index`) against settled ones: rows of (index of the
    player, strength of the other and its standard deviation, games, score)."""
    rows: list[tuple[float, float, float, float, float]] = []
    for one, other, tally in results.pairs():
        sides = (one, other, tally.score), (other, one, tally.games - tally.score)
        for player, met, won in sides:
            if player in index and met in settled:
                rating, low, high = settled[met]
                strength, spread = (rating - ANCHOR) / SCALE, (high - low) / (2 * Z * SCALE)
                rows.append((index[player], strength, spread, tally.games + prior, won + prior / 2))
    return np.array(rows).reshape(-1, 5)


def _carried(strength: np.ndarray, fixed: np.ndarray) -> np.ndarray:
    """The deviations of settled players (P,), weighted by the information of the games of strengths
    (P,) against them."""
    player, other, spread, played, _ = fixed.T
    expected = 1.0 / (1.0 + np.exp(other - strength[player.astype(int)]))
    deviations = np.zeros(len(strength))
    np.add.at(deviations, player.astype(int), spread * played * expected * (1.0 - expected))
    return deviations


def _connected(results: Results, anchor: str) -> list[str]:
    """The anchor, then all players connected to it by games."""
    met: dict[str, list[str]] = {anchor: []}
    for one, other, _ in results.pairs():
        met.setdefault(one, []).append(other)
        met.setdefault(other, []).append(one)
    reached, waiting = {anchor: None}, [anchor]
    while waiting:
        for name in met[waiting.pop()]:
            if name not in reached:
                reached[name] = None
                waiting.append(name)
    return list(reached)


def _slope(
    strength: np.ndarray, games: np.ndarray, score: np.ndarray, fixed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient (P,) and Fisher information (P, P) of the log-likelihood of strengths (P,); `fixed`
    is the result of `_against`."""
    gaps = strength[:, None] - strength[None]
    expected = 1.0 / (1.0 + np.exp(-gaps))
    gradient = (score - games * expected).sum(1)
    weight = games * expected * (1.0 - expected)
    information = np.diag(weight.sum(1)) - weight
    player, other, _, played, won = fixed.T
    player = player.astype(int)
    expected = 1.0 / (1.0 + np.exp(other - strength[player]))
    np.add.at(gradient, player, won - played * expected)
    np.add.at(information, (player, player), played * expected * (1.0 - expected))
    return gradient, information


class MovingRatings:
    """Ratings that are updated after every game, as in chess (Elo 1978): the winner takes points
    from the loser, the more the less likely the win was. They follow a player that is still being
    trained; that of the `anchor` is always 1000."""

    def __init__(self, anchor: str) -> None:
        self.anchor: str = anchor
        self._points: dict[str, float] = {anchor: 0.0}

    def __getitem__(self, player: str) -> float:
        """A player's rating; without games, the anchor's initial one."""
        return ANCHOR + self._points.get(player, 0.0) - self._points[self.anchor]

    def enter(self, player: str, equal: str) -> None:
        """Start a player at the rating of another."""
        self._points[player] = self._points.get(equal, 0.0)

    def add(self, player: str, other: str, score: float) -> None:
        """Update both ratings after a game."""
        mine, theirs = self._points.get(player, 0.0), self._points.get(other, 0.0)
        moved = STEP * (score - 1.0 / (1.0 + math.exp((theirs - mine) / SCALE)))
        self._points[player], self._points[other] = mine + moved, theirs - moved

    def state_dict(self) -> dict[str, Any]:
        return {"anchor": self.anchor, "points": dict(self._points)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.anchor, self._points = state["anchor"], dict(state["points"])


def record(
    results: Results, ratings: Mapping[str, Interval], kept: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Ratings and pay-offs as JSON: `players` and `payoffs`; `kept` can still be opponents."""
    players = [
        {"name": name, "rating": rating, "low": low, "high": high, "kept": name in kept}
        for name, (rating, low, high) in ratings.items()
    ]
    payoffs = [
        {"player": one, "other": other, "games": tally.games}
        | {"score": tally.mean_score, "reward": tally.mean_reward}
        for one, other, tally in results.pairs()
    ]
    return {"players": players, "payoffs": payoffs}


def shown_players(
    results: Results, ratings: Mapping[str, Interval], kept: Collection[str]
) -> list[str]:
    """Kept players and the latest one of every policy, in the order of the ratings."""
    latest = {name.rpartition("@")[0]: name for name in results.players()}.values()
    return [name for name in ratings if name in kept or name in latest]


def report(results: Results, ratings: Mapping[str, Interval], kept: Collection[str]) -> str:
    """Ratings and pay-off matrix as text, for kept players and the latest one of every policy."""
    names = shown_players(results, ratings, kept)
    cells = [["player", "rating", "95 %"]]
    flawless = []
    for name in names:
        rating, low, high = ratings[name]
        cells.append([name, f"{rating:.0f}", f"{low:.0f}..{high:.0f}"])
        met = [results.between(name, other) for other in results.players() if other != name]
        games = sum(tally.games for tally in met)
        flawless += [name] if games and sum(tally.score for tally in met) == games else []
    matrix = matrix_table(results, names)
    note = f"\nat least, since they won every game: {', '.join(flawless)}" if flawless else ""
    table = aligned(cells, right=True)
    return f"{table}{note}\n\nmean score of the row against the column (games)\n{matrix}"


def matrix_table(results: Results, players: Sequence[str]) -> str:
    """The pay-off matrix as lines of text: mean score of the row against the column, and games."""
    cells = [["", *players]]
    for row in players:
        met = [results.between(row, column) for column in players]
        cells.append(
            [row, *(f"{x.mean_score:.2f} ({x.games:.0f})" if x.games else "-" for x in met)]
        )
    return aligned(cells, right=True)
