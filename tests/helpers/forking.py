"""Processes that begin with the libraries imported: each is forked from one that does nothing else,
and has its own folder, environment, arguments and output. What they share is never looked through
for garbage, which took a second of each, and most of that at its end."""

import json
import os
import subprocess
import sys
from pathlib import Path

from commands import Done

IMPORTS = """
import peft, tensorboardX, transformers
from transformers.models.gpt2 import modeling_gpt2
import mrlm.experiment, mrlm.play, mrlm.trainer
transformers.AutoModelForCausalLM.from_pretrained(mrlm.default_model())
"""
PROGRAM = """
import gc, json, os, runpy, sys
gc.disable()
{imports}
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 20, 20)
gc.enable()
for line in sys.stdin:
    work = json.loads(line)
    child = os.fork()
    if not child:
        break
    print("started", child, flush=True)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
places = ((os.devnull, os.O_RDONLY), (work["out"], os.O_WRONLY), (work["err"], os.O_WRONLY))
for number, (place, how) in enumerate(places):
    os.dup2(os.open(place, how), number)
os.chdir(work["folder"])
os.environ.clear()
os.environ.update(work["environment"])
imports = os.environ.get("PYTHONPATH", "").split(os.pathsep)
sys.path[1:1] = [place for place in imports if place and place not in sys.path]
sys.argv = work["words"]
if sys.argv[0].endswith(".py"):
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


class Launcher:
    """The process that the others are forked from, one at a time, with what it imports."""

    def __init__(self, imports: str = IMPORTS) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(imports=imports)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, words: list[str], folder: Path, **environment: str) -> "Started":
        """Start a process in a folder: a program with its arguments, or the name of a module."""
        out, err = folder / "stdout", folder / "stderr"
        out.write_text("")
        err.write_text("")
        work = {
            "words": words,
            "folder": str(folder),
            "environment": {**os.environ, "OMP_NUM_THREADS": "1", **environment},
            "out": str(out),
            "err": str(err),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return Started(self.number("started"), out, err, self)

    def run(self, words: list[str], folder: Path, **environment: str) -> Done:
        """Start a process and wait for its end."""
        started = self.start(words, folder, **environment)
        return Done(started.wait(), started.out.read_text(), started.err.read_text())

    def number(self, event: str) -> int:
        """The number of the next process that has started, or the status of the one that ended. An
        end that nobody waited for, as in a test that failed, is passed over."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said, number = line.split()
            if said == event:
                return int(number)
        raise AssertionError(f"the launcher ended before anything {event}")

    def close(self) -> None:
        """End it; nothing runs any more."""
        self._process.communicate()


class Started:
    """A process that was forked: its number, and the files of what it says."""

    def __init__(self, pid: int, out: Path, err: Path, launcher: Launcher) -> None:
        self.pid, self.out, self.err, self._launcher = pid, out, err, launcher

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit status once it has ended; that of a signal is below 0."""
        return self._launcher.number("ended")
