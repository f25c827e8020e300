"""The environment interfaces: `Environment`, used by all workflows, the single-agent
`SimulatedEnvironment`, the adapter between them, and the contract check."""

import copy
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Literal

from mrlm.core.constructed import constructed
from mrlm.core.errors import ConfigError, EpisodeError, RewardError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.stepping import by_hand, is_pending
from mrlm.core.sync_async import run_async
from mrlm.core.types import EnvironmentMode, Message, Observation, Reward, Role, StepResult, Task
from mrlm.core.user_errors import explain

Split = Literal["train", "eval"]
TURN_SETTINGS: dict[str, Any] = {
    "max_turns": None,
    "external_transition": None,
    "transition_mode": "replace",
    "external_prompt_passthrough": False,
}
"""Workflow settings that an environment without its own rules for them adopts, with defaults."""


class Environment:
    """An environment with one or more agents.

    Subclasses set `agents` and implement `reset` and `step`. One instance is used for one episode;
    the instance given by a user is a template that `spawn` copies. `reset` returns the first
    observations; `step` receives the message of every agent that had one. Both may be coroutines.
    In user code all environments are stepped alike: `result = env.reset(seed)`, then
    `result = env.step(message)` with one agent and `env.step({agent: message})` with several;
    inside an event loop both are awaited, whether or not they are coroutines.
    Episodes must be determined by `(task, seed)`. Impossible arguments are a `ConfigError`.

    Optional: `num_tasks` and `task` (source of tasks), `state` (input of a central critic),
    `expert` (expert messages for demonstrations), `render` (a board for people), `close`.
    """

    agents: tuple[str, ...] = ("agent",)
    name: str = ""
    max_turns: int | None = None
    """Maximum number of joint steps of an episode, if the environment has its own limit."""
    reward_range: tuple[float, float] | None = None
    """Minimum and maximum return of an agent with the default arguments, if known."""
    blocking: bool = True
    """Whether `reset` and `step` may take long (a network, a process, heavy work) or hang: they are
    then run in a thread with a deadline. Fast environments set it to `False`."""
    step_timeout: float | None = 60.0
    """Seconds of a `reset` or `step`, unless its section has a `timeout`; `None`: no limit."""
    workflow: str | None = None
    """`module:name` of the workflow that plays it, if no other can."""
    instances: Mapping[str, str | None] = MappingProxyType({})
    """Agents that it may have several of in an episode -> the agent that spawns them."""
    isolation: str | Mapping[str, object] | None = None
    """Isolation of the programs of models that it runs, as in `open_sandbox`; `None` if none."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return constructed(super().__new__(cls), args, named)

    @property
    def stops(self) -> Mapping[str, tuple[str, ...]]:
        """Agent -> further stop strings, after which the environment reads nothing."""
        return {}

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        by_hand(cls)

    @property
    def seeded(self) -> bool:
        """Whether episodes are determined by `(task, seed)`, and can be reproduced."""
        return True

    @property
    def counts_turns(self) -> bool:
        """Whether it ends its episodes by itself after its `max_turns`."""
        return (
            self.max_turns is not None and "max_turns" in inspect.signature(type(self)).parameters
        )

    def reset(
        self, task: Task | None = None, seed: int | None = None
    ) -> StepResult | Awaitable[StepResult]:
        """Start the episode of `task`, with random numbers from `seed`; returns the first
        observations as a `StepResult` (or a coroutine of one)."""
        raise NotImplementedError

    def step(self, actions: dict[str, Message]) -> StepResult | Awaitable[StepResult]:
        """Process agent -> message, one for each agent that had an observation; returns a
        `StepResult` (or a coroutine of one)."""
        raise NotImplementedError

    def num_tasks(self, split: Split = "train") -> int | None:
        """Number of tasks; `None` if unlimited."""
        return None

    def task(self, seed: int, split: Split = "train") -> Task:
        """The task of a seed (an index, if `num_tasks` is finite); `split="eval"`: held out."""
        return Task(id=f"{split}-{seed}", seed=seed)

    def state(self) -> str | None:
        """The global state as text, for central critics."""
        return None

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        """The expert message of an agent that has read `messages`; `None` if there is none."""
        return None

    @property
    def has_expert(self) -> bool:
        """Whether it has expert messages."""
        return type(self).expert is not Environment.expert

    def render(self, agent: str | None = None) -> str | None:
        """The board: a drawing of the state for people, as text or `core.board.Html`. It is shown,
        never part of a prompt, and changes nothing. `agent`: draw only what this agent may see."""
        return None

    @property
    def draws(self) -> bool:
        """Whether it has boards."""
        return type(self).render is not Environment.render

    def spawn(self) -> "Environment":
        """A new environment with the same settings."""
        return copy.deepcopy(self)

    def with_turns(self, settings: Mapping[str, object]) -> "Environment | None":
        """This environment with the workflow's turn settings; `None` if it has its own rules."""
        return None

    def close(self) -> None:
        """Release the resources of the episode."""


