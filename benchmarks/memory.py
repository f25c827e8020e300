"""How much memory agents take that are LoRA adapters on one base: resident memory of processes of
their own, after a step each. `python -m benchmarks.memory SHAPE AGENTS` is such a process."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.rows import Bench, Result

AGENTS = (1, 2, 4, 8)
MIB = 1 << 20


def adapters(shape: str) -> Callable[[Bench], Result]:
    """Memory of the most agents over that of one agent and their further adapters: gradients and
    two moments of the optimiser belong to an adapter."""

    def measure(bench: Bench) -> Result:
        size = "tiny" if bench.quick else shape
        numbers = AGENTS[:2] if bench.quick else AGENTS
        found = {count: _measured(size, count) for count in numbers}
        few, many = numbers[0], numbers[-1]
        adapter = found[few]["adapter"]
        expected = found[few]["resident"] + (many - few) * 4 * adapter
        result = Result(
            value=found[many]["resident"] / expected, rounds=1, axis="agents", scale="MiB"
        )
        result.lines = {
            "resident": [(n, each["resident"] / MIB) for n, each in found.items()],
            "base and adapters": [
                (n, (each["base"] + n * 4 * adapter) / MIB) for n, each in found.items()
            ],
        }
        more = (found[many]["resident"] - found[few]["resident"]) / (many - few) / MIB
        result.note = (
            f"base {found[few]['base'] / MIB:.0f} MiB; each further agent {more:.1f} MiB, "
            f"its adapter with gradients and moments {4 * adapter / MIB:.1f} MiB"
        )
        return result

    return measure


def _measured(shape: str, agents: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.memory", shape, str(agents)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(shape: str, agents: int) -> None:
    """Train once with so many adapters and print the bytes that are held then: `resident` beyond
    the libraries themselves, of the `base` and of one `adapter`."""
    import psutil
    import torch

    from benchmarks.ours import playing
    from benchmarks.work import Work

    torch.set_num_threads(1)
    process = psutil.Process()
    prompts = 2 * AGENTS[-1] // agents  # as many tokens, and activations, whatever the agents
    for warm in ("tiny", shape):  # the first step loads what is loaded late
        work = Work(
            warm, prompts=prompts, group=2, read=16, written=16, agents=agents, weights="lora"
        )
        before = process.memory_info().rss
        ours = playing(work, "magrpo")
        ours.step()
        ours.step()
        gc.collect()
        resident = process.memory_info().rss - before
    sizes = [sum(w.nbytes for w in each.parameters()) for each in ours.run.learners]
    everything = sum(w.nbytes for w in ours.run.learners[0].weights_of.model.parameters())
    ours.close()
    base = everything - sum(sizes)
    print(json.dumps({"resident": resident, "base": base, "adapter": sizes[0]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
