"""Where time goes: spans of work that report to the profile of the process while there is one, and
cost next to nothing while there is none."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PHASES: dict[str, int] = {
    "play": 0,
    "sampling": 1,
    "environment": 1,
    "annotate": 0,
    "credit": 0,
    "update": 0,
    "forward": 1,
    "head": 1,
    "backward": 1,
    "optimizer": 1,
    "sync": 0,
    "evaluation": 2,
    "saving": 2,
    "logging": 0,
}
"""What a step consists of, and how deep: while something deeper goes on, time is not counted for
what goes on around it. Evaluation and saving count whole, with everything inside them."""
IDLE = "idle"


@dataclass(slots=True)
class Profile:
    """Seconds and tokens since the last `take`.

    Every moment is counted once: for the deepest phase under way, in equal parts where there are
    several (worlds that work at the same time), and as `idle` where there is none. So the seconds
    add up to those on the clock, whatever runs beside what.

    Args:
        wait: called before a span begins and ends; waits for an accelerator that works on its own.
    """

    wait: Callable[[], object] | None = None
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    """(phase, whose) -> seconds."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(what, whose) -> how many."""
    _active: Counter[tuple[str, str]] = field(default_factory=Counter)
    _last: float = field(default_factory=time.perf_counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, phase: str, whose: str) -> None:
        """A span of a phase begins."""
        if self.wait is not None:
            self.wait()
        with self._lock:
            self._settle()
            self._active[phase, whose] += 1

    def end(self, phase: str, whose: str) -> None:
        """A span of a phase ends."""
        if self.wait is not None:
            self.wait()
        with self._lock:
            self._settle()
            self._active[phase, whose] -= 1
            if not self._active[phase, whose]:
                del self._active[phase, whose]

    def count(self, what: str, whose: str, number: int) -> None:
        """So many more of something."""
        with self._lock:
            self.counts[what, whose] += number

    def take(self) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], int]]:
        """Seconds and counts since the last call."""
        with self._lock:
            self._settle()
            found = dict(self.seconds), dict(self.counts)
            self.seconds.clear()
            self.counts.clear()
            return found

    def _settle(self) -> None:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        deepest = max((PHASES[phase] for phase, _ in self._active), default=0)
        under_way = [key for key in self._active if PHASES[key[0]] == deepest] or [(IDLE, "")]
        for key in under_way:
            self.seconds[key] = self.seconds.get(key, 0.0) + elapsed / len(under_way)


_profile: Profile | None = None


@contextmanager
def profiling(wait: Callable[[], object] | None = None) -> Iterator[Profile]:
    """Spans of the process report to a new profile inside."""
    global _profile
    before, _profile = _profile, Profile(wait)
    try:
        yield _profile
    finally:
        _profile = before


@contextmanager
def span(phase: str, whose: str = "") -> Iterator[None]:
    """A piece of work that belongs to a phase.

    Args:
        phase: one of `PHASES`.
        whose: the policy, agent or world it is done for.
    """
    profile = _profile
    if profile is None:
        yield
        return
    profile.begin(phase, whose)
    try:
        yield
    finally:
        profile.end(phase, whose)


def count(what: str, whose: str, number: int) -> None:
    """Note so many more of something (tokens, for an agent)."""
    if _profile is not None:
        _profile.count(what, whose, number)
