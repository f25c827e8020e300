"""Base class of games in which two players mark cells of a board, and a line of marks wins."""

import random
from collections.abc import Callable, Sequence

from mrlm.core.board import Html, stacked, table
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.environments.shared.games import Opponent, Style, Teaches, TurnGame
from mrlm.environments.shared.rows import is_held_out, is_number, penalty, whole_number
from mrlm.environments.shared.short_answers import only_word

FREE = "."
MARKS = "XO"
MOST_OPENING = 4

Lines = Sequence[Sequence[int]]
"""Cells of every line that wins."""
Openings = tuple[tuple[str, ...], tuple[str, ...]]
"""Training and held-out positions."""


class LineGame(TurnGame):
    """A board as a string of `X`, `O` and `.`, row by row.

    A game sets `kind`, `width`, `lines`, `choices` (all answers) and `rules` before it calls
    `super().__init__`, and implements `openings`, `cell`, `text`, `refusal` and `worth`.
    """

    roles: tuple[str, ...] = ("x", "o")
    width: int
    lines: Lines
    choices: str
    rules: str
    kind: str
    """Name of the game in the ids of tasks."""
    numbers: bool = False
    """Whether a board for people has the numbers of free cells, as `shown` has them."""
    heading: Sequence[str] = ()
    """The first row of a board for people, if it has one."""

    def __init__(
        self,
        agents: str | Sequence[str] | None = None,
        opening: int = 0,
        illegal: float = 0.5,
        forgiven: int = 0,
        draw: float = 0.0,
        opponent: Opponent = "agent",
        seat: str = "either",
        teaches: Teaches = "best",
        style: Style = "full",
        seed: int = 0,
    ) -> None:
        super().__init__(agents, opponent, seat, teaches, style)
        whole_number(0, MOST_OPENING, opening=opening)
        whole_number(0, forgiven=forgiven)
        if not is_number(draw) or not -1 < draw < 1:
            raise ConfigError(f"draw must be a number between -1 and 1, not {draw!r}")
        self.opening = opening
        if not all(self.openings()):
            raise ConfigError(f"opening={opening} leaves no held-out position; set another number")
        self.illegal: float = penalty("illegal", illegal)
        self.forgiven = forgiven
        self.draw: float = float(draw)
        self.seed = seed
        self.cells: int = 1 + max(cell for line in self.lines for cell in line)
        self.max_turns: int | None = self.cells - opening + 2 * forgiven
        self._board = FREE * self.cells
        self._erred = [0, 0]
        self._marked: int | None = None

    # -- implemented by a game ---------------------------------------------------------------------

    def openings(self) -> Openings:
        """The positions in which games begin."""
        raise NotImplementedError

    def cell(self, board: str, choice: str) -> int | None:
        """The cell that an answer marks; `None` if it is illegal."""
        raise NotImplementedError

    def text(self, board: str, role: int) -> str:
        """The prompt of a role that is to move."""
        raise NotImplementedError

    def refusal(self, choice: str | None) -> str:
        """The reason why an answer is illegal."""
        raise NotImplementedError

    def worth(self, board: str) -> float:
        """Value of a position for the player to move."""
        raise NotImplementedError

    # -- the game ----------------------------------------------------------------------------------

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"{self.kind}-{self.opening}-{self.seed}-{split}-{seed}"
        train, held_out = self.openings()
        board = random.Random(name).choice(held_out if split == "eval" else train)
        return Task(name, [Message(self.shown(board))], seed=seed, info={"board": board})

    def shown(self, board: str) -> str:
        """The board in the prompt of a task."""
        return self.text(board, turn_of(board))

    def begin(self, task: Task) -> None:
        board = task.info.get("board")
        if not isinstance(board, str) or not self.playable(board):
            raise ConfigError(
                f"{self.kind}: task {task.id!r} needs info['board']: {self.cells} of {MARKS} and "
                f"{FREE}, in a game that is not over"
            )
        self._board, self._erred, self._marked = board, [0, 0], None
        self.mover = turn_of(board)
        self.explain(self.rules)

    def playable(self, board: str) -> bool:
        """Whether it is a valid board of a game that is not over."""
        fits = len(board) == self.cells and set(board) <= {*MARKS, FREE} and FREE in board
        in_turn = board.count("X") - board.count("O") in (0, 1)
        return fits and in_turn and not winner_of(board, self.lines)

    def question(self, role: int) -> str:
        return self.text(self._board, role)

    def play(self, role: int, text: str) -> None:
        choice = only_word(text, self.choices)
        cell = None if choice is None else self.cell(self._board, choice)
        if cell is None:
            self.pay(role, -self.illegal, illegal=1.0)
            self._erred[role] += 1
            if self._erred[role] > self.forgiven:
                self._end(1 - role)
            else:
                self.tell(role, self.refusal(choice), "!")
            return
        self._marked = cell
        self._board = placed(self._board, cell)
        self.mover = 1 - role
        if winner_of(self._board, self.lines):
            self._end(role)
        elif FREE not in self._board:
            self.pay_all(self.draw, draw=1.0)
            self.mover = None

    def _end(self, won: int) -> None:
        self.pay(won, 1.0, won=1.0)
        self.pay(1 - won, -1.0, lost=1.0)
        self.mover = None

    def state(self) -> str:
        return f"{self._board} {'over' if self.mover is None else MARKS[self.mover]}"

    def render(self, agent: str | None = None) -> Html:
        """The board with its last mark, and who is to move or has won."""
        won = winner_of(self._board, self.lines)
        lines = [line for line in self.lines if won and {self._board[c] for c in line} == {won}]
        texts = self.shown(self._board) if self.numbers else self._board.replace(FREE, " ")

        def classes(cell: int) -> str:
            mark = self._board[cell]
            names = ["dim" if mark == FREE else f"player{MARKS.index(mark)}"]
            names += ["move"] * (cell == self._marked)
            return " ".join(names + ["win"] * any(cell in line for line in lines))

        rows = [
            [(texts[i], classes(i)) for i in range(row, row + self.width)]
            for row in range(0, self.cells, self.width)
        ]
        return stacked(table(rows, self.heading, kind="grid"), self._outcome())

    def _outcome(self) -> str:
        if self.mover is not None:
            return f"{MARKS[self.mover]} ({self.roles[self.mover]}) to move"
        if won := winner_of(self._board, self.lines):
            return f"{won} has won"
        if FREE not in self._board:
            return "a draw"
        lost = int(self._erred[1] > self.forgiven)
        return f"{MARKS[1 - lost]} has won: {MARKS[lost]} gave an illegal answer"

    def legal(self) -> dict[str, int]:
        """The legal answers now, with the cells that they mark."""
        cells = ((choice, self.cell(self._board, choice)) for choice in self.choices)
        return {choice: cell for choice, cell in cells if cell is not None}

    def best(self, role: int) -> str:
        worth = {c: -self.worth(placed(self._board, cell)) for c, cell in self.legal().items()}
        most = max(worth.values())
        return self.drawn().choice([choice for choice in worth if worth[choice] == most])

    def anything(self, role: int) -> str:
        return self.drawn().choice([*self.legal()])


