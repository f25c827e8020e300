"""An OpenEnv server played by the library's own client and by ours: equal texts and returns."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mrlm.core.types import Message, Role
from mrlm.environments.connectors.openenv import OpenEnvEnvironment

pytest.importorskip("openenv", reason="the package openenv is not installed")
import uvicorn
from openenv.core import GenericEnvClient  # pyright: ignore[reportMissingImports]
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app  # pyright: ignore[reportMissingImports]

TITLE = "Environments of OpenEnv servers"
JUDGE = "openenv (its own client)"
DIFFERENCES = (
    "the reward of a reset is part of the first action's, because only actions are rewarded here",
)


class Line(Action):
    text: str


class Choice(Action):
    number: int | None


class Seen(Observation):
    text: str | None = None


class Sounding(Environment):
    """Repeats what it hears, with its white space; rewards may be missing, also at the reset."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.seed, self.count = 0, 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Seen:
        self.seed, self.count = seed or 0, 0
        return Seen(text="  begin\n", reward=[None, 0.25, 0.0][self.seed % 3])

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Seen:
        self.count += 1
        heard = action.text if isinstance(action, Line) else action.number
        rewards = [None, -0.5, 1 + 2e-16, 3]
        reward = rewards[(self.seed + self.count + len(str(heard))) % 4]
        text = None if heard is None else f"{heard}"
        return Seen(text=text, reward=reward, done=self.count == 4)

    @property
    def state(self) -> State:
        return State(step_count=self.count)


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[type, str]]:
    servers, addresses = [], {}
    for kind in (Line, Choice):
        app = create_fastapi_app(Sounding, kind, Seen, max_concurrent_envs=8)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        servers.append((server, thread))
        addresses[kind] = f"http://127.0.0.1:{port}"
    yield addresses
    for server, thread in servers:
        server.should_exit = True
        thread.join()


LINES = ["  indented\n", "plain", "", "\ttab ", "{}"]
NUMBERS = ["3", "null", " -2 ", "0", "12"]


@pytest.mark.parametrize(("kind", "texts"), [(Line, LINES), (Choice, NUMBERS)])
@pytest.mark.parametrize("start", range(6))
def test_an_episode_is_that_of_the_librarys_client(
    kind: type, texts: list[str], start: int, urls: dict[type, str], record_property: Any
) -> None:
    moves = [texts[(start + step) % len(texts)] for step in range(4)]
    env = OpenEnvEnvironment(urls[kind], instructions="").spawn()
    task = env.task(start)
    client = GenericEnvClient(base_url=urls[kind]).sync()
    client.connect()
    result, theirs = env.reset(task, start), client.reset(seed=task.info["seed"])
    earned, right = 0.0, theirs.reward or 0.0
    for move in moves:
        shown, (seen,) = theirs.observation["text"], result.observations["agent"].messages
        assert seen.content == ("null" if shown is None else shown)
        result = env.step({"agent": Message(move, Role.ASSISTANT)})
        theirs = client.step({"text": move} if kind is Line else {"number": json.loads(move)})
        earned, right = earned + result.rewards["agent"].value, right + (theirs.reward or 0.0)
        assert result.done == theirs.done
    assert earned == pytest.approx(right) and result.done
    client.close()
    env.close()
    record_property("cases", 4)
