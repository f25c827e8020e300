"""Connect four: discs that fall, every way to end, and the solver against plain minimax."""

import functools
import random
from typing import Any

import pytest

from game_players import expert, played, says, script
from mrlm.core.board import as_text
from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.environments.games.connect_four import (
    LEVELS,
    ConnectFourEnvironment,
    Solver,
    all_lines,
    falls,
    mirrored,
    openings,
)
from mrlm.environments.games.lines import FREE, placed, turn_of, winner_of


def empty(level: int) -> str:
    return FREE * (LEVELS[level]["height"] * LEVELS[level]["width"])


def game(moves: str, board: str = "", level: int = 5, **arguments: Any) -> tuple[float, float]:
    """What X and O are paid after discs were dropped into these columns in turn."""
    env = ConnectFourEnvironment(level=level, style="short", **arguments)
    task = Task("t", info={"board": board or empty(level)})
    paid, _, _ = played(env, task, script(*moves))
    return paid["x"], paid["o"]


def minimax(height: int, width: int, line: int) -> Any:
    """The value of a position by trying everything: 1 plus free cells at a win, 0 for a draw."""
    lines = all_lines(height, width, line)

    @functools.cache
    def value(board: str) -> int:
        if winner_of(board, lines):
            return -(1 + board.count(FREE))
        cells = [falls(board, width, column) for column in range(width)]
        options = [-value(placed(board, cell)) for cell in cells if cell is not None]
        return max(options, default=0)

    return value


@pytest.mark.parametrize(("height", "width", "line"), [(3, 4, 3), (4, 3, 3), (3, 4, 4), (2, 5, 3)])
def test_the_solver_is_minimax_on_small_boards(height: int, width: int, line: int) -> None:
    """On every position that random games come through."""
    plain, solver, rng = minimax(height, width, line), Solver(height, width, line), random.Random(0)
    lines, seen = all_lines(height, width, line), set()
    for _ in range(150):
        board = FREE * (height * width)
        while FREE in board and not winner_of(board, lines):
            seen.add(board)
            cells = [falls(board, width, column) for column in range(width)]
            board = placed(board, rng.choice([cell for cell in cells if cell is not None]))
        seen.add(board)
    assert len(seen) > 60
    for board in seen:
        assert solver.value(board) == plain(board), board


@pytest.mark.parametrize(
    ("height", "width", "line", "sign"), [(3, 4, 3, 1), (4, 4, 3, 1), (4, 4, 4, 0)]
)
def test_known_values_of_empty_boards(height: int, width: int, line: int, sign: int) -> None:
    """Connect four on 4 x 4 is a draw (Tromp); three in a row are won by the first player."""
    value = Solver(height, width, line).value(FREE * (height * width))
    assert (value > 0) - (value < 0) == sign


@pytest.mark.slow
def test_four_in_a_line_on_four_rows_and_five_columns_is_a_draw() -> None:
    assert Solver(4, 5, 4).value(FREE * 20) == 0  # Tromp


def test_lines_are_all_there_are() -> None:
    assert len(all_lines(6, 7, 4)) == 69
    assert len(all_lines(3, 4, 3)) == 6 + 4 + 4
    assert not all_lines(2, 2, 3)
    env = ConnectFourEnvironment()
    for floating in ("X" + FREE * 41, "XO" * 21, "X" * 42, "X"):
        with pytest.raises(ConfigError, match=r"info\['board'\]"):
            env.reset(Task("t", info={"board": floating}))


def test_discs_fall_and_win_in_every_direction() -> None:
    assert game("1212121") == (1, -1), "a column"
    assert game("1122334") == (1, -1), "a row"
    assert game("71122334") == (-1, 1), "a row of the second player"
    assert game("12233434474") == (1, -1), "a diagonal up"
    assert game("76655454414") == (1, -1), "a diagonal down"


def test_a_full_board_is_a_draw_for_both() -> None:
    """Both players win nothing on a board without a line, in any order of the last discs."""
    board = "....OXXOXOOXOXXO"
    lines = all_lines(4, 4, 4)
    assert winner_of(board, lines) is None and turn_of(board) == 0
    assert game("1234", board, level=2, line=4) == (0, 0)
    assert game("1234", board, level=2, line=4, draw=-0.2) == (-0.2, -0.2)


