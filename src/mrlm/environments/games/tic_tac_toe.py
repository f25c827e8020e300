"""Tic-tac-toe: three in a row on a board of nine, from the empty board or from an opening."""

import functools

from mrlm.environments.games.lines import (
    FREE,
    MARKS,
    LineGame,
    Openings,
    opening_positions,
    placed,
    winner_of,
)

CELLS = "123456789"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
TURNED = (6, 3, 0, 7, 4, 1, 8, 5, 2)
MIRRORED = (2, 1, 0, 5, 4, 3, 8, 7, 6)
RULES = (
    "Tic-tac-toe. X and O take cells in turn, X first; three in a row, column or diagonal win. "
    "Answer with the number of a free cell."
)


class TicTacToeEnvironment(LineGame):
    """A game of tic-tac-toe. The reward is 1 for the winner and -1 for the loser; for a draw, both
    get `draw`.

    The board is shown as text in which free cells are numbers from 1 to 9. An answer names a cell
    if it is a number, or contains exactly one as a whole word. An answer that names no cell, or an
    occupied one, costs `illegal`; the player is shown the reason and may retry, up to `forgiven`
    times in a game, and then loses with the usual rewards. The other player does not receive the
    penalty.

    With `opening: 0` the game has a single initial state, so that held-out tasks equal the training
    task. With more, that many marks are already on the board, in a position that is a draw under
    best play; a tenth of the positions, identified up to rotation and reflection, is held out.

    The `expert` plays by minimax: it never loses, wins as early as possible, and loses as late as
    possible.

    Args:
        agents: names of the agents; `x` and `o` (`player` against a script).
        opening: marks on the board when the game begins, at most 4.
        illegal: penalty of an illegal answer.
        forgiven: number of illegal answers that a player may give; with 0 the first one loses.
        draw: reward of a draw for each player; from -1 to 1, exclusive.
        opponent, seat, teaches, style: as for every two-player game. In the `short` style a
            question is the board in one line with the player's mark: `1X3456O89X?`.
        seed: another seed gives other openings for the same task seed.

    Raises:
        ConfigError: a number out of its range, or an `opening` without a held-out position.
    """

    reward_range: tuple[float, float] | None = (-1.5, 1.0)
    width = 3
    lines = LINES
    choices = CELLS
    rules = RULES
    kind = "tic_tac_toe"
    numbers = True

    def openings(self) -> Openings:
        return openings(self.opening)

    def cell(self, board: str, choice: str) -> int | None:
        cell = CELLS.index(choice)
        return cell if board[cell] == FREE else None

    def shown(self, board: str) -> str:
        return numbered(board)

    def text(self, board: str, role: int) -> str:
        cells = numbered(board)
        if self.style == "short":
            return f"{cells}{MARKS[role]}?"
        rows = "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6))
        return f"{rows}\nYou are {MARKS[role]}. Which cell?"

    def refusal(self, choice: str | None) -> str:
        return f"Cell {choice} is taken." if choice else "That is no cell from 1 to 9."

    def worth(self, board: str) -> float:
        return value(board)


# -- boards: nine characters, row by row -----------------------------------------------------------


def free(board: str) -> list[int]:
    """Indices of the free cells."""
    return [cell for cell, mark in enumerate(board) if mark == FREE]


def winner(board: str) -> str | None:
    """The mark with three in a row, or `None`."""
    return winner_of(board, LINES)


def numbered(board: str) -> str:
    """The board with its free cells as numbers."""
    return "".join(CELLS[cell] if mark == FREE else mark for cell, mark in enumerate(board))


@functools.cache
def value(board: str) -> int:
    """Minimax value for the player to move: positive for a win, 0 for a draw; earlier ends count
    more."""
    if winner(board):
        return -(1 + board.count(FREE))
    if FREE not in board:
        return 0
    return max(-value(placed(board, cell)) for cell in free(board))


def canonical(board: str) -> str:
    """A canonical form, equal for all rotations and reflections of a board."""
    forms = []
    for _ in range(4):
        board = "".join(board[cell] for cell in TURNED)
        forms += [board, "".join(board[cell] for cell in MIRRORED)]
    return min(forms)


@functools.cache
def openings(marks: int) -> Openings:
    """Training and held-out positions with this number of marks that are draws under best play. The
    empty board is both."""
    return opening_positions(
        "tic_tac_toe",
        9,
        marks,
        free,
        lambda board: not winner(board) and value(board) == 0,
        canonical,
    )


PLUGIN = TicTacToeEnvironment
