"""Rows that need an accelerator, and the run of all of them: first the tests that everything is
computed as on a CPU, then every row in a process of its own, all within `BUDGET` seconds."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.decoding import long_tail
from benchmarks.limits import least_seconds, measured
from benchmarks.ours import Ours, playing, reading
from benchmarks.rows import Bench, Result, Row
from benchmarks.steps import against, small, written_rows
from benchmarks.timing import repeat
from benchmarks.work import Counts, Work

ROOT = Path(__file__).parents[1]
BUDGET = 600.0
"""Seconds that a run of everything may take."""
MARK = "pytest.mark.gpu"
NO_DEVICE = 3
"""Exit status without an accelerator."""
GIB = 1 << 30
ALWAYS = {"hf_peer"}
"""Peers that are there wherever this library is."""


def rollouts(
    shape: str, read: int, lengths: Sequence[int], rows: int, peer: str = "hf_peer"
) -> Callable[[Bench], Result]:
    """Sampling in bfloat16 against another library's."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator()
        if peer not in ALWAYS:
            bench.peer(peer)  # without it, the row would be another one again
        return long_tail(shape, read, lengths, rows, device, torch.bfloat16, peer)(bench)

    return measure


def training(work: Work) -> Callable[[Bench], Result]:
    """Tokens per second of supervised steps, prompts included."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator()
        clock, done = bench.clock(device=device), small(work, bench)
        ours = reading(done, "sft", written_rows(done, ("completion",)), device=device)
        counts = Counts(done.counts.read, 0, done.counts.trained)
        times = repeat(ours, bench.rounds, clock, counts)
        ours.close()
        tokens = counts.read + counts.trained
        each = [tokens / seconds for seconds in times.seconds]
        result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
        result.value, result.low, result.high = tokens / times.median, min(each), max(each)
        limits = measured(clock, bench.quick)
        result.ours, result.ceiling = times.median, str(limits)
        result.limit = least_seconds(done, limits, sampled=False) / result.ours
        return result

    return measure


def step(work: Work, algorithm: str) -> Callable[[Bench], Result]:
    """A step of an algorithm against TRL's GRPO on as many tokens."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator()
        done = small(work, bench)
        same = replace(done, prompts=done.prompts * done.agents, agents=1)
        return against(
            bench,
            done,
            lambda: playing(done, algorithm, device=device),
            lambda: bench.peer("trl_peer").grpo(same),
            device=device,
        )

    return measure


def memory(work: Work) -> Callable[[Bench], Result]:
    """Memory of a GRPO step at its most, in GiB: weights, gradients, moments, activations, keys and
    values."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator()
        done = small(work, bench)
        ours = playing(done, "grpo", device=device)
        result = Result(rounds=1)
        result.value = _peak(ours, device)
        weights = sum(each.nbytes for each in ours.run.learners[0].weights_of.parameters())
        result.note = f"weights alone {weights / GIB:.2f} GiB"
        ours.close()
        return result

    return measure


def _peak(ours: Ours, device: str) -> float:
    """GiB that two steps take at their most; without an accelerator, those of the process."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    ours.step()
    ours.step()
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


# -- all of it -------------------------------------------------------------------------------------


def everything(rows: Sequence[Row], to: Path, repeats: int, quick: bool) -> int:
    """Runs the tests, then the rows, and prints their table.

    Args:
        rows: those that need an accelerator.
        to: folder of the results.
        repeats: timed rounds of each side.
        quick: the same program on the CPU with tiny work, to see that it runs.

    Returns:
        The exit status: 0; 1 if a test or a row failed; `NO_DEVICE` without an accelerator.
    """
    if not quick and not torch.cuda.is_available():
        print(
            "--gpu: torch finds no CUDA device here, so nothing was measured (--gpu --quick runs "
            "the same program on the CPU with tiny work)",
            file=sys.stderr,
        )
        return NO_DEVICE
    end = time.monotonic() + BUDGET
    print("equality tests ...", file=sys.stderr, flush=True)
    if _tests(ROOT / "tests"):
        print("--gpu: the equality tests failed, so no row was measured", file=sys.stderr)
        return 1
    failed = [row.name for row in rows if not _row(row.name, to, repeats, quick, end)]
    found = report.load(to)
    print(report.machine())
    print(report.table(rows, found))
    print(to / report.RESULTS)
    return int(bool(failed))


def _tests(folder: Path) -> int:
    """The exit status of the tests with the mark `gpu` that are not slow; they skip themselves
    without a device."""
    marked = [path for path in sorted(folder.rglob("test_*.py")) if MARK in path.read_text()]
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu and not slow"]
    words += ["-p", "no:cacheprovider"]
    done = subprocess.run([*words, *map(str, marked)], cwd=ROOT, stdout=sys.stderr)
    return done.returncode


def _row(name: str, to: Path, repeats: int, quick: bool, end: float) -> bool:
    """Measures a row in a process of its own, until a time at most; whether that succeeded."""
    words = [sys.executable, "-m", "benchmarks", "--gpu", "--rows", name, "--output", str(to)]
    words += ["--repeats", str(repeats), *["--quick"] * quick]
    left = end - time.monotonic()
    try:
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=max(1.0, left))
    except subprocess.TimeoutExpired:
        late = Result(reason=f"failed: the {BUDGET:.0f} s of --gpu were over")
        report.save(to, {name: late}, {})
        return False
    return not done.returncode
