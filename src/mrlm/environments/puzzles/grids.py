"""Square grids whose cells are characters: moves in four directions, distances, and drawings."""

import random
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isqrt
from typing import ClassVar

from mrlm.core.board import Html, table

MOVES = "UDLR"
WALL = "#"
PATH, PLAN = "•", "◦"
_ANSWER = re.compile(r"[UDLR](?:[\s,]*[UDLR])*")

Neighbours = tuple[dict[str, int], ...]


@lru_cache(maxsize=64)
def neighbours(size: int) -> Neighbours:
    """For every cell of a grid the cell in each direction that is inside it."""
    table = []
    for cell in range(size * size):
        row, column = divmod(cell, size)
        ways = {"U": row > 0, "D": row < size - 1, "L": column > 0, "R": column < size - 1}
        steps = {"U": -size, "D": size, "L": -1, "R": 1}
        table.append({move: cell + steps[move] for move in MOVES if ways[move]})
    return tuple(table)


def distances(walls: str, size: int, goal: int) -> dict[int, int]:
    """Every cell from which the goal can be reached, with the number of moves (breadth-first).

    Args:
        walls: the grid, in which `#` is a wall.
    """
    around, steps, border = neighbours(size), {goal: 0}, [goal]
    while border:
        reached = []
        for cell in border:
            for other in around[cell].values():
                if other not in steps and walls[other] != WALL:
                    steps[other] = steps[cell] + 1
                    reached.append(other)
        border = reached
    return steps


class GridMoves:
    """The part of a planning puzzle in which one player moves on a grid. A puzzle has the mark of a
    `free` cell and the marks that are `shown`, with their texts and classes, and implements
    `moved`, `player` and `distance`."""

    free: ClassVar[str]
    shown: ClassVar[Mapping[str, tuple[str, str]]]
    board: str
    moves: int

    def moved(self, board: str, move: str) -> str:
        """The board after a move; the same board if it is impossible."""
        raise NotImplementedError

    def player(self, board: str) -> int:
        """The player's cell."""
        raise NotImplementedError

    def distance(self, board: str) -> int | None:
        """Number of moves of a shortest solution, or `None` if there is none."""
        raise NotImplementedError

    def read(self, text: str) -> list[str] | None:
        """The moves of a text of letters U, D, L and R, with spaces or commas between them or
        without; `None` if it has anything else, or nothing."""
        return re.findall(f"[{MOVES}]", text) if _ANSWER.fullmatch(text) else None

    def carried(self, board: str, moves: Sequence[str]) -> tuple[str, list[str], list[str]]:
        boards, failed = self._followed(board, moves)
        return boards[-1], list(moves[: len(boards) - 1]), failed

    def best(self, board: str) -> list[str]:
        moves: list[str] = []
        while left := self.distance(board):
            nearer = (m for m in MOVES if self.distance(self.moved(board, m)) == left - 1)
            moves.append(next(nearer))
            board = self.moved(board, moves[-1])
        return moves

    def anything(self, board: str, rng: random.Random) -> list[str]:
        moves: list[str] = []
        for _ in range(rng.randint(1, self.moves)):
            ways = [move for move in MOVES if self.moved(board, move) != board]
            if not ways:
                break
            moves.append(rng.choice(ways))
            board = self.moved(board, moves[-1])
        return moves or [rng.choice(MOVES)]

    def touched(self, board: str, moves: Sequence[str]) -> list[int]:
        return [self.player(step) for step in self._followed(board, moves)[0]]

    def picture(self, last: Sequence[int], proposed: Sequence[int]) -> Html:
        def cell(index: int) -> tuple[str, str]:
            mark = self.board[index]
            if mark == self.free and index in proposed:
                return PLAN, "player1"
            return (PATH, "player0") if mark == self.free and index in last else self.shown[mark]

        cells, size = [cell(index) for index in range(len(self.board))], isqrt(len(self.board))
        return table([cells[at : at + size] for at in range(0, len(cells), size)], kind="grid")

    def _followed(self, board: str, moves: Sequence[str]) -> tuple[list[str], list[str]]:
        """All boards of moves, up to the first that is impossible or the end of the puzzle; and the
        impossible move, if there is one."""
        boards = [board]
        for move in moves:
            if self.distance(boards[-1]) == 0:
                break
            after = self.moved(boards[-1], move)
            if after == boards[-1]:
                return boards, [move]
            boards.append(after)
        return boards, []
