"""Connect four: discs that fall into columns, four in a line, on boards from 3 x 4 to 6 x 7."""

import functools
from collections.abc import Sequence

from mrlm.core.content import content
from mrlm.core.errors import ConfigError
from mrlm.environments.games.lines import (
    FREE,
    MARKS,
    LineGame,
    Lines,
    Openings,
    opening_positions,
    turn_of,
    winner_of,
)
from mrlm.environments.shared.games import Opponent, Style, Teaches
from mrlm.environments.shared.rows import level_settings, whole_number

COLUMNS = "123456789"
LEVELS: dict[int, dict[str, int]] = content(__file__)
"""Level -> settings."""
MOST_EXACT = 20
"""Cells of a board that the expert solves; on larger ones it looks ahead."""
DEPTH = 4
"""Moves that the expert looks ahead on a larger board."""
MOST_KNOWN = 1_000_000
"""Positions that a solver remembers."""


class ConnectFourEnvironment(LineGame):
    """A game of connect four. Players drop discs into columns in turn, X first; a disc falls to the
    lowest free cell. A line of discs in a row, a column or a diagonal wins. The reward is 1 for the
    winner and -1 for the loser; for a draw, both get `draw`.

    An answer names a column if it is its number, or contains exactly one as a whole word. An answer
    that names no column, or a full one, costs `illegal`; the player is shown the reason and may
    retry, up to `forgiven` times in a game, and then loses with the usual rewards. The other player
    does not receive the penalty.

    Some discs are already on the board when a game begins; a tenth of these positions, identified
    up to reflection, is held out. With `opening: 0` the game has a single initial state, so that
    held-out tasks equal the training task.

    The `expert` is exact on boards of up to 20 cells (alpha-beta search to the end of the game): it
    wins as early as possible, and loses as late as possible. On larger boards it looks `depth`
    moves ahead, sees a win or a loss within them, prefers cells in the middle, and can be beaten.

    Args:
        agents: names of the agents; `x` and `o` (`player` against a script).
        level: 1: 3 rows, 4 columns and 3 in a line; 2: 4 x 4 and 3; 3: 4 x 5 and 4; 4: 5 x 6 and 4;
            5: 6 x 7 and 4, the usual game.
        height, width, line: board, instead of that of the level; at most 8 rows and 9 columns.
        opening: discs on the board when the game begins, at most 4; by default 2 (level 1: 3).
        depth: moves that the expert looks ahead; by default 4, or to the end on a board of at most
            20 cells.
        illegal: penalty of an illegal answer.
        forgiven: number of illegal answers that a player may give; with 0 the first one loses.
        draw: reward of a draw for each player; from -1 to 1, exclusive.
        opponent, seat, teaches, style: as for every two-player game. In the `short` style a
            question is the board, its rows from the top separated by `/` with the numbers of the
            columns that are not full in the top row, and the player's mark: `1234/.O../.XX. O?`.
        seed: another seed gives other openings for the same task seed.

    Raises:
        ConfigError: a number out of its range, or an `opening` without a held-out position.
    """

    reward_range: tuple[float, float] | None = (-1.5, 1.0)

    def __init__(
        self,
        agents: str | Sequence[str] | None = None,
        level: int = 5,
        height: int | None = None,
        width: int | None = None,
        line: int | None = None,
        opening: int | None = None,
        depth: int | None = None,
        illegal: float = 0.5,
        forgiven: int = 0,
        draw: float = 0.0,
        opponent: Opponent = "agent",
        seat: str = "either",
        teaches: Teaches = "best",
        style: Style = "full",
        seed: int = 0,
    ) -> None:
        settings = level_settings(
            LEVELS, level, height=height, width=width, line=line, opening=opening
        )
        for name, least, most in (("height", 2, 8), ("width", 2, 9), ("line", 3, 9)):
            whole_number(least, most, **{name: settings[name]})
        self.height: int = settings["height"]
        self.width: int = settings["width"]
        self.line: int = settings["line"]
        if self.line > max(self.height, self.width):
            raise ConfigError(
                f"line={self.line} does not fit on a board of {self.height} rows and {self.width} "
                "columns; set a shorter one"
            )
        if depth is not None:
            whole_number(1, depth=depth)
        exact = self.height * self.width <= MOST_EXACT
        self.depth: int | None = depth or (None if exact else DEPTH)
        self.lines: Lines = all_lines(self.height, self.width, self.line)
        self.choices: str = COLUMNS[: self.width]
        self.heading: Sequence[str] = [*self.choices]
        self.kind: str = f"connect_four-{self.height}x{self.width}-{self.line}"
        self.rules: str = (
            f"Connect four on {self.height} rows and {self.width} columns. X and O drop discs into "
            f"columns in turn, X first; a disc falls to the lowest free cell. {self.line} in a "
            "row, column or diagonal win. Answer with the number of a column that is not full."
        )
        super().__init__(
            *(agents, settings["opening"], illegal, forgiven, draw),
            *(opponent, seat, teaches, style, seed),
        )

    def openings(self) -> Openings:
        return openings(self.height, self.width, self.line, self.opening)

    def playable(self, board: str) -> bool:
        fallen = all(
            board[cell] == FREE or board[cell + self.width] != FREE
            for cell in range(len(board) - self.width)
        )
        return fallen and super().playable(board)

    def cell(self, board: str, choice: str) -> int | None:
        return falls(board, self.width, COLUMNS.index(choice))

    def text(self, board: str, role: int) -> str:
        board_rows = [board[i : i + self.width] for i in range(0, len(board), self.width)]
        if self.style == "short":
            pairs = zip(board_rows[0], self.choices, strict=True)
            top = "".join(choice if mark == FREE else mark for mark, choice in pairs)
            return f"{'/'.join([top, *board_rows[1:]])} {MARKS[role]}?"
        rows = "\n".join(" ".join(row) for row in [self.choices, *board_rows])
        return f"{rows}\nYou are {MARKS[role]}. Which column?"

    def refusal(self, choice: str | None) -> str:
        if choice:
            return f"Column {choice} is full."
        return f"That is no column from 1 to {self.width}."

    def worth(self, board: str) -> float:
        return solver(self.height, self.width, self.line).value(board, self.depth)


