"""`mrlm`, which kills itself at a chosen moment: at the n-th passing of a point in its own code.

`MRLM_DIES=point:n` says when; `MRLM_COUNTS=file` lets it pass all points and write down how often
it came to each; `MRLM_FILE_LIMIT=bytes` lets no file grow beyond that.
"""

import atexit
import json
import os
import resource
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrlm.cli import main
from mrlm.learn.optimizer import Stepper
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Batcher
from mrlm.play.sources.replays import PlayWithReplays
from mrlm.record import files
from mrlm.selfplay.opponent_pool import Population
from mrlm.tracking.run_log import RunLog
from mrlm.training.run import Run

passed: Counter[str] = Counter()
point, _, number = os.environ.get("MRLM_DIES", ":0").partition(":")
rank = os.environ.get("RANK", "0")
if "RANK" in os.environ and rank != os.environ.get("MRLM_DIES_RANK", "0"):
    point = ""  # of several processes one dies


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def come_to(name: str) -> None:
    passed[name] += 1
    if name == point and passed[name] == int(number):
        die()


def watch(owner: Any, name: str, before: str | None = None, after: str | None = None) -> None:
    """Let calls of a function be points, before it does anything or when it has."""
    original: Callable[..., Any] = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            come_to(before)
        found = original(*arguments, **named)
        if after is not None:
            come_to(after)
        return found

    setattr(owner, name, watched)


def half_a_line(log: RunLog, file: Any, lines: Any) -> None:
    """A line of a log of which a part is on the disk when everything ends."""
    passed["logging"] += 1
    if point == "logging" and passed["logging"] == int(number):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        file.write(text[: len(text) // 2])
        file.flush()
        die()
    append(log, file, lines)


def half_a_part(path: Path, data: bytes) -> None:
    """Episodes, or their line of the index, of which a part is on the disk."""
    passed["recording"] += 1
    if point == "recording" and passed["recording"] == int(number):
        extend(path, data[: len(data) // 2])
        die()
    extend(path, data)


os.fsync = lambda handle: None  # what was written outlives a process without it
watch(os, "fsync", before="flushing", after="flushed")
watch(Path, "rename", before="renaming", after="renamed")
watch(Path, "replace", before="replacing", after="replaced")
watch(shutil, "rmtree", before="removing", after="removed")
watch(Policy, "save", after="weights written")
watch(Stepper, "step", before="stepping")
watch(Batcher, "_call", before="sampling")
watch(PlayWithReplays, "_replay", before="replaying")
watch(Run, "assign_policies", before="beginning")  # a step, or an evaluation
watch(Population, "grow", before="growing")
extend, files._extend = files._extend, half_a_part
append, RunLog._append = RunLog._append, half_a_line  # type: ignore[method-assign]

if "MRLM_COUNTS" in os.environ and rank == "0":
    place = Path(os.environ["MRLM_COUNTS"])
    atexit.register(lambda: place.write_text(json.dumps(passed)))
if "MRLM_FILE_LIMIT" in os.environ:
    limit = int(os.environ["MRLM_FILE_LIMIT"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
