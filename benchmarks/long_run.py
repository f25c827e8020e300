"""Runs that are large: many episodes in a step, many in a run, and a long log. The row `long-run`
is of modest size; `python -m benchmarks.long_run` measures others, with logs of any size."""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from benchmarks.ours import Ours, playing
from benchmarks.rows import Bench, Result
from benchmarks.steps import small
from benchmarks.timing import repeat
from benchmarks.work import Work
from mrlm.build.run import build
from mrlm.record.files import INDEX, LEVEL, Part, episode_file, lines_of, parts_of
from mrlm.training.heap import LONG, still_heap
from mrlm.training.saving import save

WORK = Work("0.4M", prompts=1, group=8, read=8, written=4)
STEPS = (256, 1024, 4096)
GIB = 1 << 30
WHOLE = 16
"""Steps at the end of a log that was made longer with rows of their own."""
WARM = 4
"""Steps after which memory is compared with that of the end."""


Measure = Callable[[Bench], Result]


def growth(work: Work, steps: Sequence[int], run: int, sizes: Sequence[float]) -> Measure:
    """Cost of an episode in ever larger steps; the value is that of the largest over the smallest.
    The note has the memory of a long run, and what a checkpoint and a resumed run take with ever
    longer logs.

    Args:
        work: a step; its number of prompts is replaced.
        steps: episodes of a step.
        run: episodes of the long run.
        sizes: of the log, in GB.
    """

    def measure(bench: Bench) -> Result:
        done, clock = small(work, bench), bench.clock()
        counts = [4, 8] if bench.quick else list(steps)
        result = Result(threads=clock.threads, clock=clock.name, rounds=bench.rounds)
        result.axis, points = "episodes in a step", []
        for count in counts:
            ours = playing(replace(done, prompts=count // done.group), "grpo")
            with still_heap(LONG) as ours.settle:
                points.append((count, repeat(ours, bench.rounds, clock).median))
            ours.close()
        result.lines["step"] = points
        (few, least), (many, most) = points[0], points[-1]
        result.value = (most / many) / (least / few)
        large = replace(done, prompts=many // done.group)
        result.note = "; ".join(
            [
                long_run(large, 8 * many if bench.quick else run),
                *long_log(large, [1e-5] if bench.quick else sizes),
            ]
        )
        return result

    return measure


def long_run(work: Work, episodes: int) -> str:
    """Time and memory of the steps of a long run, as a sentence."""
    ours, process = playing(work, "grpo"), psutil.Process()
    seconds, resident = [], []
    steps = max(2 * WARM, episodes // (work.prompts * work.group))
    with still_heap(steps) as ours.settle:
        for _ in range(steps):
            start = time.process_time()
            ours.step()
            seconds.append(time.process_time() - start)
            resident.append(process.memory_info().rss)
    ours.close()
    size = max(1, len(seconds) // 4)
    early, late = seconds[WARM : WARM + size], seconds[-size:]
    slower = statistics.median(late) / statistics.median(early)
    grown = (resident[-1] - resident[WARM]) / GIB
    return (
        f"{len(seconds) * work.prompts * work.group:,} episodes in {len(seconds)} steps: a late "
        f"step takes {slower:.2f} times as long as an early one, resident memory "
        f"{resident[WARM] / GIB:.2f} GiB after {WARM} steps and {grown:+.3f} GiB at the end"
    )


def long_log(work: Work, sizes: Sequence[float]) -> list[str]:
    """Seconds of a checkpoint and of building a run that continues from it, for logs of so many GB
    in steps of this work, as sentences."""
    ours = playing(work, "grpo")
    ours.step()
    ours.run.log.close()
    found = [_with_log(ours, size) for size in [0.0, *sizes]]
    ours.close()
    return found


def _with_log(ours: Ours, size: float) -> str:
    """The log is as long as that of a run of as many steps as fill it."""
    run, process = ours.run, psutil.Process()
    run.step = lengthen(run.folder, int(size * 1e9))
    run.log.back(run.step, {})
    saved = _seconds(lambda: save(run))
    path, before = episode_file(run.folder), process.memory_info().rss
    length = 0 if path is None else path.stat().st_size

    def again() -> None:
        build(ours.trainer.config, ours.trainer._parts, run.folder).log.close()

    continued = _seconds(again)
    more = (process.memory_info().rss - before) / GIB
    return (
        f"log of {length / 1e9:.2g} GB, {run.step:,} steps: checkpoint {saved}, continued in "
        f"{continued} with {more:+.3f} GiB"
    )


def _seconds(action: Callable[[], object], times: int = 3) -> str:
    """The least seconds of processor time and by the clock."""
    found = []
    for _ in range(times):
        start = time.process_time(), time.perf_counter()
        action()
        found.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    used, passed = map(min, zip(*found, strict=True))
    return f"{used:.2f} s of CPU time ({passed:.2f} s)"


def lengthen(folder: Path, size: int) -> int:
    """Makes the log of a run longer by its last step, again and again, until its episodes have so
    many bytes; returns the number of its steps. The last `WHOLE` steps are written as a run writes
    them; those before are copies, whose rows name the step that was copied."""
    path, parts = episode_file(folder), parts_of(folder)
    if path is None:
        raise ValueError(f"{folder} has no episodes")
    last, metrics = parts[-1], folder / "metrics.jsonl"
    lines = lines_of(path, last.at, last.size)
    with path.open("rb") as file:
        file.seek(last.at)
        copy = file.read(last.size)
    row = json.loads(metrics.read_text().splitlines()[-1])
    with path.open("ab") as file, (folder / INDEX).open("a") as index, metrics.open("a") as table:
        while last.end < size:
            step, data = last.step + 1, copy
            if last.end + WHOLE * len(copy) >= size:
                data = _stepped(lines, step, path.suffix == ".gz")
            last = Part(step, False, last.end, len(data), last.episodes, last.ids)
            file.write(data)
            index.write(json.dumps(asdict(last)) + "\n")
            table.write(json.dumps({**row, "step": last.step}) + "\n")
    return last.step


def _stepped(lines: Sequence[bytes], step: int, compress: bool) -> bytes:
    """The rows of a step as those of another."""
    found = b"".join(json.dumps({**json.loads(x), "step": step}).encode() + b"\n" for x in lines)
    return gzip.compress(found, LEVEL, mtime=0) if compress else found


def main() -> None:
    """Measures with sizes of one's own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS, help="episodes of a step")
    parser.add_argument("--run", type=int, default=100_000, help="episodes of the long run")
    parser.add_argument("--gb", type=float, nargs="+", default=[0.1, 1.0], help="sizes of the log")
    chosen = parser.parse_args()
    result = growth(WORK, chosen.steps, chosen.run, chosen.gb)(Bench(rounds=1))
    for count, seconds in result.lines["step"]:
        print(f"{count:,} episodes in a step: {seconds:.2f} s, {1e6 * seconds / count:.0f} us each")
    print(result.note.replace("; ", "\n"))


if __name__ == "__main__":
    main()
