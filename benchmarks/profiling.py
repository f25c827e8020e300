"""Where the time of a step goes on an accelerator: `python -m benchmarks.profiling rollouts` prints
the kernels that take most of it, and how much of the time the device had nothing to do."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.models import make_model
from benchmarks.ours import Ours, playing, reading
from benchmarks.steps import written_rows
from benchmarks.work import Work

GRPO = Work("0.5B", prompts=8, group=8, read=256, written=256, precision="bf16")
ROLLOUTS = Work("0.5B", prompts=64, group=4, read=256, written=256, precision="bf16")
WRITTEN = Work("0.5B", prompts=64, group=1, read=256, written=256, precision="bf16")
KERNELS = 25
"""Lines of the table."""


def _rollouts(device: str) -> tuple[Ours, Callable[[], object]]:
    from benchmarks.decoding import Sampling

    model = make_model(ROLLOUTS.shape, device=device, dtype=torch.bfloat16)
    tasks = ROLLOUTS.prompts * ROLLOUTS.group
    engine = {"batch_size": tasks, "timeout": 36000}
    ours = playing(ROLLOUTS, "grpo", device=device, model=model, engine=engine)
    return ours, Sampling(ours, tasks).step


def _grpo(device: str) -> tuple[Ours, Callable[[], object]]:
    ours = playing(GRPO, "grpo", device=device)
    return ours, ours.step


def _training(device: str) -> tuple[Ours, Callable[[], object]]:
    ours = reading(WRITTEN, "sft", written_rows(WRITTEN, ("completion",)), device=device)
    return ours, ours.step


STEPS = {"rollouts": _rollouts, "grpo": _grpo, "training": _training}


def profile(name: str, device: str) -> str:
    """A table of the kernels of one step, after two steps that warm up."""
    ours, step = STEPS[name](device)
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    step()
    torch.cuda.synchronize()
    plain = time.perf_counter() - begun
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        begun = time.perf_counter()
        step()
        torch.cuda.synchronize()
        whole = time.perf_counter() - begun
    ours.close()
    return table(profiler.events(), whole, plain)


def table(events: Any, whole: float, plain: float) -> str:
    """Lines about the device's work.

    Args:
        events: of the profiler.
        whole, plain: seconds of the step while it was profiled, and of the one before.
    """
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    spans: list[tuple[float, float]] = []
    for event in events:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            seconds[event.name] += event.time_range.elapsed_us() / 1e6
            counts[event.name] += 1
            spans.append((event.time_range.start, event.time_range.end))
        elif event.name.startswith("cuda"):
            calls[event.name] += 1
    busy, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    lines = [
        f"a step {plain:.3f} s ({whole:.3f} s while profiled); the device is busy {busy / 1e6:.3f} "
        f"s of it with {len(spans)} kernels and copies",
        "calls of the host: " + ", ".join(f"{name} {n}" for name, n in calls.most_common(10)),
    ]
    total = sum(seconds.values())
    for name, spent in seconds.most_common(KERNELS):
        each = 1e6 * spent / counts[name]
        lines.append(f"{spent / total:6.1%} {counts[name]:7d} x {each:8.1f} us  {name[:110]}")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Profile what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling", description=__doc__)
    parser.add_argument("steps", nargs="+", choices=list(STEPS))
    names: list[str] = parser.parse_args(given).steps
    if not torch.cuda.is_available():
        print("torch finds no CUDA device here, so nothing was profiled", file=sys.stderr)
        return 3
    for name in names:
        print(f"\n{name}\n{profile(name, 'cuda')}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
