"""Games of TextArena: the whole catalogue by name, a seat for every player."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.registry import unknown
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.libraries import Chance, called, finite, needed, said, seed_of
from mrlm.environments.shared.rows import at_least, seats

log: logging.Logger = logging.getLogger("mrlm")

TITLE = "the world textarena"
TRIED = (2, 1, *range(3, 16))
"""Numbers of players that are tried, in this order, where none is given."""
LOST = -1.0
"""What an invalid move that ends a game pays by default."""
MOST_LOGGED = 4_000
"""Characters of a game's record, from its end, that a critic reads."""


class TextArenaEnvironment(Environment):
    """A game of TextArena. Players speak one by one, as the game says; it pays when it is over.

    An agent is shown what is new since its last turn, each message after the name of who it is
    from, and not what it said itself. An invalid move costs `illegal`, the game says why and asks
    again; how often a game allows that, and what a player who goes on pays (usually it loses, at
    -1), is the game's own. An answer for which the game raises an error loses it like the last
    invalid move, and the log says so. An answer without brackets gets them where the game's
    defaults say so.

    Everything follows from the task, as far as a game draws from `random` or from numpy's global
    generator. A game that walks through a set of words does so in an order that changes from
    process to process, unless `PYTHONHASHSEED` is set. Training tasks have even seeds, held-out
    ones odd seeds; a game with one beginning has nothing to hold out. Games that need word lists
    fetch them with nltk when they are made; those with a jury ask a model on the network.

    Args:
        id: such as `TicTacToe-v0`.
        options: arguments of `textarena.make`, such as `{max_turns: 10}`.
        num_players: how many play; where not given, 2 if the game can be played so, else the least
            number.
        illegal: what an invalid move costs, besides what the game itself takes.
        max_turns: messages of all players, after which the episode is cut short and nobody is paid.
        agents: names of the seats; `player_0`, `player_1`, ... where not given (`player` alone).
        seed: another seed gives other tasks for the same task seed.

    Raises:
        ConfigError: the library is not installed, there is no such game, it cannot be made, or not
            with so many players.
    """

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
        needed("textarena", "textarena", TITLE)
        at_least("illegal", illegal, 0)
        at_least("max_turns", max_turns, 1, whole=True)
        self.id = id
        self.options: dict[str, Any] = dict(options or {})
        self.illegal: float = float(illegal)
        self.max_turns: int | None = max_turns
        self.seed = seed
        self.num_players: int = self._playable(num_players)
        names = ["player"] if self.num_players == 1 else range(self.num_players)
        default = [name if isinstance(name, str) else f"player_{name}" for name in names]
        self.agents: tuple[str, ...] = seats(agents or default, self.num_players)
        self._env: Any = None
        self._layers: list[Any] = []
        self._chance = Chance("")
        self._steps, self._mover = 0, 0

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"{self.id}-{self.num_players}-{self.seed}-{split}-{seed}"
        drawn = 2 * seed_of(name, bits=30) + (split == "eval")
        return Task(name, [Message(f"A game of {self.id}.")], seed=seed, info={"seed": drawn})

    def spawn(self) -> TextArenaEnvironment:
        fresh = copy.copy(self)
        fresh._env = None
        return fresh

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        drawn = int(task.info.get("seed", 2 * task.seed))
        self._chance = Chance(f"textarena/{self.id}/{drawn}")
        self._steps = 0
        with self._chance.held(), _quiet():
            self._env, self._layers = called(self._where, self._made)
            called(self._where, lambda: self._env.reset(num_players=self.num_players, seed=drawn))
            return StepResult(self._observed())

    def step(self, actions: dict[str, Message]) -> StepResult:
        seat, mover = self.agents[self._mover], self._mover
        text = said(actions.get(seat))
        self._steps += 1
        with self._chance.held(), _quiet():
            for layer in self._layers:
                text = called(self._where, lambda layer=layer, text=text: layer.action(text))
            try:
                done, _ = self._env.step(text)
            except Exception as error:
                log.warning("%s could not take an answer: %r", self._where, error)
                return StepResult(rewards=self._lost(seat), done=True)
            invalid = self._was_invalid(mover, bool(done))
            reward = Reward(-self.illegal * invalid, {"reward": 0.0, "illegal": float(invalid)})
            rewards = {seat: reward}
            if done:
                self._settle(rewards)
                return StepResult(rewards=rewards, done=True)
            if self._steps >= (self.max_turns or 0):
                return StepResult(rewards=rewards, truncated=True)
            return StepResult(self._observed(), rewards)

    def state(self) -> str:
        """The end of the game's record, with what only one player was told."""
        if self._env is None:
            return self.id
        lines = [f"[{self._name(sender)}] {text}" for sender, text in self._env.state.logs]
        return "\n".join(lines)[-MOST_LOGGED:]

    def _observed(self) -> dict[str, Observation]:
        """What is new for whoever speaks next."""
        player, told = called(self._where, self._env.get_observation)
        self._mover = int(player)
        lines = [
            f"[{self._name(sender)}] {text}" for sender, text, *_ in told if sender != self._mover
        ]
        text = "\n".join(lines) or "It is your turn."
        return {self.agents[self._mover]: Observation([Message(text)])}

    def _name(self, sender: int) -> str:
        known = getattr(self._env.state, "role_mapping", None) or {}
        return "GAME" if sender == -1 else str(known.get(sender, f"Player {sender}"))

    def _was_invalid(self, mover: int, done: bool) -> bool:
        state = vars(self._env.state)
        if done:
            return bool(state.get("game_info", {}).get(mover, {}).get("invalid_move"))
        count = state.get("error_count", 0)
        count = count.get(mover, 0) if isinstance(count, Mapping) else count
        return bool(count) and state.get("current_player_id") == mover

    def _lost(self, loser: str) -> dict[str, Reward]:
        """What is paid where an answer makes the game raise an error."""
        won = 1.0 if self.num_players == 2 else 0.0
        rewards = {seat: Reward(won, {"reward": won, "illegal": 0.0}) for seat in self.agents}
        crashed = {"reward": LOST, "illegal": 1.0, "crashed": 1.0}
        rewards[loser] = Reward(LOST - self.illegal, crashed)
        return rewards

    def _settle(self, rewards: dict[str, Reward]) -> None:
        """Pay everybody what the game pays when it is over."""
        paid, known = called(self._where, self._env.close)
        for player, seat in enumerate(self.agents):
            value = (paid or {}).get(player, 0.0)
            if isinstance(value, str) and (known or {}).get(player, {}).get("invalid_move"):
                value = LOST  # some games hand the reason over in the place of the number
            value = finite(value, self._where)
            reward = rewards.setdefault(seat, Reward(0.0, {"reward": 0.0, "illegal": 0.0}))
            reward.value += value
            reward.components["reward"] += value

    # -- games -------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"textarena {self.id}"

    def _made(self) -> tuple[Any, list[Any]]:
        """A game, and what wants to change answers before the game sees them."""
        import textarena  # pyright: ignore[reportMissingImports]

        env, layers = textarena.make(self.id, **self.options), []
        while isinstance(env, textarena.Wrapper):
            if isinstance(env, textarena.ActionWrapper):
                layers.append(env)
            env = env.env
        return env, layers

    def _playable(self, wanted: int | None) -> int:
        """How many can play the game.

        Raises:
            ConfigError: it cannot be made, or not with so many.
        """
        from textarena.envs.registration import ENV_REGISTRY  # pyright: ignore[reportMissingImports]

        if self.id not in ENV_REGISTRY:
            known = [name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train"))]
            raise ConfigError(f"textarena: {unknown(self.id, known, 'games')}")
        failed: Exception | None = None
        for number in TRIED if wanted is None else (wanted,):
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
        players = "" if wanted is None else f" with {wanted} players"
        why = " ".join(f"{type(failed).__name__}: {failed}".split())[:300]
        raise ConfigError(f"textarena: {self.id} cannot be played{players}: {why}")


@contextlib.contextmanager
def _quiet() -> Any:
    """What games print is no output of a run."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


PLUGIN = TextArenaEnvironment
