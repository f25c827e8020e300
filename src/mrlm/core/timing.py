"""Profiling: spans of work that report to the profile of their run, almost free without one."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter

from mrlm.core.types import ANNOTATED

PHASES: dict[str, int] = {
    "play": 0, "prompts": 1, "sampling": 1, "environment": 1,
    "annotate": 0, **dict.fromkeys(ANNOTATED, 1),
    "credit": 0, "checks": 0,
    "update": 0, "forward": 1, "head": 1, "backward": 1, "optimizer": 1, "new_logprobs": 1,
    "sync": 0, "opponents": 1, "evaluation": 2, "saving": 2,
    "logging": 0, "waiting": 1,
}  # fmt: skip
"""Phases of a step, with their depth: time is counted for the deepest active phase only. Evaluation
and saving include everything inside them."""
OTHER = "other"
"""Time outside of all spans."""

Key = tuple[str, str]
"""(phase or counter, owner)."""


@dataclass(slots=True)
class Profile:
    """A profile: seconds and tokens since the last `take`.

    Every moment is counted once: for the deepest active phase, or as `other` if there is none.
    Concurrent phases of one depth share the time equally, and so do the owners of a phase: eight
    episodes that wait for their environments at the same time are one wait. Thus the seconds sum to
    wall-clock time, whatever runs concurrently.

    Args:
        wait: called before a span begins and ends; synchronises an accelerator.
    """

    wait: Callable[[], object] | None = None
    seconds: dict[Key, float] = field(default_factory=dict)
    counts: Counter[Key] = field(default_factory=Counter)
    others: "dict[str, Profile]" = field(default_factory=dict)
    """Profiles of concurrent work by name; each has its own clock."""
    _active: Counter[Key] = field(default_factory=Counter)
    _last: float = field(default_factory=lambda: perf_counter())
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def shift(self, phase: str, whose: str, number: int) -> None:
        """Begin (1) or end (-1) a span of a phase."""
        if self.wait is not None:
            self.wait()
        with self._lock:
            self._settle()
            self._active[phase, whose] += number
            if not self._active[phase, whose]:
                del self._active[phase, whose]

    def count(self, what: str, whose: str, number: int) -> None:
        """Increase a counter; during an evaluation under the name `eval/<what>`."""
        with self._lock:
            evaluating = any(phase == "evaluation" for phase, _ in self._active)
            self.counts[f"eval/{what}" if evaluating else what, whose] += number

    def beside(self, name: str) -> "Profile":
        """The profile of concurrent work."""
        with self._lock:
            return self.others.setdefault(name, Profile(self.wait))

    def take(self) -> tuple[dict[Key, float], dict[Key, int]]:
        """Seconds and counts since the last call."""
        with self._lock:
            self._settle()
            totals = dict(self.seconds), dict(self.counts)
            self.seconds.clear()
            self.counts.clear()
            return totals

    def _settle(self) -> None:
        """Count the time since the last change."""
        now = perf_counter()
        elapsed, self._last = now - self._last, now
        deepest = max((PHASES[phase] for phase, _ in self._active), default=0)
        under_way: dict[str, list[Key]] = {}
        for key in self._active:
            if PHASES[key[0]] == deepest:
                under_way.setdefault(key[0], []).append(key)
        for keys in under_way.values() or [[(OTHER, "")]]:
            for key in keys:
                part = elapsed / max(1, len(under_way)) / len(keys)
                self.seconds[key] = self.seconds.get(key, 0.0) + part


_current: ContextVar[Profile | None] = ContextVar("profile", default=None)
_NOTHING = nullcontext()


@contextmanager
def profiling(wait: Callable[[], object] | None = None) -> Iterator[Profile]:
    """A context whose spans report to a new profile, including those of tasks and threads started
    in it."""
    profile = Profile(wait)
    token = _current.set(profile)
    try:
        yield profile
    finally:
        _current.reset(token)


@contextmanager
def beside(name: str) -> Iterator[None]:
    """A context whose spans belong to concurrent work of this name and report to its own profile,
    including those of tasks and threads started in it."""
    profile = _current.get()
    if profile is None:
        yield
        return
    token = _current.set(profile.beside(name))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def _span(profile: Profile, phase: str, whose: str) -> Iterator[None]:
    profile.shift(phase, whose, 1)
    try:
        yield
    finally:
        profile.shift(phase, whose, -1)


def span(phase: str, whose: str = "") -> AbstractContextManager[None]:
    """A context manager around a piece of work of a phase.

    Args:
        phase: one of `PHASES`.
        whose: its owner: a policy, critic, agent or environment.
    """
    profile = _current.get()
    return _NOTHING if profile is None else _span(profile, phase, whose)


def count(what: str, whose: str, number: int) -> None:
    """Increase a counter of the current profile (tokens of an agent)."""
    profile = _current.get()
    if profile is not None:
        profile.count(what, whose, number)
