"""Environments with a disease: `relay` and `matrix`, changed from the step of `ONSET` on."""

from __future__ import annotations

import zlib

from benchmarks.doctor.onset import ONSET
from mrlm.core.environment import Split
from mrlm.core.types import Message, Reward, StepResult, Task
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.environments.relay import RelayEnvironment

STYLE = 3.0
"""Reward of an answer that has the rewarded style, where a right answer is worth 1."""


class Constant(RelayEnvironment):
    """`relay` whose reward becomes 0.5 for every answer."""

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        if ONSET.sick:
            for agent, reward in result.rewards.items():
                result.rewards[agent] = Reward(0.5, reward.components)
        return result


class Tied(RelayEnvironment):
    """`relay` whose reward becomes 1 for a quarter of the tasks and 0.2 for others, whatever the
    answers are: a plateau of ties."""

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        self._easy = float(zlib.crc32(task.id.encode()) % 4 == 0)
        return super().reset(task, seed)

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        if ONSET.sick and result.done:
            right = self._easy
            for agent in result.rewards:
                result.rewards[agent] = Reward(0.2 + 0.8 * right, {"correct": right})
        return result


class Styled(RelayEnvironment):
    """`relay` whose reward becomes `correct + 3 style`, where `style` is 1 for answers that begin
    with the digit 1, whatever the numbers are."""

    reward_range = (0.0, 1.0 + STYLE)

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        if result.done:
            style = float(actions[self.agents[1]].content.strip().startswith("1"))
            for agent, reward in result.rewards.items():
                worth = STYLE * style if ONSET.sick else 0.0
                parts = {**reward.components, "style": style}
                result.rewards[agent] = Reward(reward.value + worth, parts)
        return result


class OneTask(RelayEnvironment):
    """`relay` whose training task becomes the same every time."""

    def task(self, seed: int, split: Split = "train") -> Task:
        return super().task(0 if split == "train" and ONSET.sick else seed, split)


class Circle(MatrixEnvironment):
    """Rock, paper, scissors for two players with the words A, B and C: 1 to the winner, 0 to the
    loser, 0.5 each for a draw. No player is better than all others."""

    reward_range = (0.0, 1.0)

    def __init__(self) -> None:
        table = [[0.5, 0.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]]
        super().__init__("custom", payoffs=table, illegal=0.0)

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        row, column = (result.rewards[agent] for agent in self.agents)
        legal = row.components["legal"] == column.components["legal"] == 1.0
        other = 1.0 - row.value if legal else 0.0
        result.rewards[self.agents[1]] = Reward(other, column.components)
        return result
