"""Plan path: a way through a grid with walls, by one agent, or by a planner and an executor."""

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

from mrlm.core.content import content
from mrlm.core.errors import ConfigError
from mrlm.environments.puzzles.grids import WALL, GridMoves, distances, neighbours
from mrlm.environments.puzzles.planning import Levels, PlanningEnvironment

_TABLES = content(__file__)
FREE, PLAYER, GOAL, ARRIVED = ".", "@", "G", "+"
SHOWN = {WALL: ("■", "dim"), FREE: ("", ""), GOAL: ("★", "win"), PLAYER: ("☻", "player0 move")}
SHOWN |= {ARRIVED: ("☻", "player0 win move")}
THINNER = 0.95
"""Factor of the density of walls after a grid without a long enough way."""


class PlanPathEnvironment(GridMoves, PlanningEnvironment):
    """A grid with walls (`#`), a player (`@`) and a goal (`G`). An answer is a text of moves, such
    as `RRDL`; a move into a wall or off the grid ends the answer and is a mistake. The moves of an
    episode that is solved lead to the goal within `rounds` answers of at most `moves`.

    The value of a board is `1 - d / d0`, at least -1: `d` is the length of the shortest way to the
    goal, `d0` that at the start. Generated grids have a way of `size - 2` moves or more, and enough
    rounds for it; a tenth of the grids is held out. The `expert` goes a shortest way (breadth-first
    search). Planning tasks as in arXiv 2510.11062, whose 10 x 10 grids and four turns are level 7.

    Args:
        level, settings, num_agents, agents, reward, share, illegal, teaches, style, seed: as in all
            planning puzzles. A setting of its own is `walls`, the probability of a wall.
    """

    label: ClassVar[str] = "plan_path"
    free: ClassVar[str] = FREE
    shown: ClassVar[Mapping[str, tuple[str, str]]] = SHOWN
    levels: ClassVar[Levels] = _TABLES["levels"]
    bounds: ClassVar[Mapping[str, tuple[float, float]]] = _TABLES["bounds"]
    rules: ClassVar[str] = (
        f"Find a way through a grid: from {PLAYER}, which is you, to {GOAL}. {WALL} is a wall and "
        f"{FREE} is free. U, D, L and R move up, down, left and right by one cell."
    )
    example: ClassVar[str] = "RRD"
    reward_range: tuple[float, float] | None = (-1.4, 1.0)

    def check(self) -> None:
        if self.size - 2 > self.moves * self.rounds:
            raise ConfigError(
                f"settings: {self.rounds} rounds of {self.moves} moves are too few for a grid of "
                f"size {self.size}, whose ways have {self.size - 2} moves or more; raise rounds or "
                "moves"
            )

    def generated(self, rng: random.Random) -> str:
        cells, density = self.size**2, self.settings["walls"]
        while True:
            walls = "".join(WALL if rng.random() < density else FREE for _ in range(cells))
            goal = rng.randrange(cells)
            walls = walls[:goal] + GOAL + walls[goal + 1 :]
            least, most = max(1, self.size - 2), self.moves * self.rounds
            ways = distances(walls, self.size, goal)
            starts = [cell for cell, length in ways.items() if least <= length <= most]
            if starts:
                start = rng.choice(starts)
                return walls[:start] + PLAYER + walls[start + 1 :]
            density *= THINNER

    def problem(self, board: str) -> str | None:
        if set(board) - {*SHOWN, ARRIVED} or board.count(PLAYER) != 1 or board.count(GOAL) != 1:
            return f"it must have one {PLAYER}, one {GOAL}, and else {WALL} and {FREE}"
        if player(board) not in ways(empty(board)):
            return f"{GOAL} cannot be reached from {PLAYER}"
        return None

    def value(self, board: str) -> float:
        return max(-1.0, 1.0 - length(board) / length(self.start))

    def moved(self, board: str, move: str) -> str:
        at, ground = player(board), empty(board)
        to = neighbours(self.size)[at].get(move)
        if to is None or ground[to] == WALL:
            return board
        return ground[:to] + (ARRIVED if ground[to] == GOAL else PLAYER) + ground[to + 1 :]

    def player(self, board: str) -> int:
        return player(board)

    def distance(self, board: str) -> int:
        return length(board)

    def left(self) -> str:
        distance = length(self.board)
        return f"shortest way: {distance} of {length(self.start)} moves" if distance else ""


def player(board: str) -> int:
    """The player's cell."""
    return board.index(ARRIVED if ARRIVED in board else PLAYER)


def empty(board: str) -> str:
    """The board without its player."""
    return board.replace(PLAYER, FREE).replace(ARRIVED, GOAL)


def length(board: str) -> int:
    """Length of the shortest way to the goal."""
    return ways(empty(board))[player(board)]


@lru_cache(maxsize=4_096)
def ways(ground: str) -> dict[int, int]:
    """The distance of every cell that is connected to the goal of a board without its player; not
    to be changed."""
    return distances(ground, int(len(ground) ** 0.5), ground.index(GOAL))


PLUGIN = PlanPathEnvironment
