"""Verdicts of graders, and the time budget of a solution's tests."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from mrlm.core.errors import DataError
from mrlm.sandbox.types import Limits, SandboxError, Status

START = 20.0
"""Seconds allowed for the start of a worker; it runs no code of the solution then."""
TESTS_OF_TIME = 10
"""All tests together may take as many deadlines, or a quarter of their number, if it is more."""
CODE = 200_000
"""Most characters of a solution."""

Kind = Literal["passed", "wrong", "error", "timeout", "refused"]


@dataclass(frozen=True, slots=True)
class GradingVerdict:
    """The verdict of one test.

    Args:
        kind: `passed`; `wrong` (another value, or a failed assertion); `error` (it raised, returned
            something that is not plain data, or its process ended); `timeout`; `refused` (nothing
            could be tested: the code is not text, or the test itself cannot be run).
        error: class of the exception, or how the process ended. Reported by the solution: usable
            for feedback only.
        line: line in the solution, counted from 1; reported by the solution too.
        got: the returned value, shortened. Only for the feedback of visible tests.
    """

    kind: Kind
    error: str = ""
    line: int | None = None
    got: str = ""

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


class Ended(Exception):
    """The end of a test, with its verdict."""

    def __init__(self, verdict: GradingVerdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


def checked(entry: str) -> None:
    """Refuse what is not the name of a function."""
    if not isinstance(entry, str) or not entry.isidentifier():
        raise DataError(f"the entry point must be the name of a function, not {entry!r}")


def refused(code: str) -> GradingVerdict | None:
    """The verdict of code that cannot be run at all."""
    if "\0" in code or len(code) > CODE:
        return GradingVerdict("refused", "TooLong" if len(code) > CODE else "ValueError")
    try:
        code.encode()
    except UnicodeEncodeError:
        return GradingVerdict("refused", "UnicodeEncodeError")
    return None


def of_status(status: Status, reason: str = "") -> GradingVerdict:
    """The verdict of a test in which the process ended; fails if it was the sandbox that did."""
    if status == "infra_error":
        raise SandboxError(
            f"the sandbox failed while a solution ran: {reason or 'no reason given'}"
        )
    if status in ("timeout", "refused"):
        return GradingVerdict(status)
    names = {"oom": "MemoryError", "output_limit": "TooMuchOutput"}
    return GradingVerdict("error", names.get(status, "ProcessEnded"))


class Clock:
    """The time budget of all tests of one solution; `limits` are those of one test."""

    def __init__(self, limits: Limits, num_tests: int) -> None:
        self.wall: float = limits.wall
        self.factor: float = max(TESTS_OF_TIME, num_tests / 4)
        self.left: float = limits.wall * self.factor

    def next(self) -> float:
        """Seconds that the next test may take; 0 or less if none are left."""
        return min(self.wall, self.left)

    def took(self, waited: float, seconds: object) -> None:
        """Charge the time of an answer, as reported by its worker because other requests may have
        been first, but never more than the waiting time. A worker that reports too little is still
        bound by the deadline of each answer, and by the CPU time of `session_limits` for all."""
        self.left -= seconds if type(seconds) is float and 0 <= seconds <= waited else waited

    def session_limits(self, limits: Limits) -> Limits:
        """Limits of a process that runs all the tests: time to start, CPU time for all."""
        cpu = math.ceil((limits.cpu or limits.wall) * self.factor + START)
        return replace(limits, wall=max(START, limits.wall), cpu=cpu)
