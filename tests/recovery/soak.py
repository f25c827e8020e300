"""Runs that are killed again and again, checkpoints whose bits flip, disks that are full: whatever
happens, a run that is started again comes to the numbers of one that nobody disturbed.
`python tests/recovery/soak.py` says what came out; a short form is a test.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from forking import Launcher
from mrlm.config import TrainingConfig
from mrlm.learn.checkpoint import checkpoints, newest_verified, verify

log: logging.Logger = logging.getLogger("mrlm.soak")
"""What is going on; `main` shows it."""
VICTIM = Path(__file__).resolve().with_name("victim.py")
TIMES = ("time", "tokens_per_second", "seconds/", "idle/")
WRITTEN = {"episodes.jsonl", "ratings.json", "models.json", "manifest.json", "final"}
"""Files, and a folder, that have to come out the same; a manifest stands for all that it lists."""
IN_TIME = "a moment"
"""Killed from outside, whatever it is doing."""
MOST = 4
"""Times a run is killed before it is left alone."""


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
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
DDP = Mode("ddp", TEAM.config, (sys.executable, *TORCHRUN, str(VICTIM)), direct=True)
"""Two processes that train one run; one of them, or all, are killed."""
ASYNCHRONOUS = "max_lag" in TrainingConfig.model_fields
MODES = (TEAM, LEAGUE, PIPELINE, *([AHEAD] if ASYNCHRONOUS else []), DDP)


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


# -- one run ---------------------------------------------------------------------------------------


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
        if path.name == "metrics.jsonl":
            rows = map(json.loads, path.read_text().splitlines())
            found[name] = [
                {key: each for key, each in row.items() if not key.startswith(TIMES)}
                for row in rows
            ]
        elif path.is_file() and {path.name, *name.split("/")} & WRITTEN:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return {name: each for name, each in found.items() if not _set_aside(name)}


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


def _temporary(name: str) -> bool:
    return ".tmp-" in name or ".old-" in name


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


# -- killed ----------------------------------------------------------------------------------------


def killed(
    count: int,
    modes: Sequence[Mode],
    place: Path,
    jobs: int = 1,
    seed: int = 0,
    known: Mapping[str, Undisturbed] | None = None,
) -> Found:
    """Kill runs `count` times, start each again as often, and compare what they come to.

    Args:
        count: kills in all.
        modes: ways of running, in turn.
        place: an empty folder.
        jobs: runs side by side.
        seed: of what is chosen.
        known: undisturbed runs, by mode.
    """
    found, lock, started = Found(), threading.Lock(), time.monotonic()
    tried: Counter[str] = Counter()
    whole: dict[str, Undisturbed] = dict(known or {})
    with _launchers(jobs) as launchers:
        for number, mode in enumerate(each for each in modes if each.name not in whole):
            runner = Runner(mode, place / f"whole-{mode.name}", launchers[number % jobs])
            whole[mode.name] = undisturbed(runner)

        def worker(number: int) -> None:
            rng, turn = random.Random(f"{seed}/{number}"), number
            while sum(tried.values()) < count:
                mode = modes[turn % len(modes)]
                runner = Runner(mode, place / f"run-{number}", launchers[number])
                left = count - sum(tried.values())
                kills, wrong = one_life(runner, whole[mode.name], rng, min(MOST, left))
                with lock:
                    tried.update(kills)
                    log.info("%s: %s: %s", mode.name, ", ".join(kills), wrong or "the same")
                    if wrong is None:
                        found.survived += len(kills)
                    else:
                        found.blame(f"{mode.name}, {', '.join(kills)}: {wrong}")
                turn += 1

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(worker, range(jobs)))
    found.tried, found.seconds = dict(tried.most_common()), time.monotonic() - started
    return found


def one_life(
    runner: Runner, whole: Undisturbed, rng: random.Random, most: int
) -> tuple[list[str], str | None]:
    """A run that is killed up to `most` times and then left alone: how it was killed, and what was
    wrong in the end."""
    runner.clear()
    kills: list[str] = []
    while True:
        point = rng.choice([IN_TIME, IN_TIME, *whole.points])
        if len(kills) >= most:
            code = runner.go()
        elif point == IN_TIME:
            code = runner.go(rng.uniform(0.1, 1.1) * whole.seconds)
        else:
            which = f"{point}:{rng.randint(1, whole.points[point])}"
            code = runner.go(MRLM_DIES=which, MRLM_DIES_RANK=str(rng.randrange(2)))
        if code == 0:
            break
        if len(kills) >= most or not runner.was_killed(code):
            return kills or [point], f"exit status {code}: {runner.said()}"
        kills.append(point)
    if course(runner.folder) != whole.course:
        return kills, f"it came to something else: {differing(course(runner.folder), whole.course)}"
    left = litter(runner.folder)
    return kills, f"it left {left}" if left else None


def differing(one: dict[str, Any], other: dict[str, Any]) -> str:
    """What is different."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return ", ".join(names)