# -- boards ----------------------------------------------------------------------------------------


def turn_of(board: str) -> int:
    """The role to move: 0 for X, 1 for O."""
    return (len(board) - board.count(FREE)) % 2


def placed(board: str, cell: int) -> str:
    """The board after the player to move has marked a cell."""
    return board[:cell] + MARKS[turn_of(board)] + board[cell + 1 :]


def winner_of(board: str, lines: Lines) -> str | None:
    """The mark that has all cells of a line, or `None`."""
    for line in lines:
        mark = board[line[0]]
        if mark != FREE and all(board[cell] == mark for cell in line):
            return mark
    return None


def opening_positions(
    name: str,
    cells: int,
    marks: int,
    choices: Callable[[str], Sequence[int]],
    fit: Callable[[str], bool],
    canonical: Callable[[str], str],
) -> Openings:
    """Positions with some marks, a tenth of them held out, at least one form. The empty board is
    both.

    Args:
        name: of the game, which decides together with a position whether it is held out.
        cells: of the board.
        marks: on the board.
        choices: a board -> the cells that may be marked.
        fit: whether a game may begin with a board.
        canonical: a form that is equal for all boards that are held out together.
    """
    boards = {FREE * cells}
    for _ in range(marks):
        boards = {placed(board, cell) for board in boards for cell in choices(board)}
    positions = sorted(board for board in boards if fit(board))
    if not marks:
        return tuple(positions), tuple(positions)
    forms = {board: canonical(board) for board in positions}
    different = sorted(set(forms.values()))
    held = {form for form in different if is_held_out(f"{name} {form}")}
    if not held and len(different) > 1:
        held = {different[0]}
    return (
        tuple(board for board in positions if forms[board] not in held),
        tuple(board for board in positions if forms[board] in held),
    )
