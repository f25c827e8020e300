"""Plays the world that counts on a server, whatever the network does, and says whether every step
happened once. A real run in small: many episodes at once, and one that failed is played again."""

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from faults import chained
from mrlm.core.errors import EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role, StepResult
from mrlm.serving.client.environment import RemoteEnvironment


@dataclass(slots=True)
class Figures:
    """What a campaign came to.

    Args:
        steps: that were answered.
        wrong: after which the world had heard something else than what was said: a step that
            happened twice, or never, or out of order.
        failed: episodes that ended as an error and were played again.
        seconds: by the clock on the wall.
        first: what the first failure said.
    """

    steps: int = 0
    wrong: int = 0
    failed: int = 0
    seconds: float = 0.0
    first: str = ""


def said_by(result: StepResult) -> str:
    return result.observations["player"].messages[-1].content


async def episode(world: RemoteEnvironment, name: str, length: int, found: Figures) -> None:
    """One episode, step by step, to its end; what the world says is what it must have heard."""
    result, digest = await world.reset(), ""
    found.wrong += said_by(result) != "0 "
    for step in range(1, length + 1):
        word = f"{name}/{step}"
        result = await world.step({"player": Message(word, Role.ASSISTANT, agent="player")})
        digest = chained(digest, word)
        found.steps += 1
        if said_by(result) != f"{step} {digest}":
            found.wrong += 1
            return


def campaign(
    template: RemoteEnvironment, steps: int, at_once: int, length: int, attempts: int = 20
) -> Figures:
    """Play until so many steps were answered in episodes that reached their end.

    Args:
        template: the world that counts.
        steps: in all.
        at_once: episodes.
        length: steps of each.
        attempts: times that an episode is played until it succeeds.
    """
    found, started = Figures(), time.monotonic()
    numbers = iter(range(steps // length))

    async def player() -> None:
        for number in numbers:
            for attempt in range(attempts):
                world = template.spawn()
                assert isinstance(world, RemoteEnvironment)
                try:
                    await episode(world, f"{number}.{attempt}", length, found)
                    break
                except EpisodeError as error:
                    found.failed += 1
                    found.first = found.first or str(error)
                finally:
                    world.close()
            else:
                raise AssertionError(f"episode {number} never came to its end: {found.first}")

    async def all_of_them() -> None:
        await asyncio.gather(*(player() for _ in range(at_once)))

    run_async(all_of_them())
    found.seconds = time.monotonic() - started
    return found


def step_twice(template: RemoteEnvironment) -> Figures:
    """A network that lets a step happen twice, by hand: what an error would look like."""
    found, world = Figures(), template.spawn()
    message = {"player": Message("twice/1", Role.ASSISTANT, agent="player")}

    async def twice() -> None:
        await world.reset()
        await world.step(message)
        result = await world.step(message)
        found.wrong += said_by(result) != f"1 {chained('', 'twice/1')}"

    run_async(twice())
    world.close()
    return found


@dataclass(slots=True)
class Vanished:
    """What became of sessions half of which vanished.

    Args:
        opened: at once.
        left: open after the others were freed.
        lost: of those who stayed, who could not go on.
        seconds: until those who vanished were freed.
    """

    opened: int
    left: int
    lost: int
    seconds: float


def vanishing(
    template: RemoteEnvironment, count: int, sessions: Callable[[], int], lease: float
) -> Vanished:
    """Open sessions at once, let every other one vanish without a word, wait until the server has
    freed them, and go on with the rest.

    Args:
        template: the world that counts.
        count: how many.
        sessions: how many the server has.
        lease: seconds.
    """

    async def all_of_them() -> Vanished:
        worlds: list[Any] = [template.spawn() for _ in range(count)]
        await asyncio.gather(*(world.reset() for world in worlds))
        opened = sessions()
        gone, stay = worlds[::2], worlds[1::2]
        del worlds
        began = time.monotonic()
        gone.clear()  # nobody holds them any more, and nobody says so
        while sessions() > len(stay) and time.monotonic() - began < 10 * lease:
            gc.collect()
            await asyncio.sleep(lease / 4)
        seconds = time.monotonic() - began
        left = sessions()
        message = {"player": Message("here", Role.ASSISTANT, agent="player")}
        found = await asyncio.gather(
            *(world.step(message) for world in stay), return_exceptions=True
        )
        for world in stay:
            world.close()
        lost = sum(isinstance(each, BaseException) for each in found)
        return Vanished(opened, left, lost, seconds)

    return run_async(all_of_them())
