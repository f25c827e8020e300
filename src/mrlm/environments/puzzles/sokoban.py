"""Sokoban: boxes are pushed onto targets, by one agent, or by a planner and an executor."""

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import comb
from typing import ClassVar

from mrlm.core.content import content
from mrlm.core.errors import ConfigError
from mrlm.environments.puzzles.grids import WALL, GridMoves, neighbours
from mrlm.environments.puzzles.planning import Levels, PlanningEnvironment

_TABLES = content(__file__)
FLOOR, TARGET, BOX, STORED, PLAYER, ON_TARGET = "-.$*@+"
SHOWN = {
    WALL: ("■", "dim"), FLOOR: ("", ""), TARGET: ("○", "good"), BOX: ("▣", "bad"),
    STORED: ("▣", "win"), PLAYER: ("☻", "player0 move"), ON_TARGET: ("☻", "player0 win move"),
}  # fmt: skip
BACK = {"U": "D", "D": "U", "L": "R", "R": "L"}
MOST_STATES = 60_000
"""Largest number of positions of a player and boxes that is searched."""

State = tuple[int, tuple[int, ...]]
"""Cells of the player and of the boxes, in order."""


class SokobanEnvironment(GridMoves, PlanningEnvironment):
    """A grid with walls (`#`), floor (`-`), targets (`.`), boxes (`$`, and `*` on a target) and a
    player (`@`, and `+` on a target), in the notation of XSB files. An answer is a text of moves
    such as `RRDL`; a move into a box pushes it, if the cell behind is free. A move that is not
    possible ends the answer and is a mistake. A board from which no solution exists ends the
    episode.

    The value of a board is `1 - d / d0`, at least -1, and -1 without a solution: `d` is the number
    of moves of a shortest solution, `d0` that at the start. Puzzles are made by reverse play: from
    all solved positions of a random grid, moves are taken back until every position that can be
    solved is known with its exact distance; the start is one of them. The `expert` plays a shortest
    solution. A tenth of the puzzles is held out.

    Args:
        level, settings, num_agents, agents, reward, share, illegal, teaches, style, seed: as in all
            planning puzzles. Settings of its own are `walls`, the probability of a wall inside the
            border (`size` includes it), `boxes`, and `longest`, the most moves of a shortest
            solution, which has at least half as many where the grid allows it.
    """

    label: ClassVar[str] = "sokoban"
    free: ClassVar[str] = FLOOR
    shown: ClassVar[Mapping[str, tuple[str, str]]] = SHOWN
    levels: ClassVar[Levels] = _TABLES["levels"]
    bounds: ClassVar[Mapping[str, tuple[float, float]]] = _TABLES["bounds"]
    rules: ClassVar[str] = (
        f"Push every box onto a target. {WALL} wall, {FLOOR} floor, {TARGET} target, {BOX} box, "
        f"{STORED} box on a target, {PLAYER} you, {ON_TARGET} you on a target. U, D, L and R move "
        "you up, down, left and right by one cell; a move into a box pushes it if the cell behind "
        "it is free. Boxes cannot be pulled."
    )
    example: ClassVar[str] = "RRD"
    reward_range: tuple[float, float] | None = (-1.4, 1.0)

    def check(self) -> None:
        cells, boxes = (self.size - 2) ** 2, int(self.settings["boxes"])
        states = comb(cells, boxes) * (cells - boxes)
        if states > MOST_STATES:
            raise ConfigError(
                f"settings: size {self.size} with {boxes} boxes has up to {states} positions, more "
                f"than the {MOST_STATES} that are searched; set a smaller size or fewer boxes"
            )
        if self.settings["longest"] > self.moves * self.rounds:
            raise ConfigError(
                f"settings: longest={self.settings['longest']:g} is more than {self.rounds} rounds "
                f"of {self.moves} moves; raise rounds or moves"
            )

    def generated(self, rng: random.Random) -> str:
        inner = [cell for cell in range(self.size**2) if len(self._inside(cell)) == 4]
        longest, boxes = int(self.settings["longest"]), int(self.settings["boxes"])
        density, least = self.settings["walls"], max(1, longest // 2)
        while True:
            free = [cell for cell in inner if rng.random() >= density]
            if len(free) > boxes + 1:
                targets = set(rng.sample(free, boxes))
                ground = "".join(
                    WALL if cell not in free else TARGET if cell in targets else FLOOR
                    for cell in range(self.size**2)
                )
                distances = solutions(ground)
                starts = [state for state, left in distances.items() if least <= left <= longest]
                if starts:
                    return placed(ground, rng.choice(starts))
            density, least = density * 0.95, max(1, least - 1)

    def _inside(self, cell: int) -> dict[str, int]:
        return neighbours(self.size)[cell]

    def problem(self, board: str) -> str | None:
        if set(board) - set(SHOWN) or sum(map(board.count, (PLAYER, ON_TARGET))) != 1:
            return f"it must have one player and else only {' '.join(SHOWN)}"
        boxes, targets = len(state_of(board)[1]), ground_of(board).count(TARGET)
        if boxes != targets or not boxes:
            return f"it must have as many boxes as targets, not {boxes} and {targets}"
        edge = [cell for cell in range(len(board)) if len(self._inside(cell)) < 4]
        if any(board[cell] != WALL for cell in edge):
            return "its border must be walls"
        free = len(board) - board.count(WALL)
        if comb(free, boxes) * (free - boxes) > MOST_STATES:
            return f"it has more than the {MOST_STATES} positions that are searched"
        if not remaining(board):
            return "it is solved already" if remaining(board) == 0 else "it has no solution"
        return None

    def value(self, board: str) -> float:
        left, all_of_it = remaining(board), remaining(self.start)
        assert all_of_it, "a task's board has a solution"
        return -1.0 if left is None else max(-1.0, 1.0 - left / all_of_it)

    def lost(self, board: str) -> bool:
        return remaining(board) is None

    def moved(self, board: str, move: str) -> str:
        around, (at, boxes) = neighbours(self.size), state_of(board)
        to = around[at][move]
        if board[to] == WALL:
            return board
        if to in boxes:
            behind = around[to][move]
            if board[behind] == WALL or behind in boxes:
                return board
            boxes = tuple(behind if box == to else box for box in boxes)
        return placed(ground_of(board), (to, tuple(sorted(boxes))))

    def player(self, board: str) -> int:
        return state_of(board)[0]

    def distance(self, board: str) -> int | None:
        return remaining(board)

    def left(self) -> str:
        distance = remaining(self.board)
        if distance is None:
            return "no solution is left"
        return f"shortest solution: {distance} of {remaining(self.start)} moves" if distance else ""


# -- boards ----------------------------------------------------------------------------------------


def state_of(board: str) -> State:
    """The player and the boxes of a board."""
    at = next(cell for cell, mark in enumerate(board) if mark in (PLAYER, ON_TARGET))
    return at, tuple(cell for cell, mark in enumerate(board) if mark in (BOX, STORED))


def ground_of(board: str) -> str:
    """The board without player and boxes."""
    return board.translate(str.maketrans({PLAYER: FLOOR, BOX: FLOOR, ON_TARGET: TARGET, "*": "."}))


def placed(ground: str, state: State) -> str:
    """The board of a state."""
    cells, (at, boxes) = list(ground), state
    for box in boxes:
        cells[box] = STORED if ground[box] == TARGET else BOX
    cells[at] = ON_TARGET if ground[at] == TARGET else PLAYER
    return "".join(cells)


def remaining(board: str) -> int | None:
    """Number of moves of a shortest solution, or `None` if there is none."""
    return solutions(ground_of(board)).get(state_of(board))


@lru_cache(maxsize=32)
def solutions(ground: str) -> dict[State, int]:
    """Every state that can be solved, with the number of moves of a shortest solution: found by
    taking moves back from all solved states, breadth-first. Not to be changed.

    Args:
        ground: the walls, the floor and the targets, with a border of walls.
    """
    around = neighbours(int(len(ground) ** 0.5))
    targets = tuple(cell for cell, mark in enumerate(ground) if mark == TARGET)
    free = [cell for cell, mark in enumerate(ground) if mark != WALL and cell not in targets]
    distances: dict[State, int] = {(at, targets): 0 for at in free}
    border, left = list(distances), 0
    while border:
        left += 1
        fresh = dict.fromkeys(state for after in border for state in _before(ground, around, after))
        border = [state for state in fresh if state not in distances]
        distances |= dict.fromkeys(border, left)
    return distances


def _before(ground: str, around: Sequence[dict[str, int]], state: State) -> Iterable[State]:
    """The states from which one move leads to a state."""
    at, boxes = state
    for move, back in BACK.items():
        origin = around[at][back]
        if ground[origin] == WALL or origin in boxes:
            continue
        yield origin, boxes
        ahead = around[at][move]
        if ahead in boxes:
            yield origin, tuple(sorted(at if box == ahead else box for box in boxes))


PLUGIN = SokobanEnvironment
