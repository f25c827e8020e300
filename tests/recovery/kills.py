"""Runs that are killed again and again: what they come to is what nobody disturbed comes to."""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recovery.runs import (
    Found,
    Mode,
    Runner,
    Undisturbed,
    course,
    differing,
    launchers,
    litter,
    survivors,
    undisturbed,
)

log: logging.Logger = logging.getLogger("mrlm.soak")
"""What is going on; whoever starts a campaign shows it."""
IN_TIME = "a moment"
"""Killed from outside, whatever it is doing."""
MOST = 4
"""Times a run is killed before it is left alone."""


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
    with launchers(jobs) as forks:
        for number, mode in enumerate(each for each in modes if each.name not in whole):
            runner = Runner(mode, place / f"whole-{mode.name}", forks[number % jobs])
            whole[mode.name] = undisturbed(runner)

        def worker(number: int) -> None:
            rng, turn = random.Random(f"{seed}/{number}"), number
            while sum(tried.values()) < count:
                mode = modes[turn % len(modes)]
                runner = Runner(mode, place / f"run-{number}", forks[number])
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
    left = litter(runner.folder) + survivors(runner.place)
    return kills, f"it left {left}" if left else None
