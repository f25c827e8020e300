"""`python -m benchmarks.apps`: what a call costs when an app makes it through an OpenAI client,
beside a workflow's own call, and the memory of many episodes. The engine has a fixed answer."""

from __future__ import annotations

import argparse
import asyncio
import json
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


async def by_http(row: Any) -> float:
    address, key = mrlm.app.base_url("coder"), mrlm.app.api_key()
    async with AsyncOpenAI(base_url=address.replace("127.0.0.1", "localhost"), api_key=key) as own:
        for _ in range(CALLS):
            await own.chat.completions.create(model="any", messages=TEXT)
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


async def milliseconds(play: Play, episodes: int, rounds: int) -> float:
    """Of a call: the best of the rounds."""
    await play.take(1)
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        await play.take(1)
        best = min(best, time.perf_counter() - begun)
    return best / (episodes * CALLS) * 1000


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
    ways = {
        "a workflow, without an app": (inside, as_workflow(workflow)),
        "an app in this process": (inside, AppWorkflow()),
        "an app over HTTP": (by_http, AppWorkflow()),
    }
    size, rows = chosen.episodes, {}
    for way, (app, played) in ways.items():
        play = made(app, played, size)
        rows[way] = asyncio.run(milliseconds(play, size, chosen.rounds))
        print(f"{way}: {rows[way]:.3f} ms", file=sys.stderr, flush=True)
    grown = asyncio.run(growth(made(inside, AppWorkflow(), size), size, chosen.memory))
    lines = [f"Measured on {report.machine()}; {size} episodes at once.", ""]
    lines += ["| a call of | ms |", "|---|---|", *(f"| {w} | {ms:.2f} |" for w, ms in rows.items())]
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
