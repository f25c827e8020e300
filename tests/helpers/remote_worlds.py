"""Worlds with arguments that do not travel (functions, instances), for servers in tests: a user's
own functions, named as `module:function`."""

import asyncio

from every_environment import make
from mrlm.core.environment import Environment, SimulatedEnvironment
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, Role, StepResult, Task


def begun(world: Environment) -> str:
    return said(run_async(world.reset()))


def step(world: Environment, word: str) -> str:
    message = Message(word, Role.ASSISTANT, agent=world.agents[0])
    return said(run_async(world.step({world.agents[0]: message})))


def said(result: StepResult) -> str:
    return next(iter(result.observations.values())).messages[-1].content


def reward() -> Environment:
    return make("reward")


def rescored() -> Environment:
    return make("rescored")


def difference() -> Environment:
    return make("difference")


class Dice(SimulatedEnvironment):
    """One seat, and no seed: what it draws cannot be drawn again."""

    def reset(self) -> Observation:
        import os

        self.drawn = os.urandom(8).hex()
        return Observation([Message(self.drawn)])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        return Observation([Message(self.drawn)], done=True), Reward(float(len(action.content)))


class Failing(Environment):
    """Does what it is told: raises, pays nonsense, takes too long, or goes on."""

    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult({"agent": Observation([Message("go")])})

    async def step(self, actions: dict[str, Message]) -> StepResult:
        (said,) = actions.values()
        if said.content == "raise":
            raise ZeroDivisionError("a secret of the server")
        if said.content == "slow":
            await asyncio.sleep(60)
        paid = Reward(float("nan") if said.content == "nan" else 1.0)
        return StepResult({"agent": Observation([Message(said.content)])}, {"agent": paid})


class Slow(Environment):
    """Two steps, each of which takes a while; long words pay."""

    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.left = 2
        return StepResult({"agent": Observation([Message(f"say {seed}")])})

    async def step(self, actions: dict[str, Message]) -> StepResult:
        await asyncio.sleep(0.15)
        self.left -= 1
        (said,) = actions.values()
        seen = Observation([Message(f"{self.left} left")], done=not self.left)
        return StepResult(
            {"agent": seen}, {"agent": Reward(0.1 * len(said.content))}, done=not self.left
        )