BaseEnvironment = Environment


class SimulatedEnvironment:
    """An environment with one agent.

    `reset(...)` returns an `Observation`, `step(message)` an `(Observation, Reward)`. `reset` may
    have any of the parameters `task`, `seed` and `options`; only these are passed.
    """

    name: str = ""
    max_turns: int | None = None
    """Maximum number of answers in an episode, if limited."""
    reward_range: tuple[float, float] | None = None
    """Minimum and maximum return of an episode with the default arguments, if known."""
    step_timeout: float | None = 60.0
    """Seconds of a `reset` or `step`, as in `Environment`."""

    def __new__(cls, *args: Any, **named: Any) -> Any:
        return constructed(super().__new__(cls), args, named)

    def reset(self, *args: Any, **kwargs: Any) -> Observation:
        """Start an episode."""
        raise NotImplementedError

    def step(self, action: Message) -> tuple[Observation, Reward]:
        """Process the agent's message."""
        raise NotImplementedError

    def render(self, agent: str | None = None) -> str | None:
        """The board, as in `Environment.render`."""
        return None


class SingleAgentEnvironment(Environment):
    """An adapter of a `SimulatedEnvironment` to an `Environment` with the single agent `agent`."""

    def __init__(self, env: SimulatedEnvironment) -> None:
        self.env = env
        self.name: str = env.name or type(env).__name__.lower()
        self.max_turns: int | None = env.max_turns
        self.reward_range: tuple[float, float] | None = env.reward_range
        self.step_timeout: float | None = env.step_timeout
        self._accepts = accepted_parameters(env.reset, ("task", "seed", "options"))

    @property
    def seeded(self) -> bool:
        """Whether `reset` accepts a seed (or task), without which episodes are not reproducible."""
        return bool({"seed", "task"} & self._accepts)

    @property
    def draws(self) -> bool:
        return type(self.env).render is not SimulatedEnvironment.render

    def render(self, agent: str | None = None) -> str | None:
        return self.env.render(agent)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        offered = {"task": task, "seed": seed, "options": {"task": task}}
        observation = self.env.reset(**{k: v for k, v in offered.items() if k in self._accepts})
        if not isinstance(observation, Observation):
            fix = "return Observation([Message(text)])"
            raise _wrong_type(self.env, "reset", observation, "an Observation", fix)
        return StepResult(observations={self.agents[0]: observation}, done=observation.done)

    def step(self, actions: dict[str, Message]) -> StepResult:
        answer = self.env.step(next(iter(actions.values())))
        pair = isinstance(answer, tuple) and len(answer) == 2
        if not pair or not isinstance(answer[0], Observation):
            fix = "return Observation(done=True), Reward(1.0)"
            raise _wrong_type(self.env, "step", answer, "an (Observation, Reward)", fix)
        observation, reward = answer
        agent = self.agents[0]
        return StepResult({agent: observation}, {agent: reward}, done=observation.done)


def _wrong_type(env: Any, method: str, value: Any, expected: str, fix: str) -> EpisodeError:
    return EpisodeError(
        f"{_title(env)}.{method} returned {_type_of(value)}; it must return {expected}: `{fix}`"
    )


def _type_of(value: object) -> str:
    """The type of a value for a message: `a str`, `a tuple of int and Reward`, `a coroutine`."""
    if value is None:
        return "nothing (None)"
    name = type(value).__name__
    parts = [type(part).__name__ for part in value] if isinstance(value, tuple) else []
    of = f" of {' and '.join(parts)}" if 0 < len(parts) < 4 else ""
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}{of}"


