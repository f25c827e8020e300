"""What graders say of a test, and how much time the tests of a solution may take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from mrlm.core.errors import DataError
from mrlm.sandbox.types import Limits, SandboxError, Status

START = 20.0
"""Seconds that a worker may take to start; it runs nothing of the solution then."""
TESTS_OF_TIME = 10
"""All tests together may take as long as this many that reach their deadline, or a quarter of all,
whichever is more."""
CODE = 200_000
"""Characters of a solution."""

Kind = Literal["passed", "wrong", "error", "timeout", "refused"]


@dataclass(frozen=True, slots=True)
class GradingVerdict:
    """Of one test.

    Args:
        kind: `passed`; `wrong` (another value, or an assertion that failed); `error` (it raised,
            gave no plain data, or its process ended); `timeout`; `refused` (nothing could be
            tested: the code is no text, or the test itself cannot be run).
        error: class of the exception, or how the process ended. A claim of the solution: good for
            feedback, for nothing else.
        line: of the solution, counted from 1; a claim too.
        got: what came, shortened. Only for the feedback of tests that may be seen.
    """

    kind: Kind
    error: str = ""
    line: int | None = None
    got: str = ""

    @property
    def passed(self) -> bool:
        """Whether the test passed."""
        return self.kind == "passed"


class Ended(Exception):
    """A test is over, with this verdict."""

    def __init__(self, verdict: GradingVerdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


def checked(entry: str) -> None:
    """Make sure that a function can have this name.

    Raises:
        DataError: it is none.
    """
    if not isinstance(entry, str) or not entry.isidentifier():
        raise DataError(f"the entry point must be the name of a function, not {entry!r}")


def refused(code: str) -> GradingVerdict | None:
    """The verdict of a code that cannot even be tried."""
    if "\0" in code or len(code) > CODE:
        return GradingVerdict("refused", "TooLong" if len(code) > CODE else "ValueError")
    try:
        code.encode()
    except UnicodeEncodeError:
        return GradingVerdict("refused", "UnicodeEncodeError")
    return None


def of_status(status: Status, reason: str = "") -> GradingVerdict:
    """The verdict of a test in which the process ended.

    Raises:
        SandboxError: it was the sandbox that failed.
    """
    if status == "infra_error":
        raise SandboxError(
            f"the sandbox failed while a solution ran: {reason or 'no reason given'}"
        )
    if status in ("timeout", "refused"):
        return GradingVerdict(status)
    names = {"oom": "MemoryError", "output_limit": "TooMuchOutput"}
    return GradingVerdict("error", names.get(status, "ProcessEnded"))


class Clock:
    """The time that the tests of one solution may take.

    Args:
        limits: of one test.
        num_tests: how many there are.
    """

    def __init__(self, limits: Limits, num_tests: int) -> None:
        self.wall: float = limits.wall
        self.factor: float = max(TESTS_OF_TIME, num_tests / 4)
        self.left: float = limits.wall * self.factor

    def next(self) -> float:
        """Seconds that the next test may take; none are left if they are not above 0."""
        return min(self.wall, self.left)

    def took(self, waited: float, said: object) -> None:
        """Take the time of an answer: what its worker says of it, since others may have been first
        while we waited, but never more than we waited. A worker that lies about it still has
        its deadline for each answer, and the processor time of `session_limits` for all."""
        self.left -= said if type(said) is float and 0 <= said <= waited else waited

    def session_limits(self, limits: Limits) -> Limits:
        """Limits of a process that runs all the tests: time to start, processor time for all."""
        cpu = math.ceil((limits.cpu or limits.wall) * self.factor + START)
        return replace(limits, wall=max(START, limits.wall), cpu=cpu)
