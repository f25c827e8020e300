"""Another world in which every agent is paid the difference that its own words made."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mrlm.core.environment import Environment, validated_reward
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Reward, StepResult, Task
from mrlm.environments.shared.wrapped import Wrapped, settled


class DifferenceEnvironment(Wrapped):
    """Plays `environment` and pays agent i the difference reward `D_i = G(actions) - G(actions with
    i's message replaced by the default)` (Wolpert and Tumer 2001), where G is the team's reward of
    the step: the mean over those who are paid. Credit is given by the world itself, whatever the
    algorithm.

    Each step is taken once more on a copy of the world for every agent that spoke; nothing follows
    from the copies. So in worlds of several steps the difference is that of the step alone, and
    what a message changes later is not seen; who is paid without having spoken in a step is paid as
    the world does. The world must be one that can be copied, and seeded: the copies draw what the
    original draws.

    `G` is the component `team` of every reward, so that the team's success is logged.

    Args:
        environment: the world: an instance, or a section with `env_type` and its arguments.
        default: what an agent that is taken out says.
        share: part of G that is paid besides (1 with a default that earns nothing is the team's own
            reward twice).

    Raises:
        ConfigError: the world has one seat, or cannot be copied.
    """

    def __init__(
        self,
        environment: Environment | Mapping[str, Any],
        default: str = "",
        share: float = 0.0,
    ) -> None:
        super().__init__(environment)
        if len(self.agents) < 2:
            raise ConfigError(
                "difference needs a world of several seats, and "
                f"{self.environment.name or type(self.environment).__name__!r} has one: what one "
                "agent does alone is the team's reward already"
            )
        self.default: str = default
        self.share: float = share

    def spawn(self) -> Environment:
        """A fresh copy of the world underneath."""
        return DifferenceEnvironment(self.environment.spawn(), self.default, self.share)

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        """Start the world underneath."""
        return await self.reset_underneath(task, seed)

    async def step(self, actions: dict[str, Message]) -> StepResult:
        """Step the world, and a copy of it without each of those who spoke."""
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
        """The mean of the known rewards; `None` where there are rewards and none is known."""
        given = [
            validated_reward(reward, f"environment {self.name!r}, agent {agent!r}")
            for agent, reward in result.rewards.items()
        ]
        paid = [reward.value for reward in given if reward.known]
        if given and not paid:
            return None
        return sum(paid) / len(paid) if paid else 0.0

    def _copied(self) -> Environment:
        try:
            return copy.deepcopy(self.environment)
        except Exception as error:
            raise ConfigError(
                f"environment {self.name!r} cannot be copied ({error!r}), so nobody can tell what "
                "it would have paid without an agent"
            ) from error


PLUGIN = DifferenceEnvironment
