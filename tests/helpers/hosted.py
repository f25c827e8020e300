"""A server in a thread of this process, its workers in processes, and a client that speaks the bare
protocol: for tests of either end."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Self, TypeVar

import grpc

from mrlm.core.types import Message, Role, Task
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.environments.server import EnvironmentServer, Settings
from mrlm.serving.protocol import channels, codec
from mrlm.serving.protocol.channels import service_stub
from mrlm.serving.protocol.security import bearer

T = TypeVar("T")


class Hosted:
    """A server for the time of a `with`; the arguments are those of `Settings`."""

    def __init__(self, environments: Sequence[Any], **settings: Any) -> None:
        self.settings = Settings(environments, **{"workers": 1, **settings})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def do(self, work: Coroutine[Any, Any, T], timeout: float = 120.0) -> T:
        """Run a coroutine where the server is."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.server: EnvironmentServer = self.do(self._made())
        except BaseException:
            self._end()
            raise
        return self

    async def _made(self) -> EnvironmentServer:
        server = EnvironmentServer(self.settings)
        await server.start()
        return server

    def __exit__(self, *exception: object) -> None:
        self.do(self.server.stop())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def pids(self) -> list[int]:
        """Its workers."""
        return [worker.process.pid for worker in self.server.pool.workers]

    def client(self, **more: Any) -> "Client":
        """Somebody who calls it."""
        return Client(self.server.address, **{"token": self.settings.token, **more})


class Client:
    """A channel and its stub."""

    def __init__(
        self,
        address: str,
        token: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        options = [*channels.channel_options(64 << 20), *options]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)
        self.metadata = bearer(token)
        self.stub = service_stub(self.channel, "Environments")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.channel.close()

    def call(self, request: pb.Request, timeout: float = 60.0) -> pb.Reply:
        """A unary call."""
        return self.stub.Call(request, metadata=self.metadata, timeout=timeout)

    def info(self) -> pb.InfoReply:
        """How the server is."""
        return self.stub.Info(pb.InfoRequest(), metadata=self.metadata)

    def open(self, world: str, key: str = "", arguments: str = "", **more: Any) -> "Session":
        """A session of a world."""
        named = pb.World(environment=world, arguments_json=arguments)
        reply = self.call(pb.Request(open=pb.Open(world=named, key=key, **more)))
        return Session(self, reply.opened.session)

    def begin(self, world: str, key: str = "", arguments: str = "") -> "Session":
        """A session of a world that was reset."""
        session = self.open(world, key, arguments)
        session.reset()
        return session


class Session:
    """One session, whose calls are counted."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name, self.seq = client, name, 0

    def ask(self, seq: int | None = None, **call: Any) -> pb.Reply:
        """The next call, or one with another number."""
        number = self.seq + 1 if seq is None else seq
        reply = self.client.call(pb.Request(session=self.name, seq=number, **call))
        self.seq = max(self.seq, number)
        return reply

    def reset(self, task: Task | None = None, seed: int | None = None) -> pb.StepResult:
        sent = None if task is None else codec.to_task(task)
        return self.ask(reset=pb.Reset(task=sent, seed=seed)).result

    def step(self, words: str = "on", agent: str = "a", seq: int | None = None) -> pb.StepResult:
        return self.ask(seq, step=step(words, agent)).result

    def close(self) -> pb.Reply:
        return self.ask(close=pb.Close())


def step(words: str, agent: str = "a") -> pb.Step:
    """What one agent says."""
    said = codec.to_message(Message(words, Role.ASSISTANT, agent=agent))
    return pb.Step(actions={agent: said}, order=[agent])
