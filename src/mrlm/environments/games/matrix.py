"""Matrix games: all agents choose an action at once; a table gives the joint action's reward."""

import itertools
import math
import random
import re
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any, Literal

from mrlm.core.board import Html, stacked, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.rows import RowTasks, agent_names, is_number, whole_number
from mrlm.environments.shared.short_answers import only_word

Game = Literal["climbing", "penalty", "xor", "bandit", "custom"]
CLIMBING = ((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0))
BANDIT = (0.0, 0.5, 1.0)
Joint = tuple[int, ...]
MOST_DRAWN = 32
"""Joint actions of a board, if they are not two players'."""


class MatrixEnvironment(RowTasks, Environment):
    """A cooperative matrix game: every agent answers with one word, its action, without seeing the
    others' answers, and all agents receive the table's reward of the joint action.

    `climbing` is `[[11, -30, 0], [-30, 7, 6], [0, 0, 5]]` and `penalty` is `[[10, 0, k], [0, 2, 0],
    [k, 0, 10]]` (Claus and Boutilier 1998); in both, miscoordination on the best joint action is
    punished. The reward of `xor` is 1 if an odd number of agents takes the second of two actions,
    which no sum of individual utilities can represent. `bandit` has one agent and the rewards `[0,
    0.5, 1]`. `custom` takes any table.

    An answer is an action if it is one of the words, ignoring case and surrounding punctuation, or
    if it contains exactly one of them as a whole word. Any other answer is illegal, and then the
    reward of all agents is `illegal`.

    The game has a single state, so that held-out tasks equal the training task.

    Args:
        game: name of the table.
        agents: names of the agents; by default `row` and `column` (one agent: `player`). `xor`
            accepts any number of them.
        payoffs: table of `custom` (and optionally of `bandit`): lists nested as deep as the number
            of agents, with numbers at the innermost level.
        k: reward of `penalty` for a miss; at most 0.
        actions: words of the actions; by default letters from `A`. An agent with n actions uses the
            first n.
        illegal: reward of an illegal answer; by default the lowest number of the table.
        normalized: scale rewards to `(x - low) / (high - low)`, over the table's lowest and highest
            number, divided by the number of rounds, so that the maximum return is 1.
        rounds: repetitions of the game in an episode; every agent sees the last joint action.
        teaches: behaviour of `expert`: the `best` joint action, or `any` legal word, which
            demonstrates only the answer format.

    Raises:
        ConfigError: the table, the agents and the words do not match.
    """

    reward_range: tuple[float, float] | None = (-30.0, 11.0)

    def __init__(
        self,
        game: Game = "climbing",
        agents: Sequence[str] | None = None,
        payoffs: Sequence[Any] | None = None,
        k: float = -10.0,
        actions: Sequence[str] | None = None,
        illegal: float | None = None,
        normalized: bool = False,
        rounds: int = 1,
        teaches: Literal["best", "any"] = "best",
    ) -> None:
        whole_number(1, rounds=rounds)
        table = _table(game, None if agents is None else len(agent_names(agents)), payoffs, k)
        sizes, rewards = _flattened(table)
        self.sizes: tuple[int, ...] = sizes
        self.payoffs: dict[Joint, float] = rewards
        count = len(sizes)
        several = tuple(f"player_{i + 1}" for i in range(count))
        default = {1: ("player",), 2: ("row", "column")}.get(count, several)
        self.agents: tuple[str, ...] = agent_names(agents or default, count)
        self.words: tuple[str, ...] = _words(actions, max(self.sizes))
        self.game: Game = game
        self.rounds: int = rounds
        self.max_turns: int | None = rounds
        low, high = min(self.payoffs.values()), max(self.payoffs.values())
        self.illegal: float = low if illegal is None else float(illegal)
        if not math.isfinite(self.illegal):
            raise ConfigError(f"illegal must be a finite number, not {illegal!r}")
        if normalized and low == high:
            raise ConfigError("normalized=true requires a table with two different numbers")
        self._low, self._span = (low, (high - low) * rounds) if normalized else (0.0, 1.0)
        self.best: Joint = max(self.payoffs, key=lambda joint: self.payoffs[joint])
        self.teaches: Literal["best", "any"] = teaches
        self._played: list[tuple[str, ...]] = []
        self._drawn = random.Random(0)

    def task(self, seed: int, split: Split = "train") -> Task:
        prompt = [Message(self.question(self.agents[0]))]
        return Task(f"matrix-{self.game}-{split}-{seed}", prompt, seed=seed)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._played = []
        self._drawn = random.Random(task.id if task is not None else seed)
        return StepResult(self._shown())

    def step(self, actions: dict[str, Message]) -> StepResult:
        texts = [stated_by(actions, agent) for agent in self.agents]
        joint = [self.action(agent, text) for agent, text in zip(self.agents, texts, strict=True)]
        legal = tuple(index for index in joint if index is not None)
        reward = self.payoffs[legal] if len(legal) == len(joint) else self.illegal
        self._played.append(tuple("?" if i is None else self.words[i] for i in joint))
        value = (reward - self._low) / self._span
        rewards = {
            agent: Reward(value, {"payoff": reward, "legal": float(index is not None)})
            for agent, index in zip(self.agents, joint, strict=True)
        }
        if len(self._played) == self.rounds:
            return StepResult(rewards=rewards, done=True)
        return StepResult(self._shown(), rewards)

    def action(self, agent: str, text: str) -> int | None:
        """Index of the action that an answer names; `None` if it names none, or several."""
        words = self._words_of(agent)
        named = only_word(text, words)
        return None if named is None else words.index(named)

    def question(self, agent: str) -> str:
        """The prompt of an agent."""
        return f"{agent}: {' '.join(self._words_of(agent))}?"

    def _words_of(self, agent: str) -> tuple[str, ...]:
        return self.words[: self.sizes[self.agents.index(agent)]]

    def state(self) -> str:
        played = "; ".join(" ".join(joint) for joint in self._played)
        return f"{self.game}, round {len(self._played) + 1} of {self.rounds}: {played or 'nothing'}"

    def render(self, agent: str | None = None) -> Html | None:
        """The table of rewards with the last joint action marked; an agent, which does not see the
        table, sees the joint actions so far."""
        if agent is not None:
            rows = [(number, *joint) for number, joint in enumerate(self._played, 1)]
            return table(rows, ("round", *self.agents)) if rows else None
        last = self._played[-1] if self._played else None
        drawn = self._grid(last) if len(self.sizes) == 2 else self._listed(last)
        now = f"round {len(self._played)} of {self.rounds}"
        return stacked(drawn, f"{now}: {' '.join(last)}" if last else "")

    def _cell(self, joint: Joint, last: tuple[str, ...] | None) -> tuple[float, str]:
        value = self.payoffs[joint]
        classes = ["num", *["good"] * (value == self.payoffs[self.best])]
        classes += ["move"] * (tuple(self.words[i] for i in joint) == last)
        return value, " ".join(classes)

    def _grid(self, last: tuple[str, ...] | None) -> Html:
        rows, columns = self.sizes
        cells = [
            [self.words[row], *(self._cell((row, column), last) for column in range(columns))]
            for row in range(rows)
        ]
        return table(cells, (" / ".join(self.agents), *self.words[:columns]))

    def _listed(self, last: tuple[str, ...] | None) -> Html:
        joints = list(self.payoffs)[:MOST_DRAWN]
        rows = [
            (*(self.words[action] for action in joint), self._cell(joint, last)) for joint in joints
        ]
        return table(rows, (*self.agents, "reward"))

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        if self.teaches == "any":
            return self._drawn.choice(self._words_of(agent))
        return self.words[self.best[self.agents.index(agent)]]

    def _shown(self) -> dict[str, Observation]:
        last = f"{' '.join(self._played[-1])}. " if self._played else ""
        return {agent: Observation([Message(last + self.question(agent))]) for agent in self.agents}


