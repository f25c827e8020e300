"""Difference rewards: a wrapper that rewards every agent for the effect of its own message."""

import copy
from collections.abc import Mapping
from typing import Any

from mrlm.core.environment import Environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Reward, StepResult, Task
from mrlm.environments.wrappers.wrapped import Wrapped, known_rewards, mean, settled


class DifferenceEnvironment(Wrapped):
    """A wrapper of `environment` in which the reward of agent i is the difference reward `D_i =
    G(actions) - G(actions with i's message replaced by the default)` (Wolpert and Tumer 2001),
    where G is the team's reward of the step: the mean over agents with a known reward. Credit is
    assigned by the environment itself, independently of the algorithm.

    Each step is repeated on a copy of the environment for every agent that acted; the copies are
    then discarded. In environments of several steps the difference is therefore that of the step
    alone, without later effects of a message; an agent that did not act in a step keeps its
    original reward. The environment must be copyable and seeded: the copies draw the same random
    numbers as the original.

    `G` is the component `team` of every reward, so that the team's success is logged.

    Args:
        environment: an environment instance, or a section with `env_type` and its arguments.
        default: message that replaces the agent's own.
        share: fraction of G added to the reward (with 1, and a default of reward 0, the result is
            twice the team's reward).

    Raises:
        ConfigError: the environment has one agent, or cannot be copied.
    """

    def __init__(
        self, environment: Environment | Mapping[str, Any], default: str = "", share: float = 0.0
    ) -> None:
        super().__init__(environment)
        if len(self.agents) < 2:
            raise ConfigError(
                "difference requires a multi-agent environment, and "
                f"{self.environment.name or type(self.environment).__name__!r} has one agent; "
                "use that environment itself"
            )
        self.default: str = default
        self.share: float = share

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return await self.reset_underneath(task, seed)

    async def step(self, actions: dict[str, Message]) -> StepResult:
        """Step the environment, and for each acting agent a copy with its message replaced."""
        without: dict[str, float | None] = {}
        for agent, message in actions.items():
            twin = self._copied()
            others = {**actions, agent: Message(self.default, message.role, agent=agent)}
            result = await settled(twin, lambda twin=twin, others=others: twin.step(others))
            without[agent] = self._team(result)
            twin.close()
        result = await self.step_underneath(actions)
        team = self._team(result)
        components = {
            agent: reward.components if isinstance(reward, Reward) else {}
            for agent, reward in result.rewards.items()
        }
        result.rewards = result.rewards | {
            agent: Reward(
                team - left + self.share * team,
                {**components.get(agent, {}), "team": team, "without": left},
            )
            if team is not None and left is not None
            else Reward(0.0, known=False)
            for agent, left in without.items()
        }
        return result

    def _team(self, result: StepResult) -> float | None:
        """The mean of the known rewards; `None` if there are rewards and none is known."""
        agent_rewards = known_rewards(result, f"environment {self.name!r}, agent")
        if agent_rewards:
            return mean(agent_rewards)
        return None if result.rewards else 0.0

    def _copied(self) -> Environment:
        try:
            return copy.deepcopy(self.environment)
        except Exception as error:
            raise ConfigError(
                f"difference: environment {self.name!r} cannot be copied ({error!r}); its rewards "
                "without an agent are computed on copies"
            ) from error


PLUGIN = DifferenceEnvironment
