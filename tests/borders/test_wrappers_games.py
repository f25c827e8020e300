"""Worlds of other libraries, played beside the library's own loop: equal rewards and ends."""

import random
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest

from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Role
from mrlm.environments.connectors.libraries import Chance
from mrlm.environments.connectors.pettingzoo import PettingZooEnvironment
from mrlm.environments.connectors.spaces import Actions
from mrlm.environments.connectors.textarena import TextArenaEnvironment

TITLE = "Games of PettingZoo, Gymnasium and TextArena"
JUDGE = "pettingzoo, gymnasium and textarena (their own loops)"
DIFFERENCES = (
    "an invalid move costs `illegal` beside the reward of the game, because a retry is free there",
    "an error of a game is a loss of the player whose move caused it; their loop ends",
)


def counting(cumulative: bool, cut: bool = False) -> Any:
    """A game of two players who count to four; its rewards are in one place only."""
    pettingzoo = pytest.importorskip("pettingzoo")
    gymnasium = pytest.importorskip("gymnasium")

    class Counting(pettingzoo.AECEnv):
        metadata = {"name": "counting"}  # noqa: RUF012
        possible_agents = ["a", "b"]  # noqa: RUF012

        def __init__(self) -> None:
            super().__init__()
            space = gymnasium.spaces.Discrete(3)
            self.action_spaces = dict.fromkeys(self.possible_agents, space)
            self.observation_spaces = self.action_spaces

        def action_space(self, agent: str) -> Any:
            return self.action_spaces[agent]

        def observation_space(self, agent: str) -> Any:
            return self.observation_spaces[agent]

        def observe(self, agent: str) -> int:
            return self.count % 3

        def reset(self, seed: int | None = None, options: Any = None) -> None:
            self.agents, self.count = list(self.possible_agents), 0
            for name in ("rewards", "_cumulative_rewards"):
                setattr(self, name, dict.fromkeys(self.agents, 0.0))
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos = {p: {} for p in self.agents}
            self.agent_selection = "a"

        def step(self, action: Any) -> None:
            me = self.agent_selection
            if self.terminations[me] or self.truncations[me]:
                self._was_dead_step(action)
                return
            other = "b" if me == "a" else "a"
            self.count += 1
            self._cumulative_rewards[me] = 0.0
            gains = {me: 0.1 * (action + 1), other: -0.1 * action}
            if cumulative:
                for player, gain in gains.items():
                    self._cumulative_rewards[player] += gain
            else:
                self.rewards = gains
                self._accumulate_rewards()
            if self.count == 4:
                self.terminations = dict.fromkeys(self.agents, True)
                self.truncations = dict.fromkeys(self.agents, cut)
            self.agent_selection = other

    return Counting