@pytest.mark.parametrize("words", ["", "0", "8", "1", "1 2", "left", "9" * 9_999, "X"])
def test_an_illegal_column_loses_or_is_forgiven(words: str) -> None:
    full = "O......X......O......X......O......X......"
    assert game([words], full) == (-1.5, 1)  # type: ignore[arg-type]
    env = ConnectFourEnvironment(forgiven=1, illegal=0.25)
    env.reset(Task("t", info={"board": full}))
    text = says(env, words).observations["x"].messages[0].content
    reason = "Column 1 is full." if words == "1" else "That is no column from 1 to 7."
    assert text.startswith(f"{reason}\n1 2 3 4 5 6 7\nO . . .")
    assert text.endswith("X . . . . . .\nYou are X. Which column?")
    assert says(env, words).rewards["x"].value == pytest.approx(-1.25)


@pytest.mark.parametrize("level", LEVELS)
def test_openings_are_held_out_with_their_reflections(level: int) -> None:
    settings = LEVELS[level]
    size = (settings["height"], settings["width"], settings["line"])
    train, held = openings(*size, settings["opening"])
    assert len(train) > len(held) > 0
    assert not {mirrored(board, size[1]) for board in held} & set(train)
    env = ConnectFourEnvironment(level=level)
    assert {env.task(i, "eval").info["board"] for i in range(99)} <= set(held)
    assert {env.task(i).info["board"] for i in range(99)} <= set(train)
    assert env.max_turns == size[0] * size[1] - settings["opening"]


def test_the_exact_expert_takes_what_a_position_is_worth() -> None:
    """Against every answer of the other, on boards that it solves."""
    for level in (1, 2):
        env = ConnectFourEnvironment(level=level, opponent="random", style="short")
        for seed in range(20):
            env.reset(env.task(seed))
            while env.mover is not None:
                before = env.worth(env._board)
                mine = env.mover
                result = says(env, env.best(mine))
                if result.done:
                    won = result.rewards["player"].value
                    assert before <= 0 or won == 1, "a won position is never lost"
                    assert before < 0 or won >= 0


def test_the_expert_of_a_large_board_sees_what_is_near() -> None:
    env = ConnectFourEnvironment()
    assert env.depth == 4 and ConnectFourEnvironment(level=3).depth is None
    env.reset(Task("t", info={"board": FREE * 35 + "XXX.OOO"}))
    assert env.expert("x", []) == "4", "it wins"
    env.reset(Task("t", info={"board": FREE * 28 + "X.X....X.XOOO."}))
    assert env.expert("o", []) == "7", "it wins"
    env.reset(Task("t", info={"board": FREE * 28 + "X......X.XOOO."}))
    assert env.expert("x", []) == "7", "it blocks"
    wins, count = 0.0, 12
    strong = ConnectFourEnvironment(opponent="random", style="short")
    for seed in range(count):
        wins += played(strong, strong.task(seed), expert)[0]["player"]
    assert wins >= count - 2, "it beats a random player"


def test_boards_show_columns_the_last_disc_and_the_line() -> None:
    env = ConnectFourEnvironment(level=1, opening=0)
    env.reset(Task("t", info={"board": "....OO..XX.."}))
    says(env, "3")
    shown = str(env.render())
    assert shown.count("win") == 3 and "player0 move win" in shown and "X has won" in shown
    assert as_text(env.render()).splitlines()[0].split() == ["1", "2", "3", "4"]
    assert env.render("x") == env.render("o") == env.render()
    short = ConnectFourEnvironment(level=1, style="short")
    (text,) = short.reset(Task("t", info={"board": "....OO..XX.."})).observations["x"].messages
    assert text.content == "1234/OO../XX.. X?"
    short.reset(Task("t", info={"board": "X...O...X..."}))
    assert short.question(1) == "X234/O.../X... O?"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": 0}, "level must be one of 1, 2, 3, 4, 5"),
        ({"height": 9}, "height must be at most 8"),
        ({"width": 1}, "width"),
        ({"line": 8}, "line=8 does not fit"),
        ({"line": 2}, "line"),
        ({"depth": 0}, "depth"),
        ({"opening": 5}, "opening must be at most 4"),
    ],
)
def test_settings_out_of_range_are_named(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConnectFourEnvironment(**settings)
