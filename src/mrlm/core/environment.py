"""What a world is: the `Environment` every workflow plays in, the one-agent `SimulatedEnvironment`,
the adapter between them, and the contract check. It knows nothing of models or tokens."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from mrlm.core.errors import ConfigError, EpisodeError, RewardError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.stepping import by_hand, is_pending
from mrlm.core.sync_async import run_async
from mrlm.core.types import (
    EnvironmentMode,
    Message,
    Observation,
    Reward,
    Role,
    StepResult,
    Task,
)
from mrlm.core.user_errors import explain

Split = Literal["train", "eval"]
TURN_SETTINGS = {
    "max_turns": None,
    "external_transition": None,
    "transition_mode": "replace",
    "external_prompt_passthrough": False,
}
"""Settings of a workflow that are an environment's where it has no rules of its own for them, with
their defaults."""


class Environment:
    """A world with one or more seats.

    Subclasses set `agents` and write `reset` and `step`. One instance lives for one episode; the
    instance a user hands over is a template that `spawn` copies. `reset` returns the first
    observations; `step` takes the message of every agent that had one. Both may be coroutines.
    By hand every environment is stepped in one way: `result = env.reset(seed)`, then
    `result = env.step(message)` with one agent and `env.step({agent: message})` with several;
    inside an event loop both are awaited, coroutines or not.
    Everything must follow from `(task, seed)`.

    Optional: `num_tasks` and `task` (where tasks come from), `state` (what a central critic reads),
    `expert` (what an honest player would say; used for demonstrations), `close`.
    """

    agents: tuple[str, ...] = ("agent",)
    name: str = ""
    max_turns: int | None = None
    """How many joint steps an episode may take, where the world has a limit of its own."""
    blocking: bool = True
    """Whether `reset` and `step` may take long (a network, a process, heavy work) or hang: they are
    then run in a thread under the deadline. Worlds that answer at once set it to `False`."""

    @property
    def stops(self) -> Mapping[str, tuple[str, ...]]:
        """Agent -> strings that end what it writes, besides those of its own settings: where the
        environment reads nothing after them."""
        return {}

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        by_hand(cls)

    @property
    def seeded(self) -> bool:
        """Whether everything follows from `(task, seed)`: an episode can then be reproduced."""
        return True

    @property
    def counts_turns(self) -> bool:
        """Whether it ends its episodes by itself after the `max_turns` it was made with."""
        return (
            self.max_turns is not None and "max_turns" in inspect.signature(type(self)).parameters
        )

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        """Start an episode; returns a `StepResult` (or a coroutine of one)."""
        raise NotImplementedError

    def step(self, actions: dict[str, Message]) -> Any:
        """Answer the agents' messages; returns a `StepResult` (or a coroutine of one)."""
        raise NotImplementedError

    def num_tasks(self, split: Split = "train") -> int | None:
        """How many tasks there are; `None` means endless."""
        return None

    def task(self, seed: int, split: Split = "train") -> Task:
        """The task of a seed (of an index, where `num_tasks` is finite).

        Held-out tasks come from `split="eval"`.
        """
        return Task(id=f"{split}-{seed}", seed=seed)

    def state(self) -> str | None:
        """The whole situation as text, for critics that see more than one agent does."""
        return None

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        """What an honest, able player would say here now; `None` if the world cannot know."""
        return None

    def spawn(self) -> Environment:
        """A fresh world of the same settings."""
        return copy.deepcopy(self)

    def with_turns(self, settings: Mapping[str, Any]) -> Environment | None:
        """This environment with the turns that the workflow says; `None` where its own rules
        decide.

        Args:
            settings: those of `TURN_SETTINGS`.
        """
        return None

    def close(self) -> None:
        """Let go of whatever the episode holds."""


BaseEnvironment = Environment


class SimulatedEnvironment:
    """A world with one agent.

    `reset(...)` returns an `Observation`, `step(message)` an `(Observation, Reward)`. `reset` may
    take any of `task`, `seed` and `options`; only what it accepts is passed.
    """

    name: str = ""

    def reset(self, *args: Any, **kwargs: Any) -> Observation:
        """Start an episode."""
        raise NotImplementedError

    def step(self, action: Message) -> tuple[Observation, Reward]:
        """Answer the agent's message."""
        raise NotImplementedError


