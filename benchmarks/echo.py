"""The world that is served when serving is measured: it says what it hears, and never ends."""

from __future__ import annotations

from mrlm.core.environment import Environment
from mrlm.core.types import Message, Observation, Reward, StepResult, Task


class Echo(Environment):
    """One seat; a step costs next to nothing."""

    agents = ("agent",)
    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult({"agent": Observation([Message("go on")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        (said,) = actions.values()
        return StepResult({"agent": Observation([Message(said.content)])}, {"agent": Reward(1.0)})
