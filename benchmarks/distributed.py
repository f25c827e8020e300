"""`python -m benchmarks.distributed`: the same run with one process and with several, and what the
several cost beside: seconds on the clock and of processors, phase by phase.

On a machine with fewer cores than processes the clock says nothing; the seconds of processors do:
what they come to beyond those of one process is what processes do twice or tell one another.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.models import SHAPES, make_model
from mrlm import default_model

PROGRAM = """
import json, sys, time
from mrlm import Callback, load_config, run_experiment
class Clock(Callback):
    def __init__(self):
        self.at = []
    def on_step_begin(self, run):
        self.at.append((time.perf_counter(), time.process_time()))
    on_train_end = on_step_begin
clock = Clock()
run_experiment(load_config(sys.argv[1]), callbacks=[clock])
first, last = clock.at[1], clock.at[-1]  # what the first step prepares is not counted
steps = len(clock.at) - 2
print(json.dumps([(end - begin) / steps for begin, end in zip(first, last)]))
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of a step: on the clock, and of the processors of all processes together."""

    wall: float
    processor: float


def config_of(folder: Path, size: int, strategy: str, steps: int, shape: str) -> Path:
    """A GRPO run, the same word for word with any number of processes, written as a file."""
    model = folder / "model"
    if not model.is_dir():
        make_model(shape).save_pretrained(model)
    config: dict[str, Any] = {
        "experiment_name": "distributed",
        "output_dir": str(folder / f"{strategy}-{size}"),
        "environments": [{"env_type": "length"}],
        "policies": {"p": {"model": str(model), "tokenizer": default_model()}},
        "agents": {"short": {"policy": "p"}, "long": {"policy": "p"}},
        "training": {
            "algorithm": "grpo",
            "num_iterations": steps + 1,
            "batch_size": 8,
            "learning_rate": 1e-5,
            "checks": "off",
            "report_to": "none",
            "profile": True,
        },
        "grpo": {"group_size": 4},
        "generation": {"max_new_tokens": 64},
        "evaluation": {"episodes": 0},
    }
    if strategy == "fsdp":
        config["distributed"] = {"enabled": True, "strategy": "fsdp"}
        config["model"] = {"lean": False}
    path = folder / f"{strategy}-{size}.json"
    path.write_text(json.dumps(config))
    return path


def measured(size: int, strategy: str, steps: int, shape: str, folder: Path) -> Measured:
    """Run it with `size` processes of one thread each."""
    path = config_of(folder, size, strategy, steps, shape)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)],
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    rows = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    return Measured(max(wall for wall, _ in rows), sum(each for _, each in rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1M")
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args(arguments)
    busy = psutil.getloadavg()[0] / (psutil.cpu_count() or 1)
    print(f"{psutil.cpu_count()} cores, {busy:.1f} processes wait for each; {asked.shape}")
    first: Measured | None = None
    with tempfile.TemporaryDirectory() as place:
        for size in asked.sizes:
            began = time.perf_counter()
            found = measured(size, asked.strategy, asked.steps, asked.shape, Path(place))
            first = first or found
            print(
                f"{asked.strategy}, {size} processes: {found.wall:.2f} s a step "
                f"({first.wall / found.wall:.2f}x), {found.processor:.2f} s of processors "
                f"({found.processor / first.processor:.2f}x); all in "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
