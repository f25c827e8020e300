"""Square grids whose cells are characters: moves in four directions, distances, and drawings."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isqrt

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


def read_moves(text: str) -> list[str] | None:
    """The moves of a text of letters U, D, L and R, with spaces or commas between them or without;
    `None` if it has anything else, or nothing."""
    return re.findall(f"[{MOVES}]", text) if _ANSWER.fullmatch(text) else None


def distances(walls: str, size: int, goal: int) -> dict[int, int]:
    """Every cell from which the goal can be reached, with the number of moves (breadth-first).

    Args:
        walls: the grid, in which `#` is a wall.
        size: its number of rows.
        goal: index of the goal.
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


def wandered(rng: random.Random, start: str, most: int, after: Callable[[str, str], str]) -> str:
    """One to `most` random possible moves.

    Args:
        start: the board at first.
        after: `after(board, move)` is the board after a move, the same board if it is impossible.
    """
    board, moves = start, ""
    for _ in range(rng.randint(1, most)):
        ways = [move for move in MOVES if after(board, move) != board]
        if not ways:
            break
        moves += rng.choice(ways)
        board = after(board, moves[-1])
    return moves or rng.choice(MOVES)


def followed(
    board: str, moves: Sequence[str], after: Callable[[str, str], str], over: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """All boards of a text of moves, up to the first that is impossible or the end of the puzzle;
    and the impossible move, if there is one.

    Args:
        board: the board at first.
        after: as in `wandered`.
        over: whether a board is solved.
    """
    boards = [board]
    for move in moves:
        if over(boards[-1]):
            break
        next_board = after(boards[-1], move)
        if next_board == boards[-1]:
            return boards, [move]
        boards.append(next_board)
    return boards, []


def drawn(
    board: str,
    marks: Mapping[str, tuple[str, str]],
    free: str,
    last: Sequence[int],
    proposed: Sequence[int],
) -> Html:
    """A drawing of a grid.

    Args:
        board: its cells.
        marks: mark of a cell -> its text and classes.
        free: mark of a free cell, in which ways are drawn.
        last: cells of the last way.
        proposed: cells of a proposed way.
    """

    def cell(index: int) -> tuple[str, str]:
        if board[index] == free and index in proposed:
            return PLAN, "player1"
        return (PATH, "player0") if board[index] == free and index in last else marks[board[index]]

    cells, size = [cell(index) for index in range(len(board))], isqrt(len(board))
    return table([cells[at : at + size] for at in range(0, len(cells), size)], kind="grid")
