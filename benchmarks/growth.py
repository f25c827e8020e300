"""How the cost of a step grows with agents, turns, siblings and prompts; ours alone, each with a
plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from benchmarks.ours import playing
from benchmarks.rows import Bench, Result
from benchmarks.timing import repeat
from benchmarks.work import Work

LATER = 8
"""Tokens of what an agent is shown after its first turn."""


def agents(shape: str, rows: int, numbers: Iterable[int]) -> Callable[[Bench], Result]:
    """Seconds of a step with ever more agents, who share out the same `rows` completions: on one
    model, as adapters on one base, and with models of their own. The value is 8 agents on one model
    over one."""

    def measure(bench: Bench) -> Result:
        counts = [n for n in numbers if not bench.quick or n <= 2]
        total = 8 if bench.quick else rows
        result = Result(axis="agents")
        for weights in ("shared", "lora", "own"):
            line = []
            for number in counts:
                work = Work(
                    shape,
                    prompts=total // (2 * number),
                    group=2,
                    read=32,
                    written=32,
                    agents=number,
                    weights=weights,
                )
                line.append((number, _seconds(bench, work, "magrpo", result)))
            result.lines[weights] = line
        shared = dict(result.lines["shared"])
        result.value = shared[counts[-1] if bench.quick else 8] / shared[1]
        result.note = f"{total} completions of 32 + 32 tokens whoever writes them"
        return result

    return measure


def turns(work: Work, numbers: Iterable[int]) -> Callable[[Bench], Result]:
    """Seconds of a step with ever longer conversations. The value is what a further turn costs
    between 4 and 8 turns over what it costs between 1 and 4: 1 is linear in new tokens."""

    def measure(bench: Bench) -> Result:
        counts = (1, 2, 3) if bench.quick else tuple(numbers)
        result = Result(axis="turns")
        points = [
            (n, _seconds(bench, replace(work, turns=n), "magrpo", result, later=LATER))
            for n in counts
        ]
        result.lines["step"] = points
        seconds, (early, late) = dict(points), (2, 3) if bench.quick else (4, 8)
        later = (seconds[late] - seconds[early]) / (late - early)
        result.value = later / ((seconds[early] - seconds[1]) / (early - 1))
        result.note = f"each turn reads {LATER} new tokens and writes {work.written}"
        return result

    return measure


def long_talks(work: Work, numbers: Iterable[int]) -> Callable[[Bench], Result]:
    """Seconds of a turn in ever longer conversations: a whole step, learning included, over its
    turns. The value is a turn of the longest over one of the shortest; attention to the longer text
    is part of it."""

    def measure(bench: Bench) -> Result:
        counts = (1, 2, 3) if bench.quick else tuple(numbers)
        result = Result(axis="turns")
        points = [
            (n, _seconds(bench, replace(work, turns=n), "magrpo", result, later=LATER) / n)
            for n in counts
        ]
        result.lines["turn"] = points
        result.value = points[-1][1] / points[0][1]
        result.note = f"each turn reads {LATER} new tokens and writes {work.written}"
        return result

    return measure


def adapters(work: Work, numbers: Iterable[int]) -> Callable[[Bench], Result]:
    """Seconds of a step for each agent, with ever more agents on one policy and with an adapter
    each. The value is that of most adapters over as many agents on one policy."""

    def measure(bench: Bench) -> Result:
        counts = (1, 2) if bench.quick else tuple(numbers)
        result = Result(axis="agents")
        for weights in ("shared", "lora"):
            result.lines[weights] = [
                (n, _seconds(bench, replace(work, agents=n, weights=weights), "magrpo", result) / n)
                for n in counts
            ]
        result.value = result.lines["lora"][-1][1] / result.lines["shared"][-1][1]
        result.note = f"{work.prompts * work.group} completions of each agent"
        return result

    return measure


def siblings(work: Work, numbers: Iterable[int]) -> Callable[[Bench], Result]:
    """Seconds of a step with ever more samples of one prompt. The value is the cost of a sample in
    the largest group over that in the smallest."""

    def measure(bench: Bench) -> Result:
        counts = [n for n in numbers if not bench.quick or n <= 4]
        result = Result(axis="group")
        points = [(n, _seconds(bench, replace(work, group=n), "grpo", result)) for n in counts]
        result.lines["step"] = points
        (first, least), (last, most) = points[0], points[-1]
        result.value = (most / last) / (least / first)
        result.note = f"{work.prompts} prompts, {work.read} + {work.written} tokens"
        return result

    return measure


def prompts(work: Work, numbers: Iterable[int]) -> Callable[[Bench], Result]:
    """Seconds of a step with ever longer prompts. The value is the longest over the shortest."""

    def measure(bench: Bench) -> Result:
        counts = [n for n in numbers if not bench.quick or n <= 128]
        result = Result(axis="prompt tokens")
        points = [(n, _seconds(bench, replace(work, read=n), "grpo", result)) for n in counts]
        result.lines["step"] = points
        result.value = points[-1][1] / points[0][1]
        result.note = f"{work.prompts} prompts, G={work.group}, {work.written} new tokens"
        return result

    return measure


def _seconds(bench: Bench, work: Work, algorithm: str, result: Result, **more: Any) -> float:
    """Median seconds of a step; how it was measured is noted in `result`."""
    if bench.quick:
        work = replace(work, shape="tiny", written=4)
    clock = bench.clock()
    result.threads, result.clock, result.rounds = clock.threads, clock.name, bench.rounds
    ours = playing(work, algorithm, **more)
    try:
        return repeat(ours, bench.rounds, clock, None if work.turns > 1 else work.counts).median
    finally:
        ours.close()