def _table(game: Game, num_agents: int | None, payoffs: Sequence[Any] | None, k: float) -> Any:
    """The rewards of a game as nested lists."""
    if payoffs is not None and game not in ("custom", "bandit"):
        raise ConfigError(f"game={game!r} has its own table; payoffs requires game='custom'")
    if game == "custom" and payoffs is None:
        raise ConfigError("game='custom' requires payoffs, such as [[1, 0], [0, 1]]")
    if payoffs is not None:
        return payoffs
    if game == "penalty":
        if not is_number(k) or k > 0:
            raise ConfigError(f"k must be a finite number of at most 0, not {k!r}")
        return [[10, 0, k], [0, 2, 0], [k, 0, 10]]
    if game == "xor":
        return _parity(num_agents or 2, 0)
    return CLIMBING if game == "climbing" else BANDIT


def _parity(levels: int, ones: int) -> Any:
    return ones % 2 if levels == 0 else [_parity(levels - 1, ones + i) for i in range(2)]


def _flattened(table: Any) -> tuple[tuple[int, ...], dict[Joint, float]]:
    """Numbers of actions of the agents, and joint action -> reward."""
    sizes, level = [], table
    while isinstance(level, list | tuple) and level:
        sizes.append(len(level))
        level = level[0]
    payoffs: dict[Joint, float] = {}
    for joint in itertools.product(*map(range, sizes)):
        value = table
        for index, size in zip(joint, sizes, strict=True):
            if not isinstance(value, list | tuple) or len(value) != size:
                raise ConfigError(
                    f"payoffs must be a full table with lists of equal length per level: {table!r}"
                )
            value = value[index]
        if not is_number(value):
            raise ConfigError(f"payoffs must hold finite numbers, not {value!r}")
        payoffs[joint] = float(value)
    if not sizes or max(sizes) < 2:
        raise ConfigError(f"payoffs must be lists with at least two numbers, not {table!r}")
    return tuple(sizes), payoffs


def _words(actions: Sequence[str] | None, count: int) -> tuple[str, ...]:
    words = tuple(ascii_uppercase[:count] if actions is None else actions)
    plain = not isinstance(actions, str) and all(
        isinstance(word, str) and re.fullmatch(r"\w+", word) for word in words
    )
    if not plain or len({word.casefold() for word in words}) != len(words) or len(words) < count:
        raise ConfigError(
            f"actions must be at least {count} different words of letters and digits, not {words!r}"
        )
    return words


PLUGIN = MatrixEnvironment
