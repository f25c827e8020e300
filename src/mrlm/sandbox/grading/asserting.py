"""Tests that are Python code: assert statements, `check(candidate)`, and unittest classes. They run
in a second sandbox, separate from the solution. Calls of its functions, and operations on its
objects, are forwarded through this process to the solution's sandbox, and plain data comes back.
The verdict is computed in the process of the tests."""

import builtins
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from mrlm.core.errors import DataError
from mrlm.sandbox.grading.comparing import show
from mrlm.sandbox.grading.plain import NotPlain
from mrlm.sandbox.grading.solving import Raised, Solution, SolvingWorker, Value, turn, verdicts_of
from mrlm.sandbox.grading.verdicts import Clock, Ended, GradingVerdict, checked, refused
from mrlm.sandbox.types import Limits, Sandbox

T = TypeVar("T")
TESTS = ("plain.py", "tests_worker.py", "objects_worker.py")
CASES = (*TESTS, "cases_worker.py")
EXPECTABLE = frozenset(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
)
"""Exceptions that tests may expect from a solution. Others, such as `SystemExit`, end a test."""


async def grade_asserts(
    sandbox: Sandbox[Any],
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
    A result that is not plain data stays in the solution's process and equals nothing; the test may
    reduce it (truth, length, iteration, an item, an attribute, a method without arguments), which
    takes no value of the test along. Objects of the solution's classes can be created, used and
    passed back. Modules of the standard library need no import. An exception is raised in the test
    as its built-in base class, with its message.

    Args:
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

    async def begin(solution: Solution, tester: SolvingWorker, test: str) -> dict[str, Any]:
        names = (await tester.ask({"do": "names", "source": test}, tester.clock.next()))["names"]
        if names is None:
            raise Ended(GradingVerdict("refused", "SyntaxError"))
        functions, classes = await solution.find({entry, *names} - {"candidate"})
        if entry not in functions:
            raise Ended(GradingVerdict("error", "NameError"))
        modules = sorted(sys.stdlib_module_names.intersection(names).difference(functions))
        parts = {"functions": functions, "classes": sorted(classes), "modules": modules}
        return {"do": "run", "source": test, "entry": entry, **parts}

    return await _graded(sandbox, code, TESTS, tests, limits, begin)


async def grade_class(
    sandbox: Sandbox[Any],
    code: str,
    entry: str,
    source: str,
    cases: Sequence[tuple[str, str]],
    limits: Limits | None = None,
) -> list[GradingVerdict]:
    """Grade a class with unittest cases.

    Every case runs separately, in a fresh copy of the tests' module, with its class's fixtures.
    Only plain data is compared. An object of the solution that is a result can be used further, and
    equals nothing, whatever its `__eq__` returns; it is not true, has no length and no order, and
    contains nothing: these operators work only on objects that the test itself has created.
    `isinstance` is answered by the solution. A list or dictionary arrives as a copy, so changes in
    the test do not change the object. Files, standard output and patches of one process are not
    visible to the other.

    Args:
        source: the tests, with their imports.
        cases: class of tests and method.
        limits: `wall` is the time of each case, separately for the test's own code and the
            solution's.

    Returns:
        A verdict per case, in their order. `refused`: the case calls nothing of the solution, or
        passes values that are not plain data.

    Raises:
        DataError: `entry` is not a name, or the tests are not text.
        SandboxError: the sandbox failed; there is no verdict then.
    """
    checked(entry)
    if not isinstance(source, str):
        raise DataError(f"the tests of {entry!r} must be Python code as text, not {source!r}")

    async def begin(
        solution: Solution, tester: SolvingWorker, case: tuple[str, str]
    ) -> dict[str, Any]:
        _, classes = await solution.find({entry})
        if entry not in classes:
            raise Ended(GradingVerdict("error", "NameError"))
        return {"do": "run case", "source": source, "entry": entry, "case": list(case)}

    return await _graded(sandbox, code, CASES, cases, limits, begin)


async def _graded(
    sandbox: Sandbox[Any],
    code: str,
    files: Sequence[str],
    tests: Sequence[T],
    limits: Limits | None,
    begin: Callable[[Solution, SolvingWorker, T], Awaitable[dict[str, Any]]],
) -> list[GradingVerdict]:
    """A verdict per test; `files` are the program of the tests' process, and `begin` makes the
    request that starts a test in it."""
    if not tests:
        return []
    if verdict := refused(code):
        return [verdict] * len(tests)
    limits = limits or Limits()
    clocks = Clock(limits, len(tests)), Clock(limits, len(tests))
    async with (
        turn(),
        Solution(sandbox, code, limits, clocks[0]) as solution,
        SolvingWorker(sandbox, files, limits, clocks[1]) as tester,
    ):

        async def one(test: T) -> GradingVerdict:
            await solution.load()
            if tester.session is None:
                await tester.start()
            return await _conversation(solution, tester, await begin(solution, tester, test))

        return await verdicts_of(tests, one)


async def _conversation(
    solution: Solution, tester: SolvingWorker, request: dict[str, Any]
) -> GradingVerdict:
    """Run the test that `request` starts; its requests are forwarded, and the results back."""
    left = {tester: tester.clock.next(), solution: solution.clock.next()}

    async def timed(worker: SolvingWorker, send: Callable[[float], Awaitable[T]]) -> T:
        before = worker.clock.left
        try:
            return await send(left[worker])
        finally:
            left[worker] -= before - worker.clock.left

    came: Value | Raised | None = None
    while True:
        reply = await timed(tester, lambda wall, request=request: tester.ask(request, wall))
        if "call" not in reply:
            return _verdict(reply, came)
        call = reply["call"] | {key: reply[key] for key in ("args", "kwargs", "in_place")}
        came = await timed(solution, lambda wall, call=call: solution.run(call, wall))
        if isinstance(came, Value):
            request = {"do": "go on", "value": came.packed, "arguments": came.arguments}
        elif came.error == "NotPlain" or came.base not in EXPECTABLE:
            return came.verdict  # tests must not take it for the exception they expect
        else:
            request = {"do": "go on", "raise": came.base, "text": came.text}


def _verdict(reply: dict[str, Any], came: Value | Raised | None) -> GradingVerdict:
    if came is None or reply.get("unfit"):
        return GradingVerdict("refused", reply.get("failed", "NoCall"))
    if reply.get("passed") is True:
        return GradingVerdict("passed")
    failed = reply["failed"]
    if isinstance(came, Raised) and failed == came.base:
        return came.verdict
    got = show(came.packed) if isinstance(came, Value) else ""
    if failed == NotPlain.__name__:
        return GradingVerdict("error", failed, got=got)
    return GradingVerdict("wrong" if failed == "AssertionError" else "error", failed, got=got)
