"""`python -m benchmarks.apps`: what a call costs when an app makes it through an OpenAI client,
beside a workflow's own call, and the memory of many episodes. The engine has a fixed answer. Over
HTTP the clients are in a process of their own, and their cost is that of the same calls of a server
with a constant answer."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from openai import AsyncOpenAI
from transformers import AutoTokenizer

import mrlm.app
from benchmarks import report
from mrlm import Message, default_model
from mrlm.core.chat import Chat
from mrlm.core.types import SamplingParams
from mrlm.engines.scripted import ScriptedEngine
from mrlm.environments.app import AppEnvironment
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.play.workflow import as_workflow
from mrlm.serving.apps.workflow import AppWorkflow
from mrlm.serving.policies.admission import AdmissionLimits
from mrlm.serving.policies.http_server import HttpServer

MARKS = ("<!-- apps: written by `python -m benchmarks.apps` -->", "<!-- end -->")
CALLS = 4
TEXT: list[Any] = [{"role": "user", "content": "What is 2+3?"}]
client = AsyncOpenAI(api_key="none")


class Forgetful(list[Any]):
    """The requests of an engine, not kept."""

    def append(self, item: Any) -> None: ...


async def inside(row: Any) -> float:
    for _ in range(CALLS):
        await client.chat.completions.create(model="coder", messages=TEXT)
    return 1.0


async def workflow(task: Any, agents: Any, env: Any) -> None:
    await env.reset()
    for _ in range(CALLS):
        last = await agents.coder.act([Message("What is 2+3?")])
    env.environment.outcome = (1.0, _NoRewards)
    await env.finish({"coder": last})


class _NoRewards:
    rewards: Sequence[Any] = ()


def made(app: Callable[..., Any], played: Any, episodes: int) -> Play:
    tokenizer = AutoTokenizer.from_pretrained(default_model())
    world = AppEnvironment(app, [{"question": str(n)} for n in range(12)], agents=["coder"])
    spec = EnvironmentSpec("app", world, world.spawn, played)
    coder = AgentSettings("coder", "policy", Chat(tokenizer), SamplingParams(16), 4096)
    engine = ScriptedEngine(lambda request: "yes", tokenizer)
    engine.batches = Forgetful()
    return Play([spec], {"coder": coder}, {"policy": engine}, episodes, 0)


async def played(play: Play, episodes: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of a call and of the processor in this process: the best of the rounds."""
    await play.take(1)
    best = (float("inf"), float("inf"))
    for _ in range(rounds):
        begun = time.perf_counter(), time.process_time()
        await play.take(1)
        spent = time.perf_counter() - begun[0], time.process_time() - begun[1]
        best = min(best[0], spent[0]), min(best[1], spent[1])
    return best[0] / (episodes * CALLS) * 1000, best[1] / (episodes * CALLS) * 1000


CLIENTS = """
import asyncio, json, sys, time
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="http://127.0.0.1:1", api_key="none")
text = [{"role": "user", "content": "What is 2+3?"}]

async def calls(url, key, count):
    there = client.with_options(base_url=url, api_key=key)
    for _ in range(count):
        await there.chat.completions.create(model="coder", messages=text)

async def main():
    for line in sys.stdin:
        *pairs, count = json.loads(line)
        begun, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(calls(*pair, count) for pair in pairs))
        print(time.perf_counter() - begun, time.process_time() - spent, flush=True)

asyncio.run(main())
"""


