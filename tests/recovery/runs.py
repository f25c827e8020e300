"""Ways of running that a campaign disturbs, one run of each, and what it came to."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from forking import Launcher
from mrlm.config import TrainingConfig
from mrlm.learn.checkpoint import checkpoints, verify
from places import IMPORTS

VICTIM = Path(__file__).resolve().with_name("victim.py")
TIMES = ("time", "tokens_per_second", "seconds/", "idle/")
WRITTEN = {
    "episodes.jsonl.gz", "episodes.index", "ratings.json", "models.json", "manifest.json", "final",
}  # fmt: skip
"""Files, and a folder, that have to come out the same; a manifest stands for all that it lists."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A way of running, as a command and a config.

    Args:
        name: what it is called.
        config: the experiment.
        command: what goes before `train --config ...`: words for the launcher (first a Python
            file), or, with `direct`, for the system.
        direct: start it as a process of its own, such as one of `torchrun`, whose whole group is
            killed.
    """

    name: str
    config: dict[str, Any]
    command: tuple[str, ...] = (str(VICTIM),)
    direct: bool = False


TRAINING: dict[str, Any] = {"batch_size": 2, "learning_rate": 1e-2, "report_to": "none"}
SHORT = {"max_new_tokens": 3}
TEAM = Mode(
    "team",
    {
        "environments": [{"env_type": "relay"}],
        "policies": {"first": {}, "second": {"lora": {"r": 2, "dropout": 0.1}}},
        "training": {**TRAINING, "algorithm": "ppo", "num_iterations": 6, "save_steps": 1},
        "ppo": {"num_minibatches": 2, "update_epochs": 2, "kl_coef": 0.05, "kl_target": 0.1},
        "generation": SHORT,
        "evaluation": {"episodes": 4, "every": 2},
    },
)
"""A whole model and an adapter with dropout, value heads, references, a moving KL coefficient."""
LEAGUE = Mode(
    "league",
    {
        "environments": [{"env_type": "tic_tac_toe", "max_turns": 4}],
        "agents": {"x": {"policy": "player"}, "o": {"policy": "player"}},
        "policies": {"player": {"lora": {"r": 2}}},
        "training": {**TRAINING, "algorithm": "reinforce", "num_iterations": 5, "save_steps": 2},
        "opponents": {"every": 1, "keep": 2, "self": 0.5},
        "generation": SHORT,
        "evaluation": {"episodes": 1, "every": 2},
    },
)
"""Past selves as opponents, which are rated, thinned and removed."""
PIPELINE = Mode(
    "pipeline",
    {
        "environments": [{"env_type": "relay"}],
        "training": TRAINING,
        "generation": SHORT,
        "evaluation": {"episodes": 2, "every": 2},
        "stages": [
            {
                "name": "imitate",
                "training": {"algorithm": "sft", "num_iterations": 2, "save_steps": 1},
            },
            {
                "name": "improve",
                "training": {"algorithm": "magrpo", "num_iterations": 3, "save_steps": 1},
            },
        ],
    },
)
"""A stage that starts from what the one before it trained."""
AHEAD = Mode("ahead", {**TEAM.config, "training": {**TEAM.config["training"], "max_lag": 2}})
"""Play goes on beside learning; what is under way is part of a checkpoint."""
REPLAYS = Mode(
    "replays",
    {
        "environments": [{"env_type": "talking:Pair"}],
        "policies": {"first": {}, "second": {"lora": {"r": 2, "dropout": 0.1}}},
        "training": {**TRAINING, "algorithm": "c3", "num_iterations": 3, "save_steps": 1},
        "c3": {"group_size": 2, "alternatives": 2, "decisions": 1},
        "generation": SHORT,
        "evaluation": {"episodes": 2, "every": 2},
        "record": {"tokens": "all"},
    },
)
"""Every episode is played again with another answer, before it is trained on."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
DDP = Mode("ddp", TEAM.config, (sys.executable, *TORCHRUN, str(VICTIM)), direct=True)
"""Two processes that train one run; one of them, or all, are killed."""
ASYNCHRONOUS = "max_lag" in TrainingConfig.model_fields
MODES = (TEAM, LEAGUE, PIPELINE, REPLAYS, *([AHEAD] if ASYNCHRONOUS else []), DDP)