class SingleSeat(Environment):
    """A `SimulatedEnvironment` seen as an `Environment` with the one seat `agent`."""

    def __init__(self, world: SimulatedEnvironment) -> None:
        self.world = world
        self.name: str = world.name or type(world).__name__.lower()
        self.max_turns: int | None = getattr(world, "max_turns", None)
        self._accepts = accepted_parameters(world.reset, ("task", "seed", "options"))

    @property
    def seeded(self) -> bool:
        """Whether `reset` takes a seed (or a task): without one an episode cannot be reproduced."""
        return bool({"seed", "task"} & self._accepts)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        offered = {"task": task, "seed": seed, "options": {"task": task}}
        observation = self.world.reset(
            **{key: value for key, value in offered.items() if key in self._accepts}
        )
        if not isinstance(observation, Observation):
            fix = "return Observation([Message(text)])"
            raise _wrong_type(self.world, "reset", observation, "an Observation", fix)
        return StepResult(observations={self.agents[0]: observation}, done=observation.done)

    def step(self, actions: dict[str, Message]) -> StepResult:
        answer = self.world.step(next(iter(actions.values())))
        if not _is_pair(answer):
            fix = "return Observation(done=True), Reward(1.0)"
            raise _wrong_type(self.world, "step", answer, "an (Observation, Reward)", fix)
        observation, reward = answer
        seat = self.agents[0]
        return StepResult({seat: observation}, {seat: reward}, done=observation.done)


def _is_pair(answer: Any) -> bool:
    return isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], Observation)


def _wrong_type(world: Any, method: str, given: Any, wanted: str, fix: str) -> EpisodeError:
    return EpisodeError(
        f"{_title(world)}.{method} returned {_type_of(given)}; it must return {wanted}: `{fix}`"
    )


def _type_of(value: Any) -> str:
    """What something is, for a sentence: `a str`, `a tuple of int and Reward`, `a coroutine`."""
    if value is None:
        return "nothing (None)"
    name = type(value).__name__
    parts = [type(part).__name__ for part in value] if isinstance(value, tuple) else []
    of = f" of {' and '.join(parts)}" if 0 < len(parts) < 4 else ""
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}{of}"


def accepted_parameters(function: Callable[..., Any], names: tuple[str, ...]) -> frozenset[str]:
    """Which of `names` a function can be called with by keyword."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return frozenset(names)
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(
        name for name in names if name in parameters and parameters[name].kind in keyword
    )


def as_environment(world: Any) -> Environment:
    """Any world a user may hand over as an `Environment`: an instance of either base class, or a
    class or function that makes one.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(world, Environment):
        return world
    if isinstance(world, SimulatedEnvironment):
        return SingleSeat(world)
    if isinstance(world, LLMEnvironment):
        return _world_model(world)
    if callable(world):
        return as_environment(world())
    raise ConfigError(
        f"{world!r} is no environment: give an instance or subclass of mrlm.Environment or "
        "mrlm.SimulatedEnvironment, or a function that returns one"
    )


def _world_model(model: LLMEnvironment) -> Environment:
    """A language model that a user gives as an environment.

    Raises:
        ConfigError: it is one that is trained.
    """
    if model.mode is EnvironmentMode.SERVER:
        raise ConfigError(
            "an LLMEnvironment in mode SERVER is trained, and an environment is not; give "
            "LLMEnvironment(..., mode='client') as the environment"
        )
    return model.environment


def validated_reward(reward: Any, where: str) -> Reward:
    """`reward` as a `Reward` with a finite value; `None` is one that is not known.

    Raises:
        RewardError: it is no number, or not finite; the message starts with `where`.
    """
    if reward is None or (isinstance(reward, Reward) and reward.value is None):
        return Reward(0.0, known=False)
    if isinstance(reward, bool | int | float):
        reward = Reward(float(reward))
    if not isinstance(reward, Reward) or isinstance(reward.value, str) or not _finite(reward.value):
        value = reward.value if isinstance(reward, Reward) else reward
        raise RewardError(f"{where}: the reward must be a finite number, not {value!r}")
    reward.value = float(reward.value)
    return reward


