"""Where time goes: spans of work that report to the profile of their run while there is one, and
cost next to nothing while there is none."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter

PHASES: dict[str, int] = {
    "play": 0,
    "prompts": 1,
    "sampling": 1,
    "environment": 1,
    "annotate": 0,
    "values": 1,
    "ref_logprobs": 1,
    "old_logprobs": 1,
    "full_kl": 1,
    "credit": 0,
    "checks": 0,
    "update": 0,
    "forward": 1,
    "head": 1,
    "backward": 1,
    "optimizer": 1,
    "new_logprobs": 1,
    "sync": 0,
    "evaluation": 2,
    "saving": 2,
    "logging": 0,
    "waiting": 1,
}
"""What a step consists of, and how deep: while something deeper goes on, time is not counted for
what goes on around it. Evaluation and saving count whole, with everything inside them."""
OTHER = "other"
"""What no span is about."""

Key = tuple[str, str]
"""(phase or what is counted, for whom)."""


@dataclass(slots=True)
class Profile:
    """Seconds and tokens since the last `take`.

    Every moment is counted once: for the deepest phase under way, or as `other` where there is
    none. Where several phases of one depth go on side by side they share the moment equally, and so
    do those for whom a phase goes on: eight episodes that wait for their worlds at the same time
    are one wait. So the seconds add up to those on the clock, whatever runs beside what.

    Args:
        wait: called before a span begins and ends; waits for an accelerator that works on its own.
    """

    wait: Callable[[], object] | None = None
    seconds: dict[Key, float] = field(default_factory=dict)
    counts: Counter[Key] = field(default_factory=Counter)
    others: dict[str, Profile] = field(default_factory=dict)
    """Profiles of what goes on beside this, by name; each has a clock of its own."""
    _active: Counter[Key] = field(default_factory=Counter)
    _last: float = field(default_factory=lambda: perf_counter())
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
        """So many more of something; during an evaluation under the name `eval/<what>`."""
        with self._lock:
            evaluating = any(phase == "evaluation" for phase, _ in self._active)
            self.counts[f"eval/{what}" if evaluating else what, whose] += number

    def beside(self, name: str) -> Profile:
        """The profile of something that goes on beside this."""
        with self._lock:
            return self.others.setdefault(name, Profile(self.wait))

    def take(self) -> tuple[dict[Key, float], dict[Key, int]]:
        """Seconds and counts since the last call."""
        with self._lock:
            self._settle()
            found = dict(self.seconds), dict(self.counts)
            self.seconds.clear()
            self.counts.clear()
            return found

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
    """Spans inside report to a new profile, also those of tasks and threads that start there."""
    profile = Profile(wait)
    token = _current.set(profile)
    try:
        yield profile
    finally:
        _current.reset(token)


@contextmanager
def beside(name: str) -> Iterator[None]:
    """Spans inside are of something that goes on beside the rest, and report to a profile of its
    own, also those of tasks and threads that start there.

    Args:
        name: of what goes on.
    """
    profile = _current.get()
    if profile is None:
        yield
        return
    token = _current.set(profile.beside(name))
    try:
        yield
    finally:
        _current.reset(token)


class _Span:
    """A piece of work that is being measured."""

    __slots__ = ("_phase", "_profile", "_whose")

    def __init__(self, profile: Profile, phase: str, whose: str) -> None:
        self._profile, self._phase, self._whose = profile, phase, whose

    def __enter__(self) -> None:
        self._profile.begin(self._phase, self._whose)

    def __exit__(self, *exception: object) -> None:
        self._profile.end(self._phase, self._whose)


def span(phase: str, whose: str = "") -> AbstractContextManager[None]:
    """Around a piece of work that belongs to a phase.

    Args:
        phase: one of `PHASES`.
        whose: the policy, critic, agent or world it is done for.
    """
    profile = _current.get()
    return _NOTHING if profile is None else _Span(profile, phase, whose)


def count(what: str, whose: str, number: int) -> None:
    """Note so many more of something (tokens, for an agent)."""
    profile = _current.get()
    if profile is not None:
        profile.count(what, whose, number)