def accepted_parameters(function: Callable[..., Any], names: tuple[str, ...]) -> frozenset[str]:
    """Those of `names` that a function accepts as keywords."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return frozenset(names)
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(
        name for name in names if name in parameters and parameters[name].kind in keyword
    )


def as_environment(env: object) -> Environment:
    """A user's environment as an `Environment`: from an instance of either base class, or from a
    class or function that creates one. Raises `ConfigError`: it is neither, or a language model
    that is trained."""
    if isinstance(env, Environment):
        return env
    if isinstance(env, SimulatedEnvironment):
        return SingleAgentEnvironment(env)
    if isinstance(env, LLMEnvironment):
        if env.mode is EnvironmentMode.SERVER:
            raise ConfigError(
                "an LLMEnvironment in mode SERVER is trained, and an environment is not; give "
                "LLMEnvironment(..., mode='client') as the environment"
            )
        return env.environment
    if callable(env):
        return as_environment(env())
    raise ConfigError(
        f"{env!r} is not an environment; give an instance or subclass of mrlm.Environment or "
        "mrlm.SimulatedEnvironment, or a function that returns one"
    )


def validated_reward(reward: object, where: str) -> Reward:
    """`reward` as a `Reward` with a finite value; `None` is a missing one. Raises `RewardError`: it
    is not a finite number; the message starts with `where`."""
    if reward is None or (isinstance(reward, Reward) and reward.value is None):
        return Reward(0.0, known=False)
    if isinstance(reward, bool | int | float):
        reward = Reward(float(reward))
    if not isinstance(reward, Reward) or not _finite(reward.value):
        value = reward.value if isinstance(reward, Reward) else reward
        raise RewardError(f"{where}: the reward must be a finite number, not {value!r}")
    reward.value = float(reward.value)
    return reward


def check_environment(env: object, seed: int = 0, max_steps: int = 100) -> None:
    """Play an environment (an instance, a class or a function that makes one) twice with `seed` and
    fixed messages, and check its contract: types, names of agents, finite rewards, an end within
    `max_steps` joint steps, equal results for equal seeds, a pure `render`.

    Raises:
        ConfigError, RewardError: a violation, with its location.
    """
    first, second = (
        _play_fixed(as_environment(env).spawn(), seed, max_steps, drawn) for drawn in (False, True)
    )
    if first != second:
        differing = next(i for i, (a, b) in enumerate(zip_longest(first, second)) if a != b)
        raise ConfigError(
            f"{_title(env)}: two episodes with seed {seed} differ at step {differing}; they must "
            "be determined by (task, seed), so draw random numbers from random.Random(seed), not "
            "in render"
        )


def _play_fixed(environment: Environment, seed: int, max_steps: int, drawn: bool) -> list[str]:
    title = _title(environment)
    if not environment.agents or len(set(environment.agents)) != len(environment.agents):
        raise ConfigError(
            f"{title}.agents must name at least one agent, each once, not {environment.agents!r}"
        )
    task = _called(environment, "task", seed)
    result, trace = _answer(environment, "reset", task, seed), []
    for count in range(max_steps + 1):
        where = f"{title}, step {count}"
        for agent, reward in result.rewards.items():
            validated_reward(reward, f"{where}, agent {agent!r}")
        trace.append(repr(result))
        for agent in (None, *environment.agents) if drawn else ():
            _called(environment, "render", agent)
        if result.done or result.truncated:
            break
        if not result.observations:
            raise ConfigError(
                f"{where}: no agent has an observation, so none can act, but the environment is "
                "not done; set StepResult.done"
            )
        speakers = [agent for agent, seen in result.observations.items() if not seen.done]
        if not speakers:
            raise ConfigError(
                f"{where}: every observation is done but the environment is not; set "
                "StepResult.done"
            )
        words = {agent: Message("yes", Role.ASSISTANT, agent=agent) for agent in speakers}
        result = _answer(environment, "step", words)
    environment.close()
    return trace


def _answer(environment: Environment, method: str, *arguments: object) -> StepResult:
    """The result of `reset` or `step`, with checked types."""
    result = _called(environment, method, *arguments)
    problem = contract_problem(result, environment, method)
    if problem is not None:
        raise ConfigError(problem)
    return result


def _called(environment: Environment, method: str, *arguments: object) -> Any:
    """The result of a method or coroutine; errors become a `ConfigError` with the user's lines."""
    try:
        answer = getattr(environment, method)(*arguments)
        return run_async(answer) if is_pending(answer) else answer
    except (ConfigError, RewardError):
        raise
    except EpisodeError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        raise ConfigError(f"{_title(environment)}.{method} raised {explain(error)}") from error


def contract_problem(result: object, environment: Environment, method: str) -> str | None:
    """A wrong type or name in the result of `reset` or `step`, with the fix, or `None`."""
    if not isinstance(result, StepResult):
        agent = environment.agents[0]
        return (
            f"{_title(environment)}.{method} returned {_type_of(result)}; it must return a "
            f'StepResult: `return StepResult({{"{agent}": Observation([Message(text)])}})`'
        )
    for what, named in (("observation", result.observations), ("reward", result.rewards)):
        for agent in named:
            if agent not in environment.agents:
                return (
                    f"{_title(environment)}.{method}: {what} for {agent!r}, which is not in "
                    f"agents={environment.agents!r}"
                )
    for agent, observation in result.observations.items():
        if not isinstance(observation, Observation) or not all(
            isinstance(message, Message) for message in observation.messages
        ):
            return (
                f"{_title(environment)}.{method}: the observation of {agent!r} must be an "
                "Observation of Messages: `Observation([Message(text)])`"
            )
    return None


def _title(env: Any) -> str:
    if isinstance(env, SingleAgentEnvironment):
        return type(env.env).__name__
    return env.__name__ if inspect.isclass(env) or inspect.isfunction(env) else type(env).__name__


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False
