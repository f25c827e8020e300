"""`python -m benchmarks.worlds_throughput`: episodes per second of every world with an engine that
says what it is told, and whether memory grows when a thousand are played at once."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import psutil

from benchmarks import report
from mrlm.core import registry
from mrlm.core.chat import Chat
from mrlm.core.environment import Environment
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.tiny_model import default_model
from mrlm.core.types import SamplingParams
from mrlm.engines.scripted import ScriptedEngine
from mrlm.environments.wrappers.wrapped import made
from mrlm.play.agent import AgentSettings
from mrlm.play.engine import Request
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec
from mrlm.workflows.turns import Turns

MARKS = ("<!-- worlds: written by `python -m benchmarks.worlds_throughput` -->", "<!-- end -->")
RESULTS = "worlds.json"
GROWTH_BAR = 0.02
"""By how much memory may grow after the first rounds, as a share."""
WARM = 3
"""Rounds that fill caches."""
MIB = 1 << 20
ROWS = [{"question": f"Capital of land {i}?", "answer": f"City {i}"} for i in range(64)]
ASKED = [{"prompt": f"Write about topic {i}.", "topic": f"topic {i}"} for i in range(64)]
PAIRS = [
    {"prompt": f"What is {i}?", "chosen": f"It is number {i}.", "rejected": "Who knows."}
    for i in range(64)
]


def names_topic(completions: list[str], topic: list[str], **columns: Any) -> list[float]:
    """A reward function: whether the topic is named."""
    return [float(name in said) for said, name in zip(completions, topic, strict=True)]


def is_answer(prompts: list[Any], completions: list[str], answer: list[list[str]]) -> list[float]:
    """Another: whether an accepted answer was said."""
    return [float(said in right) for said, right in zip(completions, answer, strict=True)]


ARGUMENTS: dict[str, dict[str, Any]] = {
    "qa": {"dataset": ROWS},
    "reward": {"dataset": ASKED, "reward_func": names_topic},
    "rescored": {"environment": {"env_type": "qa", "dataset": ROWS}, "reward_fn": is_answer},
    "reference": {"dataset": PAIRS},
    "centralised": {"environment": {"env_type": "relay"}},
    "difference": {"environment": {"env_type": "matrix", "game": "xor"}, "default": "A"},
    "world_model": {"model": default_model(), "max_turns": 2},
}
"""Of the worlds that cannot be made without any; all others have their defaults."""


@dataclass(slots=True)
class Row:
    """One world.

    Args:
        episodes: that were played at once.
        turns: messages of an episode, on average.
        rate: episodes per second, by the clock on the wall; the median over rounds.
        processor: milliseconds of this process per episode; what sandboxes take is not in it.
        failed: episodes that failed.
    """

    world: str
    episodes: int
    turns: float
    rate: float
    processor: float
    failed: int


@dataclass(slots=True)
class Soak:
    """Many episodes of one world at once, round after round.

    Args:
        resident: MiB after each round.
        growth: of the last round over the first after the warm-up, as a share.
        slope: MiB per 1,000 episodes after the warm-up.
    """

    world: str
    episodes: int
    failed: int
    seconds: float
    resident: list[float] = field(default_factory=list)
    growth: float = 0.0
    slope: float = 0.0


class Stage:
    """A world, and what an able player says in its first tasks.

    Args:
        name: of the world.
        count: tasks that are played at once, the same ones in every round.
        tokenizer: of the agents.
    """

    def __init__(self, name: str, count: int, tokenizer: Any) -> None:
        self.world: Environment = made({"env_type": name, **ARGUMENTS.get(name, {})})
        self.count = count
        self._lines: dict[tuple[Any, ...], str] = {}
        sampling = SamplingParams(max_new_tokens=1024)
        chat = Chat(tokenizer)
        seats = {
            each: AgentSettings(each, "policy", chat, sampling, 6000) for each in self.world.agents
        }
        spec = EnvironmentSpec(name, self.world, self.world.spawn, Turns(), timeout=3600.0)
        self.engine = ScriptedEngine(self._say, tokenizer)
        self._shown = Play([spec], seats, {}, 1, 0, demonstrate=True)
        self._played = Play([spec], seats, {"policy": self.engine}, 1, 0)

    def learn(self) -> None:
        """Note what the world's own expert says in every task; where it has none, everybody says
        `yes`."""
        try:
            groups = run_async(self._shown.take(self.count))
        except EpisodeError:
            return
        for episode in (episode for group in groups for episode in group):
            for agent, rollout in episode.rollouts.items():
                for turn in rollout.turns:
                    assert turn.message is not None
                    self._lines[episode.id, agent, turn.index] = turn.message.content

    def _say(self, request: Request) -> str:
        *place, agent, index = request.key
        name = "/".join(map(str, place[1:]))
        return self._lines.get((name, agent, index), "yes")

    def play(self) -> list[Group]:
        """Play all tasks at once, with an engine and nobody's model."""
        self._played.load_state_dict({"taken": {self._played.environments[0].name: 0}, "tokens": 0})
        self.engine.batches.clear()
        return run_async(self._played.take(self.count))