def check_environment(world: Any, seed: int = 0, max_steps: int = 100) -> None:
    """Play a world with fixed words and check that it keeps the contract: types, names of agents,
    finite rewards, an end within `max_steps`, and the same answers for the same seed.

    Raises:
        ConfigError, RewardError: what is wrong and where.
    """
    first, second = (_play_fixed(as_environment(world).spawn(), seed, max_steps) for _ in range(2))
    if first != second:
        differing = next(
            i
            for i, (a, b) in enumerate(
                zip([*first, "<nothing>"], [*second, "<nothing>"], strict=False)
            )
            if a != b
        )
        raise ConfigError(
            f"{_title(world)}: two plays with seed {seed} differ at step {differing}; everything "
            "must follow from (task, seed), so draw random numbers from random.Random(seed)"
        )


def _play_fixed(environment: Environment, seed: int, max_steps: int) -> list[str]:
    title = _title(environment)
    if not environment.agents or len(set(environment.agents)) != len(environment.agents):
        raise ConfigError(
            f"{title}.agents must name at least one agent, each once, not {environment.agents!r}"
        )
    task = _called(title, "task", lambda: environment.task(seed))
    result, trace = _answer(environment, "reset", lambda: environment.reset(task, seed)), []
    for count in range(max_steps + 1):
        _check_result(result, environment, f"{title}, step {count}")
        trace.append(repr(result))
        if result.done or result.truncated or not result.observations:
            break
        speakers = [agent for agent, seen in result.observations.items() if not seen.done]
        if not speakers:
            raise ConfigError(
                f"{title}, step {count}: every observation is done but the world is not; "
                "set StepResult.done"
            )
        words = {agent: Message("yes", Role.ASSISTANT, agent=agent) for agent in speakers}
        result = _answer(environment, "step", lambda words=words: environment.step(words))
    environment.close()
    return trace


def _answer(environment: Environment, method: str, call: Callable[[], Any]) -> StepResult:
    """What `reset` or `step` returns, of the right types."""
    result = _called(_title(environment), method, call)
    problem = contract_problem(result, environment, method)
    if problem is not None:
        raise ConfigError(problem)
    return result


def _called(title: str, method: str, call: Callable[[], Any]) -> Any:
    """The result of a method that may be a coroutine.

    Raises:
        ConfigError: it raised something; with the user's lines.
    """
    try:
        answer = call()
        return run_async(answer) if is_pending(answer) else answer
    except (ConfigError, RewardError):
        raise
    except EpisodeError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        raise ConfigError(f"{title}.{method} raised {explain(error)}") from error


def contract_problem(result: Any, environment: Environment, method: str) -> str | None:
    """What is wrong with the types and names of what `reset` or `step` returned, with the fix, or
    `None`."""
    title = _title(environment)
    if not isinstance(result, StepResult):
        seat = environment.agents[0]
        return (
            f"{title}.{method} returned {_type_of(result)}; it must return a StepResult: "
            f'`return StepResult({{"{seat}": Observation([Message(text)])}})`'
        )
    for agent, observation in result.observations.items():
        if agent not in environment.agents:
            return (
                f"{title}.{method}: observation for {agent!r}, which is not in "
                f"agents={environment.agents!r}"
            )
        if not isinstance(observation, Observation) or not all(
            isinstance(message, Message) for message in observation.messages
        ):
            return (
                f"{title}.{method}: the observation of {agent!r} must be an Observation of "
                "Messages: `Observation([Message(text)])`"
            )
    unknown = [agent for agent in result.rewards if agent not in environment.agents]
    if unknown:
        return (
            f"{title}.{method}: reward for {unknown[0]!r}, which is not in "
            f"agents={environment.agents!r}"
        )
    return None


def _check_result(result: Any, environment: Environment, where: str) -> None:
    for agent, reward in result.rewards.items():
        validated_reward(reward, f"{where}, agent {agent!r}")
    if not result.done and not result.truncated and not result.observations:
        raise ConfigError(
            f"{where}: nobody has an observation, so nobody can speak, but the world is not done"
        )


def _title(world: Any) -> str:
    if isinstance(world, SingleSeat):
        return type(world.world).__name__
    return (
        world.__name__
        if inspect.isclass(world) or inspect.isfunction(world)
        else type(world).__name__
    )


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False
