"""Several processes that train together, as torchrun starts them, and what came of their runs. Run
as a program it forks the processes, so that they begin with the libraries imported."""

import json
import os
import runpy
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from forking import Launcher
from places import IMPORTS, free_port

PROGRAM = """
import json, sys
from mrlm import load_config, run_experiment
for path in json.loads(sys.argv[1]):
    run_experiment(load_config(path))
"""
TIMES = ("time", "tokens_per_second", "seconds/")


class World:
    """Processes that were started in a folder, with the output of each in a file of its own.

    Args:
        launcher: what they are forked from.
        size: how many.
        words: a module's name, or a file of Python, with its arguments.
        folder: where they run.
    """

    def __init__(
        self, launcher: Launcher, size: int, words: Sequence[str], folder: Path, **more: str
    ) -> None:
        self.folder = folder
        self.size = size
        folder.mkdir(exist_ok=True)
        tests = os.pathsep.join([IMPORTS, *filter(None, sys.path)])
        self._started = launcher.start(
            [__file__, str(size), *words], folder, PYTHONPATH=tests, CUDA_VISIBLE_DEVICES="", **more
        )

    def pid(self, rank: int) -> int:
        """The number of a process."""
        return int(_awaited(self.folder / f"pid-{rank}"))

    def wait(self) -> list[int]:
        """The exit codes of all."""
        self._started.wait()
        return [int(_awaited(self.folder / f"code-{rank}")) for rank in range(self.size)]

    def said(self, rank: int) -> str:
        """What a process wrote on standard error."""
        return (self.folder / f"err-{rank}").read_text(errors="replace")


def run_all(launcher: Launcher, size: int, paths: Sequence[Path], folder: Path) -> None:
    """Run configs one after the other in one world."""
    folder.mkdir(exist_ok=True)
    program = folder / "program.py"
    program.write_text(PROGRAM)
    world = World(launcher, size, [str(program), json.dumps([str(p) for p in paths])], folder)
    codes = world.wait()
    assert codes == [0] * size, (codes, *(world.said(rank)[-3000:] for rank in range(size)))


def differences(one: Path, other: Path, most: int | None = None) -> dict[str, float]:
    """How far two runs are apart: the largest difference of each metric (in the first `most` rows),
    and of the weights of each policy that came of them, in units of what differs if that is above
    1."""
    from safetensors.torch import load_file

    found: dict[str, float] = {}
    rows, others = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][:most]
        for folder in (one, other)
    )
    assert len(rows) == len(others) > 0
    for row, same in zip(rows, others, strict=True):
        assert row.keys() == same.keys()
        for name, value in row.items():
            if not name.startswith(TIMES):
                assert (value is None) == (same[name] is None), name
                gap = abs((value or 0.0) - (same[name] or 0.0)) / max(1.0, abs(value or 0.0))
                found[name] = max(found.get(name, 0.0), gap)
    files = sorted((one / "final").rglob("*.safetensors"))
    assert files
    for file in files:
        name = file.relative_to(one).as_posix()
        first, second = load_file(file), load_file(other / name)
        assert first.keys() == second.keys()
        found[name] = max(float((first[key] - second[key]).abs().max()) for key in first)
    return found


def _awaited(file: Path) -> str:
    """What a file says, once it says something."""
    for _ in range(6000):
        if file.is_file() and (text := file.read_text()):
            return text
        time.sleep(0.02)
    raise TimeoutError(f"{file} was not written")


def _fork(size: int, words: Sequence[str]) -> None:
    port = free_port()
    os.environ |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = {}
    for rank in range(size):
        child = os.fork()
        if not child:
            _be(rank, words)
            return
        ranks[child] = rank
        Path(f"pid-{rank}").write_text(str(child))
    while ranks:
        child, status = os.wait()
        Path(f"code-{ranks.pop(child)}").write_text(str(os.waitstatus_to_exitcode(status)))


def _be(rank: int, words: Sequence[str]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}-{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    sys.argv = list(words)
    if words[0].endswith(".py"):
        runpy.run_path(words[0], run_name="__main__")
    else:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _fork(int(sys.argv[1]), sys.argv[2:])
