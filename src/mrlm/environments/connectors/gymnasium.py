"""Gymnasium environments with actions that text can name: observations are rendered as text, and
answers are parsed as actions."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mrlm.core.content import content
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.connectors.libraries import LibraryEnvironment, by_prefix, finite, said
from mrlm.environments.connectors.spaces import Actions, legal_in, shown
from mrlm.environments.shared.games import Style
from mrlm.environments.shared.rows import agent_names, at_least, one_of

Render = Callable[..., str]
NO_LIMIT = 100
"""Default step limit of an environment without one."""
ACTIONS: dict[str, str] = content(__file__)
"""Prefix of an id -> names of its actions."""
_MARKED = re.compile(r"\x1b\[(?:\d+;)*4\d(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
_CODES = re.compile(r"\x1b\[[\d;]*m")


class GymnasiumEnvironment(LibraryEnvironment):
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

    library = "gymnasium"

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
        super().__init__(id, options, seed, max_turns)
        one_of("style", style, ("full", "short"))
        at_least(0, illegal=illegal)
        if isinstance(render, str) and ":" not in render:
            one_of("render", render, ("auto", "ansi", "observation"))
        self.agents: tuple[str, ...] = agent_names(agents, 1)
        self._drawing: str | Render = render
        self.illegal: float = float(illegal)
        self.style: Style = style
        env = self._made()
        names = actions if actions is not None else by_prefix(ACTIONS, id).split() or None
        self.actions: Actions = Actions(env.action_space, names, self._where)
        limit = None if env.spec is None else env.spec.max_episode_steps
        self.max_turns = max_turns or limit or NO_LIMIT
        notice = f"{id}. In every turn answer with one action: {self.actions.listed()}."
        self.instructions: str = notice if instructions is None else instructions
        self.opening: str = self.instructions or id
        env.close()
        self._now, self._legal = None, None
        self._plans: dict[str, dict[Any, int]] = {}

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._begin(task, seed)
        with self._chance.held():
            self._env = self._env or self._made()
            text = self._noted(*self._restart())
        opening = self.instructions if self.style == "full" else ""
        return StepResult({self.agents[0]: Observation([Message(f"{opening}\n{text}".strip())])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        (agent,) = self.agents
        action = self.actions.named(said(actions.get(agent)))
        self._steps += 1
        notice, unread = "", action is None
        with self._chance.held():
            if unread:
                action = self.actions.drawn(self._draws, self._legal)
                notice = f"That names no action ({self.actions.listed(self._legal)}). "
                notice += f"{self.actions.word(action)} was taken instead.\n"
            self._done.append(action)
            observation, amount, terminated, truncated, info = self._repeat(action)
            text = self._noted(observation, info)
        value = finite(amount, self._where)
        components = {"reward": value, "illegal": float(unread)}
        reward = Reward(value - self.illegal * unread, components)
        if terminated or truncated or self._out_of_time:
            over = bool(terminated)
            return StepResult(rewards={agent: reward}, done=over, truncated=not over)
        notice = notice if self.style == "full" else "!" if unread else ""
        return StepResult({agent: Observation([Message(notice + text)])}, {agent: reward})

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        table = getattr(self._env.unwrapped, "P", None) if self._env is not None else None
        if not isinstance(table, Mapping) or self._now not in table:
            return None
        assert self._env is not None
        key = str(getattr(self._env.unwrapped, "desc", ""))
        if key not in self._plans:
            self._plans[key] = planned(table)
        return self.actions.word(self._plans[key][self._now])

    def _made(self) -> Any:
        import gymnasium  # pyright: ignore[reportMissingImports]

        options = dict(self.options)
        if "render_mode" not in options and self._drawing in ("auto", "ansi"):
            modes = _render_modes(gymnasium, self.id)
            if "ansi" in modes:
                options["render_mode"] = "ansi"
            elif self._drawing == "ansi":
                raise ConfigError(f"gymnasium: {self.id} has no render mode ansi; it has {modes}")
        try:
            return gymnasium.make(self.id, **options)
        except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"gymnasium: {self.id} cannot be created: {error}") from error

    def _noted(self, observation: Any, info: Any) -> str:
        """Record an observation; returns its text for the agent."""
        self._now = None  # the state in the transition table, if it is a number
        with suppress(TypeError, ValueError):
            self._now = int(observation)
        self._legal = legal_in(info, None)
        self._text = self._rendered(observation, info)
        return self._text

    def _rendered(self, observation: Any, info: Any) -> str:
        if callable(self._drawing) or ":" in self._drawing:
            return self._user_text(observation, info, self._env)
        plain = described(self.id, observation) or shown(observation)
        if self._drawing == "observation" or self._env.render_mode != "ansi":
            return plain
        drawn = self._env.render()
        marked = _MARKED.sub(lambda match: f"[{match[1].strip() or ' '}]", drawn)
        board = _CODES.sub("", marked).strip("\n")
        return board if self._drawing == "ansi" else f"{board}\n{plain}"


def described(id: str, observation: Any) -> str | None:
    """An observation of a toy-text environment in words; `None` for other environments."""
    if id.startswith("Taxi"):
        rest, goal = divmod(int(observation), 4)
        rest, location = divmod(rest, 5)
        row, column = divmod(rest, 5)
        where = "in the taxi" if location == 4 else f"at {'RGYB'[location]}"
        return f"taxi: row {row}, column {column}; passenger: {where}; to: {'RGYB'[goal]}"
    if id.startswith("CliffWalking"):
        row, column = divmod(int(observation), 12)
        return f"row {row} of 0 to 3, column {column} of 0 to 11; goal: row 3, column 11"
    if id.startswith("Blackjack"):
        mine, dealer, ace = (int(number) for number in observation)
        return f"your sum: {mine}; dealer shows: {dealer}; usable ace: {'yes' if ace else 'no'}"
    return f"cell {int(observation)}" if id.startswith("FrozenLake") else None


def planned(table: Mapping[Any, Any], discount: float = 0.999) -> dict[Any, int]:
    """The best action in every state of a table `P[state][action] = [(probability, next, reward,
    ended), ...]`, by value iteration.
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


def _render_modes(gymnasium: Any, id: str) -> list[str]:
    """The render modes of an environment, as far as they are known before it is created."""
    try:
        entry = gymnasium.spec(id).entry_point
        if isinstance(entry, str):
            entry = gymnasium.envs.registration.load_env_creator(entry)
    except (gymnasium.error.Error, ImportError):
        return []
    return getattr(entry, "metadata", {}).get("render_modes") or []


PLUGIN = GymnasiumEnvironment
