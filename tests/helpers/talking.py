"""Worlds for tests of play beside learning: the same episodes, in different moods."""

import random
import time
from dataclasses import replace
from typing import Any

from mrlm.core.environment import Environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task


class Talk(Environment):
    """One seat is asked for letters, as many times as the seed and its words say."""

    agents = ("speaker",)
    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.turns, self.patience = 0, 1 + (seed or 0) % 5
        return self.asked()

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.turns += 1
        said = actions["speaker"].content
        result = self.asked()
        result.rewards = {"speaker": Reward(sum(map(str.isalpha, said)) - 0.1 * len(said))}
        result.done = self.turns >= self.patience or len(said) % 7 == 0
        return result

    def asked(self) -> StepResult:
        return StepResult({"speaker": Observation([Message(f"{self.turns}: letters?")])})


class Moody(Talk):
    """The same world, which takes its time, never the same."""

    blocking = True

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        time.sleep(random.SystemRandom().random() * 0.01)
        return super().reset(task, seed)

    def step(self, actions: dict[str, Message]) -> StepResult:
        time.sleep(random.SystemRandom().random() * 0.02)
        return super().step(actions)


class Slow(Talk):
    """The same world, slow enough to be interrupted."""

    blocking = True

    def step(self, actions: dict[str, Message]) -> StepResult:
        time.sleep(0.1)
        return super().step(actions)


class Fickle(Talk):
    """How long it goes on depends on what is said; only the last words are paid, or not."""

    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        letters = sum(map(ord, actions["speaker"].content))
        result.done = self.turns >= 4 or letters % 3 == 0
        result.rewards = {"speaker": Reward(float(result.done and letters % 2))}
        return result


class FickleMoody(Fickle, Moody):
    """The same, never as fast as the last time."""

    blocking = True


class Broken(Talk):
    """Fails in a way that ends the run, after some tasks."""

    def step(self, actions: dict[str, Message]) -> StepResult:
        if self.number > 6:
            raise ConfigError("talk is not set up")
        return super().step(actions)

    def task(self, seed: int, split: Any = "train") -> Task:
        return Task(id=f"{split}-{seed}", seed=seed)

    def num_tasks(self, split: Any = "train") -> int:
        return 12

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        assert task is not None
        self.number = task.seed
        return super().reset(task, seed)


class Pair(Environment):
    """Two seats speak twice, at once; they are paid for letters and for agreeing on how many."""

    agents = ("first", "second")
    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.step_count, self.count = 0, (seed or 0) % 4
        return self.observed()

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.step_count += 1
        letters = [sum(map(str.isalpha, message.content)) for message in actions.values()]
        paid = Reward(0.1 * sum(letters) - 0.2 * abs(letters[0] - letters[1]))
        done = self.step_count == 2
        return replace(self.observed(), rewards=dict.fromkeys(self.agents, paid), done=done)

    def observed(self) -> StepResult:
        said = Observation([Message(f"{self.state()}?")])
        return StepResult(dict.fromkeys(self.agents, said))

    def state(self) -> str:
        return f"{self.count} letters"
