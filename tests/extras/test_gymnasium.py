"""Environments of Gymnasium, with the library itself (`make test-extras`)."""

from pathlib import Path
from typing import Any

import pytest
from worlds import can_be_forked, keeps_the_contract, played, trains

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.environments.connectors.gymnasium import GymnasiumEnvironment

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra gymnasium: make test-extras")
LAKE: dict[str, Any] = {"id": "FrozenLake-v1", "options": {"is_slippery": False}}
GAMES = ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "CartPole-v1"]


class Words(gymnasium.Env):
    """Pays 1 for the text that it shows, said back; it draws from every generator there is."""

    action_space = gymnasium.spaces.Text(8, charset="abc")
    observation_space = gymnasium.spaces.Text(8, charset="abc")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        import random

        import numpy as np

        super().reset(seed=seed)
        numbers = [self.np_random.integers(3), random.randrange(3), np.random.randint(3)]
        self.word = "".join("abc"[number] for number in numbers)
        self.left = 2
        return self.word, {}

    def step(self, action: str) -> Any:
        self.left -= 1
        right = action == self.word
        return self.word, float(right), right, self.left == 0, {}


class Broken(Words):
    def step(self, action: str) -> Any:
        return self.word, float("nan"), True, False, {}


class Levers(gymnasium.Env):
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])
    observation_space = gymnasium.spaces.Dict(
        {
            "board": gymnasium.spaces.Box(0, 9, (2, 2), dtype=int),
            "left": gymnasium.spaces.Discrete(9),
        }
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        import numpy as np

        super().reset(seed=seed)
        return {"board": np.eye(2, dtype=int), "left": 3}, {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], float(list(action) == [1, 2]), True, False, {}


for name, kind in (("Words-v0", Words), ("Broken-v0", Broken), ("Levers-v0", Levers)):
    gymnasium.register(name, entry_point=kind)


def test_contract() -> None:
    for id in GAMES:
        keeps_the_contract(lambda id=id: GymnasiumEnvironment(id, max_turns=20))
    keeps_the_contract(lambda: GymnasiumEnvironment("Words-v0"))
    keeps_the_contract(lambda: GymnasiumEnvironment("Levers-v0"))
    can_be_forked(GymnasiumEnvironment(**LAKE), "right", "right")
    can_be_forked(GymnasiumEnvironment("FrozenLake-v1"), "left", "")


def test_the_lake_by_hand() -> None:
    world = GymnasiumEnvironment(**LAKE)
    opening = world.reset(world.task(0)).observations["agent"].messages[0].content
    assert "left, down, right, up" in opening and "[S]FFF" in opening and "cell 0" in opening
    steps = [world.step({"agent": Message(text)}) for text in ("right", "I go right.", "Action: 2")]
    assert [step.rewards["agent"].value for step in steps] == [0.0] * 3
    assert "cell 3" in steps[-1].observations["agent"].messages[0].content
    for text in ("left", "down", "down", "down"):
        end = world.step({"agent": Message(text)})
    assert not end.done  # cell 14: the goal is to the right
    end = world.step({"agent": Message("right")})
    assert end.done and not end.truncated and end.rewards["agent"].value == 1.0


def test_the_expert_reaches_the_best_and_a_lazy_one_does_not() -> None:
    def expert(world: Any, seat: str, messages: Any) -> str:
        return world.expert(seat, messages)

    lake = GymnasiumEnvironment(**LAKE)
    assert played(lake, 0, expert)[1] == {"agent": 1.0}
    cliff = GymnasiumEnvironment("CliffWalking-v1")
    assert played(cliff, 0, expert)[1] == {"agent": -13.0}
    taxi = GymnasiumEnvironment("Taxi-v4")
    for seed in range(8):
        best = played(taxi, seed, expert)
        assert best[2].done and 3.0 <= best[1]["agent"] <= 15.0
        for lazy in ("", "north", "pickup"):
            assert (
                played(taxi, seed, lambda w, s, m, lazy=lazy: lazy)[1]["agent"] < best[1]["agent"]
            )
    assert GymnasiumEnvironment("Blackjack-v1").expert("agent", []) is None


def test_what_names_no_action_costs_the_penalty_and_the_world_goes_on() -> None:
    world = GymnasiumEnvironment("CliffWalking-v1", illegal=0.5)
    world.reset(world.task(0))
    answer = world.step({"agent": Message("up or down")})
    reward = answer.rewards["agent"]
    assert reward.value in (-1.5, -100.5) and reward.components["illegal"] == 1.0
    assert "names no action (up, right, down, left)" in (
        answer.observations["agent"].messages[0].content
    )
    for silent in ("", "up down", "7", "banana"):
        total = played(world, 1, lambda w, s, m, silent=silent: silent)[1]["agent"]
        assert total < 60 * -1.0  # no way out of paying for steps


def test_a_limit_is_no_end() -> None:
    _, _, end = played(
        GymnasiumEnvironment("FrozenLake-v1", max_turns=3, options={"is_slippery": False}),
        0,
        lambda w, s, m: "left",
    )
    assert end.truncated and not end.done
    own = GymnasiumEnvironment("Taxi-v4")
    assert own.max_turns == 200 and GymnasiumEnvironment("CliffWalking-v1").max_turns == 100
    _, _, end = played(GymnasiumEnvironment("Words-v0"), 0, lambda w, s, m: "cccccccc")
    assert end.truncated and not end.done


def test_text_and_several_numbers_are_actions_too() -> None:
    world = GymnasiumEnvironment("Words-v0", style="short")
    word = world.reset(world.task(0)).observations["agent"].messages[0].content
    assert world.step({"agent": Message(word)}).rewards["agent"].value == 1.0
    world.reset(world.task(0))
    refused = world.step({"agent": Message("xyz")})
    assert refused.rewards["agent"].value == -0.1
    words = {
        world.reset(world.task(seed)).observations["agent"].messages[0].content
        for seed in range(20)
    }
    assert len(words) > 5
    levers = GymnasiumEnvironment("Levers-v0")
    shown = levers.reset(levers.task(0)).observations["agent"].messages[0].content
    assert "1 0\n0 1" in shown and "left: 3" in shown
    assert levers.step({"agent": Message("[1, 2]")}).rewards["agent"].value == 1.0
    levers.reset(levers.task(0))
    assert levers.step({"agent": Message("[1, 3]")}).rewards["agent"].components["illegal"] == 1.0


def test_a_function_of_ones_own_draws() -> None:
    world = GymnasiumEnvironment(**LAKE, render=lambda seen, info, env: f"you are at {seen}")
    assert "you are at 0" in world.reset(world.task(0)).observations["agent"].messages[0].content


def test_global_generators_are_left_alone() -> None:
    import random

    random.seed(5)
    expected = random.Random(5).random()
    world = GymnasiumEnvironment("Words-v0")
    world.reset(world.task(0))
    assert random.random() == expected


def test_a_number_that_is_none_fails_the_episode() -> None:
    from mrlm.core.errors import EpisodeError

    world = GymnasiumEnvironment("Broken-v0")
    world.reset(world.task(0))
    with pytest.raises(EpisodeError, match="not a finite number"):
        world.step({"agent": Message("a")})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"id": "FrozenLak-v1"}, "FrozenLak"),
        ({"id": "Pendulum-v1"}, "its action space Box"),
        ({"id": "Taxi-v4", "actions": ["a", "b"]}, "6 different words"),
        ({"id": "Taxi-v4", "options": {"colour": 1}}, "cannot be created"),
        ({"id": "CartPole-v1", "render": "ansi"}, "no render mode"),
        ({"id": "Taxi-v4", "illegal": -1}, "illegal"),
    ],
)
def test_what_cannot_be_played_says_so(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GymnasiumEnvironment(**arguments)


def test_two_steps_of_training_from_yaml(tmp_path: Path) -> None:
    trains(tmp_path, {"env_type": "gymnasium", "style": "short", "max_turns": 4, **LAKE})
    trains(tmp_path / "ppo", {"env_type": "gymnasium", "id": "Taxi-v4", "max_turns": 3}, "ppo")


def test_the_board_is_the_last_drawing() -> None:
    world = GymnasiumEnvironment(**LAKE)
    assert world.render() == "", "nothing before the first episode"
    result = world.reset(world.task(0), 0)
    while not (result.done or result.truncated):
        board = world.render()
        assert board and result.observations["agent"].messages[-1].content.endswith(board)
        assert world.render("agent") is None, "the message has it"
        result = world.step({"agent": Message("down")})
    assert world.render() != board, "the end is drawn, too"
