"""What `mrlm plan` says against what runs here: memory and time of several kinds of steps, each in
a process of its own with one thread. `python -m benchmarks.planning` prints the table,
`python -m benchmarks.planning CASE` measures one of them."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.work import Work

if TYPE_CHECKING:
    from benchmarks.ours import Ours

MIB = 1 << 20
STEPS = 2
SMALL = Work("15M", prompts=4, group=8, read=64, written=128)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of step.

    Args:
        title: what is said of it.
        work: how much of what.
        algorithm: that learns.
        settings: its own.
        sections: further sections of the config.
        workflow: who speaks when.
        rows: texts of a row, where it learns from rows instead of playing.
    """

    title: str
    work: Work
    algorithm: str = "grpo"
    settings: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    workflow: str = "turns"
    rows: tuple[str, ...] = ()


def _work(**changes: Any) -> Work:
    base = {"shape": "15M", "prompts": 4, "group": 8, "read": 64, "written": 128}
    return Work(**(base | changes))


CASES = {
    "grpo": Case("GRPO, 15M, 4 x 8, 64 + 128", _work()),
    "grpo-bf16": Case("GRPO, 15M, 4 x 8, computed in bf16", _work(precision="bf16")),
    "grpo-1m": Case("GRPO, 1M, 8 x 8, 32 + 64", _work(shape="1M", prompts=8, read=32, written=64)),
    "long": Case("GRPO, 15M, 4 x 4, 512 + 64", _work(group=4, read=512, written=64)),
    "checkpointing": Case(
        "GRPO, 15M, 4 x 8, activations computed twice",
        _work(),
        sections={"training": {"gradient_checkpointing": True}},
    ),
    "kl": Case(
        "GRPO, 15M, 2 x 4, with a reference", _work(prompts=2, group=4), settings={"kl_coef": 0.1}
    ),
    "critic": Case(
        "PPO, 15M, 2 x 4, a critic beside the policy",
        _work(prompts=2, group=4),
        "ppo",
        {"critic": "separate"},
    ),
    "own": Case(
        "MAGRPO, 15M, 1 x 4, 2 agents with weights of their own",
        _work(prompts=1, group=4, agents=2, weights="own"),
        "magrpo",
    ),
    "adapters": Case(
        "MAGRPO, 15M, 1 x 4, 4 adapters on a base",
        _work(prompts=1, group=4, agents=4, weights="lora"),
        "magrpo",
    ),
    "sft": Case(
        "SFT, 15M, 8 rows of 64 + 128", _work(prompts=8, group=1), "sft", rows=("completion",)
    ),
    "120m": Case("GRPO, 120M, 2 x 4, 64 + 64", _work(shape="120M", prompts=2, group=4, written=64)),
}


GPU_CASES = {
    "grpo": Case(
        "GRPO, 0.5B, 8 x 8, 256 + 256",
        Work("0.5B", prompts=8, group=8, read=256, written=256, precision="bf16"),
    ),
    "adapters": Case(
        "MAGRPO, 0.5B, 2 x 8, 256 + 128, 4 adapters on a base",
        Work("0.5B", 2, 8, read=256, written=128, agents=4, weights="lora", precision="bf16"),
        "magrpo",
    ),
    "critic": Case(
        "PPO, 0.5B, 4 x 4, 256 + 128, a critic beside the policy",
        Work("0.5B", prompts=4, group=4, read=256, written=128, precision="bf16"),
        "ppo",
        {"critic": "separate"},
    ),
    "sft": Case(
        "SFT, 0.5B, 32 rows of 256 + 256",
        Work("0.5B", prompts=32, group=1, read=256, written=256, precision="bf16"),
        "sft",
        rows=("completion",),
    ),
}
"""Steps on an accelerator."""


def run_of(case: Case, work: Work, device: str = "cpu") -> Ours:
    """A run of a case with so much work."""
    from benchmarks.ours import playing, reading
    from benchmarks.steps import written_rows

    if case.rows:
        rows = written_rows(work, case.rows)
        return reading(work, case.algorithm, rows, device=device, **case.sections)
    own = {"group_size": work.group} | case.settings
    return playing(
        work, case.algorithm, own, workflow=case.workflow, device=device, **case.sections
    )


