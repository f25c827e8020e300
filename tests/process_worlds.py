"""Several processes that train together, as torchrun starts them, and what came of their runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file

PROGRAM = """
import json, sys
from mrlm import load_config, run_experiment
for path in json.loads(sys.argv[1]):
    run_experiment(load_config(path))
"""
TIMES = ("time", "tokens_per_second", "seconds/")


def start(size: int, words: Sequence[str], folder: Path, **more: str) -> list[subprocess.Popen]:
    """The processes of a world, each with its own output in `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = []
    for rank in range(size):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "CUDA_VISIBLE_DEVICES": "",
            **more,
        }
        with (folder / f"out-{rank}").open("wb") as out, (folder / f"err-{rank}").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=folder, env=environment, stdout=out, stderr=err
            )
        found.append(process)
    return found


def ended(processes: Sequence[subprocess.Popen], folder: Path, timeout: float = 300) -> list[int]:
    """The exit codes of a world."""
    try:
        return [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()


def said(folder: Path, rank: int) -> str:
    """What a process wrote on standard error."""
    return (folder / f"err-{rank}").read_text(errors="replace")


def run_all(size: int, paths: Sequence[Path], folder: Path) -> None:
    """Run configs one after the other in one world."""
    folder.mkdir(exist_ok=True)
    words = ["-c", PROGRAM, json.dumps([str(path) for path in paths])]
    codes = ended(start(size, words, folder), folder)
    assert codes == [0] * size, said(folder, codes.index(next(filter(None, codes))))[-3000:]


def differences(one: Path, other: Path) -> dict[str, float]:
    """How far two runs are apart: the largest difference of each metric, and of the weights of each
    policy that came of them."""
    found: dict[str, float] = {}
    rows, others = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (one, other)
    )
    assert len(rows) == len(others) > 0
    for row, same in zip(rows, others, strict=True):
        assert row.keys() == same.keys()
        for name, value in row.items():
            if not name.startswith(TIMES):
                assert (value is None) == (same[name] is None), name
                gap = abs((value or 0.0) - (same[name] or 0.0))
                found[name] = max(found.get(name, 0.0), gap)
    files = sorted((one / "final").rglob("*.safetensors"))
    assert files
    for file in files:
        name = file.relative_to(one).as_posix()
        first, second = load_file(file), load_file(other / name)
        assert first.keys() == second.keys()
        gaps = [float((first[key] - second[key]).abs().max()) for key in first]
        found[name] = max(gaps)
    return found
