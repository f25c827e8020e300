"""Sudoku: cells of a 4 x 4 or 9 x 9 square are filled by one agent, or by a planner and an
executor."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isqrt
from typing import ClassVar, TypeVar

from mrlm.core.board import Html, table
from mrlm.core.content import content
from mrlm.core.errors import ConfigError
from mrlm.environments.puzzles.planning import Levels, Moves, PlanningEnvironment

_TABLES = content(__file__)
T = TypeVar("T")
HOLE = "."
DIGITS = "123456789"
MOST_HOLES = {4: 10, 9: 54}
"""Size -> largest number of holes of a generated puzzle."""
_CELL = re.compile(r"r?([1-9])c?([1-9])=?([1-9])")
_ANSWER = re.compile(rf"{_CELL.pattern}(?:[\s,]+{_CELL.pattern})*")


class SudokuEnvironment(PlanningEnvironment):
    """A square of digits with holes. Every row, column and block has every digit once, and every
    puzzle has one solution. An answer names cells by row and column, with their digits, such as
    `r1c2=3 r2c4=1`, or shorter `123 241`. A right digit is written; a wrong one, or one for a
    cell that is not empty, is not, and is a mistake (each of them).

    The value of a board is the share of the holes that have been filled. Puzzles are made by
    removing digits from a random solution while there is no second one; a tenth is held out, of
    puzzles that differ in their digits only either all or none. The `expert` fills the cells in
    their order with the digits of the solution (search with constraint propagation).

    Args:
        level, settings, num_agents, agents, reward, share, illegal, teaches, style, seed: as in all
            planning puzzles; `moves` is the number of cells of an answer. `size` is 4 or 9, and a
            setting of its own is `holes`, the number of empty cells, at most 10 or 54.
    """

    label: ClassVar[str] = "sudoku"
    levels: ClassVar[Levels] = _TABLES["levels"]
    bounds: ClassVar[Mapping[str, tuple[float, float]]] = _TABLES["bounds"]
    rules: ClassVar[str] = (
        f"Fill the empty cells ({HOLE}) of a sudoku: every row, every column and every block has "
        "every digit once. Name cells by row and column, counted from the upper left: r1c2=3 is a "
        "3 in the first row and second column."
    )
    example: ClassVar[str] = "r1c2=3 r4c1=2"
    divider: ClassVar[str] = " "
    lasting: ClassVar[bool] = True
    reward_range: tuple[float, float] | None = (-0.4, 1.0)

    def check(self) -> None:
        holes = int(self.settings["holes"])
        most = MOST_HOLES.get(self.size)
        if most is None:
            raise ConfigError(f"settings.size must be 4 or 9, not {self.size}")
        if holes > most:
            raise ConfigError(
                f"settings.holes must be at most {most} for size {self.size}, not {holes}"
            )
        if holes > self.moves * self.rounds:
            raise ConfigError(
                f"settings: {self.rounds} rounds of {self.moves} cells are too few for {holes} "
                "holes; raise rounds or moves"
            )

    def generated(self, rng: random.Random) -> str:
        holes = int(self.settings["holes"])
        while True:
            board, left = full(self.size, rng), holes
            for cell in rng.sample(range(len(board)), len(board)):
                if not replaceable(board, cell):
                    board, left = board[:cell] + HOLE + board[cell + 1 :], left - 1
                if not left:
                    return board

    def key(self, board: str) -> str:
        order = dict.fromkeys(board.replace(HOLE, ""))
        return board.translate(str.maketrans(dict(zip(order, DIGITS, strict=False))))

    def problem(self, board: str) -> str | None:
        if set(board) - {HOLE, *DIGITS[: self.size]} or HOLE not in board:
            return f"it must have digits from 1 to {self.size} and {HOLE} for holes, at least one"
        if len(solutions(board)) != 1:
            return "it must have one solution"
        return None

    def read(self, text: str) -> list[str] | None:
        if not _ANSWER.fullmatch(text):
            return None
        return [self._named(*match.groups()) for match in _CELL.finditer(text)]

    def _named(self, row: str, column: str, digit: str) -> str:
        """A move as it is shown."""
        return row + column + digit if self.style == "short" else f"r{row}c{column}={digit}"

    def _cell(self, move: str) -> tuple[int, str]:
        """Index of the cell of a move, -1 if it is outside, and the digit."""
        row, column, digit = (char for char in move if char in DIGITS)
        inside = max(int(row), int(column)) <= self.size
        return (int(row) - 1) * self.size + int(column) - 1 if inside else -1, digit

    def carried(self, board: str, moves: Moves) -> tuple[str, list[str], list[str]]:
        right, cells = solved(self.start), list(board)
        done: list[str] = []
        failed: list[str] = []
        for move in moves:
            cell, digit = self._cell(move)
            possible = cell >= 0 and cells[cell] == HOLE and right[cell] == digit
            (done if possible else failed).append(move)
            if possible:
                cells[cell] = digit
        return "".join(cells), done, failed

    def value(self, board: str) -> float:
        return 1.0 - board.count(HOLE) / self.start.count(HOLE)

    def best(self, board: str) -> list[str]:
        return self._moves(board, solved(self.start))

    def anything(self, board: str, rng: random.Random) -> list[str]:
        digits = rng.choices(DIGITS[: self.size], k=len(board))
        moves = self._moves(board, "".join(digits))
        return rng.sample(moves, rng.randint(1, min(self.moves, len(moves))))

    def _moves(self, board: str, digits: str) -> list[str]:
        """The moves that fill every hole with its digit."""
        holes = [cell for cell, digit in enumerate(board) if digit == HOLE]
        places = [(cell, *divmod(cell, self.size)) for cell in holes]
        return [self._named(str(row + 1), str(at + 1), digits[cell]) for cell, row, at in places]

    def touched(self, board: str, moves: Moves) -> list[int]:
        return [cell for cell, _ in map(self._cell, moves) if cell >= 0]

    def picture(self, last: Sequence[int], proposed: Sequence[int]) -> Html:
        suggested = dict(map(self._cell, self._proposal or ()))

        def cell(index: int) -> tuple[str, str]:
            digit = self.board[index]
            if digit == HOLE:
                return suggested.get(index, ""), "player1"
            kind = "dim" if self.start[index] != HOLE else "player0"
            written = index in last and self.start[index] == HOLE
            return digit, f"{kind} move" if written else kind

        side = isqrt(self.size)
        parts = [
            [table(_rows([cell(at) for at in part], side), kind="grid") for part in band]
            for band in _rows(blocks(self.size), side)
        ]
        rows = ("".join(f"<td>{part}</td>" for part in band) for band in parts)
        return Html(f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>")

    def left(self) -> str:
        holes = self.board.count(HOLE)
        return f"holes: {holes} of {self.start.count(HOLE)}" if holes else ""


# -- boards ----------------------------------------------------------------------------------------


def _rows(cells: Sequence[T], width: int) -> list[Sequence[T]]:
    return [cells[at : at + width] for at in range(0, len(cells), width)]


@lru_cache(maxsize=2)
def blocks(size: int) -> tuple[tuple[int, ...], ...]:
    """The cells of every block."""
    side = isqrt(size)
    corners = [(row, at) for row in range(0, size, side) for at in range(0, size, side)]
    return tuple(
        tuple((row + i) * size + at + j for i in range(side) for j in range(side))
        for row, at in corners
    )


@lru_cache(maxsize=2)
def peers(size: int) -> tuple[frozenset[int], ...]:
    """For every cell those in its row, column and block, without itself."""
    lines = [range(at, at + size) for at in range(0, size * size, size)]
    columns = [range(at, size * size, size) for at in range(size)]
    units = [set(unit) for unit in (*lines, *columns, *blocks(size))]
    return tuple(
        frozenset(set().union(*(unit for unit in units if cell in unit)) - {cell})
        for cell in range(size * size)
    )


def full(size: int, rng: random.Random) -> str:
    """A random solution: a fixed one with digits, rows, columns and their bands permuted, and
    possibly transposed."""
    side = isqrt(size)

    def shuffled() -> list[int]:
        bands = rng.sample(range(side), side)
        return [band * side + at for band in bands for at in rng.sample(range(side), side)]

    rows, columns, digits = shuffled(), shuffled(), rng.sample(DIGITS[:size], size)
    turned = rng.random() < 0.5
    cells = [(b, a) if turned else (a, b) for a in rows for b in columns]
    return "".join(digits[(row * side + row // side + at) % size] for row, at in cells)


def replaceable(board: str, cell: int) -> bool:
    """Whether a puzzle with one solution has another one with a different digit in a cell."""
    size = isqrt(len(board))
    taken = {board[cell], *(board[other] for other in peers(size)[cell])}
    others = (digit for digit in DIGITS[:size] if digit not in taken)
    return any(solutions(board[:cell] + candidate + board[cell + 1 :], 1) for candidate in others)


def solutions(board: str, most: int = 2) -> list[str]:
    """The solutions of a puzzle, at most `most` of them."""
    size, cells, results = isqrt(len(board)), list(board), list[str]()
    around = peers(size)
    for cell, digit in enumerate(cells):
        if digit != HOLE and any(cells[other] == digit for other in around[cell]):
            return results

    def options(cell: int) -> list[str]:
        taken = {cells[other] for other in around[cell]}
        return [digit for digit in DIGITS[:size] if digit not in taken]

    def search(holes: set[int]) -> Iterator[str]:
        if not holes:
            yield "".join(cells)
            return
        cell, digits = min(((at, options(at)) for at in holes), key=lambda pair: len(pair[1]))
        for digit in digits:
            cells[cell] = digit
            yield from search(holes - {cell})
        cells[cell] = HOLE

    for solution in search({cell for cell, digit in enumerate(cells) if digit == HOLE}):
        results.append(solution)
        if len(results) == most:
            break
    return results


@lru_cache(maxsize=1_024)
def solved(board: str) -> str:
    """The first solution of a puzzle that has one."""
    return solutions(board, 1)[0]


PLUGIN = SudokuEnvironment
