"""Two sides in turn (A B A B ...), in one process, with the same threads and the same clock. On a
shared machine absolute times mean little; the ratio of medians and its spread do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from benchmarks.work import Counts


@dataclass(frozen=True, slots=True)
class Clock:
    """How time is taken.

    Args:
        threads: of the numerical libraries. With one thread the processor time of the process is
            counted, which other programs do not disturb; with more, wall-clock time.
        device: `cuda` waits for the device before it looks.
    """

    threads: int = 1
    device: str = "cpu"

    @property
    def name(self) -> str:
        return "CPU time" if self.threads == 1 and self.device == "cpu" else "wall clock"

    def now(self) -> float:
        """Seconds from some moment on."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        elif self.threads == 1:
            return time.process_time()
        return time.perf_counter()

    def time(self, action: Callable[[], object]) -> float:
        """Seconds that an action takes."""
        start = self.now()
        action()
        return self.now() - start

    @contextmanager
    def applied(self) -> Iterator[None]:
        """With as many threads as it says; what was before is put back."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Side(Protocol):
    """One of the two that are compared."""

    def step(self) -> object:
        """Do the work once."""
        ...

    def counts(self) -> Counts:
        """What the last step has done."""
        ...


class Peer(Protocol):
    """The other side, which may insist on a loop of its own."""

    def play(self, rounds: int, clock: Clock, before: Callable[[], None]) -> list[float]:
        """Do the work `rounds` times; `before` is called before each. Returns seconds of each."""
        ...

    def counts(self) -> Counts:
        """What the last step has done."""
        ...


class Stepwise:
    """A peer that can be asked for one step at a time.

    Args:
        side: what does the work.
    """

    def __init__(self, side: Side) -> None:
        self.side = side

    def play(self, rounds: int, clock: Clock, before: Callable[[], None]) -> list[float]:
        seconds = []
        for _ in range(rounds):
            before()
            seconds.append(clock.time(self.side.step))
        return seconds

    def counts(self) -> Counts:
        return self.side.counts()


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of every round of one side, the warm-up left out."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def alternate(
    ours: Side,
    peer: Peer,
    rounds: int,
    clock: Clock,
    counts: Counts,
    prompts_each: tuple[int, int] = (1, 1),
) -> tuple[Times, Times]:
    """Time both sides in turn, after a warm-up each.

    Args:
        ours: our side.
        peer: the other.
        rounds: timed rounds.
        clock: how time is taken.
        counts: what our side must do in a step; the other must do as much per prompt.
        prompts_each: prompts per step of either side; seconds are per prompt.

    Raises:
        AssertionError: a side has done other work than it should.
    """
    mine: list[float] = []

    def our_turn() -> None:
        mine.append(clock.time(ours.step) / prompts_each[0])
        expect("ours", ours.counts(), counts)

    with clock.applied():
        theirs = [each / prompts_each[1] for each in peer.play(rounds + 1, clock, our_turn)]
    share = prompts_each[1] / prompts_each[0]
    expected = Counts(*(round(n * share) for n in (counts.read, counts.sampled, counts.trained)))
    expect("the peer", peer.counts(), expected)
    if len(mine) != len(theirs):
        raise AssertionError(f"{len(mine)} rounds of ours, {len(theirs)} of the peer")
    return Times(tuple(mine[1:])), Times(tuple(theirs[1:]))


def repeat(side: Side, rounds: int, clock: Clock, counts: Counts | None = None) -> Times:
    """Time one side alone, after a warm-up."""
    with clock.applied():
        seconds = []
        for _ in range(rounds + 1):
            seconds.append(clock.time(side.step))
            if counts is not None:
                expect("ours", side.counts(), counts)
    return Times(tuple(seconds[1:]))


def ratios(mine: Times, theirs: Times) -> tuple[float, float, float]:
    """Ratio of the medians, and the smallest and largest ratio of neighbours."""
    each = [other / own for own, other in zip(mine.seconds, theirs.seconds, strict=True)]
    return theirs.median / mine.median, min(each), max(each)


def expect(who: str, found: Counts, wanted: Counts) -> None:
    """The work must be what was agreed on.

    Raises:
        AssertionError: it is not.
    """
    if found != wanted:
        raise AssertionError(f"{who}: {found}, but the work is {wanted}; nothing can be compared")
