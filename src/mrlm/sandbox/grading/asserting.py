"""Tests that are Python code: assert statements and `check(candidate)`. They run in a second
sandbox, separate from the solution. Calls of the solution's functions are forwarded through this
process to the sandbox of the solution, and plain data comes back. The verdict is computed in the
process of the tests."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from mrlm.core.errors import DataError
from mrlm.sandbox.grading.comparing import show
from mrlm.sandbox.grading.plain import NotPlain
from mrlm.sandbox.grading.solving import (
    Raised,
    Solution,
    SolvingWorker,
    Value,
    turn,
    verdicts_of,
)
from mrlm.sandbox.grading.verdicts import Clock, GradingVerdict, checked, refused
from mrlm.sandbox.types import Limits, Sandbox

T = TypeVar("T")
EXPECTABLE = frozenset(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
)
"""Exceptions that tests may expect from a solution. Others, such as `SystemExit`, end a test."""


async def grade_asserts(
    sandbox: Sandbox,
    code: str,
    entry: str,
    tests: Sequence[str] | str,
    limits: Limits | None = None,
) -> list[GradingVerdict]:
    """Grade a solution with tests that are code.

    Each test runs separately and has to be self-contained. It may use `entry`, or `candidate` as an
    alias; if it defines a function `check`, that is called with it (HumanEval). Other undefined
    names are looked up in the solution if they are functions or classes there. A reference function
    must therefore be defined in the test: otherwise the solution judges itself.

    Values are compared by the tests' own code, with Python's rules (`True == 1` holds). Arguments
    that a function modifies are modified for the test only if the call is a statement of its own.
    Objects of the solution's classes can be created and passed back, and have no attributes. An
    exception is raised in the test as its built-in base class, with its message.

    Args:
        sandbox: where the code runs.
        code: the solution.
        entry: the function under test.
        tests: one text per test; a single text is one test.
        limits: `wall` is the time of each test, separately for the test's own code and the
            solution's.

    Returns:
        A verdict per test, in their order. `refused`: the test is not valid Python, calls nothing
        of the solution, or passes values that are not plain data.

    Raises:
        DataError: a test is not text, or `entry` is not a name.
        SandboxError: the sandbox failed; there is no verdict then.
    """
    checked(entry)
    tests = [tests] if isinstance(tests, str) else list(tests)
    for number, test in enumerate(tests):
        if not isinstance(test, str):
            raise DataError(f"test {number} of {entry!r} must be Python code as text, not {test!r}")
    if not tests:
        return []
    if verdict := refused(code):
        return [verdict] * len(tests)
    limits = limits or Limits()
    clocks = Clock(limits, len(tests)), Clock(limits, len(tests))
    async with (
        turn(),
        Solution(sandbox, code, limits, clocks[0]) as solution,
        Tests(sandbox, tests, entry, limits, clocks[1]) as tester,
    ):
        return await verdicts_of(range(len(tests)), lambda test: _one(solution, tester, test))


class Tests(SolvingWorker):
    """The tests, in a session of their own."""

    def __init__(
        self, sandbox: Sandbox, tests: Sequence[str], entry: str, limits: Limits, clock: Clock
    ) -> None:
        super().__init__(sandbox, ("plain.py", "tests_worker.py"), limits, clock)
        self.tests: list[str] = list(tests)
        self.entry: str = entry
        self.names: list[list[str] | None] = []

    async def load(self) -> None:
        """Start the session, and find the undefined names of every test."""
        if self.session is None:
            await self.start()
            read = await self.ask({"do": "read", "tests": self.tests}, self.clock.next())
            self.names = read["names"]


async def _one(solution: Solution, tester: Tests, number: int) -> GradingVerdict:
    await solution.load()
    await tester.load()
    names = tester.names[number]
    if names is None:
        return GradingVerdict("refused", "SyntaxError")
    functions, classes = await solution.find({tester.entry, *names} - {"candidate"})
    if tester.entry not in functions:
        return GradingVerdict("error", "NameError")
    request: dict[str, Any] = {
        "do": "run", "test": number, "entry": tester.entry, "functions": functions,
    }  # fmt: skip

    def call_of(said: dict[str, Any]) -> dict[str, Any]:
        call = {key: said[key] for key in ("args", "kwargs", "in_place")}
        return call | {"name": said["call"], "keep": said["call"] in classes}

    return await conversation(solution, tester, request, call_of)


async def conversation(
    solution: Solution,
    tester: SolvingWorker,
    request: dict[str, Any],
    call_of: Callable[[dict[str, Any]], dict[str, Any]],
) -> GradingVerdict:
    """Run one test until it ends: its requests are forwarded to the solution, and the results back.
    `request` starts it, and `call_of` converts a request of the test into one for the solution."""
    left = {tester: tester.clock.next(), solution: solution.clock.next()}

    async def timed(worker: SolvingWorker, asked: Callable[[float], Awaitable[T]]) -> T:
        before = worker.clock.left
        try:
            return await asked(left[worker])
        finally:
            left[worker] -= before - worker.clock.left

    came: Value | Raised | None = None
    while True:
        said = await timed(tester, lambda wall, request=request: tester.ask(request, wall))
        if "call" not in said:
            return _verdict(said, came)
        call = call_of(said)
        came = await timed(solution, lambda wall, call=call: solution.call(call, wall))
        if isinstance(came, Value):
            request = {"do": "go on", "value": came.packed, "arguments": came.arguments}
        elif came.error == "NotPlain" or came.base not in EXPECTABLE:
            return came.verdict  # tests must not take it for the exception they expect
        else:
            request = {"do": "go on", "raise": came.base, "text": came.text}


def _verdict(said: dict[str, Any], came: Value | Raised | None) -> GradingVerdict:
    if came is None or said.get("unfit"):
        return GradingVerdict("refused", said.get("failed", "NoCall"))
    if said.get("passed") is True:
        return GradingVerdict("passed")
    failed = said["failed"]
    if isinstance(came, Raised) and failed == came.base:
        return came.verdict
    got = show(came.packed) if isinstance(came, Value) else ""
    if failed == NotPlain.__name__:
        return GradingVerdict("error", failed, got=got)
    return GradingVerdict("wrong" if failed == "AssertionError" else "error", failed, got=got)
