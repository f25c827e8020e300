"""Networks that fail, on purpose and by a seed: a gRPC server in the middle that drops, duplicates,
holds back and delays messages, and a TCP proxy that delays, resets and swallows connections. And a
world that counts what it hears, so that a step that happened twice, or never, is seen.

`python tests/helpers/faults.py --target PORT --seed N ...` runs both in a process of its own.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any

import grpc

from mrlm.core.environment import Environment
from mrlm.core.types import Message, Observation, Reward, StepResult, Task

# -- the world that counts -------------------------------------------------------------------------


class Counting(Environment):
    """Says after every step how many it has heard, and a hash of all of them in order.

    Args:
        steps: after which it is over.
    """

    agents = ("player",)
    blocking = False

    def __init__(self, steps: int = 1_000_000) -> None:
        self.steps = steps
        self.heard = 0
        self.digest = ""

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.heard, self.digest = 0, ""
        return self._said()

    def step(self, actions: dict[str, Message]) -> StepResult:
        (said,) = actions.values()
        self.heard += 1
        self.digest = chained(self.digest, said.content)
        return self._said()

    def _said(self) -> StepResult:
        seen = Observation([Message(f"{self.heard} {self.digest}")])
        done = self.heard >= self.steps
        return StepResult({"player": seen}, {"player": Reward(1.0)}, done=done)

    def state(self) -> str:
        return f"{self.heard} {self.digest}"


def chained(digest: str, word: str) -> str:
    """The hash of everything that was said so far and a word."""
    return hashlib.blake2b(f"{digest} {word}".encode(), digest_size=8).hexdigest()


# -- what goes wrong -------------------------------------------------------------------------------


@dataclass(slots=True)
class Faults:
    """Chances, of a message or of a piece of bytes, and how long.

    Args:
        drop: a message never arrives.
        double: it arrives twice.
        hold: it arrives again, by itself, long after others; the original does not.
        late: it arrives late, and those behind it too.
        seconds: how late at most.
        reset: a connection is torn down.
        swallow: a connection goes on, but nothing gets through any more.
        slow: a piece is delayed.
    """

    drop: float = 0.0
    double: float = 0.0
    hold: float = 0.0
    late: float = 0.0
    seconds: float = 0.05
    reset: float = 0.0
    swallow: float = 0.0
    slow: float = 0.0


class Between(grpc.GenericRpcHandler):
    """The server in the middle: it knows methods by name and messages as bytes."""

    def __init__(self, target: str, faults: Faults, seed: int, counts: Counter[str]) -> None:
        self._faults = faults
        self._drawn = random.Random(seed)
        self._counts = counts
        self._channel = grpc.aio.insecure_channel(target)
        self._held: set[asyncio.Task[None]] = set()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if method.endswith("/Play"):
            return grpc.stream_stream_rpc_method_handler(self._stream(method))
        return grpc.unary_unary_rpc_method_handler(self._unary(method))

    def _fate(self) -> str:
        """What happens to a message."""
        place, faults = self._drawn.random(), self._faults
        for name in ("drop", "double", "hold", "late"):
            place -= getattr(faults, name)
            if place < 0:
                self._counts[name] += 1
                return name
        self._counts["passed"] += 1
        return "pass"

    def _pause(self) -> float:
        return self._drawn.uniform(0, self._faults.seconds)

    def _unary(self, method: str) -> Callable[[bytes, Any], Any]:
        ask = self._channel.unary_unary(method)

        async def forward(request: bytes, context: Any) -> bytes:
            fate, metadata = self._fate(), context.invocation_metadata()
            if fate == "late":
                await asyncio.sleep(self._pause())
            try:
                reply = await ask(request, metadata=_passed_on(metadata))
                if fate == "double":
                    reply = await ask(request, metadata=_passed_on(metadata))
            except grpc.aio.AioRpcError as error:
                context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
                await context.abort(error.code(), error.details() or "")
            if fate in ("drop", "hold"):
                await asyncio.sleep(600)  # until whoever asked gives up
            return reply

        return forward

    def _stream(self, method: str) -> Callable[[AsyncIterator[bytes], Any], Any]:
        open_stream = self._channel.stream_stream(method)
        again = self._channel.unary_unary(method.removesuffix("Play") + "Call")

        async def later(request: bytes, metadata: Any) -> None:
            await asyncio.sleep(10 * self._pause())
            with contextlib.suppress(grpc.aio.AioRpcError):
                await again(request, metadata=metadata)

        async def forward(requests: AsyncIterator[bytes], context: Any) -> None:
            metadata = _passed_on(context.invocation_metadata())
            stream = open_stream(metadata=metadata)

            async def up() -> None:
                async for request in requests:
                    fate = self._fate()
                    if fate == "hold":
                        task = asyncio.ensure_future(later(request, metadata))
                        self._held.add(task)
                        task.add_done_callback(self._held.discard)
                    if fate == "late":
                        await asyncio.sleep(self._pause())
                    if fate in ("pass", "late", "double"):
                        await stream.write(request)
                    if fate == "double":
                        await stream.write(request)
                await stream.done_writing()

            sender = asyncio.ensure_future(up())
            kept: Any = None
            try:
                while (reply := await stream.read()) is not grpc.aio.EOF:  # pyright: ignore[reportAttributeAccessIssue]
                    fate = self._fate()
                    if fate == "hold":
                        kept = reply
                        continue
                    if fate == "late":
                        await asyncio.sleep(self._pause())
                    if fate != "drop":
                        await context.write(reply)
                    if fate == "double":
                        await context.write(reply)
                    if kept is not None:
                        await context.write(kept)
                        kept = None
                code = await stream.code()
                if code is not grpc.StatusCode.OK:
                    await context.abort(code, await stream.details())
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            finally:
                sender.cancel()
                stream.cancel()

        return forward


def _passed_on(metadata: Any) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in metadata or () if key == "authorization")


class Wire:
    """The TCP proxy.

    Args:
        port: where the bytes go, on this machine.
        faults: what happens to them.
        seed: of when.
        counts: of what happened.
    """

    def __init__(self, port: int, faults: Faults, seed: int, counts: Counter[str]) -> None:
        self._port, self._faults, self._counts = port, faults, counts
        self._drawn = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None] | None] = set()  # nobody else holds them

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            _tear(writer)
            return
        self._counts["connections"] += 1
        ends = (writer, far_writer)
        dead = asyncio.Event()
        await asyncio.gather(
            self._pump(reader, far_writer, ends, dead), self._pump(far_reader, writer, ends, dead)
        )

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        dead: asyncio.Event,
    ) -> None:
        faults = self._faults
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if dead.is_set():
                    continue  # swallowed
                place = self._drawn.random()
                if place < faults.reset:
                    self._counts["reset"] += 1
                    for end in ends:
                        _tear(end)
                    return
                if place < faults.reset + faults.swallow:
                    self._counts["swallowed"] += 1
                    dead.set()
                    continue
                if place < faults.reset + faults.swallow + faults.slow:
                    self._counts["slow"] += 1
                    await asyncio.sleep(self._drawn.uniform(0, faults.seconds))
                writer.write(data)
                await writer.drain()
        if not dead.is_set():
            writer.close()


def _tear(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, as a machine that crashed would."""
    own = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# -- both, in a process ----------------------------------------------------------------------------


