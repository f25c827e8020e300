"""`python -m benchmarks.serving`: what a step costs when its world lives on a server: round trips
per second and latencies of unary calls, of streams, and of `RemoteEnvironment`, beside the same
world in this process."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks import report
from benchmarks.echo import Echo
from mrlm.core.environment import Environment
from mrlm.core.types import Message, Role
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.environment import RemoteEnvironment
from mrlm.serving.protocol import codec
from mrlm.serving.protocol.channels import service_stub

MARKS = ("<!-- serving: written by `python -m benchmarks.serving` -->", "<!-- end -->")
RESULTS = "serving.json"
WORLD = "benchmarks.echo:Echo"
SAID = {"agent": Message("a few words, as an agent says them", Role.ASSISTANT, agent="agent")}
Step = Callable[[], Awaitable[Any]]


@dataclass(slots=True)
class Row:
    """One way to take a step.

    Args:
        way: which.
        sessions: at once, each of which takes its next step when it has the answer to the last.
        rate: steps per second of all together.
        p50, p99: milliseconds of a step.
    """

    way: str
    sessions: int
    rate: float
    p50: float
    p99: float


@contextmanager
def served(workers: int) -> Iterator[str]:
    """A server as a process of its own; its address."""
    words = ["-m", "mrlm", "serve", "--environments", WORLD, "--port", "0"]
    words += ["--workers", str(workers), "--max-calls", "4096"]
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join([root, *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r"serving on (\S+):", process.stdout.readline())
    assert found, "the server did not start"
    try:
        yield found[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def measured(way: str, steps: Sequence[Step], seconds: float) -> Row:
    """Let every session step for that long, after a warm-up of a fifth of it."""
    taken: list[float] = []

    async def go_on(step: Step, until: float) -> None:
        while (now := time.perf_counter()) < until:
            await step()
            taken.append(time.perf_counter() - now)

    await asyncio.gather(*(go_on(step, time.perf_counter() + seconds / 5) for step in steps))
    taken.clear()
    began = time.perf_counter()
    await asyncio.gather(*(go_on(step, began + seconds) for step in steps))
    spent = time.perf_counter() - began
    p50, p99 = (1e3 * float(np.percentile(taken, q)) for q in (50, 99))
    return Row(way, len(steps), len(taken) / spent, p50, p99)


async def by_hand(address: str, count: int, stream: bool, seconds: float) -> Row:
    """Requests as the protocol has them, with no client but gRPC's own."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub, talks = service_stub(channel, "Environments"), []
        said = {agent: codec.to_message(message) for agent, message in SAID.items()}
        call = pb.Step(actions=said, order=list(said))

        async def session() -> Step:
            opened = await stub.Call(pb.Request(open=pb.Open(world=pb.World(environment=WORLD))))
            numbers, name = itertools.count(1), opened.session
            await stub.Call(pb.Request(session=name, seq=next(numbers), reset=pb.Reset()))
            talk = stub.Play() if stream else None
            talks.append(talk)

            async def step() -> Any:
                request = pb.Request(session=name, seq=next(numbers), step=call)
                if talk is None:
                    return await stub.Call(request)
                await talk.write(request)
                return await talk.read()

            return step

        steps = await asyncio.gather(*(session() for _ in range(count)))
        row = await measured("stream" if stream else "unary", steps, seconds)
        for talk in filter(None, talks):
            await talk.done_writing()
            await talk.code()
        return row


async def by_client(template: Environment, way: str, count: int, seconds: float) -> Row:
    """Steps as a run takes them."""

    async def session() -> tuple[Environment, Step]:
        world = template.spawn()
        begun = world.reset()
        if asyncio.iscoroutine(begun):
            await begun

        async def step() -> Any:
            result = world.step(SAID)
            return await result if asyncio.iscoroutine(result) else result

        return world, step

    made = await asyncio.gather(*(session() for _ in range(count)))
    row = await measured(way, [step for _, step in made], seconds)
    for world, _ in made:
        world.close()
    return row


def markdown(rows: Sequence[Row], where: str) -> str:
    """The table for a page."""
    ways = list(dict.fromkeys(row.way for row in rows))
    lines = [
        f"Measured on {where}; client and server share the machine.",
        "",
        "| a step | sessions at once | steps/s | p50, ms | p99, ms |",
        "|---|---|---|---|---|",
    ]
    for way in ways:
        for row in (row for row in rows if row.way == way):
            lines.append(
                f"| {row.way} | {row.sessions:,} | {row.rate:,.0f} | {row.p50:.3f} | "
                f"{row.p99:.3f} |"
            )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--seconds", type=float, default=5.0, help="of every row")
    parser.add_argument("--workers", type=int, default=1, help="of the server")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    chosen = parser.parse_args(given)
    if min(chosen.sessions) < 1 or chosen.seconds <= 0 or chosen.workers < 1:
        parser.error("--sessions, --seconds and --workers must be above 0")
    rows = [asyncio.run(by_client(Echo(), "in this process", 1, chosen.seconds))]
    with served(chosen.workers) as address:
        for count in chosen.sessions:
            for stream in (False, True):
                rows.append(asyncio.run(by_hand(address, count, stream, chosen.seconds)))
                print(rows[-1], file=sys.stderr, flush=True)
            world = RemoteEnvironment(WORLD, server=address)
            job = by_client(world, "`RemoteEnvironment`", count, chosen.seconds)
            rows.append(asyncio.run(job))
            print(rows[-1], file=sys.stderr, flush=True)
    text = markdown(rows, report.machine())
    print(text)
    record = {
        "machine": report.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
        "workers": chosen.workers,
        "rows": [asdict(row) for row in rows],
    }
    chosen.output.mkdir(parents=True, exist_ok=True)
    (chosen.output / RESULTS).write_text(json.dumps(record, indent=1) + "\n")
    if chosen.page is not None:
        report.write_page(chosen.page, text, MARKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
