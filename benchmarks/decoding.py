"""Rows about sampling alone: long tails against plain `generate`, and one row against the memory
bandwidth."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.limits import decode_floor, least_seconds_of_rollouts, measured, reads
from benchmarks.models import make_model
from benchmarks.ours import Ours, playing
from benchmarks.rows import Bench, Result, Unavailable
from benchmarks.timing import alternate, expect, ratios, repeat
from benchmarks.work import Counts, Work
from benchmarks.worlds import LongTail, answer_at_length


class Sampling:
    """Plays every held-out task once, sampled; nothing is learned.

    Args:
        ours: the run whose world is played.
        tasks: how many there are.
    """

    def __init__(self, ours: Ours, tasks: int) -> None:
        self.ours, self.tasks = ours, tasks
        self._counts = Counts(0, 0, 0)

    def step(self) -> None:
        played = self.ours.trainer.evaluate(self.tasks, samples=1, greedy=False).episodes
        turns = [turn for episode in played for turn in episode.turns]
        self._counts = Counts(sum(len(turn.prompt_ids) for turn in turns), sum(map(len, turns)), 0)

    def counts(self) -> Counts:
        return self._counts


def tail_lengths(count: int, mean: int, most: int, seed: int = 0) -> list[int]:
    """Lengths of completions, exponentially distributed and cut at `most`: a long tail."""
    rng = random.Random(seed)
    return [min(most, max(1, math.ceil(-mean * math.log(1 - rng.random())))) for _ in range(count)]


def long_tail(
    shape: str,
    read: int,
    lengths: Sequence[int],
    rows: int,
    device: str = "cpu",
    dtype: Any = None,
    peer: str = "hf_peer",
) -> Callable[[Bench], Result]:
    """Rollouts of given lengths, `rows` at a time on either side; `peer` is the module of the
    other."""

    def measure(bench: Bench) -> Result:
        size, wanted, batch = shape, list(lengths), rows
        if bench.quick:
            size, wanted, batch = "tiny", [2, 3, 9, 4], 2
        work = Work(size, prompts=1, group=2, read=read, written=max(wanted))
        clock = bench.clock(device=device)
        counts = Counts(read * len(wanted), sum(wanted), 0)
        ours = playing(
            work,
            "grpo",
            world=LongTail(size, read, wanted),
            workflow=answer_at_length,
            device=device,
            model=make_model(size, device=device, dtype=dtype),
            engine={"batch_size": batch, "timeout": 36000},
        )
        side = Sampling(ours, len(wanted))
        result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
        try:
            other = bench.peer(peer).generate(size, read, wanted, batch, device, dtype)
        except Unavailable as error:
            result.reason = f"skipped: {error}"
            result.ours = repeat(side, bench.rounds, clock, counts).median
        else:
            mine, theirs = alternate(side, other, bench.rounds, clock, counts)
            result.value, result.low, result.high = ratios(mine, theirs)
            result.ours, result.peer = mine.median, theirs.median
        finally:
            ours.close()
        precision = "bf16" if dtype == torch.bfloat16 else "fp32"
        limits = measured(clock, bench.quick)
        least = least_seconds_of_rollouts(size, read, wanted, batch, precision, limits)
        result.limit, result.ceiling = least / result.ours, str(limits)
        waves = [max(wanted[at : at + batch]) for at in range(0, len(wanted), batch)]
        ideal = sum(waves) * batch / sum(wanted)
        result.note = f"{len(wanted)} rollouts, {sum(wanted)} tokens; refilling saves {ideal:.1f}x"
        return result

    return measure


def one_row(shape: str, read: int, written: int, threads: int) -> Callable[[Bench], Result]:
    """One row, decoded: share of the time that reading the weights once per token takes. The
    bandwidth is measured again before every round, and prefill counts as if it were decoding."""

    def measure(bench: Bench) -> Result:
        work = Work(shape, prompts=1, group=2, read=read, written=written)
        if bench.quick:
            work = Work("tiny", prompts=1, group=2, read=8, written=6)
        clock = bench.clock(threads)
        ours = playing(work, "grpo")
        side = Sampling(ours, 1)
        seconds, found, speeds = [], [], []
        with clock.applied():
            for _ in range(bench.rounds + 1):
                speeds.append(reads(clock))
                floor = decode_floor(work.shape, speeds[-1]) * work.written
                seconds.append(clock.time(side.step))
                found.append(floor / seconds[-1])
                expect("ours", side.counts(), Counts(work.read, work.written, 0))
        ours.close()
        result = Result(threads=threads, clock=clock.name, rounds=bench.rounds)
        result.value = result.limit = statistics.median(found[1:])
        result.low, result.high = min(found[1:]), max(found[1:])
        result.ours = statistics.median(seconds[1:])
        result.ceiling = f"reads {statistics.median(speeds[1:]) / 1e9:.0f} GB/s"
        result.note = f"{1000 * result.ours / work.written:.2f} ms per token"
        return result

    return measure
