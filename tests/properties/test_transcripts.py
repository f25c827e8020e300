"""Every world is the same through a server as in this process: tasks, states, observations, rewards
and experts."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from every_environment import ALL, NEEDS, Words, guesses, make, settled
from mrlm.core.environment import Environment
from mrlm.core.types import Message, Role, Task
from mrlm.serving.client.environment import RemoteEnvironment
from mrlm.serving.environments.server import ServedEnvironment
from servers import InProcess

pytestmark = pytest.mark.system

OWN = {"reward", "rescored", "difference"}
"""Worlds whose arguments do not travel."""


@pytest.fixture(scope="module")
def server() -> Iterator[InProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
        worlds = [
            ServedEnvironment(name, f"remote_worlds:{name}") if name in OWN else name
            for name in ALL
        ]
        made = InProcess(environments=worlds)
        yield made
        made.close()


def plain(value: Any) -> Any:
    """Values as JSON has them, where tuples are lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def seen(result: Any) -> Any:
    """A step's result as plain data, in its order."""
    return {
        "observations": [
            (agent, each.messages, each.done, plain(each.info))
            for agent, each in result.observations.items()
        ],
        "rewards": [
            (agent, each.value, each.components, plain(each.info))
            for agent, each in result.rewards.items()
        ],
        "ends": (result.done, result.truncated, plain(result.info)),
    }


def transcript(template: Environment, task: Task, words: Words) -> list[Any]:
    """What is seen, paid and, before every step, the case in one episode."""
    world = template.spawn()
    result, found = settled(world.reset(task, task.seed)), []
    for _ in range(100):
        found.append(seen(result))
        if result.done or result.truncated:
            break
        found.append(world.state())
        speakers = {agent: o for agent, o in result.observations.items() if not o.done}
        said = {agent: words(world, agent, o.messages) for agent, o in speakers.items()}
        found.append(said)
        actions = {a: Message(text, Role.ASSISTANT, agent=a) for a, text in said.items()}
        result = settled(world.step(actions))
    else:
        raise AssertionError(f"{task.id} never ends")
    world.close()
    return found


def able(world: Environment, agent: str, messages: list[Message]) -> str:
    return world.expert(agent, messages) or "hm"


@pytest.mark.parametrize("name", ALL)
def test_a_world_gives_the_same_transcript_through_a_server(name: str, server: InProcess) -> None:
    local = make(name)
    arguments = {} if name in OWN else NEEDS.get(name, {})
    remote = RemoteEnvironment(name, server=server.address, arguments=arguments)
    assert (remote.name, remote.agents) == (local.name or name, tuple(local.agents))
    assert (remote.max_turns, remote.counts_turns) == (local.max_turns, local.counts_turns)
    for split in ("train", "eval"):
        assert remote.num_tasks(split) == local.num_tasks(split)
        ours, theirs = local.task(1, split), remote.task(1, split)
        assert (ours.id, ours.seed, ours.prompt) == (theirs.id, theirs.seed, theirs.prompt)
        assert plain(ours.answer) == theirs.answer and plain(ours.info) == theirs.info
    task = remote.task(0)
    for words in (lambda: able, lambda: guesses(0)):
        assert transcript(remote, task, words()) == transcript(local, task, words())
