"""Games of TextArena, with the library itself (`make test-extras`)."""

from pathlib import Path
from typing import Any

import pytest
from worlds import can_be_forked, keeps_the_contract, played, trains

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.environments.connectors.textarena import TextArenaEnvironment

pytest.importorskip("textarena", reason="needs the extra textarena: make test-extras")
GAMES = {
    "TicTacToe-v0": 2, "ConnectFour-v0": 2, "KuhnPoker-v0": 2, "LiarsDice-v0-small": 2,
    "SimpleNegotiation-v0-short": 2, "IteratedPrisonersDilemma-v0": 2, "Nim-v0": 2,
    "GuessTheNumber-v0": 1, "FrozenLake-v0": 1, "2048-v0-ultra-easy": 1, "ThreePlayerIPD-v0": 3,
    "SecretMafia-v0": 6, "Countdown-v0": 1,
}  # fmt: skip
"""Games of every kind, and how many play them."""


def test_contract() -> None:
    for id in GAMES:
        keeps_the_contract(lambda id=id: TextArenaEnvironment(id))
    can_be_forked(TextArenaEnvironment("TicTacToe-v0"), "[4]", "[0]")


def test_how_many_play() -> None:
    for id, number in GAMES.items():
        assert (
            TextArenaEnvironment(id).num_players == number == len(TextArenaEnvironment(id).agents)
        )
    poker = TextArenaEnvironment("Poker-v0-small", num_players=4, agents=["a", "b", "c", "d"])
    assert set(poker.reset(poker.task(0)).observations) < set("abcd")
    assert TextArenaEnvironment("GuessTheNumber-v0").agents == ("player",)


def test_tic_tac_toe_by_hand() -> None:
    world = TextArenaEnvironment("TicTacToe-v0")
    opening = world.reset(world.task(0)).observations
    assert (
        list(opening) == ["player_0"] and "Tic Tac Toe" in opening["player_0"].messages[0].content
    )
    result = world.step({"player_0": Message("[0]")})
    (seen,) = result.observations.items()
    assert seen[0] == "player_1" and "[0]" in seen[1].messages[0].content
    for seat, move in (("player_1", "[4]"), ("player_0", "1"), ("player_1", "[8]")):
        result = world.step({seat: Message(move)})  # brackets are put around the 1
        assert not result.done
    text = result.observations["player_0"].messages[0].content
    assert "[8]" in text and "[Player 0]" not in text
    end = world.step({"player_0": Message("[2]")})
    assert end.done and {seat: each.value for seat, each in end.rewards.items()} == {
        "player_0": 1.0,
        "player_1": -1.0,
    }


def test_an_invalid_move_costs_and_is_asked_for_again_and_then_loses() -> None:
    world = TextArenaEnvironment("TicTacToe-v0", illegal=0.25)
    world.reset(world.task(0))
    again = world.step({"player_0": Message("[99]")})
    assert again.rewards["player_0"].value == -0.25 and not again.done
    assert list(again.observations) == ["player_0"]
    assert "invalid move" in again.observations["player_0"].messages[0].content
    lost = world.step({"player_0": Message("hello")})
    assert lost.done and lost.rewards["player_0"].value == -1.25
    assert lost.rewards["player_0"].components == {"reward": -1.0, "illegal": 1.0}
    assert lost.rewards["player_1"].value == 1.0
    fine = world.reset(world.task(0)) and world.step({"player_0": Message("[4]")})
    assert fine.rewards["player_0"].value == 0.0


def test_a_limit_is_no_end_and_pays_nobody() -> None:
    _, total, end = played(
        TextArenaEnvironment("IteratedPrisonersDilemma-v0", max_turns=3), 0, lambda w, s, m: "hello"
    )
    assert end.truncated and not end.done and total == {"player_0": 0.0, "player_1": 0.0}


def test_seeds_are_honoured() -> None:
    world = TextArenaEnvironment("KuhnPoker-v0")
    hands = [
        world.reset(world.task(seed)).observations.popitem()[1].messages[0].content
        for seed in range(12)
    ]
    assert len(set(hands)) > 1
    again = world.spawn().reset(world.task(5)).observations.popitem()[1]
    assert hands[5] == again.messages[0].content
    assert {world.task(s).info["seed"] % 2 for s in range(20)} == {0}
    assert {world.task(s, "eval").info["seed"] % 2 for s in range(20)} == {1}


def test_the_state_is_the_whole_record() -> None:
    world = TextArenaEnvironment("KuhnPoker-v0")
    (seat,) = world.reset(world.task(0)).observations
    world.step({seat: Message("[check]")})
    assert "[check]" in world.state() and world.state().count("Your card") >= 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"id": "TicTacTo-v0"}, "did you mean 'TicTacToe-v0'"),
        ({"id": "TicTacToe-v0", "num_players": 3}, "cannot be played with 3 players"),
        ({"id": "TicTacToe-v0", "options": {"size": 9}}, "cannot be played"),
        ({"id": "TicTacToe-v0", "agents": ["a"]}, "environment has 2, but"),
    ],
)
def test_what_cannot_be_played_says_so(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TextArenaEnvironment(**arguments)


def test_two_steps_of_training_from_yaml(tmp_path: Path) -> None:
    trains(tmp_path, {"env_type": "textarena", "id": "TicTacToe-v0"})
    trains(tmp_path / "ppo", {"env_type": "textarena", "id": "GuessTheNumber-v0"}, "ppo")


@pytest.mark.parametrize("id", GAMES)
def test_the_board_is_the_game_s_own_or_its_record(id: str) -> None:
    world = TextArenaEnvironment(id).spawn()
    assert world.render() is None
    result = world.reset(world.task(0), 0)
    for _ in range(4):
        assert world.render() and world.render() == world.render()
        if result.done or result.truncated:
            break
        result = world.step({agent: Message("[1]") for agent in result.observations})
    assert all(world.render(agent) is None for agent in world.agents)