# -- boards: rows from the top ---------------------------------------------------------------------


@functools.cache
def all_lines(rows: int, columns: int, line: int) -> Lines:
    """Cells of every line of this length."""
    lines = []
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                last_row, last_column = row + down * (line - 1), column + right * (line - 1)
                if last_row < rows and 0 <= last_column < columns:
                    cells = ((row + down * i, column + right * i) for i in range(line))
                    lines.append(tuple(r * columns + c for r, c in cells))
    return tuple(lines)


def falls(board: str, columns: int, column: int) -> int | None:
    """The cell to which a disc falls; `None` if the column is full."""
    free = [cell for cell in range(column, len(board), columns) if board[cell] == FREE]
    return free[-1] if free else None


def mirrored(board: str, columns: int) -> str:
    """The board reflected left to right."""
    return "".join(board[i : i + columns][::-1] for i in range(0, len(board), columns))


@functools.cache
def openings(rows: int, columns: int, line: int, marks: int) -> Openings:
    """Training and held-out positions with this number of discs."""
    lines = all_lines(rows, columns, line)

    def cells(board: str) -> list[int]:
        fallen = (falls(board, columns, column) for column in range(columns))
        return [cell for cell in fallen if cell is not None]

    return opening_positions(
        f"connect_four {rows} {columns} {line}",
        rows * columns,
        marks,
        cells,
        lambda board: FREE in board and winner_of(board, lines) is None,
        lambda board: min(board, mirrored(board, columns)),
    )


class Solver:
    """Values of positions by alpha-beta search on bit boards: a column has `rows + 1` bits from its
    lowest cell, the highest of which is always 0.
    """

    def __init__(self, rows: int, columns: int, line: int) -> None:
        self.rows: int = rows
        self.columns: int = columns
        self.line: int = line
        self.height: int = rows + 1
        self.cells: int = rows * columns
        order = sorted(range(columns), key=lambda column: abs(2 * column - columns + 1))
        lowest = [1 << (column * self.height) for column in order]
        self.ends: list[tuple[int, int]] = [(bit, bit << (rows - 1)) for bit in lowest]
        self.middle: int = sum(((1 << rows) - 1) * bit for bit in lowest[: 2 - columns % 2])
        self._known: dict[tuple[int, int, int], tuple[float, float]] = {}

    def value(self, board: str, depth: int | None = None) -> float:
        """Value for the player to move: positive for a win, negative for a loss, and the larger the
        sooner it ends (1 plus the cells that are free then); 0 for a draw. At the end of the depth
        it is a fraction, positive if the player has more of the middle.

        Args:
            board: rows from the top.
            depth: moves to look ahead; `None` is to the end.
        """
        mine, discs = self._bits(board)
        left = board.count(FREE)
        if self._wins(mine ^ discs):
            return -(1.0 + left)
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        bound = self.cells + 1.0
        return self._search(mine, discs, left, left if depth is None else depth, -bound, bound)

    def _bits(self, board: str) -> tuple[int, int]:
        """Discs of the player to move, and all discs."""
        mine = discs = 0
        mark = MARKS[turn_of(board)]
        for cell, disc in enumerate(board):
            if disc != FREE:
                row, column = divmod(cell, self.columns)
                bit = 1 << (column * self.height + self.rows - 1 - row)
                discs |= bit
                mine |= bit if disc == mark else 0
        return mine, discs

    def _wins(self, discs: int) -> bool:
        for shift in (1, self.height, self.height - 1, self.height + 1):
            runs = discs
            for step in range(1, self.line):
                runs &= discs >> (shift * step)
            if runs:
                return True
        return False

    def _search(
        self, mine: int, discs: int, left: int, depth: int, low: float, high: float
    ) -> float:
        """Value of a position in which no one has won, exact between `low` and `high`."""
        if not left:
            return 0.0
        if not depth:
            more = (mine & self.middle).bit_count() - ((mine ^ discs) & self.middle).bit_count()
            return more / (4.0 * self.cells)
        key = (mine, discs, min(depth, left))
        least, most = self._known.get(key, (-self.cells - 1.0, self.cells + 1.0))
        low, high = max(low, least), min(high, most)
        if low >= high:
            return low
        best, begun = -self.cells - 1.0, low
        for lowest, highest in self.ends:
            if discs & highest:
                continue
            dropped = discs | (discs + lowest)
            now = mine | (dropped ^ discs)
            if self._wins(now):
                value = 1.0 + left - 1
            else:
                value = -self._search(now ^ dropped, dropped, left - 1, depth - 1, -high, -low)
            best, low = max(best, value), max(low, value)
            if low >= high:
                break
        if best <= begun:
            most = min(most, best)
        elif best >= high:
            least = max(least, best)
        else:
            least = most = best
        self._known[key] = (least, most)
        return best


@functools.cache
def solver(rows: int, columns: int, line: int) -> Solver:
    """The solver of a board, made once."""
    return Solver(rows, columns, line)


PLUGIN = ConnectFourEnvironment
