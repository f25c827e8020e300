"""Games of two seats: rules, pay-offs, what a player may see, and the scripts that play them."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mrlm.config import load_config
from mrlm.config.normal import merge
from mrlm.core.environment import Environment, check_environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Role, StepResult, Task
from mrlm.environments._games import TwoSeats
from mrlm.environments._things import ATTRIBUTES, TRUE
from mrlm.environments.kuhn_poker import DEALS, KuhnPokerEnvironment
from mrlm.environments.negotiation import (
    NegotiationEnvironment,
    best_division,
    held_out,
    valuations,
)
from mrlm.environments.tic_tac_toe import (
    LINES,
    TicTacToeEnvironment,
    canonical,
    free,
    openings,
    placed,
    turn_of,
    value,
    winner,
)
from mrlm.environments.twenty_questions import SHORT, TwentyQuestionsEnvironment
from mrlm.runs import run_experiment

ROOT = Path(__file__).parent.parent
GAMES: dict[str, type[TwoSeats]] = {
    "kuhn_poker": KuhnPokerEnvironment,
    "tic_tac_toe": TicTacToeEnvironment,
    "negotiation": NegotiationEnvironment,
    "twenty_questions": TwentyQuestionsEnvironment,
}
Speaks = Callable[[Environment, str, str], str]


def says(world: Environment, text: str) -> StepResult:
    """A step in which all who are asked say the same."""
    result = world.step({agent: Message(text, Role.ASSISTANT) for agent in world.agents})
    assert isinstance(result, StepResult)
    return result


def played(
    world: Environment, task: Task, speaks: Speaks
) -> tuple[dict[str, float], list[tuple[str, str]], dict[str, Counter[str]]]:
    """What every agent earned; who was shown what; the components of rewards."""
    world = world.spawn()
    result = world.reset(task, task.seed)
    paid: dict[str, float] = dict.fromkeys(world.agents, 0.0)
    parts: dict[str, Counter[str]] = {agent: Counter() for agent in world.agents}
    seen: list[tuple[str, str]] = []
    for _ in range(100):
        for agent, reward in result.rewards.items():
            paid[agent] += reward.value
            parts[agent].update(reward.components)
        if result.done:
            return paid, seen, parts
        ((agent, observation),) = result.observations.items()
        shown = "\n".join(message.content for message in observation.messages)
        seen.append((agent, shown))
        result = world.step({agent: Message(speaks(world, agent, shown), Role.ASSISTANT)})
    raise AssertionError("the game does not end")


def expert(world: Environment, agent: str, shown: str) -> str:
    said = world.expert(agent, [])
    assert said is not None
    return said


def script(*words: str) -> Speaks:
    """One line after the other, whoever speaks."""
    lines = iter(words)
    return lambda world, agent, shown: next(lines)


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
def test_a_copy_goes_on_as_the_original_does(name: str) -> None:
    world = GAMES[name](opponent="expert")
    for seed in range(6):
        world.reset(world.task(seed))
        twin = copy.deepcopy(world)
        said = expert(world, world.agents[0], "")
        assert expert(twin, world.agents[0], "") == said
        assert repr(says(twin, said)) == repr(says(world, said))


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
        ({"agents": ["one"]}, "2 seats"),
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
VALUES = {"pp": 1, "pbp": None, "pbb": 2, "bp": None, "bb": 2}


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


def strategies(role: int) -> list[dict[tuple[str, str], str]]:
    """All pure strategies of a role: (card, history) -> move."""
    places = [(card, h) for card in "JQK" for h in HISTORIES if len(h) % 2 == role]
    return [
        dict(zip(places, moves, strict=True))
        for moves in itertools.product("pb", repeat=len(places))
    ]


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


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_the_kuhn_expert_cannot_be_beaten_and_the_first_player_loses_an_eighteenth(
    alpha: float,
) -> None:
    paid = {(deal, end): hand(deal, end)[0] for deal in DEALS for end in VALUES}
    able = KuhnPokerEnvironment(alpha=alpha).chance
    assert worth(paid, (able, able)) == pytest.approx(-1 / 18, abs=1e-12)

    def pure(table: dict[tuple[str, str], str]) -> Any:
        return lambda card, history: float(table[card, history] == "b")

    first = [worth(paid, (pure(table), able)) for table in strategies(0)]
    second = [worth(paid, (able, pure(table))) for table in strategies(1)]
    assert max(first) == pytest.approx(-1 / 18, abs=1e-12), "no first player does better"
    assert min(second) == pytest.approx(-1 / 18, abs=1e-12), "no second player does better"
    assert min(first) < -0.3 and max(second) > 0.1, "and many do worse"


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
        often = world.chance(deal[len(history) % 2], history)
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


def test_kuhn_deals_are_even_and_follow_from_the_seed() -> None:
    world = KuhnPokerEnvironment()
    deals = Counter(world.task(seed).info["deals"][0] for seed in range(1800))
    assert set(deals) == set(DEALS) and all(240 < n < 360 for n in deals.values())
    other = KuhnPokerEnvironment(seed=1)
    differ = [world.task(i).info != other.task(i).info for i in range(40)]
    assert 20 < sum(differ) < 40
    assert world.task(3).info != world.task(3, "eval").info or world.task(3).id != ""
    with pytest.raises(ConfigError, match="alpha must be at most 1/3"):
        KuhnPokerEnvironment(alpha=0.5)
    with pytest.raises(ConfigError, match="info\\['deals'\\]"):
        world.reset(Task("t"))


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


def test_tic_tac_toe_between_experts_is_a_draw_from_every_opening() -> None:
    for opening in (0, 2, 3, 4):
        world = TicTacToeEnvironment(opening=opening, draw=0.1)
        for seed, split in itertools.product(range(12), ("train", "eval")):
            paid, _, parts = played(world, world.task(seed, split), expert)
            assert paid == {"x": 0.1, "o": 0.1} and not parts["x"]["illegal"]


def test_tic_tac_toe_holds_positions_out_however_they_are_turned() -> None:
    for opening in (2, 3, 4):
        train, held = openings(opening)
        assert held and not {canonical(b) for b in train} & {canonical(b) for b in held}
        world = TicTacToeEnvironment(opening=opening)
        assert {world.task(i, "eval").info["board"] for i in range(200)} <= set(held)
        assert {world.task(i).info["board"] for i in range(200)} <= set(train)
    assert len({canonical(board) for board in ("X........", "..X......", "........X")}) == 1
    for make, said in (
        (lambda: TicTacToeEnvironment(opening=1), "leaves no position"),
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


# -- negotiation -----------------------------------------------------------------------------------

HOUSE = {"pool": [2, 1, 3], "values": [[1, 2, 2], [3, 4, 0]]}
"""The largest product, 60, and the largest sum, 16, are where the first has all of the third kind
and nothing else."""


def bargain(*words: str, **arguments: Any) -> tuple[float, float]:
    """What both are paid after these words in turn."""
    world = NegotiationEnvironment(**{"max_turns": 4, **arguments})
    paid, _, _ = played(world, Task("t", info=HOUSE), script(*words))
    return paid["opener"], paid["partner"]


@pytest.mark.parametrize(
    ("wants", "selfish", "cooperative", "fair"),
    [
        ("0 0 3", (0.6, 1.0), 1.0, 1.0),
        ("2 0 1", (0.4, 0.4), 8 / 16, 16 / 60),
        ("2 1 3", (1.0, 0.0), 10 / 16, 0.0),
        ("0 0 0", (0.0, 1.0), 10 / 16, 0.0),
        ("1 0 3", (0.7, 0.7), 14 / 16, 49 / 60),
    ],
)
def test_a_deal_pays_by_private_values(
    wants: str, selfish: tuple[float, float], cooperative: float, fair: float
) -> None:
    deal = (f"propose {wants}", "accept")
    assert bargain(*deal) == pytest.approx(selfish)
    assert bargain(*deal, reward="cooperative") == pytest.approx((cooperative, cooperative))
    assert bargain(*deal, reward="fair") == pytest.approx((fair, fair))
    other = {"2 0 1": "0 1 2", "0 0 3": "2 1 0", "2 1 3": "0 0 0", "0 0 0": "2 1 3"}
    if wants in other:  # the same division, proposed by the other seat
        assert bargain("reject", f"propose {other[wants]}", "accept") == pytest.approx(selfish)
    short = (wants.replace(" ", ""), "a")
    assert bargain(*short, style="short") == pytest.approx(selfish)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "yes",
        "accept",  # nothing is proposed
        "propose",
        "propose 3 0 0",  # more than there are
        "propose 1 0",
        "propose 1 0 0 0",
        "propose -1 0 0",
        "propose 0 0 3 or 1 0 3",
        "propose 0 0 3, accept",
        "I do not accept",
        "003",
        "propose " + "0 0 3 " * 1000,
        "propose " + "9" * 5000,
    ],
)
def test_a_malformed_answer_costs_a_turn_and_a_penalty(said: str) -> None:
    assert bargain(said, said, said, said, illegal=0.3) == pytest.approx((-0.6, -0.6))
    assert bargain(said, "propose 2 1 0", "accept") == pytest.approx((0.6 - 0.2, 1.0))
    if said != "accept":
        after = ("propose 0 0 3", said, "accept", "propose 2 1 0")
        assert bargain(*after) == pytest.approx((-0.2, -0.2)), "the offer is off the table"


def test_to_agree_on_nothing_pays_nothing() -> None:
    for words in (["reject"] * 4, ["propose 0 0 3"] * 4, ["propose 0 0 3", "reject"] * 2):
        assert bargain(*words) == (0, 0)
        assert bargain(*words, reward="cooperative") == bargain(*words, reward="fair") == (0, 0)
    assert bargain("propose 2 1 3", "reject", "accept", "reject") == (-0.2, 0), "a rejected offer"


def test_a_negotiator_never_sees_the_values_of_the_other() -> None:
    words = ("propose 1 0 2", "reject", "x", "propose 2 1 0")
    for style in ("full", "short"):
        lines = words if style == "full" else ("102", "r", "x", "210")
        for role in (0, 1):
            shown = set()
            for other in valuations((2, 1, 3)):
                values = [other, other]
                values[role] = tuple(HOUSE["values"][role])
                world = NegotiationEnvironment(style=style, max_turns=4)
                task = Task("t", info={"pool": HOUSE["pool"], "values": values})
                seen = played(world, task, script(*lines))[1]
                shown.add(tuple(text for agent, text in seen if agent == world.agents[role]))
            assert len(shown) == 1 and len(valuations((2, 1, 3))) > 5


def test_what_negotiators_are_shown() -> None:
    world = NegotiationEnvironment(style="short", max_turns=4)
    _, seen, _ = played(world, Task("t", info=HOUSE), script("102", "r", "x", "210"))
    assert [text for _, text in seen] == ["213 122?", "213 340 102?", "r 213 122?", "- 213 340?"]
    full = NegotiationEnvironment()
    full.reset(Task("t", info=HOUSE))
    text = says(full, "propose 1 0 2").observations["partner"].messages[0].content
    assert text.endswith(
        "Items: 2 books, 3 points each; 1 hats, 4 points each; 3 balls, 0 points each. "
        "The other wants 1 0 2, which leaves you 1 1 1. Your turn."
    )
    assert full.state() == "213 worth 122 and 340, turn 2 of 6, partner, offer 102"


@pytest.mark.parametrize("kinds", [2, 3, 4])
@pytest.mark.parametrize("reward", ["selfish", "cooperative", "fair"])
def test_experts_agree_at_once_on_the_best_division(kinds: int, reward: Any) -> None:
    world = NegotiationEnvironment(reward=reward, kinds=kinds)
    for seed, split in itertools.product(range(15), ("train", "eval")):
        task = world.task(seed, split)
        paid, seen, parts = played(world, task, expert)
        goal = "sum" if reward == "cooperative" else "product"
        assert len(seen) == 2 and parts["opener"][goal] == pytest.approx(1.0)
        assert parts["opener"]["deal"] == 1 and not parts["partner"]["illegal"]
        if reward != "selfish":
            assert list(paid.values()) == pytest.approx([1.0, 1.0])
        assert min(paid.values()) > 0


def test_a_scripted_negotiator_takes_a_crumb_at_the_last_turn_only() -> None:
    world = NegotiationEnvironment(opponent="expert", seat="opener", max_turns=2)
    task = Task("t", info=HOUSE)
    assert played(world, task, script("propose 1 1 3"))[0] == {"player": pytest.approx(0.9)}
    assert played(world, task, script("propose 2 1 3"))[0] == {"player": 0.0}
    longer = NegotiationEnvironment(opponent="expert", seat="opener", max_turns=4)
    _, seen, _ = played(longer, task, script("propose 1 1 3", "accept"))
    assert "The other wants 2 1 0, which leaves you 0 0 3." in seen[1][1]


def test_no_view_of_a_held_out_negotiation_is_trained_on() -> None:
    for kinds in (2, 3):
        world = NegotiationEnvironment(kinds=kinds)
        for split in ("train", "eval"):
            for seed in range(200):
                info = world.task(seed, split).info
                for values in info["values"]:
                    assert held_out(tuple(info["pool"]), tuple(values)) == (split == "eval")
                    assert sum(v * n for v, n in zip(values, info["pool"], strict=True)) == 10


def test_the_best_division_is_the_best_of_all() -> None:
    pool, one, two = (2, 1, 3), (1, 2, 2), (3, 4, 0)
    assert best_division(pool, one, two, "product") == ((0, 0, 3), 60)
    assert best_division(pool, two, one, "product") == ((2, 1, 0), 60)
    assert best_division(pool, one, two, "sum") == ((0, 0, 3), 16)
    for make, said in (
        (lambda: NegotiationEnvironment(kinds=5), "at most 4"),
        (lambda: NegotiationEnvironment(max_turns=1), "max_turns"),
        (lambda: NegotiationEnvironment(reward="greedy"), "selfish, cooperative, fair"),  # type: ignore[arg-type]
        (lambda: NegotiationEnvironment().reset(Task("t")), "pool"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()


# -- twenty questions ------------------------------------------------------------------------------


def twenty(thing: str, *words: str, **arguments: Any) -> tuple[dict[str, float], Any]:
    """What is paid, and its components, for words in turn about a thing."""
    world = TwentyQuestionsEnvironment(**{"agents": "me", **arguments})
    paid, _, parts = played(world, Task("t", answer=thing), script(*words))
    return paid, parts


def test_the_table_tells_all_things_apart() -> None:
    assert len(TRUE) >= 60 and len(ATTRIBUTES) >= 25
    assert len(set(TRUE.values())) == len(TRUE)
    assert not set(TRUE) & set(ATTRIBUTES) and set().union(*TRUE.values()) == set(ATTRIBUTES)
    assert all(word.isalpha() and word.islower() for word in [*TRUE, *ATTRIBUTES])


def test_a_right_guess_pays_less_the_later_it_comes() -> None:
    assert twenty("dog", "Is it a dog?")[0] == {"me": 1.0}
    assert twenty("dog", "alive", "legs", "It is a DOG!")[0] == {"me": pytest.approx(0.95)}
    paid, parts = twenty("dog", "alive", "cat", "hm", "dog", max_questions=4, speed=0.8, wrong=0.3)
    assert paid["me"] == pytest.approx(1 - 0.8 * 3 / 4 - 0.3 - 0.1)
    assert parts["me"] == {"asked": 4, "wrong": 1, "illegal": 1, "found": 1}
    assert twenty("dog", "alive", "legs", "alive", max_questions=3)[0] == {"me": 0.0}
    paid, parts = twenty("dog", "cat", "cow", max_questions=2, wrong=0.2)
    assert paid["me"] == pytest.approx(-0.4) and parts["me"]["found"] == 0


@pytest.mark.parametrize(
    "said", ["", "yes", "dog cat", "dog alive", " ".join(TRUE), "is it a farm animal", "x" * 99999]
)
def test_a_message_that_names_nothing_or_several_is_malformed(said: str) -> None:
    paid, parts = twenty("dog", said, said, max_questions=2, illegal=0.25)
    assert paid == {"me": -0.5} and parts["me"] == {"asked": 2, "illegal": 2, "found": 0}


def test_honest_questions_earn_more_than_guessing_or_repeating() -> None:
    for arguments in ({}, {"num_things": 8}, {"num_things": 4}):
        world = TwentyQuestionsEnvironment(**arguments)  # type: ignore[arg-type]
        able = guessed = 0.0
        for seed in range(60):
            task = world.task(seed)
            able += sum(played(world, task, expert)[0].values())
            guesses = iter([*task.info["things"], *["dog"] * 20])
            line: Speaks = lambda w, a, s, guesses=guesses: next(guesses)  # noqa: E731
            guessed += sum(played(world, task, line)[0].values())
            assert sum(played(world, task, lambda *_: "alive")[0].values()) == 0
        assert able / 60 > 0.8 and able > guessed + 3


def test_the_expert_finds_everything_in_ten() -> None:
    world = TwentyQuestionsEnvironment(max_questions=10)
    counts = Counter()
    for thing in TRUE:
        _, _, parts = played(world, Task("t", answer=thing), expert)
        assert parts["player"]["found"] == 1 and not parts["player"]["wrong"]
        counts[parts["player"]["asked"]] += 1
    assert sum(count * n for count, n in counts.items()) / len(TRUE) < 8


def answered(*words: str, **arguments: Any) -> tuple[dict[str, float], list[tuple[str, str]], Any]:
    world = TwentyQuestionsEnvironment(opponent="agent", style="short", **arguments)
    return played(world, Task("t", answer="dog"), script(*words))


def test_an_answerer_is_checked_and_the_asker_is_told_the_truth() -> None:
    dog, alive, bird = SHORT["dog"], SHORT["alive"], SHORT["bird"]
    for answers, cost in ((("y", "n"), 0.0), (("n", "n"), 0.5), (("n", "cat"), 0.6)):
        words = (alive, answers[0], bird, answers[1], dog)
        paid, seen, parts = answered(*words)
        assert paid["asker"] == pytest.approx(0.95)
        assert paid["answerer"] == pytest.approx(0.95 - cost)
        shown = [text for agent, text in seen if agent == "asker"]
        assert shown == ["* 20?", "y 19?", "n 18?"], "whatever the answerer said"
        assert [text for a, text in seen if a == "answerer"] == [f"{dog} a?", f"{dog} d?"]
        paid, _, parts = answered(*words, answerer_reward="truth")
        share = sum(a == b for a, b in zip(answers, "yn", strict=True)) / 2
        assert paid["answerer"] == pytest.approx(share - cost) and parts["answerer"][
            "truth"
        ] == pytest.approx(share)


def test_an_answerer_cannot_give_the_thing_away() -> None:
    for said in ("yes", "no", "dog", "It is a dog. Yes.", "the thing is: dog"):
        world = TwentyQuestionsEnvironment(opponent="agent", max_questions=3)
        words = script("alive", said, "cat", "legs")
        _, seen, _ = played(world, Task("t", answer="dog"), words)
        told = [text for agent, text in seen if agent == "asker"]
        assert told[1:] == [
            "alive: yes.\nYou may say 2 more. What is it?",
            "It is not: cat.\nYou may say 1 more. What is it?",
        ]
        question = seen[1][1]
        assert question.startswith("The thing is: dog. True or not: it is or was a living")


def test_seats_of_twenty_questions() -> None:
    world = TwentyQuestionsEnvironment(opponent="expert", seat="answerer", agents="me")
    task = Task("t", answer="dog")
    paid, seen, _ = played(world, task, expert)
    assert all("The thing is: dog" in text for _, text in seen) and paid["me"] > 0.8
    liar = played(world, task, lambda *_: "no")
    assert liar[0]["me"] < 0 < liar[2]["me"]["lie"] and len(liar[1]) == len(seen)
    wild = TwentyQuestionsEnvironment(opponent="random", seat="answerer", max_questions=5)
    assert played(wild, task, expert)[2]["player"]["lie"] == 0
    assert TwentyQuestionsEnvironment().agents == ("player",)
    world.reset(task)
    assert world.state().startswith("dog, 1 of 20 said, 86 possible, asked: ")


def test_things_and_choices_are_held_out() -> None:
    world = TwentyQuestionsEnvironment()
    found = [{world.task(i, split).answer for i in range(400)} for split in ("train", "eval")]
    assert len(found[0]) > 60 and len(found[1]) >= 5 and not found[0] & found[1]
    few = TwentyQuestionsEnvironment(num_things=4, style="short")
    offers = [{few.task(i, s).prompt[0].content for i in range(200)} for s in ("train", "eval")]
    assert not offers[0] & offers[1] and all(len(text.split()) == 4 for text in offers[0])
    for make, said in (
        (lambda: TwentyQuestionsEnvironment(opponent="random"), "must be true"),
        (lambda: TwentyQuestionsEnvironment(max_questions=1), "max_questions"),
        (lambda: TwentyQuestionsEnvironment(num_things=999), "at most 86"),
        (lambda: TwentyQuestionsEnvironment(speed=1.0), "speed"),
        (lambda: TwentyQuestionsEnvironment(answerer_reward="own"), "team, truth"),  # type: ignore[arg-type]
        (lambda: world.reset(Task("t", answer="unicorn")), "of the table"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()


# -- whole runs ------------------------------------------------------------------------------------


def test_one_policy_plays_both_hands_of_kuhn_poker(tmp_path: Path) -> None:
    """The first step of every stage of the config, on few episodes."""
    changes = ["evaluation.episodes=6", "training.report_to=none", f"output_dir={tmp_path / 'o'}"]
    config = load_config(ROOT / "configs" / "kuhn_poker.yaml", changes)
    short = {"training": {"num_iterations": 2, "batch_size": 16}, "evaluation": {"episodes": 6}}
    stages = [merge(stage.changes, {"name": stage.name, **short}) for stage in config.stages]
    result = run_experiment(config.merged({"stages": stages}))
    last = result.history[-1]
    assert {"baseline/kuhn_poker/first", "baseline/kuhn_poker/second"} <= set(last)
    assert "eval/expert/reward/mean" in last and (result.run_folder / "final").exists()