def peak_of(case: Case, device: str) -> tuple[int, int]:
    """Bytes that two steps allocate on a device at their most, and what the plan says; on a CPU
    (where nothing counts them) those of the whole process."""
    import gc

    import torch

    gc.collect()
    before = 0
    if device != "cpu":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    ours = run_of(case, case.work, device)
    for _ in range(STEPS):
        ours.step()
    planned = int(predicted(case, ours, device)["said_bytes"])
    ours.close()
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, planned
    return torch.cuda.max_memory_allocated() - before, planned


def measure(name: str) -> dict[str, float]:
    """Run a case in this process: bytes beyond the libraries' at the worst moment, processor
    seconds of a step; and what the plan says of both."""
    import psutil
    import torch

    torch.set_num_threads(1)
    case = CASES[name]
    process = psutil.Process()
    small = Work("tiny", 1, 2, 8, 4, case.work.agents, weights=case.work.weights)
    warm = run_of(case, small)
    warm.step()
    warm.close()
    before = process.memory_info().rss
    ours = run_of(case, case.work)
    ours.step()
    begun = time.process_time()
    for _ in range(STEPS):
        ours.step()
    seconds = (time.process_time() - begun) / STEPS
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    said = predicted(case, ours)
    ours.close()
    return {"bytes": most, "seconds": seconds} | said


def predicted(
    case: Case, ours: Any, on: str = "cpu", more: dict[str, Any] | None = None
) -> dict[str, float]:
    """What the plan says of a run, with `more` settings that its live model implies."""
    from benchmarks.models import SHAPES
    from benchmarks.steps import written_rows
    from mrlm.planning.devices import device_here, find_device, this_machine
    from mrlm.planning.estimate import Needs, estimate
    from mrlm.planning.layout import PROCESS, Place
    from mrlm.planning.model_shape import ModelShape
    from mrlm.planning.plan import arithmetic
    from mrlm.planning.timing import Lengths

    run, work, size = ours.run, case.work, SHAPES[case.work.shape]
    wide = size.width // size.heads
    shape = ModelShape(
        size.width, size.layers, size.vocab, size.inner, size.width, size.kv_heads * wide, True
    )
    changes: dict[str, Any] = {"generation.max_prompt_tokens": work.read} | (more or {})
    if case.rows:
        changes["data.dataset"] = written_rows(work, case.rows)
    config = run.config.merged(changes)
    names = config.policies or {"policy": None}
    plan = arithmetic(
        config,
        num_agents=work.agents,
        trained_agents=work.agents,
        max_turns=work.turns,
        shapes=dict.fromkeys(names, shape),
        agents_per_policy=dict.fromkeys(names, work.agents // len(names)),
    )
    lengths = Lengths(work.read, work.written, work.written)
    needs = Needs(run.algorithm.spec.columns, run.algorithm.spec.reads_old)
    cpu = on == "cpu"
    device = this_machine(time.process_time) if cpu else find_device(device_here())
    found = estimate(plan, lengths, device, Place("ddp", 1), needs)
    return {
        "said_bytes": found.needed - (PROCESS if cpu else 0),
        "said_seconds": found.step,
        "fp32": device.fp32,
        "bandwidth": device.bandwidth,
        **{f"said_{name}": part.seconds for name, part in found.seconds.items()},
        **{f"took_{name}": ours.metrics[f"seconds/{name}"] for name in ("play", "learn")},
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """Rows of Markdown."""
    lines = [
        "| step | memory: planned | measured | ratio | time: planned | measured | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in found.items():
        lines.append(
            f"| {CASES[name].title} | {each['said_bytes'] / MIB:.0f} MiB "
            f"| {each['bytes'] / MIB:.0f} MiB | {each['said_bytes'] / each['bytes']:.2f} "
            f"| {each['said_seconds']:.2f} s | {each['seconds']:.2f} s "
            f"| {each['said_seconds'] / each['seconds']:.2f} |"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Measure one case here, or several in processes of their own, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    names: list[str] = parser.parse_args(given).cases
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    if len(names) == 1:
        print(json.dumps(measure(names[0])))
        return 0
    found: dict[str, dict[str, float]] = {}
    for name in names or list(CASES):
        command = [sys.executable, "-m", "benchmarks.planning", name]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        if done.returncode:
            print(f"{name} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
            return 1
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, json.dumps({k: round(v, 3) for k, v in found[name].items()}), file=sys.stderr)
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
