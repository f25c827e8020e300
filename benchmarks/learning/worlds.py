"""What a team is compared with: the same task given to one agent alone."""

from __future__ import annotations

from mrlm.core.environment import Split
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.relay import RelayEnvironment, Style


class Alone(RelayEnvironment):
    """The sums of `relay` for one agent, which reads all three numbers and answers once.

    Args:
        max_number: the numbers are 0 to this one.
        seed, style: as for `relay`.
    """

    def __init__(self, max_number: int = 9, seed: int = 0, style: Style = "short") -> None:
        super().__init__(("first", "second"), max_number, seed, style=style)
        self.agents, self.max_turns = ("alone",), 1

    def task(self, seed: int, split: Split = "train") -> Task:
        task = super().task(seed, split)
        task.prompt = [Message(self._sum(task))]
        return task

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task = task or self.task(seed or 0)
        return StepResult({"alone": Observation([Message(self._sum(self._task))])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        text = actions["alone"].content if "alone" in actions else ""
        right = float(self._answer(text) == self._task.answer)
        return StepResult(rewards={"alone": Reward(right, {"correct": right})}, done=True)

    def state(self) -> str:
        return self._sum(self._task)

    def render(self, agent: str | None = None) -> None:
        """No board: the messages are all there is."""

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        return str(self._task.answer)

    def _sum(self, task: Task) -> str:
        return self._asked(0, [task.info[name] for name in "abc"], "")