def own_loop(env: Any, moves: list[int]) -> dict[str, float]:
    """The rewards that the library's own loop reads."""
    env.reset(seed=0)
    earned = dict.fromkeys(env.possible_agents, 0.0)
    left = iter(moves)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        earned[agent] += reward
        env.step(None if terminated or truncated else next(left))
    return earned


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_rewards_and_the_end_are_those_of_the_loop(
    cumulative: bool, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = counting(cumulative, cut)
    monkeypatch.setattr("mrlm.core.registry.load", lambda *_: make)
    moves = [2, 1, 0, 2]
    env = PettingZooEnvironment("counting:env", parallel=False, illegal=0.0)
    result, earned = env.reset(env.task(0), 0), dict.fromkeys("ab", 0.0)
    for move in moves:
        (agent,) = result.observations
        result = env.step({agent: Message(str(move), Role.ASSISTANT)})
        for name, reward in result.rewards.items():
            earned[name] += reward.value
    assert earned == pytest.approx(own_loop(make(), moves))
    assert result.done and not result.truncated  # both ends in one step: as in Gymnasium


def test_a_space_with_a_start_describes_what_it_contains() -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    for start in ([0, 0], [1, -2]):
        space = spaces.MultiDiscrete([3, 4], start=start)
        actions = Actions(space, None, "world")
        first, last = (f"{s}" for s in (start, [start[0] + 3, start[1] + 4]))
        assert (first in actions.listed()) == any(start) and f"below {last}" in actions.listed()
        for a in range(-3, 6):
            for b in range(-3, 6):
                inside = start[0] <= a < start[0] + 3 and start[1] <= b < start[1] + 4
                assert (actions.named(f"{a} {b}") is not None) == inside


GAMES = ["TicTacToe-v0", "Nim-v0", "ConnectFour-v0", "Othello-v0", "Minesweeper-v0", "Poker-v0"]


@pytest.mark.parametrize("game", GAMES)
def test_every_move_that_the_game_declares_invalid_has_its_cost(
    game: str, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    pytest.importorskip("textarena")
    env = TextArenaEnvironment(game, illegal=0.25, max_turns=40)
    rng, moves = random.Random(game), 0
    for seed in range(4):
        result = env.reset(env.task(seed), seed)
        declared: list[int] = []
        kind = type(env._env.state)
        original = kind.set_invalid_move

        def noted(
            self: Any, *args: Any, _call: Any = original, _list: Any = declared, **kwargs: Any
        ) -> Any:
            _list.append(1)
            return _call(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "set_invalid_move", noted)
            while result.observations:
                (agent,) = result.observations
                declared.clear()
                text = rng.choice(["[0]", "[1 1]", "[4]", "no", "[e2e4]", "[check]", "[Fold]"])
                result = env.step({agent: Message(text, Role.ASSISTANT)})
                parts = result.rewards[agent].components
                crashed = "crashed" in parts  # the game raised an error instead
                assert parts["illegal"] == float(bool(declared) or crashed)
                moves += 1
    record_property("cases", moves)


PLAYED = {
    *("TicTacToe-v0", "Nim-v0", "ConnectFour-v0", "KuhnPoker-v0", "PigDice-v0", "Mastermind-v0"),
    *("Othello-v0-tiny", "Stratego-v0", "FrozenLake-v0", "ThreePlayerTicTacToe-v0"),
}
ENDLESS = {"PublicGoodsGame"}
"""Games whose own code looks forever for the next player when all are out."""
MOVES = ["[0]", "[1]", "[4]", "[0 1]", "[1 1]", "[2 3]", "[e2e4]", "[check]", "[fold]", "[roll]"]


def catalogue() -> list[Any]:
    registration = pytest.importorskip("textarena.envs.registration")
    names = [n for n in registration.ENV_REGISTRY if not n.endswith(("-raw", "-train"))]
    first = {name.partition("-v")[0]: name for name in reversed(names)}  # of its difficulties
    chosen = sorted({*PLAYED, *(first[game] for game in first.keys() - ENDLESS)})
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in PLAYED)) for name in chosen]


def playable(game: str) -> Any:
    try:
        return TextArenaEnvironment(game, illegal=0.0, max_turns=60)
    except ConfigError as error:
        pytest.skip(f"it cannot be played here: {error}"[:120])


@pytest.mark.parametrize("game", catalogue())
def test_rewards_of_games_are_those_of_their_own_loop(game: str, record_property: Any) -> None:
    """The same moves, which are right and wrong, in both loops: equal ends and rewards."""
    textarena, env = pytest.importorskip("textarena"), playable(game)
    for seed in range(3):
        rng, moves, result = random.Random(f"{game}{seed}"), [], env.reset(env.task(seed), seed)
        earned = dict.fromkeys(env.agents, 0.0)
        while result.observations:
            (agent,) = result.observations
            moves.append(rng.choice(MOVES))
            result = env.step({agent: Message(moves[-1], Role.ASSISTANT)})
            for name, reward in result.rewards.items():
                earned[name] += reward.value
        if any("crashed" in reward.components for reward in result.rewards.values()):
            continue  # the game raised an error, where its own loop ends the program
        with Chance(env._key).held(), redirect_stdout(StringIO()):
            theirs = textarena.make(game)
            theirs.reset(num_players=env.num_players, seed=env._seed)
            for move in moves:
                theirs.get_observation()
                done, _ = theirs.step(action=move)
            assert done == result.done
            rewards, infos = theirs.close() if done else ({}, {})
        for player, agent in enumerate(env.agents):
            value = (rewards or {}).get(player, 0.0)
            if isinstance(value, str) and infos[player].get("invalid_move"):
                value = -1.0  # the game passes the reason instead of the number
            assert earned[agent] == pytest.approx(float(value)), (agent, moves)
    record_property("cases", 3)