class Clients:
    """A process with an OpenAI client, which makes the calls of all episodes at once."""

    def __init__(self, episodes: int) -> None:
        self.episodes = episodes
        self.spent: list[tuple[float, ...]] = []
        """Seconds and processor seconds of the client in each round."""
        pipe, command = subprocess.PIPE, [sys.executable, "-c", CLIENTS]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._waiting: list[tuple[str, str, asyncio.Future[float]]] = []

    def call(self, pairs: Sequence[tuple[str, str]]) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([*pairs, CALLS]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        self.spent.append(tuple(map(float, line.split())))

    async def app(self, row: Any) -> float:
        """An episode, whose calls are made when all episodes of the round have begun."""
        end = asyncio.get_running_loop().create_future()
        self._waiting.append((mrlm.app.base_url(), mrlm.app.api_key(), end))
        if len(self._waiting) == self.episodes:
            waiting, self._waiting = self._waiting, []
            await asyncio.to_thread(self.call, [pair for *pair, _ in waiting])  # type: ignore[misc]
            for *_, other in waiting:
                other.set_result(1.0)
        return await end

    def best(self) -> tuple[float, float]:
        """Milliseconds of a call and of the client's processor, after the first round."""
        rounds = zip(*self.spent[1:], strict=True)
        wall, processor = (min(times) / (self.episodes * CALLS) * 1000 for times in rounds)
        return wall, processor

    def close(self) -> None:
        self._process.communicate()


class Constant:
    """A server whose answer is the same to every request."""

    limits = AdmissionLimits()

    def app(self) -> Callable[..., Any]:
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        counts = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "coder"}
        body = json.dumps({**answer, "choices": [choice], "usage": counts}).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

        async def constant(scope: Any, receive: Any, send: Any) -> None:
            while (await receive()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": body})

        return constant


def constant(episodes: int, rounds: int) -> tuple[float, float, float]:
    """Milliseconds of a call of a constant server, of the client's processor, and of this one's."""
    server = HttpServer(Constant()).start()  # type: ignore[arg-type]
    clients, spent = Clients(episodes), float("inf")
    for _ in range(rounds + 1):
        begun = time.process_time()
        clients.call([(f"{server.url}/v1", "none")] * episodes)
        spent = min(spent, time.process_time() - begun)
    clients.close()
    server.stop()
    return *clients.best(), spent / (episodes * CALLS) * 1000


def over_http(episodes: int, rounds: int) -> tuple[float, float, float]:
    """The same of an app's endpoint, with the episodes that are played."""
    clients = Clients(episodes)
    play = made(clients.app, AppWorkflow(), episodes)
    wall, spent = asyncio.run(played(play, episodes, rounds))
    clients.close()
    return wall, clients.best()[1], spent


async def growth(play: Play, episodes: int, count: int) -> float:
    """Megabytes that so many episodes add."""
    for _ in range(4):
        await play.take(1)
    before = psutil.Process().memory_info().rss
    for _ in range(count // episodes):
        await play.take(1)
    return (psutil.Process().memory_info().rss - before) / 1e6


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apps", description=__doc__)
    parser.add_argument("--episodes", type=int, default=64, help="at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, default=10_000, help="episodes")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    chosen = parser.parse_args(given)
    size, rows = chosen.episodes, {}
    for way, workflow_of in (("a workflow", as_workflow(workflow)), ("an app", AppWorkflow())):
        wall, spent = asyncio.run(played(made(inside, workflow_of, size), size, chosen.rounds))
        rows[f"{way}, in this process"] = (wall, None, spent)
    for count in (size, 1):
        name = f"{count} clients" if count > 1 else "one client"
        rows[f"a constant server, {name} over HTTP"] = fixed = constant(count, chosen.rounds)
        rows[f"an app, {name} over HTTP"] = ours = over_http(count, chosen.rounds)
        rows[f"the difference, {name}"] = tuple(a - b for a, b in zip(ours, fixed, strict=True))
    grown = asyncio.run(growth(made(inside, AppWorkflow(), size), size, chosen.memory))
    lines = [
        f"Measured on {report.machine()}; {size} episodes at once, best of {chosen.rounds}.",
        "",
    ]
    lines += ["| a call of | ms | of the client's processor | of the run's |", "|---|---|---|---|"]
    for name, times in rows.items():
        cells = ("" if ms is None else f"{ms:.2f}" for ms in times)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    text = "\n".join([*lines, "", f"{chosen.memory:,} episodes add {grown:.1f} MB."])
    print(text)
    chosen.output.mkdir(parents=True, exist_ok=True)
    record = {"machine": report.machine(), "rows": rows, "memory_mb": grown}
    (chosen.output / "apps.json").write_text(json.dumps(record, indent=1) + "\n")
    if chosen.page is not None:
        report.write_page(chosen.page, text, MARKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