@contextmanager
def _launchers(count: int) -> Iterator[list[Launcher]]:
    made = [Launcher() for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


# -- damaged ---------------------------------------------------------------------------------------


def flipped(count: int, folder: Path, seed: int = 0) -> Found:
    """Flip single bits in the newest checkpoint of a run; each has to be noticed, the older one
    taken, and the damaged one named.

    Args:
        count: how many.
        folder: of a run with two checkpoints or more; it is as before afterwards.
        seed: of what is chosen.
    """
    found, started, rng = Found(), time.monotonic(), random.Random(seed)
    newest, older = checkpoints(folder)[:2]
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    tried: Counter[str] = Counter()
    said = _Said()
    loud = logging.getLogger("mrlm")
    loud.addHandler(said)
    try:
        for number in range(count):
            # every file comes, also small ones; and most bits lie in the large ones
            path = files[number % len(files)] if number % 2 else _by_size(files, rng)
            place, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
            tried[path.suffix or path.name] += 1
            said.lines.clear()
            _flip(path, place, bit)
            taken = newest_verified(folder)
            named = any(str(newest) in line for line in said.lines)
            _flip(path, place, bit)
            if taken == older and named:
                found.survived += 1
            else:
                found.blame(f"{path.relative_to(folder)}, bit {bit} of byte {place}: {taken} taken")
    finally:
        loud.removeHandler(said)
    if newest_verified(folder) != newest:
        found.blame("the checkpoint is not what it was")
    found.tried, found.seconds = dict(tried.most_common()), time.monotonic() - started
    return found


def _by_size(files: Sequence[Path], rng: random.Random) -> Path:
    return rng.choices(files, [path.stat().st_size for path in files])[0]


def _flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


class _Said(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


# -- full ------------------------------------------------------------------------------------------


def limits(folder: Path, least: int) -> list[int]:
    """Sizes at which one file more of a run can be written: just too small for each of them."""
    sizes = {path.stat().st_size - 1 for path in folder.rglob("*") if path.is_file()}
    return sorted(size for size in sizes if size >= least)


def cut_off(wanted: Sequence[int], whole: Undisturbed, runner: Runner) -> Found:
    """Run where no file may become larger than so many bytes: the write fails in the middle. The
    run has to end with an error that says so, and to go on from what it had, once it may.

    Args:
        wanted: limits in bytes.
        whole: the run that nobody disturbed.
        runner: of the same mode, elsewhere.
    """
    found, started = Found(), time.monotonic()
    for limit in wanted:
        runner.clear()
        code = runner.go(MRLM_FILE_LIMIT=str(limit))
        wrong = _refused(code, runner) or _goes_on(runner, whole)
        if wrong is None:
            found.survived += 1
        else:
            found.blame(f"{limit} bytes: {wrong}")
    found.tried = {"limits of a file": len(wanted)}
    found.seconds = time.monotonic() - started
    return found


def _refused(code: int, runner: Runner) -> str | None:
    """What is wrong with how a run ended that could not write."""
    said = runner.said()
    if code not in (1, 2) or "error: " not in said or "cannot be written" not in said:
        return f"exit status {code}: {said}"
    if "Traceback" in said:
        return said
    for each in {path.parent for path in runner.folder.rglob("checkpoint-*")}:
        damaged = [str(one) for one in checkpoints(each) if verify(one) is not None]
        if damaged:
            return f"damaged: {damaged}"
    return None


def _goes_on(runner: Runner, whole: Undisturbed) -> str | None:
    """What is wrong with how it went on when there was room."""
    if runner.go() != 0:
        return f"it does not go on: {runner.said()}"
    if course(runner.folder) != whole.course:
        return f"it came to something else: {differing(course(runner.folder), whole.course)}"
    left = litter(runner.folder)
    return f"it left {left}" if left else None


def filled_up(steps: int, mode: Mode, place: Path, launcher: Launcher) -> Found:
    """Run on disks (in memory) of growing size, from one that holds next to nothing to one that
    holds the run. Needs bubblewrap, which mounts them without root.

    Args:
        steps: sizes to try.
        mode: the way of running.
        place: an empty folder.
        launcher: what undisturbed runs are forked from.
    """
    found, started = Found(), time.monotonic()
    whole_runner = Runner(mode, place / "whole", launcher)
    whole = undisturbed(whole_runner)
    used = sum(path.stat().st_size for path in whole_runner.folder.rglob("*") if path.is_file())
    runner, disk = Runner(mode, place / "full", launcher), place / "disk"
    fits = 0
    for number in range(1, steps + 1):
        runner.clear()
        disk.mkdir(exist_ok=True)
        size = 65536 + round(1.5 * used * number / steps)
        words = [sys.executable, *runner.words()]
        words[words.index(str(runner.folder))] = str(disk / "run")
        copied = f'"$@"; code=$?; cp -a {disk}/run {runner.place}/ 2>/dev/null; exit $code'
        shut_in = ["bwrap", "--dev-bind", "/", "/", "--size", str(size), "--tmpfs", str(disk)]
        with (runner.place / "stderr").open("w") as err:
            done = subprocess.run(
                [*shut_in, "sh", "-c", copied, "sh", *words],
                cwd=runner.place,
                stdout=subprocess.DEVNULL,
                stderr=err,
            )
        fits += done.returncode == 0
        wrong = None if done.returncode == 0 else _refused(done.returncode, runner)
        wrong = wrong or _goes_on(runner, whole)
        if wrong is None:
            found.survived += 1
        else:
            found.blame(f"a disk of {size} bytes: {wrong}")
    found.tried = {"disks that were full": steps - fits, "disks with room": fits}
    found.seconds = time.monotonic() - started
    return found


def main() -> int:
    """Say what came out; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10_000, help="50 are one kill")
    parser.add_argument("--only", choices=("kills", "flips", "disks"))
    parser.add_argument("--modes", nargs="*", help=f"of {', '.join(mode.name for mode in MODES)}")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())
    chosen, _ = parser.parse_known_args()  # others are for the campaign of the sandbox
    modes = [mode for mode in MODES if not chosen.modes or mode.name in chosen.modes]
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, _launchers(1) as (launcher,):
        place = Path(folder)
        if chosen.only in (None, "kills"):
            kills = max(1, chosen.count // 50)
            found["kills"] = killed(kills, modes, place / "kills", chosen.jobs, chosen.seed)
        if chosen.only in (None, "flips"):
            runner = Runner(TEAM, place / "flips", launcher)
            undisturbed(runner)
            found["flips"] = flipped(max(1, chosen.count // 10), runner.folder, chosen.seed)
        if chosen.only in (None, "disks"):
            runner = Runner(TEAM, place / "sizes", launcher)
            whole = undisturbed(runner)
            every = limits(runner.folder, least=4096)
            every = every[:: max(1, len(every) * 250 // chosen.count)]
            found["file limits"] = cut_off(every, whole, Runner(TEAM, place / "cut", launcher))
            if shutil.which("bwrap"):
                steps = max(2, chosen.count // 500)
                found["full disks"] = filled_up(steps, TEAM, place / "full", launcher)
    print(json.dumps({name: asdict(each) for name, each in found.items()}, indent=2))
    return int(any(each.wrong for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
