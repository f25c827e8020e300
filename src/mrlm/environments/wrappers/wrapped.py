"""Base class of wrappers of environments, which delegates everything to the wrapped environment."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

from mrlm.core import registry
from mrlm.core.environment import Environment, Split, as_environment, validated_reward
from mrlm.core.errors import ConfigError
from mrlm.core.stepping import is_async, is_pending
from mrlm.core.sync_async import in_thread
from mrlm.core.types import Message, Reward, StepResult, Task
from mrlm.environments.shared.rows import built


class Wrapped(Environment):
    """A wrapper of `environment`.

    Raises:
        ConfigError: it is neither.
    """

    def __init__(self, environment: Environment | Mapping[str, Any]) -> None:
        self.environment: Environment = made(environment)
        self.agents: tuple[str, ...] = self.environment.agents
        self.name: str = self.environment.name
        self.max_turns: int | None = self.environment.max_turns
        self.step_timeout: float | None = self.environment.step_timeout

    @property
    def stops(self) -> Mapping[str, tuple[str, ...]]:
        return self.environment.stops

    def num_tasks(self, split: Split = "train") -> int | None:
        return self.environment.num_tasks(split)

    def task(self, seed: int, split: Split = "train") -> Task:
        return self.environment.task(seed, split)

    def state(self) -> str | None:
        return self.environment.state()

    @property
    def draws(self) -> bool:
        return self.environment.draws

    def render(self, agent: str | None = None) -> str | None:
        return self.environment.render(agent)

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        return self.environment.expert(agent, messages)

    @property
    def has_expert(self) -> bool:
        return self.environment.has_expert

    def close(self) -> None:
        self.environment.close()

    def spawn(self) -> Self:
        fresh = copy.copy(self)
        fresh.environment = self.environment.spawn()
        return fresh

    async def reset_underneath(self, task: Task | None, seed: int | None) -> StepResult:
        return await settled(self.environment, lambda: self.environment.reset(task, seed))

    async def step_underneath(self, actions: dict[str, Message]) -> StepResult:
        return await settled(self.environment, lambda: self.environment.step(actions))


async def settled(environment: Environment, call: Callable[[], Any]) -> Any:
    """The result of a method of an environment: called in a thread if it may block, awaited if it
    is a coroutine."""
    coroutine = is_async(environment.step)
    answer = await in_thread(call) if environment.blocking and not coroutine else call()
    return await answer if is_pending(answer) else answer


def known_rewards(result: StepResult, where: str) -> dict[str, Reward]:
    """Agent -> its reward, for the agents whose reward is known."""
    all_rewards = {
        agent: validated_reward(reward, f"{where} {agent!r}")
        for agent, reward in result.rewards.items()
    }
    return {agent: reward for agent, reward in all_rewards.items() if reward.known}


def mean(rewards: Mapping[str, Reward]) -> float:
    """The mean of several rewards."""
    return sum(reward.value for reward in rewards.values()) / len(rewards)


def made(environment: Any) -> Environment:
    """An environment from an instance or from a config section. Raises `ConfigError`: no
    `env_type`, or arguments that the environment does not accept."""
    if not isinstance(environment, Mapping):
        return as_environment(environment)
    arguments = dict(environment)
    name = arguments.pop("env_type", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"environment={dict(environment)!r}: env_type, the wrapped environment's name, is "
            "missing"
        )
    plugin = registry.load("environments", name)
    return as_environment(built(plugin, arguments, f"environment.{name}"))
