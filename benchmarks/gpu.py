"""Rows that need an accelerator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.decoding import long_tail
from benchmarks.ours import reading
from benchmarks.rows import Bench, Result, Unavailable
from benchmarks.steps import small, written_rows
from benchmarks.timing import repeat
from benchmarks.work import Counts, Work

DEVICE = "cuda"


def rollouts(shape: str, read: int, lengths: Sequence[int], rows: int) -> Callable[[Bench], Result]:
    """Sampling in bfloat16 against plain `generate`."""

    def measure(bench: Bench) -> Result:
        _require_device()
        return long_tail(shape, read, lengths, rows, DEVICE, torch.bfloat16)(bench)

    return measure


def training(work: Work) -> Callable[[Bench], Result]:
    """Tokens per second of supervised steps, prompts included."""

    def measure(bench: Bench) -> Result:
        _require_device()
        clock, done = bench.clock(device=DEVICE), small(work, bench)
        ours = reading(done, "sft", written_rows(done, ("completion",)), device=DEVICE)
        counts = Counts(done.counts.read, 0, done.counts.trained)
        times = repeat(ours, bench.rounds, clock, counts)
        ours.close()
        tokens = counts.read + counts.trained
        each = [tokens / seconds for seconds in times.seconds]
        result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
        result.value, result.low, result.high = tokens / times.median, min(each), max(each)
        result.ours = times.median
        result.note = torch.cuda.get_device_name()
        return result

    return measure


def _require_device() -> None:
    """Raises:
    Unavailable: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise Unavailable("torch finds no CUDA device here")
