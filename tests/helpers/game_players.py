"""Those who play games of two seats: an expert, a script, one answer for all."""

from collections import Counter
from collections.abc import Callable

from mrlm.core.environment import Environment
from mrlm.core.types import Message, Role, StepResult, Task

Speaks = Callable[[Environment, str, str], str]


def says(world: Environment, text: str) -> StepResult:
    """A step in which all who are asked say the same."""
    result = world.step({agent: Message(text, Role.ASSISTANT) for agent in world.agents})
    assert isinstance(result, StepResult)
    return result


def played(
    world: Environment, task: Task, speaks: Speaks
) -> tuple[dict[str, float], list[tuple[str, str]], dict[str, Counter[str]]]:
    """What every agent earned; who was shown what; the components of rewards."""
    world = world.spawn()
    result = world.reset(task, task.seed)
    paid: dict[str, float] = dict.fromkeys(world.agents, 0.0)
    parts: dict[str, Counter[str]] = {agent: Counter() for agent in world.agents}
    seen: list[tuple[str, str]] = []
    for _ in range(100):
        for agent, reward in result.rewards.items():
            paid[agent] += reward.value
            parts[agent].update(reward.components)
        if result.done:
            return paid, seen, parts
        ((agent, observation),) = result.observations.items()
        shown = "\n".join(message.content for message in observation.messages)
        seen.append((agent, shown))
        result = world.step({agent: Message(speaks(world, agent, shown), Role.ASSISTANT)})
    raise AssertionError("the game does not end")


def expert(world: Environment, agent: str, shown: str) -> str:
    said = world.expert(agent, [])
    assert said is not None
    return said


def script(*words: str) -> Speaks:
    """One line after the other, whoever speaks."""
    lines = iter(words)
    return lambda world, agent, shown: next(lines)
