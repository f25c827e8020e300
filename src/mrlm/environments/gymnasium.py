"""Gymnasium environments with actions that text can name: observations are rendered as text, and
answers are parsed as actions."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrlm.core import registry
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.games import Style, one_of
from mrlm.environments.shared.libraries import Chance, called, finite, needed, said, seed_of
from mrlm.environments.shared.rows import at_least, seats
from mrlm.environments.shared.spaces import Actions, legal_in, shown

TITLE = "the world gymnasium"
Render = Callable[..., str]
NO_LIMIT = 100
"""Default step limit of an environment without one."""
ACTIONS = {
    "FrozenLake": "left down right up",
    "Taxi": "south north east west pickup dropoff",
    "CliffWalking": "up right down left",
    "Blackjack": "stick hit",
    "CartPole": "left right",
    "MountainCar": "left none right",
    "Acrobot": "minus none plus",
}
"""Prefix of an id -> names of its actions."""
_MARKED = re.compile(r"\x1b\[(?:\d+;)*4\d(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
_CODES = re.compile(r"\x1b\[[\d;]*m")


class GymnasiumEnvironment(Environment):
    """A Gymnasium environment with one agent. The reward of a step is that of the environment.

    An answer that names no action costs `illegal`, the agent is notified, and a random action from
    the action space (from the legal ones, if the environment reports an `action_mask`) is taken
    instead: an unparseable answer is never better than a parseable one with the same action.
    `terminated` ends an episode; `truncated` and `max_turns` truncate it.

    Episodes are reproducible from the task if the environment draws from its `np_random`, from
    `random` or from numpy's global generator. Training tasks have even seeds, held-out ones odd
    seeds; in an environment with a single initial state (FrozenLake, CliffWalking) they differ only
    in later random draws. If the environment has a transition table `P` (FrozenLake, Taxi,
    CliffWalking), `expert` plays the best action by value iteration.

    Args:
        id: id of a registered environment, such as `FrozenLake-v1`; `module:Name-v0` imports the
            module first.
        options: keyword arguments of `gymnasium.make`, such as `{is_slippery: false}`.
        actions: a word for every action; known for the toy-text environments, else numbers.
        render: text form of an observation: `ansi` (the environment's own drawing, with coloured
            parts in brackets), `observation` (the numbers), `auto` (`ansi` if available, with the
            numbers), or a function `f(observation, info, env) -> str`, in a config
            `module:function`.
        instructions: first message to the agent; by default the list of actions.
        illegal: penalty of an answer that names no action.
        max_turns: steps of an episode; by default the environment's own limit, else 100.
        style: `short`: only the observation, without instructions, for small models.
        agents: name of the agent.
        seed: another seed gives other tasks for the same task seed.

    Raises:
        ConfigError: the library is not installed, the environment does not exist, or its actions
            cannot be named by text.
    """

    def __init__(
        self,
        id: str,
        options: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        render: str | Render = "auto",
        instructions: str | None = None,
        illegal: float = 0.1,
        max_turns: int | None = None,
        style: Style = "full",
        agents: str | Sequence[str] = "agent",
        seed: int = 0,
    ) -> None:
        needed("gymnasium", "gymnasium", TITLE)
        one_of("style", style, ("full", "short"))
        at_least("illegal", illegal, 0)
        if max_turns is not None:
            at_least("max_turns", max_turns, 1, whole=True)
        if isinstance(render, str) and ":" not in render:
            one_of("render", render, ("auto", "ansi", "observation"))
        self.agents: tuple[str, ...] = seats(agents, 1)
        self.id = id
        self.options: dict[str, Any] = dict(options or {})
        self.render: str | Render = render
        self.illegal: float = float(illegal)
        self.style: Style = style
        self.seed = seed
        env = self._made()
        known = next((words for start, words in ACTIONS.items() if id.startswith(start)), None)
        names = known.split() if actions is None and known else actions
        self.actions: Actions = Actions(env.action_space, names, f"gymnasium {id}")
        own = None if env.spec is None else env.spec.max_episode_steps
        self.max_turns: int | None = max_turns or own or NO_LIMIT
        told = f"{id}. In every turn answer with one action: {self.actions.listed()}."
        self.instructions: str = told if instructions is None else instructions
        env.close()
        self._env: Any = None
        self._seed, self._key, self._chance = 0, "", Chance("")
        self._draws = random.Random(0)
        self._done: list[Any] = []
        self._steps, self._text, self._now, self._legal = 0, "", None, None
        self._plans: dict[str, dict[Any, int]] = {}

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"{self.id}-{self.seed}-{split}-{seed}"
        drawn = 2 * seed_of(name, bits=30) + (split == "eval")
        return Task(name, [Message(self.instructions or self.id)], seed=seed, info={"seed": drawn})

    def spawn(self) -> GymnasiumEnvironment:
        fresh = copy.copy(self)
        fresh._env = None
        return fresh

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        drawn = int(task.info.get("seed", 2 * task.seed))
        self._seed, self._key = drawn, f"gymnasium/{self.id}/{drawn}"
        self._chance = Chance(self._key)
        self._draws = random.Random(f"{self._key}/drawn")
        self._steps, self._done = 0, []
        with self._chance.held():
            self._env = self._env or self._made()
            observation, info = called(self._where, lambda: self._env.reset(seed=drawn))
            text = self._noted(observation, info)
        opening = self.instructions if self.style == "full" else ""
        return StepResult({self.agents[0]: Observation([Message(f"{opening}\n{text}".strip())])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        (agent,) = self.agents
        action = self.actions.named(said(actions.get(agent)))
        self._steps += 1
        told, unread = "", action is None
        with self._chance.held():
            if unread:
                action = self.actions.drawn(self._draws, self._legal)
                told = f"That names no action ({self.actions.listed(self._legal)}). "
                told += f"{self.actions.word(action)} was taken instead.\n"
            self._done.append(action)
            answer = called(self._where, lambda: self._env.step(action))
            observation, paid, terminated, truncated, info = answer
            text = self._noted(observation, info)
        value = finite(paid, self._where)
        components = {"reward": value, "illegal": float(unread)}
        reward = Reward(value - self.illegal * unread, components)
        out_of_time = self._steps >= (self.max_turns or NO_LIMIT)
        if terminated or truncated or out_of_time:
            return StepResult(
                rewards={agent: reward},
                done=bool(terminated),
                truncated=not terminated,
            )
        told = told if self.style == "full" else "!" if unread else ""
        return StepResult({agent: Observation([Message(told + text)])}, {agent: reward})

    def state(self) -> str:
        return f"{self._text}\nstep {self._steps} of {self.max_turns}"

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        table = getattr(self._env.unwrapped, "P", None) if self._env is not None else None
        if not isinstance(table, Mapping) or self._now not in table:
            return None
        assert self._env is not None
        key = str(getattr(self._env.unwrapped, "desc", ""))
        if key not in self._plans:
            self._plans[key] = planned(table)
        return self.actions.word(self._plans[key][self._now])

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    @property
    def _where(self) -> str:
        return f"gymnasium {self.id}"

    def _made(self) -> Any:
        import gymnasium  # pyright: ignore[reportMissingImports]

        options = dict(self.options)
        if "render_mode" not in options and self.render in ("auto", "ansi"):
            spec = _spec(gymnasium, self.id)
            modes = getattr(spec, "metadata", {}).get("render_modes") or []
            if "ansi" in modes:
                options["render_mode"] = "ansi"
            elif self.render == "ansi":
                raise ConfigError(f"gymnasium: {self.id} has no render mode ansi; it has {modes}")
        try:
            return gymnasium.make(self.id, **options)
        except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"gymnasium: {self.id} cannot be created: {error}") from error

    def _noted(self, observation: Any, info: Any) -> str:
        """Record an observation; returns its text for the agent."""
        self._now = observation if isinstance(observation, int) else _plain(observation)
        self._legal = legal_in(info, None)
        self._text = self._rendered(observation, info)
        return self._text

    def _rendered(self, observation: Any, info: Any) -> str:
        if callable(self.render) or ":" in self.render:
            draw = self.render
            draw = registry.load("environments", draw) if isinstance(draw, str) else draw
            return called(self._where, lambda: str(draw(observation, info, self._env)))
        plain = described(self.id, observation) or shown(observation)
        if self.render == "observation" or self._env.render_mode != "ansi":
            return plain
        drawn = self._env.render()
        marked = _CODES.sub("", _MARKED.sub(lambda found: f"[{found[1].strip() or ' '}]", drawn))
        return marked.strip("\n") if self.render == "ansi" else f"{marked.strip(chr(10))}\n{plain}"

    def __deepcopy__(self, memo: dict[int, Any]) -> GymnasiumEnvironment:
        """A copy in the same state, by replaying the actions: many environments do not copy their
        state."""
        twin = copy.copy(self)
        twin._draws, twin._done = copy.deepcopy(self._draws), list(self._done)
        if self._env is not None:
            twin._env = self._made()
            twin._chance = Chance(self._key)
            with twin._chance.held():
                called(self._where, lambda: twin._env.reset(seed=self._seed))
                for action in self._done:
                    called(self._where, lambda action=action: twin._env.step(action))
        return twin


def described(id: str, observation: Any) -> str | None:
    """An observation of a toy-text environment in words; `None` for other environments."""
    if id.startswith("Taxi"):
        rest, goal = divmod(int(observation), 4)
        rest, place = divmod(rest, 5)
        row, column = divmod(rest, 5)
        where = "in the taxi" if place == 4 else f"at {'RGYB'[place]}"
        return f"taxi: row {row}, column {column}; passenger: {where}; to: {'RGYB'[goal]}"
    if id.startswith("CliffWalking"):
        row, column = divmod(int(observation), 12)
        return f"row {row} of 0 to 3, column {column} of 0 to 11; goal: row 3, column 11"
    if id.startswith("Blackjack"):
        mine, dealer, ace = (int(each) for each in observation)
        return f"your sum: {mine}; dealer shows: {dealer}; usable ace: {'yes' if ace else 'no'}"
    return f"cell {int(observation)}" if id.startswith("FrozenLake") else None


def planned(table: Mapping[Any, Any], discount: float = 0.999) -> dict[Any, int]:
    """The best action in every state of a table `P[state][action] = [(probability, next, reward,
    ended), ...]`, by value iteration.

    Args:
        table: the transition table.
        discount: discount factor per step.
    """

    def worth(outcomes: Any) -> float:
        return sum(p * (r + (0.0 if end else discount * value[to])) for p, to, r, end in outcomes)

    value = dict.fromkeys(table, 0.0)
    for _ in range(2_000):
        change = 0.0
        for state, choices in table.items():
            best = max(worth(outcomes) for outcomes in choices.values())
            change, value[state] = max(change, abs(best - value[state])), best
        if change < 1e-8:
            break
    return {
        state: max(choices, key=lambda action: worth(choices[action]))
        for state, choices in table.items()
    }


def _spec(gymnasium: Any, id: str) -> Any:
    """The class or function that creates an environment; `None` if not known in advance."""
    from importlib import import_module

    try:
        entry = gymnasium.spec(id).entry_point
    except (gymnasium.error.Error, ImportError):
        return None
    if not isinstance(entry, str):
        return entry
    module, _, name = entry.partition(":")
    return getattr(import_module(module), name, None)


def _plain(observation: Any) -> Any:
    """An observation as a key of a table, if it is a whole number."""
    try:
        return int(observation)
    except (TypeError, ValueError):
        return None


PLUGIN = GymnasiumEnvironment
