"""Clients of apps that vanish, repeat, hang and come late, each on a socket of its own: the episode
goes on or fails in a defined way, and nothing of them is left."""

import asyncio
import gc
import json
import socket
import threading
import time
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

import mrlm.app
import waiting
from app_play import app_episodes
from mrlm.engines.scripted import ScriptedEngine
from mrlm.play.failure_log import AllFailedError
from mrlm.serving.apps.handler import handler
from mrlm.serving.apps.session import AppSession
from mrlm.serving.policies.connections import Sending

TITLE = "Clients of apps that vanish, repeat, hang and come late"
JUDGE = "sockets of the operating system, openai (Python)"
DIFFERENCES = (
    "an answer whose client is gone is sampled to its end and kept as a turn that is not trained "
    "on; of a stream, one that is gone after its beginning has the answer",
)
HI: Any = [{"role": "user", "content": "Hi"}]


class Gated(ScriptedEngine):
    """Answers when its gate is open."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate: threading.Event = threading.Event()
        self.gate.set()

    async def generate(self, requests: Any) -> Any:
        while not self.gate.is_set():
            await asyncio.sleep(0.001)
        return await super().generate(requests)


def head_and_body(text: str, key: str, path: str, **more: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": "coder", "messages": messages, **more}).encode()
    head = f"POST {path}/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Caller:
    """A client of the running episode on sockets."""

    def __init__(self) -> None:
        self.url, self.key = mrlm.app.base_url(), mrlm.app.api_key()
        self.path = self.url[self.url.index("/e/") :]
        self.port = int(self.url.split(":")[2].partition("/")[0])
        self.session: AppSession = handler().sessions[self.path.split("/")[2]]

    async def send(self, text: str, **more: Any) -> tuple[Any, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head_and_body(text, self.key, self.path, **more))
        await writer.drain()
        return reader, writer

    async def vanish(self, text: str, engine: Gated, **more: Any) -> None:
        """Send a request, and close the connection while it is being answered."""
        engine.gate.clear()
        before = len(self.session._lost)
        _, writer = await self.send(text, **more)
        await until(lambda: self.session.open)
        writer.close()
        await until(lambda: len(self.session._lost) > before)
        engine.gate.set()
        await until(lambda: not self.session.open)

    def client(self, **settings: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url, api_key=self.key, **settings)


async def until(ready: Any) -> None:
    end = time.monotonic() + waiting.HANGS
    while not ready():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


@pytest.fixture
def engine(tokenizer: Any) -> Gated:
    return Gated(lambda request: "yes " * 200, tokenizer)


def trained(episode: Any) -> list[bool]:
    return [turn.trained for turn in episode.rollouts["coder"].turns]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes_in_a_request(tokenizer: Any, engine: Gated, stream: bool) -> None:
    async def app(row: Any) -> float:
        caller = Caller()
        await caller.vanish("Hi", engine, stream=stream)
        async with caller.client() as there:
            await there.chat.completions.create(model="coder", messages=HI)
        return 1.0

    (episode,) = app_episodes(tokenizer, app, engine=engine)
    assert trained(episode) == [False, True] and episode.reward == 1.0


def test_a_client_that_vanishes_in_a_stream_has_the_answer(tokenizer: Any, engine: Gated) -> None:
    async def app(row: Any) -> float:
        caller = Caller()
        reader, writer = await caller.send("Hi", stream=True)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.transport.abort()
        async with caller.client() as there:
            stream = await there.chat.completions.create(model="coder", messages=HI, stream=True)
            async for _ in stream:
                break
            await stream.close()
        return 1.0

    (episode,) = app_episodes(tokenizer, app, engine=engine, max_new_tokens=2000)
    assert trained(episode) == [True, True] and episode.reward == 1.0


@pytest.mark.parametrize("others", [0, 1])
def test_a_client_that_repeats_after_its_timeout(
    tokenizer: Any, engine: Gated, others: int
) -> None:
    """With another client that waits for the same words at the same time, too."""

    async def app(row: Any) -> float:
        caller = Caller()
        engine.gate.clear()
        async with caller.client(timeout=0.2, max_retries=5) as there, caller.client() as other:
            ask = {"model": "coder", "messages": HI}
            call = asyncio.create_task(there.chat.completions.create(**ask))
            await until(lambda: caller.session.open)
            create = other.chat.completions.create
            waiting = [asyncio.create_task(create(**ask)) for _ in range(others)]
            await until(lambda: caller.session._lost)
            await until(lambda: not caller.session._lost)  # the second attempt has come
            engine.gate.set()
            ids = {(await call).id, *[(await task).id for task in waiting]}
        return float(len(ids) == 1 + others)

    (episode,) = app_episodes(tokenizer, app, engine=engine)
    assert trained(episode) == [True] * (1 + others) and episode.reward == 1.0


def test_a_client_that_hangs_fails_its_episode_only(tokenizer: Any, engine: Gated) -> None:
    sockets: list[Any] = []

    async def app(row: Any) -> float:
        caller = Caller()
        reader, writer = await asyncio.open_connection("127.0.0.1", caller.port)
        sockets.append(writer)
        request = head_and_body("Hi", caller.key, caller.path)
        if row["question"].startswith("What is 0"):
            writer.write(request[:-10])  # and never the rest
            await reader.read()
        writer.write(request)
        await reader.readline()
        return 1.0

    rows = [{"question": "What is 0+3?"}]
    with pytest.raises(AllFailedError, match=r"made no call for 0\.3 s"):
        app_episodes(tokenizer, app, engine=engine, timeout=0.3, rows=rows)
    (episode,) = app_episodes(
        tokenizer, app, engine=engine, timeout=5.0, rows=[{"question": "What is 1+3?"}]
    )
    assert trained(episode) == [True]


def answer_of(connection: socket.socket) -> tuple[bytes, str]:
    whole = b""
    while b"\r\n\r\n" not in whole or not whole.endswith(b"}"):
        whole += connection.recv(4096)
    return whole.split(b"\r\n")[0], whole.decode()


def test_calls_after_the_end_and_over_the_end(tokenizer: Any, engine: Gated) -> None:
    late: list[tuple[int, bytes]] = []
    connections: list[socket.socket] = []

    async def app(row: Any) -> float:
        caller = Caller()
        async with caller.client() as there:
            await there.chat.completions.create(model="coder", messages=HI)
        engine.gate.clear()
        late.append((caller.port, head_and_body("Ho", caller.key, caller.path)))
        connections.append(socket.create_connection(("127.0.0.1", caller.port)))
        connections[0].sendall(late[0][1])
        await until(lambda: caller.session.open)
        return 1.0

    (episode,) = app_episodes(tokenizer, app, engine=engine)
    assert trained(episode) == [True] and episode.reward == 1.0
    connections.append(socket.create_connection(("127.0.0.1", late[0][0])))
    connections[1].sendall(late[0][1])
    for connection in connections:
        status, text = answer_of(connection)
        assert status.startswith(b"HTTP/1.1 410") and "has ended" in text
        connection.close()


def test_nothing_is_left_of_clients_that_vanish(
    tokenizer: Any, engine: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[int] = []
    made = Sending.connection_made

    def noted(self: Any, transport: Any) -> None:
        made(self, transport)
        sent = transport.get_extra_info("socket")
        delays.append(sent.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Sending, "connection_made", noted)

    async def app(row: Any) -> float:
        caller = Caller()
        for number in range(20):
            await caller.vanish(f"{number}", engine, stream=number % 2 == 1)
            reader, writer = await caller.send("Hi", stream=True)
            await reader.readline()
            writer.transport.abort()
        return 1.0

    def left() -> dict[str, int]:
        gc.collect()
        state = handler().server._server.server_state
        sessions = sum(type(thing) is AppSession for thing in gc.get_objects())
        counts = {"threads": threading.active_count(), "tasks": len(state.tasks)}
        counts |= {"connections": len(state.connections), "held": handler()._held}
        return counts | {"sessions": sessions, "open": len(handler().sessions)}

    app_episodes(tokenizer, app, engine=engine)
    waiting.until(
        lambda: not any(left()[name] for name in ("tasks", "connections", "held", "open"))
    )
    before = left()
    app_episodes(tokenizer, app, engine=engine)
    waiting.until(lambda: all(count <= before[name] for name, count in left().items()))
    assert delays and all(delays)


def test_a_wrong_key_gets_nothing(tokenizer: Any) -> None:
    async def app(row: Any) -> float:
        caller = Caller()
        async with caller.client() as there:
            await there.chat.completions.create(model="coder", messages=HI)
            with pytest.raises(openai.AuthenticationError):
                await there.with_options(api_key="x").chat.completions.create(
                    model="coder", messages=HI
                )
        return 1.0

    (episode,) = app_episodes(tokenizer, app)
    assert trained(episode) == [True]
