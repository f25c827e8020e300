"""`python -m benchmarks.spawning`: an app that calls itself as often as its answers say, trained
with GRPO where its calls cost a reward and where they are free. The embedded model, minutes."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from openai import AsyncOpenAI

import mrlm
from benchmarks import report
from mrlm.core.statistics import mean_interval
from mrlm.environments.app import AppEnvironment

MARKS = ("<!-- spawning: written by `python -m benchmarks.spawning` -->", "<!-- end -->")
ROWS = [{"question": f"What is {number}+3?"} for number in range(12)]
DEPTH = 2
STEPS = 25
ENDS = 3
"""Steps at the beginning and at the end that are averaged."""
Rule = Callable[[int], int]
RULES: dict[str, tuple[Rule, float]] = {
    "the number of odd letters, at most 3; a call costs .2": (lambda odd: min(3, odd), 0.2),
    "the same; calls are free": (lambda odd: min(3, odd), 0.0),
    "the number of odd letters modulo 4; a call costs .2": (lambda odd: odd % 4, 0.2),
}
client = AsyncOpenAI(api_key="none")


def app(rule: Rule, cost: float) -> Callable[[Any], Any]:
    """An app of one agent that spawns children by its own words, two levels deep."""

    async def solve(row: Any, name: str = "solver", depth: int = 0) -> None:
        messages: Any = [{"role": "user", "content": row["question"]}]
        answer = await client.chat.completions.create(model=name, messages=messages)
        odd = sum(ord(letter) % 2 for letter in answer.choices[0].message.content or "")
        stem = f"{name}." if "#" in name else f"{name}#"
        children = [f"{stem}{child}" for child in range(rule(odd) if depth < DEPTH else 0)]
        await asyncio.gather(*(solve(row, child, depth + 1) for child in children))
        for child in children:
            await mrlm.reward(-cost, agent=child)
        if not depth:
            await mrlm.reward(0.0, agent=name)

    return solve


def calls(rule: Rule, cost: float, seed: int, steps: int) -> list[float]:
    """Calls of an episode, by step."""
    started = app(rule, cost)

    async def play(row: Any) -> None:
        await started(row)

    world = AppEnvironment(play, ROWS, None, ["solver"], instances={"solver": "solver"})
    with tempfile.TemporaryDirectory() as folder:
        trainer = mrlm.GRPOTrainer(
            environment=world,
            output_dir=folder,
            **{"group_size": 8, "learning_rate": 3e-3, "max_new_tokens": 6, "batch_size": 4},
            **{"num_iterations": steps, "report_to": "none", "seed": seed},
        )
        return [row["turns/mean"] for row in trainer.train().history]


def interval(values: Sequence[float]) -> str:
    mean, low, _ = mean_interval(values)
    return f"{mean:.1f} ± {mean - low:.1f}" if len(values) > 1 else f"{mean:.1f}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spawning", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    chosen = parser.parse_args(given)
    rows: dict[str, list[list[float]]] = {}
    lines = ["| children of an answer | calls, first steps | last steps |", "|---|---|---|"]
    for name, (rule, cost) in RULES.items():
        rows[name] = []
        for seed in chosen.seeds:
            begun = time.process_time()
            rows[name].append(calls(rule, cost, seed, chosen.steps))
            spent = time.process_time() - begun
            print(name, seed, rows[name][-1], f"{spent:.0f} s", file=sys.stderr, flush=True)
        first = [fmean(row[:ENDS]) for row in rows[name]]
        last = [fmean(row[-ENDS:]) for row in rows[name]]
        lines.append(f"| {name} | {interval(first)} | {interval(last)} |")
    text = "\n".join(lines)
    print(text)
    chosen.output.mkdir(parents=True, exist_ok=True)
    record = {"machine": report.machine(), "seeds": chosen.seeds, "calls": rows}
    (chosen.output / "spawning.json").write_text(json.dumps(record, indent=1) + "\n")
    if chosen.page is not None:
        report.write_page(chosen.page, text, MARKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
