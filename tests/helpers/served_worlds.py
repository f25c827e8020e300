"""Worlds as users write them, that do what they are told: the words of an agent are an order."""

import asyncio
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from mrlm.core import registry
from mrlm.core.environment import Environment, SimulatedEnvironment, as_environment
from mrlm.core.errors import EpisodeError, MRLMError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task


class Scene(Environment):
    """Counts its steps. `sleep S`, `raise`, `regret`, `die`, `nan`, `set`, `long N` do that."""

    agents = ("a", "b")
    blocking = False

    def __init__(self, start: int = 0, touch: str | None = None, copies: bool = True) -> None:
        self.count, self.touch, self.copies = start, touch, copies

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        words = "hello" if task is None else f"{task.id} {task.info} {task.answer}"
        return StepResult({"a": Observation([Message(f"{words} {seed}")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.count += 1
        words = actions["a"].content if "a" in actions else ""
        order, _, rest = words.partition(" ")
        info: dict[str, Any] = {"count": self.count}
        value = 1.0
        if order == "sleep":
            time.sleep(float(rest))
        elif order == "raise":
            raise ValueError("a secret of the server")
        elif order == "regret":
            raise EpisodeError("the corpus is not there")
        elif order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif order == "nan":
            value = float("nan")
        elif order == "set":
            info["odd"] = {1}
        elif order == "long":
            info["text"] = "x" * int(rest)
        elif order == "environment":
            info["torch"] = "torch" in sys.modules
            info["pid"] = os.getpid()
        reward = Reward(value, {"numpy": np.float32(0.5)})  # type: ignore[dict-item]
        return StepResult({"a": Observation([Message("on")])}, {"a": reward}, info=info)

    def state(self) -> str:
        return f"{self.count} steps"

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        return f"{agent} heard {len(messages)}" if agent == "a" else None

    def close(self) -> None:
        if self.touch is not None:
            with open(self.touch, "a") as file:
                file.write("closed\n")

    def __deepcopy__(self, memo: dict[int, Any]) -> "Scene":
        if not self.copies and self.count:
            raise TypeError("it cannot be copied")
        return type(self)(self.count, self.touch, self.copies)


class Blocking(Scene):
    """The same, of which nobody knows how long it takes."""

    blocking = True


class Waiting(Scene):
    """The same, in coroutines."""

    async def step(self, actions: dict[str, Message]) -> StepResult:  # type: ignore[override]
        order, _, rest = actions["a"].content.partition(" ")
        await asyncio.sleep(float(rest) if order == "sleep" else 0.0)
        return super().step({"a": Message("on")})


class Guess(SimulatedEnvironment):
    """A world with one agent, whose reset takes no seed."""

    def reset(self) -> Observation:
        return Observation([Message("guess")])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        return Observation([], done=True), Reward(float(action.content == "7"))


class Slow(Environment):
    """Takes long to be made."""

    def __init__(self, seconds: float = 60.0) -> None:
        time.sleep(seconds)


def without_arguments() -> list[str]:
    """The worlds that need no arguments and have tasks of their own."""
    found = []
    for name in registry.names("environments"):
        try:
            as_environment(registry.load("environments", name)()).task(0)
        except (TypeError, MRLMError):
            continue
        found.append(name)
    return found


WORLDS = without_arguments()
