"""Steps of environments on servers."""

from __future__ import annotations

from mrlm.core.environment import Environment
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role, StepResult


def begun(world: Environment) -> str:
    return said(run_async(world.reset()))


def step(world: Environment, word: str) -> str:
    message = Message(word, Role.ASSISTANT, agent=world.agents[0])
    return said(run_async(world.step({world.agents[0]: message})))


def said(result: StepResult) -> str:
    return next(iter(result.observations.values())).messages[-1].content
