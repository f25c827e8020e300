"""One way to step every environment by hand, in ordinary code and inside an event loop."""

import asyncio
from typing import Any

import pytest

from every_environment import ALL, make, play
from mrlm import Environment, Message, StepResult
from mrlm.core.environment import as_environment
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import in_thread
from mrlm.core.types import Observation, Reward, Role

SEED = 3


def words(world: Environment, agent: str, messages: list[Message]) -> str:
    return world.expert(agent, list(messages)) or "yes"


def said(world: Environment, result: StepResult) -> Message | dict[str, Message]:
    """What is said next: a message with one agent, a mapping with several."""
    speakers = {a: seen for a, seen in result.observations.items() if not seen.done}
    found = {
        a: Message(words(world, a, seen.messages), Role.ASSISTANT) for a, seen in speakers.items()
    }
    return next(iter(found.values())) if len(world.agents) == 1 else found


def over(result: StepResult) -> bool:
    going = any(not seen.done for seen in result.observations.values())
    return result.done or result.truncated or not going


def plainly(world: Environment) -> tuple[list[str], float]:
    result = world.reset(SEED)
    seen, total = [repr(result)], 0.0
    while not over(result):
        result = world.step(said(world, result))  # type: ignore[arg-type]
        seen.append(repr(result))
        total += result.reward
    world.close()
    return seen, total


async def awaited(world: Environment) -> tuple[list[str], float]:
    result = await world.reset(seed=SEED)
    seen, total = [repr(result)], 0.0
    while not over(result):
        result = await world.step(said(world, result))  # type: ignore[arg-type]
        seen.append(repr(result))
        total += result.reward
    world.close()
    return seen, total


@pytest.mark.parametrize("name", ALL)
def test_every_environment_is_stepped_in_one_way(name: str) -> None:
    """`reset(seed)`, then messages: the same answers in ordinary code, awaited, and as an episode
    is played."""
    template = make(name)
    expected = play(template, template.task(SEED), words)
    assert plainly(template.spawn()) == expected
    assert asyncio.run(awaited(template.spawn())) == expected


class Echo(Environment):
    """Counts the loops it is called in."""

    agents: tuple[str, ...] = ("agent",)

    async def reset(self, task: Any = None, seed: int | None = None) -> StepResult:
        self.loops = {id(asyncio.get_running_loop())}
        return StepResult({self.agents[0]: Observation([Message(f"{task.seed} {seed}")])})

    async def step(self, actions: dict[str, Message]) -> StepResult:
        self.loops.add(id(asyncio.get_running_loop()))
        (agent,) = actions
        return StepResult(rewards={agent: Reward(1.0)}, done=True)


class Louder(Echo):
    async def step(self, actions: dict[str, Message]) -> StepResult:
        result = await super().step(actions)
        return StepResult(
            rewards={a: Reward(2 * r.value) for a, r in result.rewards.items()}, done=True
        )


def test_coroutines_of_one_environment_run_in_one_loop() -> None:
    world = Louder()
    assert world.reset(5).messages == [Message("5 5")]
    assert world.step(Message("hello")).reward == 2.0
    assert len(world.loops) == 1


def test_a_coroutine_stays_one_where_the_library_awaits_it() -> None:
    """In a loop, and in the threads in which the library calls environments."""

    async def both() -> tuple[Any, Any]:
        world = Echo()
        await world.reset(1)
        return await world.step(Message("a")), await in_thread(lambda: world.step(Message("a")))

    direct, threaded = asyncio.run(both())
    assert isinstance(direct, StepResult)
    assert asyncio.iscoroutine(threaded)
    threaded.close()


def test_a_message_needs_its_agent_where_there_are_several() -> None:
    class Two(Echo):
        agents = ("a", "b")

    world = Two()
    world.reset(0)
    with pytest.raises(ConfigError, match="has the agents a, b; give step"):
        world.step(Message("hello"))
    assert list(world.step(Message("hello", agent="b")).rewards) == ["b"]
    with pytest.raises(ConfigError, match="takes a Message or a dict"):
        world.step("hello")  # type: ignore[arg-type]


def test_a_reset_without_a_task_is_called_as_it_is() -> None:
    class Own(Environment):
        def reset(self, seed: int = 0) -> StepResult:  # type: ignore[override]
            return StepResult({"agent": Observation([Message(str(seed))])})

    assert as_environment(Own()).reset(4).messages == [Message("4")]  # type: ignore[arg-type]
