"""Disks that are full: the run ends with an error that says so, and goes on when there is room."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from forking import Launcher
from mrlm.learn.checkpoint import checkpoints, verify
from recovery.runs import Found, Mode, Runner, Undisturbed, course, differing, litter, undisturbed


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
