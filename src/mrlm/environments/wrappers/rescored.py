"""A wrapper that replaces an environment's rewards by those of a reward function."""

from collections.abc import Callable, Mapping
from typing import Any

from mrlm.core.environment import Environment, accepted_parameters, validated_reward
from mrlm.core.errors import RewardError
from mrlm.core.types import Message, Reward, StepResult, Task
from mrlm.environments.shared.reward_functions import RewardCalls, required_function
from mrlm.environments.wrappers.wrapped import Wrapped


class RescoredEnvironment(Wrapped):
    """A wrapper of `environment` in which rewards are those of `reward_fn` for the messages of each
    step. The expert of the environment does not know the new reward.

    Args:
        environment: an environment instance, or a section with `env_type` and its arguments.
        reward_fn: `reward_fn(prompts, completions, **columns) -> list[float]`, or its
            `module:name`; called once per step with one entry per agent that acted. `prompts` are
            the messages that each agent has seen, columns the task's `answer` and other fields. It
            may be a coroutine function.
        rewards: how it is called, as in the environment `reward`.

    Raises:
        ConfigError: `reward_fn` is neither a function nor the name of one.
        RewardError: from `step`; the function returned the wrong number of rewards, or one that is
            not finite.
    """

    def __init__(
        self,
        environment: Environment | Mapping[str, Any],
        reward_fn: Callable[..., Any] | str,
        rewards: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(environment)
        self.reward_fn: Callable[..., Any] = required_function(reward_fn, "reward_fn")
        self._calls = RewardCalls.of(rewards)
        self._task: Task | None = None
        self._seen: dict[str, list[Message]] = {}

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task, self._seen = task, {}
        return self._noted(await self.reset_underneath(task, seed))

    async def step(self, actions: dict[str, Message]) -> StepResult:
        prompts = [list(self._seen.get(agent, [])) for agent in actions]
        completions = [message.content for message in actions.values()]
        result = self._noted(await self.step_underneath(actions))
        columns: dict[str, Any] = {}
        if self._task is not None:
            shared = {"answer": self._task.answer, **self._task.info}
            columns = {name: [value] * len(actions) for name, value in shared.items()}
        name = getattr(self.reward_fn, "__name__", "reward_fn")
        where = f"reward function {name}"
        accepted = accepted_parameters(self.reward_fn, tuple(columns))
        columns = {key: value for key, value in columns.items() if key in accepted}
        arguments = {"prompts": prompts, "completions": completions, **columns}
        values = await self._calls.call(self.reward_fn, where, **arguments)
        if len(values) != len(actions):
            raise RewardError(
                f"{where}: returned {len(values)} rewards for {len(actions)} completions"
            )
        result.rewards = {
            agent: validated_reward(Reward(value, {name: value}), f"{where}, agent {agent!r}")
            for agent, value in zip(actions, values, strict=True)
        }
        return result

    def _noted(self, result: StepResult) -> StepResult:
        for agent, observation in result.observations.items():
            self._seen.setdefault(agent, []).extend(observation.messages)
        return result


PLUGIN = RescoredEnvironment
