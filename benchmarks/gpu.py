"""Rows that need an accelerator, and the run of all of them: first the tests that everything is
computed as on a CPU, then every row in a process of its own, all within `BUDGET` seconds."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.decoding import Sampling, long_tail
from benchmarks.limits import least_seconds, measured
from benchmarks.models import make_model
from benchmarks.ours import playing, reading
from benchmarks.planning import GPU_CASES, peak_of
from benchmarks.rows import Bench, Result, Row
from benchmarks.steps import against, small, written_rows
from benchmarks.timing import repeat
from benchmarks.work import Counts, Work

ROOT = Path(__file__).parents[1]
BUDGET = 600.0
"""Seconds that a run of everything may take."""
MARK = "pytest.mark.gpu"
PASSED = "tests-passed"
"""File with the hash of the sources with which the tests have passed."""
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


def step(work: Work) -> Callable[[Bench], Result]:
    """A step of GRPO against TRL's."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator()
        done = small(work, bench)
        return against(
            bench,
            done,
            lambda: playing(done, "grpo", device=device),
            lambda: bench.peer("trl_peer").grpo(done),
            device=device,
        )

    return measure


def adapters(work: Work) -> Callable[[Bench], Result]:
    """Seconds of rollouts in which every row of the batch has one of `agents` adapters, over as
    many with one adapter."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator()
        done = small(work, bench)
        clock, seconds = bench.clock(device=device), {}
        tasks = done.prompts * done.group
        for agents in (1, done.agents):
            tasks_each = tasks * done.agents // agents
            ours = playing(
                replace(done, agents=agents, weights="lora"),
                "magrpo",
                device=device,
                model=make_model(done.shape, device=device, dtype=torch.bfloat16),
                engine={"batch_size": tasks * done.agents, "timeout": 36000},
            )
            counts = Counts(tasks * done.agents * done.read, tasks * done.agents * done.written, 0)
            seconds[agents] = repeat(Sampling(ours, tasks_each), bench.rounds, clock, counts)
            ours.close()
        one, many = seconds[1], seconds[done.agents]
        result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
        result.value = many.median / one.median
        each = [many.seconds[i] / one.seconds[i] for i in range(bench.rounds)]
        result.low, result.high, result.ours = min(each), max(each), many.median
        result.note = f"{tasks * done.agents} rows; one adapter {one.median:.2f} s"
        return result

    return measure


def memory() -> Callable[[Bench], Result]:
    """Peak memory of `planning.GPU_CASES` against `mrlm plan`: the ratio farthest from 1."""

    def measure(bench: Bench) -> Result:
        device = bench.accelerator()
        result, words = Result(rounds=1), []
        ratios = []
        for case in GPU_CASES.values():
            done = replace(case, work=small(case.work, bench))
            measured_bytes, planned = peak_of(done, device)
            ratio = planned / measured_bytes
            ratios.append(max(ratio, 1 / ratio))
            words.append(
                f"{case.title}: planned {planned / GIB:.2f} GiB, measured "
                f"{measured_bytes / GIB:.2f} GiB, ratio {ratio:.2f}"
            )
        result.value, result.low, result.high = max(ratios), min(ratios), max(ratios)
        result.note = "; ".join(words)
        return result

    return measure


# -- all of it -------------------------------------------------------------------------------------


def everything(
    rows: Sequence[Row], to: Path, repeats: int, quick: bool, seconds: float = BUDGET
) -> int:
    """Runs the tests, then the rows, and prints their table. What an earlier call has measured into
    `to`, and tests that have passed with the same sources, are not repeated.

    Args:
        rows: those that need an accelerator, the most wanted first.
        to: folder of the results.
        repeats: timed rounds of each side.
        quick: the same program on the CPU with tiny work, to see that it runs.
        seconds: that everything may take; rows that are not reached are those of the next call.

    Returns:
        The exit status: 0; 1 if a test or a row failed or was not reached; `NO_DEVICE` without an
        accelerator.
    """
    if not quick and not torch.cuda.is_available():
        print(
            "--gpu: torch finds no CUDA device here, so nothing was measured (--gpu --quick runs "
            "the same program on the CPU with tiny work)",
            file=sys.stderr,
        )
        return NO_DEVICE
    end = time.monotonic() + seconds
    passed, sources = to / PASSED, _digest()
    if not passed.is_file() or passed.read_text() != sources:
        print("equality tests ...", file=sys.stderr, flush=True)
        if _tests(ROOT / "tests"):
            print("--gpu: the equality tests failed, so no row was measured", file=sys.stderr)
            return 1
        to.mkdir(parents=True, exist_ok=True)
        passed.write_text(sources)
    before = report.load(to)
    missing = [row for row in rows if not _measured(before.get(row.name))]
    failed = [row.name for row in missing if not _row(row.name, to, repeats, quick, end)]
    results = report.load(to)
    print(report.machine())
    print(report.table(rows, results))
    print(to / report.RESULTS)
    return int(bool(failed))


def _measured(result: Result | None) -> bool:
    return result is not None and not result.reason.startswith("failed")


def _digest() -> str:
    """A hash of the package's sources."""
    hashed = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


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
    if left < 1:
        print(f"{name}: not reached; the next call measures it", file=sys.stderr)
        return False
    try:
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=left)
    except subprocess.TimeoutExpired:
        late = Result(reason="failed: the time of --gpu was over")
        report.save(to, {name: late}, {})
        return False
    return not done.returncode
