"""A conversation with a team: its agents read a text and answer; nothing is rewarded."""

from __future__ import annotations

from mrlm.core.environment import Environment, Split
from mrlm.core.types import Message, Observation, Reward, StepResult, Task


class Conversation(Environment):
    """An environment in which every agent reads the prompt of the task and answers once. Its
    rewards are missing.

    Args:
        agents: names of the agents.
    """

    name: str = "conversation"
    blocking: bool = False

    def __init__(self, agents: tuple[str, ...]) -> None:
        self.agents = agents

    def num_tasks(self, split: Split = "train") -> int:
        return 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        prompt = list(task.prompt) if task is not None else []
        return StepResult({agent: Observation(list(prompt)) for agent in self.agents})

    def step(self, actions: dict[str, Message]) -> StepResult:
        rewards = {agent: Reward(0.0, known=False) for agent in self.agents}
        return StepResult(rewards=rewards, done=True)
