"""PettingZoo environments, turn by turn (AEC) or simultaneous (Parallel): observations are rendered
as text, and answers are parsed as actions."""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from mrlm.core import registry
from mrlm.core.content import content
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.connectors.libraries import (
    LibraryEnvironment,
    by_prefix,
    called,
    finite,
    said,
)
from mrlm.environments.connectors.spaces import Actions, legal_in, shown
from mrlm.environments.shared.games import Style
from mrlm.environments.shared.rows import agent_names, at_least, one_of

MOST_SHOWN = 4_000
"""Maximum number of characters of an observation; longer ones need a custom `render`."""
ROUNDING = 1e-9
"""Error of a difference of two sums of rewards."""
_TABLES = content(__file__)
ACTIONS: dict[str, str] = _TABLES["actions"]
"""Prefix of an id -> names of its actions."""
LEGENDS: dict[str, str] = _TABLES["legends"]


class PettingZooEnvironment(LibraryEnvironment):
    """A PettingZoo environment with all its agents. The reward of each agent for a step is that of
    the environment.

    In an AEC environment the selected agent acts; in a Parallel one all agents at once. Prompts
    list the legal actions if the environment has an `action_mask`. An answer that names no legal
    action costs `illegal`, the agent is notified, and a legal action is drawn instead, determined
    by the task: an unparseable answer is never better than a parseable one with the same action. An
    episode that the environment terminates is done; one that it truncates, or that reaches
    `max_turns` steps, is truncated.

    Episodes are reproducible from the task if the environment draws from the seed of its `reset`,
    from `random` or from numpy's global generator. Training tasks have even seeds, held-out ones
    odd seeds; a game with a single initial state (connect four) has no distinct held-out tasks.

    Args:
        id: a game of `pettingzoo.classic`, such as `tictactoe_v3`; a module with `env` or
            `parallel_env`, such as `my_package.game_v0`; or `module:function` of a factory.
        options: keyword arguments of `env` or `parallel_env`.
        parallel: use the Parallel API; by default if the module has it.
        actions: a word for every action; known for some games, else numbers.
        render: text form of an observation: a function `f(observation, agent, env) -> str`, in a
            config `module:function`; by default the game's own drawing (`ansi`), or boards and
            numbers.
        instructions: first message to all agents; by default the list of actions.
        illegal: penalty of an answer that names no legal action.
        max_turns: maximum number of joint steps of an episode.
        style: `short`: only the observation and the legal actions, without instructions.
        agents: names of the agents; by default those of the environment.
        seed: another seed gives other tasks for the same task seed.

    Raises:
        ConfigError: the library is not installed, the environment does not exist, or its actions
            cannot be named by text.
    """

    library = "pettingzoo"

    def __init__(
        self,
        id: str,
        options: Mapping[str, Any] | None = None,
        parallel: bool | None = None,
        actions: Sequence[str] | None = None,
        render: str | Callable[..., str] | None = None,
        instructions: str | None = None,
        illegal: float = 0.5,
        max_turns: int = 200,
        style: Style = "full",
        agents: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(id, options, seed, max_turns)
        one_of("style", style, ("full", "short"))
        at_least(0, illegal=illegal)
        self._drawing: str | Callable[..., str] | None = render
        self.illegal: float = float(illegal)
        self.style: Style = style
        self._make, self.parallel = _maker(id, parallel)
        env = self._made()
        self.players: tuple[str, ...] = tuple(env.possible_agents)
        self.agents: tuple[str, ...] = agent_names(agents or self.players, len(self.players))
        short = id.rsplit(".", 1)[-1]
        names = actions if actions is not None else by_prefix(ACTIONS, short).split() or None
        self.actions: dict[str, Actions] = {
            player: Actions(env.action_space(player), names, self._where) for player in self.players
        }
        notice = f"{short}. In every turn answer with one of the actions you are told. "
        notice = (notice + by_prefix(LEGENDS, short)).strip()
        self.instructions: str = notice if instructions is None else instructions
        self.opening: str = self.instructions or id
        env.close()
        self._met: frozenset[str] = frozenset()
        self._asked: dict[str, list[int] | None] = {}
        self._told: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._begin(task, seed)
        self._met, self._told = frozenset(), {}
        with self._chance.held():
            self._env = self._env or self._made()
            begun = self._restart()
            seen = begun if self.parallel else (None, None)
            return StepResult(self._observed(*seen))

    def step(self, actions: dict[str, Message]) -> StepResult:
        players = dict(zip(self.agents, self.players, strict=True))
        spoken = {players[agent]: said(message) for agent, message in actions.items()}
        rewards: dict[str, Reward] = {}
        chosen = {player: self._chosen(player, spoken, rewards) for player in self._asked}
        self._steps += 1
        self._done.append(chosen)
        with self._chance.held():
            observations, raw_rewards, ended, cut, infos = self._repeat(chosen)
            for player, value in raw_rewards.items():
                self._pay(rewards, player, finite(value, self._where))
            if not self._env.agents or all(ended.get(p) or cut.get(p) for p in self._env.agents):
                short = any(cut[player] and not ended.get(player) for player in cut)
                return StepResult(rewards=rewards, done=not short, truncated=short)
            if self._out_of_time:
                return StepResult(rewards=rewards, truncated=True)
            return StepResult(self._observed(observations, infos), rewards)

    def state(self) -> str:
        if self._env is None or not self._env.agents:
            return f"{self.id}: over"
        seen = self._views(self._env.agents).items()
        return "\n".join(f"{self._agent(player)}: {text}" for player, text in seen)

    def render(self, agent: str | None = None) -> str | None:
        """The game's own drawing, or the observations of its players; an agent's messages have its
        observations."""
        if agent is not None or self._env is None:
            return None
        with copy.copy(self._chance).held():  # draws of random numbers are undone
            if getattr(self._env, "render_mode", None) == "ansi":
                return str(called(self._where, self._env.render))
            seen = self._views(self.players).items()
        return "\n".join(f"{self._agent(player)}:\n{text}" for player, text in seen)

    def _views(self, players: Sequence[str]) -> dict[str, str]:
        """Player -> the text of what it observes now."""
        if self.parallel:
            return self._seen
        return {name: self._rendered(self._env.observe(name), name) for name in players}

    def _observed(self, observations: Any, infos: Any) -> dict[str, Observation]:
        self._asked, self._seen = {}, {}
        result: dict[str, Observation] = {}
        for player in self._env.agents if self.parallel else [self._env.agent_selection]:
            if self.parallel:
                seen, info = observations[player], infos.get(player, {})
            else:
                seen, info = self._env.observe(player), self._env.infos.get(player, {})
            legal = legal_in(info, seen)
            self._asked[player] = legal
            self._seen[player] = self._rendered(seen, player)
            parts = [self._told.pop(player, "")]
            if self.style == "full" and player not in self._met:
                parts.append(f"{self.instructions}\nYou are {self._agent(player)}.")
            self._met |= {player}
            listed = self.actions[player].listed(legal)
            parts += [self._seen[player], f"Actions: {listed}"]
            result[self._agent(player)] = Observation([Message("\n".join(filter(None, parts)))])
        return result

    def _rendered(self, seen: Any, player: str) -> str:
        if self._drawing is not None:
            return self._user_text(seen, player, self._env)
        if getattr(self._env, "render_mode", None) == "ansi":
            text = str(called(self._where, self._env.render))
        else:
            text = _board(self.id, seen) or shown(seen)
        if len(text) > MOST_SHOWN:
            raise ConfigError(
                f"pettingzoo {self.id}: an observation has {len(text)} characters as text; "
                "set render to a function that writes a shorter one"
            )
        return text

    def _chosen(self, player: str, spoken: Mapping[str, str], rewards: dict[str, Reward]) -> Any:
        actions, legal = self.actions[player], self._asked[player]
        action = actions.named(spoken.get(player, ""), legal)
        self._pay(rewards, player, 0.0)
        if action is not None:
            return action
        action = actions.drawn(self._draws, legal)
        self._pay(rewards, player, 0.0, illegal=True)
        listed, taken = actions.listed(legal), actions.word(action)
        notice = f"That named no legal action ({listed}). {taken} was taken instead."
        self._told[player] = "!" if self.style == "short" else notice
        return action

    def _pay(
        self, rewards: dict[str, Reward], player: str, value: float, illegal: bool = False
    ) -> None:
        none = Reward(0.0, {"reward": 0.0, "illegal": 0.0})
        reward = rewards.setdefault(self._agent(player), none)
        reward.value += value - self.illegal * illegal
        reward.components["reward"] += value
        reward.components["illegal"] += float(illegal)

    def _repeat(self, action: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step the environment; returns observations, rewards, terminations, truncations and infos
        by player. An AEC environment is queried for the first and the last."""
        env = self._env
        if self.parallel:
            return called(self._where, env.step, action)
        before = dict(env._cumulative_rewards)
        called(self._where, env.step, *action.values())
        rewards = dict(env.rewards)
        for player, total in env._cumulative_rewards.items():  # some fill only these
            gained = total - (0.0 if player in action else before.get(player, 0.0))
            if abs(gained - rewards.get(player, 0.0)) > ROUNDING:
                rewards[player] = gained
        answer = None, rewards, dict(env.terminations), dict(env.truncations), None
        while env.agents and (
            env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
        ):
            called(self._where, env.step, None)  # finished agents must step with None
        return answer

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = super().__deepcopy__(memo)
        for name in ("_asked", "_told", "_seen"):
            setattr(twin, name, copy.copy(getattr(self, name)))
        return twin

    def _agent(self, player: str) -> str:
        return self.agents[self.players.index(player)]

    def _made(self) -> Any:
        try:
            env = self._make(**self.options)
            modes = env.metadata.get("render_modes") or ()
            if self._drawing is None and "ansi" in modes and "render_mode" not in self.options:
                env = self._make(**self.options, render_mode="ansi")
        except (ImportError, TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"pettingzoo: {self.id} cannot be created: {error}") from error
        return env


def _maker(id: str, parallel: bool | None) -> tuple[Callable[..., Any], bool]:
    """The factory of the environment, and whether it creates a Parallel one."""
    import pettingzoo  # pyright: ignore[reportMissingImports]

    if ":" in id:
        make = registry.load("environments", id)
        return make, isinstance(make(), pettingzoo.ParallelEnv) if parallel is None else parallel
    name = id if "." in id else f"pettingzoo.classic.{id}"
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        missing = getattr(error, "name", None) or ""
        hint = "" if name.startswith(missing) else ' (pip install "mrlm[pettingzoo]")'
        raise ConfigError(f"pettingzoo: {id!r} cannot be imported: {error}{hint}") from error
    both = {True: getattr(module, "parallel_env", None), False: getattr(module, "env", None)}
    is_parallel = both[True] is not None if parallel is None else parallel
    make = both[is_parallel]
    if make is None:
        kind = "parallel_env" if is_parallel else "env"
        raise ConfigError(f"pettingzoo: {name} has no {kind}")
    return make, is_parallel


def _board(id: str, seen: Any) -> str | None:
    """The board of tic-tac-toe with its free cells as numbers, the cards of hold'em, or the last
    move in rock, paper, scissors; `None` for other games."""
    name = id.rsplit(".", 1)[-1]
    if name.startswith("tictactoe"):
        planes = np.asarray(seen["observation"])
        signs = [
            "X" if mine else "O" if theirs else str(cell)
            for cell, (mine, theirs) in enumerate(planes.reshape(9, 2).tolist())
        ]
        return "\n".join(" ".join(signs[row : row + 3]) for row in (0, 3, 6))
    if name.startswith(("leduc_holdem", "texas_holdem")):
        return _cards(name, np.asarray(seen["observation"]).ravel().tolist())
    if name.startswith("rps"):
        words = ACTIONS["rps"].split()
        last = int(np.asarray(seen))
        return f"The other played {words[last]}." if last < 3 else "Nothing was played yet."
    return None


def _cards(name: str, numbers: list[Any]) -> str:
    """The cards that a player of hold'em sees, and the chips bet."""
    if name.startswith("leduc"):
        mine, public, chips = numbers[:3], numbers[3:6], (numbers[6:21], numbers[21:36])
        held = " ".join(card for card, visible in zip("JQK", mine, strict=True) if visible)
        shown_card = "".join(card for card, visible in zip("JQK", public, strict=True) if visible)
        stake, other = (half.index(1) if 1 in half else 0 for half in chips)
        return f"your card: {held}; public card: {shown_card or 'none'}; chips: {stake} and {other}"
    deck = [rank + suit for suit in "shdc" for rank in "A23456789TJQK"]
    visible = " ".join(card for card, there in zip(deck, numbers[:52], strict=True) if there)
    if "no_limit" in name:
        return f"cards you know: {visible}; chips: {numbers[52]:g} and {numbers[53]:g}"
    rounds = [numbers[start : start + 5] for start in range(52, 72, 5)]
    raises = " ".join(str(part.index(1)) if 1 in part else "0" for part in rounds)
    return f"cards you know: {visible}; raises by round: {raises}"


PLUGIN = PettingZooEnvironment
