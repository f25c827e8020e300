"""A conversation with a team: its agents read a text and answer; nothing is rewarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mrlm.core.environment import Environment, Split
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.data.tasks import row_messages


class Conversation(Environment):
    """An environment in which every agent reads the prompt of the task and answers once. Its
    rewards are missing.

    Args:
        agents: names of the agents.
        formatters: agent -> what it reads of a row with the text as its `prompt`.
    """

    name: str = "conversation"
    blocking: bool = False

    def __init__(
        self, agents: tuple[str, ...], formatters: Mapping[str, Callable[[Any], Any]]
    ) -> None:
        self.agents = agents
        self._formatters = formatters

    def num_tasks(self, split: Split = "train") -> int:
        return 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        prompt = list(task.prompt) if task is not None else []
        return StepResult({agent: Observation(self._read(agent, prompt)) for agent in self.agents})

    def _read(self, agent: str, prompt: list[Message]) -> list[Message]:
        """The messages of the task for an agent."""
        formatter = self._formatters.get(agent)
        if formatter is None or not prompt:
            return list(prompt)
        made = formatter({"prompt": prompt[-1].content})
        return [*prompt[:-1], *row_messages(made, f"formatter of agent {agent!r}")]

    def step(self, actions: dict[str, Message]) -> StepResult:
        rewards = {agent: Reward(0.0, known=False) for agent in self.agents}
        return StepResult(rewards=rewards, done=True)
