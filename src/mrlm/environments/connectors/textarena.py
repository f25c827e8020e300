"""Games of TextArena: the whole catalogue by name, with one agent per player."""

import contextlib
import copy
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.log import log
from mrlm.core.registry import unknown
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.connectors.libraries import Chance, LibraryEnvironment, called, finite, said
from mrlm.environments.shared.rows import agent_names, at_least

TRIED = (2, 1, *range(3, 16))
"""Numbers of players to try, in this order, if none is given."""
LOST = -1.0
"""Default reward of an invalid move that ends a game."""
MOST_LOGGED = 4_000
"""Number of characters at the end of a game's record that a critic reads."""


class TextArenaEnvironment(LibraryEnvironment):
    """A game of TextArena. Players act one at a time, in the game's order; rewards are given at the
    end.

    An agent's observation contains the messages of others since its last turn, each after the
    sender's name. An invalid move costs `illegal`, and the game gives the reason and lets the
    player retry; the number of retries and the result after the last (usually a loss, with reward
    -1) are the game's own. An answer on which the game raises an error loses like the last invalid
    move, with a log message. Missing brackets are added to an answer if the game's defaults do so.

    Episodes are reproducible from the task if the game draws from `random` or from numpy's global
    generator. Iteration over a set of words has a different order in every process, unless
    `PYTHONHASHSEED` is set. Training tasks have even seeds, held-out ones odd seeds; a game with a
    single initial state has no distinct held-out tasks. Games that need word lists download them
    with nltk when created; those with a jury query a model over the network.

    Args:
        id: id of the game, such as `TicTacToe-v0`.
        options: arguments of `textarena.make`, such as `{max_turns: 10}`.
        num_players: number of players; by default 2 if possible, else the smallest number.
        illegal: penalty of an invalid move, in addition to that of the game itself.
        max_turns: messages of all players after which the episode is truncated without rewards.
        agents: names of the agents; by default `player_0`, `player_1`, ... (one: `player`).
        seed: another seed gives other tasks for the same task seed.

    Raises:
        ConfigError: the library is not installed, the game does not exist, or it cannot be created
            (with this number of players).
    """

    library = "textarena"
    replayed = False

    def __init__(
        self,
        id: str,
        options: Mapping[str, Any] | None = None,
        num_players: int | None = None,
        illegal: float = 0.1,
        max_turns: int = 200,
        agents: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(id, options, seed, max_turns)
        at_least(0, illegal=illegal)
        self.opening: str = f"A game of {id}."
        self.illegal: float = float(illegal)
        self.num_players: int = self._playable(num_players)
        several = [f"player_{i}" for i in range(self.num_players)]
        default = ["player"] if self.num_players == 1 else several
        self.agents: tuple[str, ...] = agent_names(agents or default, self.num_players)
        self._series: str = f"{id}-{self.num_players}"
        self._layers: list[Any] = []
        self._mover = 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._begin(task, seed)
        with self._chance.held(), _quiet():
            self._env, self._layers = called(self._where, self._made)
            called(self._where, self._env.reset, num_players=self.num_players, seed=self._seed)
            return StepResult(self._observed())

    def step(self, actions: dict[str, Message]) -> StepResult:
        agent, mover = self.agents[self._mover], self._mover
        text = said(actions.get(agent))
        self._steps += 1
        with self._chance.held(), _quiet():
            for layer in self._layers:
                text = called(self._where, layer.action, text)
            flagged = self._flagged(mover)
            try:
                with _counted(self._env.state) as refusals:
                    done, _ = self._env.step(text)
            except Exception as error:
                log.warning("%s could not take an answer: %r", self._where, error)
                return StepResult(rewards=self._lost(agent), done=True)
            invalid = bool(refusals) or self._flagged(mover) > flagged
            reward = Reward(-self.illegal * invalid, {"reward": 0.0, "illegal": float(invalid)})
            rewards = {agent: reward}
            if done:
                self._settle(rewards)
                return StepResult(rewards=rewards, done=True)
            if self._out_of_time:
                return StepResult(rewards=rewards, truncated=True)
            return StepResult(self._observed(), rewards)

    def state(self) -> str:
        """The end of the game's record, including private messages."""
        if self._env is None:
            return self.id
        lines = [f"[{self._name(sender)}] {text}" for sender, text in self._env.state.logs]
        return "\n".join(lines)[-MOST_LOGGED:]

    def render(self, agent: str | None = None) -> str | None:
        """The game's own board, or else the end of its record; an agent's messages have its
        observations."""
        if agent is not None or self._env is None:
            return None
        drawn = getattr(self._env, "get_board_str", None)
        if drawn is None:
            return self.state()
        with copy.copy(self._chance).held(), _quiet():  # draws of random numbers are undone
            return str(called(self._where, drawn))

    def _observed(self) -> dict[str, Observation]:
        player, notice = called(self._where, self._env.get_observation)
        self._mover = int(player)
        lines = [
            f"[{self._name(sender)}] {text}" for sender, text, *_ in notice if sender != self._mover
        ]
        text = "\n".join(lines) or "It is your turn."
        return {self.agents[self._mover]: Observation([Message(text)])}

    def _name(self, sender: int) -> str:
        role_names = getattr(self._env.state, "role_mapping", None) or {}
        return "GAME" if sender == -1 else str(role_names.get(sender, f"Player {sender}"))

    def _flagged(self, mover: int) -> bool:
        """Whether the game has noted an invalid move of a player that ended its play."""
        info = getattr(self._env.state, "game_info", None) or {}
        return bool(info.get(mover, {}).get("invalid_move"))

    def _lost(self, loser: str) -> dict[str, Reward]:
        won = 1.0 if self.num_players == 2 else 0.0
        rewards = {agent: Reward(won, {"reward": won, "illegal": 0.0}) for agent in self.agents}
        crashed = {"reward": LOST, "illegal": 1.0, "crashed": 1.0}
        rewards[loser] = Reward(LOST - self.illegal, crashed)
        return rewards

    def _settle(self, rewards: dict[str, Reward]) -> None:
        payoffs, infos = called(self._where, self._env.close)
        for player, agent in enumerate(self.agents):
            value = (payoffs or {}).get(player, 0.0)
            if isinstance(value, str) and (infos or {}).get(player, {}).get("invalid_move"):
                value = LOST  # some games pass the reason instead of the number
            value = finite(value, self._where)
            reward = rewards.setdefault(agent, Reward(0.0, {"reward": 0.0, "illegal": 0.0}))
            reward.value += value
            reward.components["reward"] += value

    def _made(self) -> tuple[Any, list[Any]]:
        """A game, and the wrappers that modify answers before the game reads them."""
        import textarena  # pyright: ignore[reportMissingImports]

        env, layers = textarena.make(self.id, **self.options), []
        while isinstance(env, textarena.Wrapper):
            if isinstance(env, textarena.ActionWrapper):
                layers.append(env)
            env = env.env
        return env, layers

    def _playable(self, count: int | None) -> int:
        """A number of players with which the game can be played."""
        from textarena.envs.registration import ENV_REGISTRY  # pyright: ignore[reportMissingImports]

        if self.id not in ENV_REGISTRY:
            names = [name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train"))]
            raise ConfigError(f"textarena: {unknown(self.id, names, 'games')}")
        failed: Exception | None = None
        for number in TRIED if count is None else (count,):
            with Chance(self.id).held(), _quiet():
                try:
                    self._made()[0].reset(num_players=number, seed=0)
                except AssertionError as error:
                    failed = failed or error
                except Exception as error:
                    failed = error
                    break
                else:
                    return number
        players = "" if count is None else f" with {count} players"
        why = " ".join(f"{type(failed).__name__}: {failed}".split())[:300]
        raise ConfigError(f"textarena: {self.id} cannot be played{players}: {why}")


@contextlib.contextmanager
def _counted(state: Any) -> Iterator[list[None]]:
    """Count the moves that a game declares invalid: its own counter is reset by some games, and
    another player may be next."""
    refusals: list[None] = []
    declare = getattr(state, "set_invalid_move", None)
    if declare is None:
        yield refusals
        return

    def counted(*args: Any, **kwargs: Any) -> Any:
        refusals.append(None)
        return declare(*args, **kwargs)

    state.set_invalid_move = counted
    try:
        yield refusals
    finally:
        del state.set_invalid_move  # the method of the class again, which copies of the game need


@contextlib.contextmanager
def _quiet() -> Any:
    """Suppress the standard output of games."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


PLUGIN = TextArenaEnvironment