@dataclass(slots=True)
class Found:
    """What a campaign came to.

    Args:
        tried: kills, flips or limits, by kind.
        survived: how many of them all did no harm, or were noticed.
        wrong: what did, at most twenty.
        seconds: in all.
    """

    tried: dict[str, int] = field(default_factory=dict)
    survived: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def blame(self, text: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(text)


@dataclass(slots=True)
class Runner:
    """Starts runs of one mode.

    Args:
        mode: which.
        place: a folder of its own; the run is `place/run`.
        launcher: what it is forked from.
    """

    mode: Mode
    place: Path
    launcher: Launcher

    @property
    def folder(self) -> Path:
        return self.place / "run"

    def clear(self) -> None:
        """An empty place with the config in it."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        config = {"experiment_name": self.mode.name, **self.mode.config}
        (self.place / "config.yaml").write_text(yaml.safe_dump(config))

    def words(self) -> list[str]:
        """The command; it goes on where there is something to go on from."""
        resume = any(self.folder.glob("**/checkpoint-*/manifest.json"))
        more = ["--resume", str(self.folder)] if resume else []
        given = ["train", "--config", str(self.place / "config.yaml"), "--quiet"]
        return [*self.mode.command, *given, "--output", str(self.folder), *more]

    def go(self, patience: float | None = None, **environment: str) -> int:
        """Run until it ends, or for so many seconds; the exit status, below 0 for a signal."""
        imports = [IMPORTS, os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, imports))
        if self.mode.direct:
            return self._directly(patience, environment)
        started = self.launcher.start(self.words(), self.place, **environment)
        if patience is not None:
            deadline = time.monotonic() + patience
            while started.runs and time.monotonic() < deadline:
                time.sleep(0.002)
            if started.runs:
                with suppress(ProcessLookupError):  # it has just ended by itself
                    started.send(signal.SIGKILL)
        return started.wait()

    def _directly(self, patience: float | None, environment: dict[str, str]) -> int:
        with (self.place / "stdout").open("w") as out, (self.place / "stderr").open("w") as err:
            process = subprocess.Popen(
                self.words(),
                cwd=self.place,
                env={**os.environ, **environment},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                return process.wait(patience)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return process.wait()

    def was_killed(self, code: int) -> bool:
        """Whether an exit status is that of a kill; `torchrun` has one of its own and says why."""
        found = code == -signal.SIGKILL
        return found or (self.mode.direct and "Signal 9 (SIGKILL)" in self.said(10**6))

    def said(self, most: int = 1500) -> str:
        """The end of what it wrote on standard error."""
        return (self.place / "stderr").read_text(errors="replace")[-most:]


def course(folder: Path) -> dict[str, Any]:
    """What a run came to: metrics but for times, what was played and rated, the weights, and
    everything that its checkpoints hold."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if _set_aside(name):
            continue
        if path.name == "metrics.jsonl":
            found[name] = [_without_times(line) for line in path.read_text().splitlines()]
        elif path.is_file() and {path.name, *name.split("/")} & WRITTEN:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _without_times(line: str) -> dict[str, Any] | str:
    """A row of metrics; a line that is none stays as it is, and is like no other."""
    try:
        row = json.loads(line)
    except ValueError:
        return line
    return {key: each for key, each in row.items() if not key.startswith(TIMES)}


def _set_aside(name: str) -> bool:
    """Whether it belongs to a stage that was begun anew."""
    return name.split("/")[0].rpartition(".")[2].isdigit()


def litter(folder: Path) -> list[str]:
    """What should not be there when a run is over."""
    found = [
        str(path) for path in folder.rglob(".*") if ".tmp-" in path.name or ".old-" in path.name
    ]
    found += [
        f"{each}: {damage}"
        for place in {path.parent for path in folder.rglob("checkpoint-*")}
        for each in checkpoints(place)
        if (damage := verify(each)) is not None
    ]
    return [each for each in found if not _set_aside(each.removeprefix(f"{folder}/"))]


def survivors(place: Path) -> list[str]:
    """Processes of a run that are still there some seconds after it; they are ended."""
    deadline = time.monotonic() + 10
    while True:
        found = [each for each in psutil.process_iter(["cmdline"]) if _is_of(each, place)]
        if not found or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for each in found:
        each.kill()
    return [f"process {each.pid}" for each in found]


def _is_of(process: psutil.Process, place: Path) -> bool:
    return any(str(place) in word for word in process.info["cmdline"] or ())


@dataclass(slots=True)
class Undisturbed:
    """A run that was left alone: what it came to, how long it took, how often it came to each
    point."""

    course: dict[str, Any]
    seconds: float
    points: dict[str, int]


def undisturbed(runner: Runner) -> Undisturbed:
    """Run once, and count."""
    runner.clear()
    counts = runner.place / "counts.json"
    started = time.monotonic()
    code = runner.go(MRLM_COUNTS=str(counts))
    if code:
        raise RuntimeError(f"{runner.mode.name} does not even run undisturbed: {runner.said()}")
    took = time.monotonic() - started
    points = json.loads(counts.read_text()) if counts.exists() else {}
    return Undisturbed(course(runner.folder), took, points)


def differing(one: dict[str, Any], other: dict[str, Any]) -> str:
    """What is different."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return ", ".join(names)


@contextmanager
def launchers(count: int) -> Iterator[list[Launcher]]:
    made = [Launcher() for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()
