"""Games of two seats: rules, pay-offs, what a player may see, and the scripts that play them."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from game_players import Speaks, expert, played, says, script
from mrlm.core.environment import check_environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.environments.games.connect_four import ConnectFourEnvironment
from mrlm.environments.games.lines import placed, turn_of
from mrlm.environments.games.negotiation import NegotiationEnvironment
from mrlm.environments.games.tic_tac_toe import (
    LINES,
    TicTacToeEnvironment,
    canonical,
    free,
    openings,
    value,
    winner,
)
from mrlm.environments.games.twenty_questions import TwentyQuestionsEnvironment
from mrlm.environments.poker.kuhn_poker import DEALS, KuhnPokerEnvironment, equilibrium
from mrlm.environments.poker.leduc import LeducEnvironment
from mrlm.environments.shared.games import TurnGame

GAMES: dict[str, type[TurnGame]] = {
    "kuhn_poker": KuhnPokerEnvironment,
    "leduc": LeducEnvironment,
    "tic_tac_toe": TicTacToeEnvironment,
    "connect_four": ConnectFourEnvironment,
    "negotiation": NegotiationEnvironment,
    "twenty_questions": TwentyQuestionsEnvironment,
}


# -- what all games have in common -----------------------------------------------------------------


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("style", ["full", "short"])
@pytest.mark.parametrize("opponent", ["agent", "random", "expert"])
def test_every_game_keeps_the_contract_in_every_form(name: str, style: str, opponent: Any) -> None:
    if (name, opponent) == ("twenty_questions", "random"):
        pytest.skip("an answerer that answers at random can only be refused")
    world = GAMES[name](opponent=opponent, style=style)  # type: ignore[call-arg]
    assert len(world.agents) == (2 if opponent == "agent" else 1)
    for seed in range(4):
        check_environment(world, seed)
        task = world.task(seed)
        first, second = (played(world, task, expert) for _ in range(2))
        assert first == second
        lazy = played(world, task, lambda *_: "yes")[0]
        if opponent == "agent":
            assert sum(lazy.values()) < sum(first[0].values())


@pytest.mark.parametrize("name", GAMES)
def test_against_a_script_an_agent_sits_in_either_seat(name: str) -> None:
    if name == "twenty_questions":
        pytest.skip("its seats differ; see its own tests")
    roles = GAMES[name].roles
    both = GAMES[name](opponent="random")
    drawn = {both.reset(both.task(seed)) and both._who.index("player") for seed in range(20)}
    assert drawn == {0, 1}
    for place, role in enumerate(roles):
        world = GAMES[name](opponent="random", seat=role, agents="me")
        assert {world.reset(world.task(i)) and world._who.index("me") for i in range(9)} == {place}


@pytest.mark.parametrize("name", GAMES)
def test_games_teach_legal_words_without_what_they_are_worth(name: str) -> None:
    world = GAMES[name](teaches="any", style="short", opponent="agent")
    taught = set()
    for seed in range(60):
        _, _, parts = played(world, world.task(seed), expert)
        assert not any(part["illegal"] for part in parts.values())
        world.reset(world.task(seed))
        taught.add(world.expert(world.agents[0], []))
    assert len(taught) > 1
    assert world.expert(world.agents[1], []) is None, "it is not asked"


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"opponent": "human"}, "opponent must be one of agent, random, expert"),
        ({"seat": "third"}, "seat must be one of"),
        ({"teaches": "all"}, "teaches"),
        ({"style": "long"}, "style"),
        ({"illegal": 0}, "illegal must be a finite number above 0"),
        ({"illegal": float("nan")}, "illegal"),
        ({"agents": ["one"]}, "environment has 2, but"),
    ],
)
def test_impossible_settings_are_named(name: str, arguments: Any, message: str) -> None:
    if name == "twenty_questions" and "agents" in arguments:
        arguments = {**arguments, "opponent": "agent"}
    with pytest.raises(ConfigError, match=message):
        GAMES[name](**arguments)


def test_a_seat_is_of_use_against_a_script_only() -> None:
    with pytest.raises(ConfigError, match="against a script"):
        KuhnPokerEnvironment(seat="first")


# -- Kuhn poker ------------------------------------------------------------------------------------

HISTORIES = ["", "p", "b", "pb"]


def hand(deal: str, moves: str, **arguments: Any) -> tuple[float, float]:
    """What both players are paid for one hand."""
    world = KuhnPokerEnvironment(style="short", **arguments)
    paid, _, _ = played(world, Task("t", info={"deals": [deal]}), script(*moves))
    return paid["first"], paid["second"]


def test_kuhn_pays_by_the_rules() -> None:
    for deal in DEALS:
        sign = 1 if "JQK".index(deal[0]) > "JQK".index(deal[1]) else -1
        assert hand(deal, "pp") == (sign, -sign)
        assert hand(deal, "pbb") == hand(deal, "bb") == (2 * sign, -2 * sign)
        assert hand(deal, "pbp") == (-1, 1)
        assert hand(deal, "bp") == (1, -1)


@pytest.mark.parametrize("said", ["", "p b", "x", "call", "pb", "Kpb?", "p" * 10_000, "bet b p"])
def test_an_illegal_answer_folds_and_costs_more_than_any_fold(said: str) -> None:
    def answer(before: str) -> Speaks:
        return script(*before, said)

    world = KuhnPokerEnvironment(style="short", illegal=0.5)
    for before, offender, other in (
        ("", "first", "second"),
        ("p", "second", "first"),
        ("b", "second", "first"),
        ("pb", "first", "second"),
    ):
        task = Task("t", info={"deals": ["KJ"]})
        paid, _, parts = played(world, task, answer(before))
        assert paid == {offender: -1.5, other: 1.0}
        assert parts[offender] == {"chips": -1, "illegal": 1} and parts[other] == {"chips": 1}


def test_words_of_another_situation_are_no_move() -> None:
    world = KuhnPokerEnvironment()
    task = Task("t", info={"deals": ["KJ"]})
    assert played(world, task, script("I bet.", "FOLD"))[0] == {"first": 1, "second": -1}
    assert played(world, task, script("call"))[0] == {"first": -2, "second": 1}
    assert played(world, task, script("bet", "check"))[0] == {"first": 1, "second": -2}


def worth(paid: dict[tuple[str, str], float], chance: Sequence[Any]) -> float:
    """What the first player earns on average; `chance[role](card, history)` is how often it bets
    (or calls)."""

    def down(deal: str, history: str) -> float:
        if (deal, history) in paid:
            return paid[deal, history]
        role = len(history) % 2
        often = chance[role](deal[role], history)
        return often * down(deal, history + "b") + (1 - often) * down(deal, history + "p")

    return sum(down(deal, "") for deal in DEALS) / len(DEALS)


def test_what_the_kuhn_expert_says_is_as_frequent_as_it_should_be() -> None:
    world = KuhnPokerEnvironment(style="short", alpha=0.2)
    count = 900
    for deal, history in itertools.product(DEALS, HISTORIES):
        if deal[1] != "JQK"["JQK".index(deal[0]) - 1]:
            continue  # one deal for each card of either seat
        bets = 0
        for number in range(count):
            world.reset(Task(f"t{number}", info={"deals": [deal]}))
            for move in history:
                says(world, move)
            bets += world.expert(world.agents[len(history) % 2], []) == "b"
        often = equilibrium(0.2)[deal[len(history) % 2], history]
        assert bets / count == pytest.approx(often, abs=0.06), (deal, history)


def test_a_kuhn_player_never_sees_the_other_card() -> None:
    for style in ("full", "short"):
        world = KuhnPokerEnvironment(style=style, num_hands=2)
        for moves in ("pp", "pbp", "pbb", "bp", "bb"):
            for role, card in itertools.product((0, 1), "JQK"):
                shown = set()
                for deal in (deal for deal in DEALS if deal[role] == card):
                    task = Task("t", info={"deals": [deal, "QK"]})
                    seen = played(world, task, script(*moves, "x", "x"))[1]
                    mine = [text for agent, text in seen if agent == world.agents[role]]
                    shown.add(tuple(mine[: len(moves[role::2])]))
                assert len(shown) == 1, "it does not depend on the card of the other"


def test_kuhn_hands_follow_each_other_with_their_results() -> None:
    world = KuhnPokerEnvironment(style="short", num_hands=3)
    task = Task("t", info={"deals": ["KJ", "QK", "JQ"]})
    words = {
        "short": script("b", "b", "p", "b", "nothing", "p", "p"),
        "full": script("bet", "call", "check", "bet", "nothing", "check", "check"),
    }
    paid, seen, parts = played(world, task, words["short"])
    assert paid == {"first": 2 - 1 - 1 - 1, "second": -2 + 1 + 1}
    assert parts["first"] == {"chips": 0, "illegal": 1}
    shown = ["K?", "Jb?", "+2 Q?", "-2 Kp?", "Qpb?", "! -1 J?", "+1 Qp?"]
    assert [text for _, text in seen] == shown
    assert world.max_turns == 9
    full = KuhnPokerEnvironment(num_hands=3)
    assert played(full, task, words["full"])[0] == paid
    full.reset(task)
    assert full.state() == "hand 1 of 3: KJ"
    says(full, "check")
    text = says(full, "bet").observations["first"].messages[0].content
    assert text == "Your card: K. Moves: you: check, the other: bet. fold or call?"
    assert full.state() == "hand 1 of 3: KJ pb"


def test_against_the_kuhn_script_only_the_agent_is_paid() -> None:
    world = KuhnPokerEnvironment(opponent="expert", seat="second", style="short", agents="me")
    total, count = 0.0, 0
    for seed in range(300):
        paid, seen, _ = played(world, world.task(seed), lambda w, a, s: "p")
        assert set(paid) == {"me"} and len(seen) <= 2 and all(len(s) <= 4 for _, s in seen)
        total, count = total + paid["me"], count + 1
    assert total / count < 0.0, "who always passes loses"


# -- tic-tac-toe -----------------------------------------------------------------------------------


def game(cells: str, board: str = "." * 9, **arguments: Any) -> tuple[float, float]:
    """What X and O are paid after these cells were taken in turn."""
    world = TicTacToeEnvironment(style="short", **arguments)
    paid, _, _ = played(world, Task("t", info={"board": board}), script(*cells))
    return paid["x"], paid["o"]


def test_tic_tac_toe_pays_every_way_to_end() -> None:
    for line in LINES:
        others = [cell for cell in range(9) if cell not in line]
        a, b, c = (str(cell + 1) for cell in line)
        o1, o2 = (str(cell + 1) for cell in others[:2])
        assert game(f"{a}{o1}{b}{o2}{c}") == (1, -1), line
        first = next(
            str(cell + 1) for cell in others[2:] if {cell, *others[:2]} not in map(set, LINES)
        )
        assert game(f"{o1}{a}{o2}{b}{first}{c}") == (-1, 1), line
    assert game("152473698") == (0, 0) and game("152473698", draw=-0.25) == (-0.25, -0.25)
    assert game("645239187") == (1, -1), "a win with the last cell is no draw"


@pytest.mark.parametrize("said", ["", "0", "10", "1", "5 6", "centre", "9" * 10_000, "X", "-"])
def test_an_illegal_cell_loses_or_is_forgiven(said: str) -> None:
    board = "XO......."
    assert game([said], board) == (-1.5, 1), "the first one loses at once"  # type: ignore[arg-type]
    words = [said, said, "5", "4", "9"]
    assert game(words, board, forgiven=2) == (0.0, -1.0)  # type: ignore[arg-type]
    assert game([said] * 3, board, forgiven=2, illegal=0.1) == pytest.approx((-1.3, 1))  # type: ignore[arg-type]
    world = TicTacToeEnvironment(forgiven=1)
    world.reset(Task("t", info={"board": board}))
    text = says(world, said).observations["x"].messages[0].content
    reason = "Cell 1 is taken." if said == "1" else "That is no cell from 1 to 9."
    assert text == f"{reason}\nX O 3\n4 5 6\n7 8 9\nYou are X. Which cell?"
    assert world.state() == "XO....... X"


def test_the_longest_game_of_tic_tac_toe_ends_within_its_turns() -> None:
    world = TicTacToeEnvironment(forgiven=2)
    words = ["x", "x", "1", "x", "x", *"52473698"]
    paid, seen, parts = played(world, world.task(0), script(*words))
    assert len(seen) == world.max_turns == 13 and paid == {"x": -1.0, "o": -1.0}
    assert parts["x"] == {"illegal": 2, "draw": 1}


def test_the_tic_tac_toe_expert_never_loses_whatever_the_other_does() -> None:
    """Against every line of play, from either seat: all its best answers against all answers."""
    lost, ends = 0, Counter()

    def down(board: str, mine: int) -> None:
        nonlocal lost
        if winner(board) or "." not in board:
            mark = winner(board)
            ends["draw" if mark is None else "won" if mark == "XO"[mine] else "lost"] += 1
            return
        cells = free(board)
        if turn_of(board) == mine:
            worth = {cell: -value(placed(board, cell)) for cell in cells}
            cells = [cell for cell in cells if worth[cell] == max(worth.values())]
        for cell in cells:
            down(placed(board, cell), mine)

    down("." * 9, 0)
    down("." * 9, 1)
    assert ends["lost"] == 0 and ends["won"] > 500 and ends["draw"] > 500


@pytest.mark.parametrize(
    ("board", "cells"),
    [
        ("XX.OO....", "3"),  # it wins rather than blocks
        ("XX.O.....", "3"),  # it blocks
        ("X...O...X", "2468"),  # a side, or the other makes a fork
        ("XO.XO....", "7"),  # at once, although there are slower ways
    ],
)
def test_what_the_tic_tac_toe_expert_says(board: str, cells: str) -> None:
    world = TicTacToeEnvironment()
    said = set()
    for number in range(40):
        world.reset(Task(f"t{number}", info={"board": board}))
        assert world.mover is not None
        said.add(world.expert(world.agents[world.mover], []))
    assert said == set(cells)


def test_tic_tac_toe_holds_positions_out_however_they_are_turned() -> None:
    for opening in (1, 2, 3, 4):
        train, held = openings(opening)
        assert held and not {canonical(b) for b in train} & {canonical(b) for b in held}
        world = TicTacToeEnvironment(opening=opening)
        assert {world.task(i, "eval").info["board"] for i in range(200)} <= set(held)
        assert {world.task(i).info["board"] for i in range(200)} <= set(train)
    assert len({canonical(board) for board in ("X........", "..X......", "........X")}) == 1
    for make, said in (
        (
            lambda: ConnectFourEnvironment(level=1, width=2, opening=1),
            "leaves no held-out position",
        ),
        (lambda: TicTacToeEnvironment(opening=5), "at most 4"),
        (lambda: TicTacToeEnvironment(draw=1), "draw"),
        (lambda: TicTacToeEnvironment().reset(Task("t", info={"board": "XXX......"})), "board"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()


def test_tic_tac_toe_is_terse_for_small_models() -> None:
    world = TicTacToeEnvironment(style="short", opponent="expert", seat="o")
    opening = world.reset(world.task(0)).observations["player"].messages[0].content
    assert len(opening) == 11 and opening.endswith("O?") and opening.count("X") == 1
    assert world.anything(1) in opening, "a cell is copied from the board"
