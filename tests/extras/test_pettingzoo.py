"""Environments of PettingZoo, with the library itself (`make test-extras`)."""

from pathlib import Path
from typing import Any

import pytest
from worlds import can_be_forked, keeps_the_contract, played, trains

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.environments.connectors.pettingzoo import PettingZooEnvironment

pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo: make test-extras")
GAMES = [
    "tictactoe_v3", "connect_four_v3", "rps_v2", "leduc_holdem_v4", "texas_holdem_v4",
    "texas_holdem_no_limit_v6",
]  # fmt: skip


def first_legal(world: Any, seat: str, messages: Any) -> str:
    return messages[-1].content.rpartition("Actions: ")[2].split(", ")[0]


def first_moves(world: Any, result: Any) -> dict[str, Message]:
    seen = result.observations.items()
    return {seat: Message(first_legal(world, seat, each.messages)) for seat, each in seen}


def test_contract() -> None:
    for id in GAMES:
        keeps_the_contract(lambda id=id: PettingZooEnvironment(id, max_turns=15))
    can_be_forked(PettingZooEnvironment("tictactoe_v3"), "4", "0")
    can_be_forked(PettingZooEnvironment("leduc_holdem_v4"), "call", "")


@pytest.mark.parametrize("id", [*GAMES, "chess_v6", "hanabi_v5"])
def test_legal_moves_are_told_and_taken(id: str) -> None:
    world = PettingZooEnvironment(id, max_turns=40).spawn()
    result = world.reset(world.task(0), 0)
    while not (result.done or result.truncated):
        result = world.step(first_moves(world, result))
        assert not any(each.components["illegal"] for each in result.rewards.values())


def test_tic_tac_toe_by_hand() -> None:
    world = PettingZooEnvironment("tictactoe_v3", agents=["x", "o"])
    opening = world.reset(world.task(0))
    assert list(opening.observations) == ["x"]
    text = opening.observations["x"].messages[0].content
    assert "0 1 2\n3 4 5\n6 7 8" in text and "You are x." in text
    for seat, cell in (("x", "0"), ("o", "4"), ("x", "1"), ("o", "my move: 8")):
        result = world.step({seat: Message(cell)})
        assert not result.done and all(each.value == 0 for each in result.rewards.values())
    assert "X X 2\n3 O 5\n6 7 O" in result.observations["x"].messages[0].content
    assert "o: O O 2" in world.state()
    end = world.step({"x": Message("2")})
    assert end.done and not end.truncated
    assert {seat: each.value for seat, each in end.rewards.items()} == {"x": 1.0, "o": -1.0}


def test_an_illegal_move_costs_and_a_legal_one_is_taken() -> None:
    for text in ("4", "9", "", "0 or 1"):
        world = PettingZooEnvironment("tictactoe_v3", illegal=0.25)
        world.reset(world.task(0))
        world.step({"player_1": Message("4")})
        after = world.step({"player_2": Message(text)})
        assert after.rewards["player_2"].value == -0.25
        assert after.rewards["player_2"].components["illegal"] == 1.0
        assert after.rewards["player_1"].value == 0.0
        assert world.state().count("O") == 2  # each sees its own marks as X
        told = world.step(
            {"player_1": Message(first_legal(world, "", after.observations["player_1"].messages))}
        )
        assert "named no legal action (0, 1, 2, 3, 5, 6, 7, 8)" in (
            told.observations["player_2"].messages[0].content
        )


def test_rock_paper_scissors_is_played_at_once() -> None:
    world = PettingZooEnvironment("rps_v2", options={"max_cycles": 2})
    assert world.parallel
    opening = world.reset(world.task(0))
    assert set(opening.observations) == {"player_0", "player_1"}
    result = world.step({"player_0": Message("Rock!"), "player_1": Message("scissors")})
    assert {seat: each.value for seat, each in result.rewards.items()} == {
        "player_0": 1.0,
        "player_1": -1.0,
    }
    shown = result.observations["player_0"].messages[0].content
    assert "The other played scissors." in shown
    end = world.step({"player_0": Message("rock"), "player_1": Message("")})
    assert end.truncated and not end.done and end.rewards["player_1"].components["illegal"] == 1
    turns = PettingZooEnvironment("rps_v2", parallel=False)
    assert list(turns.reset(turns.task(0)).observations) == ["player_0"]


def test_connect_four_is_won_by_four_in_a_column() -> None:
    world = PettingZooEnvironment("connect_four_v3")
    _, total, end = played(world, 0, lambda w, s, m: "3" if s == "player_0" else "5")
    assert total == {"player_0": 1.0, "player_1": -1.0} and end.done


def test_cards_are_words_and_follow_from_the_task() -> None:
    world = PettingZooEnvironment("leduc_holdem_v4")
    shown = [
        world.reset(world.task(seed)).observations.popitem()[1].messages[0].content
        for seed in range(20)
    ]
    assert all("your card: " in text and "public card: none" in text for text in shown)
    assert len(set(shown)) > 2
    again = world.reset(world.task(3)).observations.popitem()[1].messages[0].content
    assert again == shown[3]
    texas = PettingZooEnvironment("texas_holdem_v4")
    (seen,) = texas.reset(texas.task(0)).observations.values()
    cards = seen.messages[0].content.split("cards you know: ")[1].split(";")[0].split()
    assert len(cards) == 2 and all(len(card) == 2 for card in cards)


def test_what_is_lost_is_won() -> None:
    for seed in range(10):
        _, total, _ = played(PettingZooEnvironment("leduc_holdem_v4"), seed, first_legal)
        assert sum(total.values()) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"id": "tictactoe_v99"}, "tictactoe_v99"),
        ({"id": "no.such.module"}, "cannot be imported"),
        ({"id": "chess_v6", "parallel": True}, "has no parallel_env"),
        ({"id": "tictactoe_v3", "options": {"size": 4}}, "cannot be created"),
        ({"id": "tictactoe_v3", "agents": ["a"]}, "environment has 2, but"),
        ({"id": "tictactoe_v3", "actions": ["a"]}, "9 different words"),
    ],
)
def test_what_cannot_be_played_says_so(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PettingZooEnvironment(**arguments)


def test_what_is_too_long_needs_a_function() -> None:
    world = PettingZooEnvironment("go_v5")
    with pytest.raises(ConfigError, match="render"):
        world.reset(world.task(0))
    world = PettingZooEnvironment("go_v5", render=lambda seen, agent, env: f"{agent} to move")
    shown = world.reset(world.task(0)).observations["black_0"].messages[0].content
    assert "black_0 to move" in shown


def test_two_steps_of_training_from_yaml(tmp_path: Path) -> None:
    world = {"env_type": "pettingzoo", "id": "tictactoe_v3", "style": "short"}
    trains(tmp_path, world)
    both = {"env_type": "pettingzoo", "id": "rps_v2", "options": {"max_cycles": 2}}
    trains(tmp_path / "ppo", both, "ppo")


@pytest.mark.parametrize("id", GAMES)
def test_the_board_shows_all_players(id: str) -> None:
    world = PettingZooEnvironment(id, max_turns=6).spawn()
    result = world.reset(world.task(0), 0)
    before = world.render()
    assert before and all(world.render(agent) is None for agent in world.agents)
    while not (result.done or result.truncated):
        result = world.step(first_moves(world, result))
        assert world.render() == world.render()
    assert world.render() != before or "holdem" in id, "a hand may end with a fold"
    if id.startswith("leduc"):
        assert str(world.render()).count("your card") == 2
    world.close()
    assert world.render() is None
