"""Every environment of the package with what it needs, and those who play it."""

import asyncio
import inspect
import math
import random
from collections.abc import Callable
from typing import Any

from mrlm.core import registry
from mrlm.core.environment import Environment, as_environment
from mrlm.core.types import Message, Role, StepResult, Task
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.environments.qa import QASolverEnv
from places import TESTS

QUESTIONS = [{"question": f"Capital of land {i}?", "answer": f"City {i}"} for i in range(30)]
PROMPTS = [{"prompt": f"Write about topic {i}.", "topic": f"topic {i}"} for i in range(30)]
PAIRS = [
    {"prompt": f"What is thing {i}?", "chosen": f"It is number {i}.", "rejected": "No idea at all."}
    for i in range(30)
]


def mentions_topic(completions: list[str], topic: list[str], **columns: Any) -> list[float]:
    return [float(name in said) for said, name in zip(completions, topic, strict=True)]


def accepted(prompts: list[Any], completions: list[str], answer: list[list[str]]) -> list[float]:
    return [float(said in right) for said, right in zip(completions, answer, strict=True)]


NEEDS: dict[str, dict[str, Any]] = {
    "qa": {"dataset": QUESTIONS},
    "reward": {"dataset": PROMPTS, "reward_func": mentions_topic},
    "rescored": {"environment": QASolverEnv(dataset=QUESTIONS), "reward_fn": accepted},
    "reference": {"dataset": PAIRS},
    "centralised": {"environment": {"env_type": "relay"}},
    "difference": {"environment": MatrixEnvironment("xor"), "default": "A"},
    "world_model": {"model": "mrlm/tiny", "dataset": PROMPTS, "max_turns": 2, "max_new_tokens": 4},
    "noisy_debate": {"wrong": 0.0},
}
"""Arguments of the worlds that cannot be made without any, or do not always reward the best."""
ELSEWHERE = {path.stem.removeprefix("test_") for path in (TESTS / "extras").glob("test_*.py")}
"""Worlds of other libraries, which have the same tests there."""
ALL = [name for name in registry.names("environments") if name not in ELSEWHERE]


def make(name: str) -> Environment:
    return as_environment(registry.load("environments", name)(**NEEDS.get(name, {})))


def settled(answer: Any) -> StepResult:
    async def wait() -> StepResult:
        return await answer

    return asyncio.run(wait()) if inspect.isawaitable(answer) else answer


def expert(world: Environment, agent: str, messages: list[Message]) -> str:
    return world.expert(agent, messages) or ""


def has_expert(world: Environment) -> bool:
    task = world.task(0)
    fresh = world.spawn()
    result = settled(fresh.reset(task, task.seed))
    known = all(fresh.expert(a, o.messages) is not None for a, o in result.observations.items())
    fresh.close()
    return known


Words = Callable[[Environment, str, list[Message]], str]


def earned(world: Environment, task: Task, words: Words) -> tuple[list[str], dict[str, float]]:
    """What is seen and paid in one episode, in which `words` speaks for everybody."""
    world = world.spawn()
    result, seen, totals = settled(world.reset(task, task.seed)), [], dict.fromkeys(world.agents, 0)
    for _ in range(100):
        seen.append(repr(result))
        speakers = {agent: o for agent, o in result.observations.items() if not o.done}
        if result.done or result.truncated or not speakers:
            break
        said = {agent: words(world, agent, o.messages) for agent, o in speakers.items()}
        actions = {a: Message(text, Role.ASSISTANT, agent=a) for a, text in said.items()}
        result = settled(world.step(actions))
        for agent, reward in result.rewards.items():
            assert math.isfinite(reward.value)
            assert all(isinstance(key, str) for key in reward.components)
            assert all(math.isfinite(value) for value in reward.components.values())
            totals[agent] += reward.value
    else:
        raise AssertionError(f"{task.id} never ends")
    world.close()
    return seen, totals


def play(world: Environment, task: Task, words: Words) -> tuple[list[str], float]:
    """Transcript and sum of all rewards."""
    seen, totals = earned(world, task, words)
    return seen, sum(totals.values())


def echo(world: Environment, agent: str, messages: list[Message]) -> str:
    """Whatever was shown last: often the other agent's words."""
    return messages[-1].content if messages else ""


def guesses(seed: int) -> Words:
    """Words of the prompt, digits and letters, drawn anew for every answer."""
    drawn = random.Random(seed)

    def speak(world: Environment, agent: str, messages: list[Message]) -> str:
        known = [word for message in messages for word in message.content.split()]
        return " ".join(
            drawn.choices([*known, *"0123456789ABC", "yes", "no"], k=drawn.randint(1, 3))
        )

    return speak


ONE_SEAT = {
    name
    for name in registry.names("workflows")
    if registry.load("workflows", name).spec.single_agent
}
"""Workflows in which several agents answer a world for one."""