class Network:
    """A network that fails, as a process between clients and a server on this machine.

    Args:
        target: the server's port.
        faults: what goes wrong.
        seed: of when.
    """

    def __init__(self, target: int, faults: Faults, seed: int) -> None:
        words = [f"--{name}={value}" for name, value in asdict(faults).items()]
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--target", str(target), "--seed", str(seed), *words],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port: int = int(self._process.stdout.readline())

    def close(self) -> dict[str, int]:
        """End it. Returns how often what went wrong."""
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate()
        return json.loads(said)


async def run(target: int, faults: Faults, seed: int) -> None:
    """Say the port, fail until SIGTERM, then say what happened."""
    counts: Counter[str] = Counter()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Between(f"127.0.0.1:{target}", faults, seed, counts),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(await Wire(port, faults, seed + 1, counts).start(), flush=True)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()
    print(json.dumps(counts), flush=True)
    os._exit(0)  # whatever still hangs is meant to


def main() -> None:
    """`python tests/helpers/faults.py`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=int, required=True, help="port of the server")
    parser.add_argument("--seed", type=int, default=0)
    for name, value in asdict(Faults()).items():
        parser.add_argument(f"--{name}", type=float, default=value)
    given = vars(parser.parse_args())
    target, seed = given.pop("target"), given.pop("seed")
    asyncio.run(run(target, Faults(**given), seed))


if __name__ == "__main__":
    main()