def measured(name: str, count: int, rounds: int, tokenizer: Any) -> Row:
    """How fast a world is played."""
    stage = Stage(name, count, tokenizer)
    stage.learn()
    stage.play()
    rates, processor, failed, turns = [], [], 0, 0
    for _ in range(rounds):
        wall, own = time.perf_counter(), time.process_time()
        groups = stage.play()
        rates.append(count / (time.perf_counter() - wall))
        processor.append(1e3 * (time.process_time() - own) / count)
        failed += sum(episode.failed for group in groups for episode in group)
        turns += sum(sum(1 for _ in episode.turns) for group in groups for episode in group)
    middle = (statistics.median(rates), statistics.median(processor))
    return Row(name, count, turns / rounds / count, *middle, failed)


def soaked(name: str, count: int, rounds: int, tokenizer: Any) -> Soak:
    """Whether memory grows."""
    stage = Stage(name, count, tokenizer)
    stage.learn()
    process = psutil.Process()
    found = Soak(name, count, 0, 0.0)
    started = time.perf_counter()
    for _ in range(WARM + rounds):
        for group in stage.play():
            found.failed += sum(episode.failed for episode in group)
        gc.collect()
        found.resident.append(process.memory_info().rss / MIB)
    found.seconds = time.perf_counter() - started
    steady = found.resident[WARM:]
    found.growth = steady[-1] / steady[0] - 1
    if len(steady) > 1:
        played = np.arange(len(steady)) * count / 1000
        found.slope = float(np.polyfit(played, np.asarray(steady), 1)[0])
    return found


def markdown(rows: Sequence[Row], soak: Soak | None, where: str) -> str:
    """The tables for a page."""
    lines = [
        f"Measured on {where}.",
        "",
        "| environment | at once | turns | episodes/s | ms of this process | failed |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.world} | {row.episodes} | {row.turns:.1f} | {row.rate:,.0f} | "
        f"{row.processor:.2f} | {row.failed} |"
        for row in sorted(rows, key=lambda row: -row.rate)
    ]
    if soak is not None:
        lines += [
            "",
            f"{soak.episodes:,} episodes of `{soak.world}` at once, {len(soak.resident)} times in "
            f"{soak.seconds:.0f} s: {soak.resident[0]:.0f} MiB after the first, "
            f"{soak.resident[WARM]:.0f} after {WARM + 1}, {soak.resident[-1]:.0f} after the last "
            f"({soak.growth:+.1%}; {soak.slope:+.2f} MiB per 1,000 episodes); "
            f"{soak.failed} failed.",
        ]
    return "\n".join(lines)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.worlds_throughput", description=__doc__
    )
    parser.add_argument("--worlds", nargs="+", metavar="NAME", help="which; all if not given")
    parser.add_argument("--episodes", type=int, default=64, help="at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--soak", type=int, default=1000, help="episodes at once; 0: none")
    parser.add_argument("--soak-world", metavar="NAME", help="the slowest if not given")
    parser.add_argument("--soak-rounds", type=int, default=6, help="after the warm-up")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    chosen = parser.parse_args(given)
    known = registry.names("environments")
    for name in [*(chosen.worlds or ()), *([chosen.soak_world] if chosen.soak_world else ())]:
        if name not in known:
            parser.error(registry.unknown(name, known, "worlds"))
    if min(chosen.episodes, chosen.rounds, chosen.soak_rounds) < 1:
        parser.error("--episodes, --rounds and --soak-rounds must be at least 1")
    return chosen


def main(given: Sequence[str] | None = None) -> int:
    """Measure what was asked for; 1 if an episode failed or memory grew."""
    from transformers import AutoTokenizer

    from mrlm.core.tiny_model import default_model

    chosen = arguments(given)
    logging.getLogger("mrlm").setLevel(logging.CRITICAL)  # what fails is counted
    tokenizer = AutoTokenizer.from_pretrained(default_model())
    rows = []
    for name in chosen.worlds or registry.names("environments"):
        try:
            rows.append(measured(name, chosen.episodes, chosen.rounds, tokenizer))
        except (ConfigError, ImportError) as error:  # a world of another library
            print(f"{name} left out: {error}", file=sys.stderr, flush=True)
            continue
        print(f"{name} {rows[-1].rate:,.0f} episodes/s", file=sys.stderr, flush=True)
    soak = None
    if chosen.soak:
        slowest = min(rows, key=lambda row: row.rate).world
        soak = soaked(chosen.soak_world or slowest, chosen.soak, chosen.soak_rounds, tokenizer)
    text = markdown(rows, soak, report.machine())
    print(text)
    record: Mapping[str, Any] = {
        "machine": report.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
        "rows": [asdict(row) for row in rows],
        "soak": None if soak is None else asdict(soak),
    }
    chosen.output.mkdir(parents=True, exist_ok=True)
    (chosen.output / RESULTS).write_text(json.dumps(record, indent=1) + "\n")
    if chosen.page is not None:
        report.write_page(chosen.page, text, MARKS)
    grew = soak is not None and soak.growth > GROWTH_BAR
    return int(any(row.failed for row in rows) or grew or bool(soak and soak.failed))


if __name__ == "__main__":
    sys.exit(main())
