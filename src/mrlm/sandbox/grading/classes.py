"""Tests that are unittest classes, for an untrusted class. They run in a second sandbox, separate
from the solution: every attribute, call and operator of its objects is forwarded, and the result
comes back as plain data or as an object's number. The verdict is computed in the tests' process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from mrlm.core.errors import DataError
from mrlm.sandbox.grading.asserting import conversation
from mrlm.sandbox.grading.solving import Solution, SolvingWorker, turn, verdicts_of
from mrlm.sandbox.grading.verdicts import Clock, GradingVerdict, checked, refused
from mrlm.sandbox.types import Limits, Sandbox


class Objects(Solution):
    """A solution whose objects are kept."""

    FILES: ClassVar[tuple[str, ...]] = (*Solution.FILES, "objects_worker.py")


CASES = ("plain.py", "tests_worker.py", "cases_worker.py")


async def grade_class(
    sandbox: Sandbox,
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
        sandbox: where the code runs.
        code: the solution.
        entry: its class.
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
    if not cases:
        return []
    if verdict := refused(code):
        return [verdict] * len(cases)
    limits = limits or Limits()
    clocks = Clock(limits, len(cases)), Clock(limits, len(cases))
    async with (
        turn(),
        Objects(sandbox, code, limits, clocks[0]) as solution,
        SolvingWorker(sandbox, CASES, limits, clocks[1]) as tester,
    ):
        return await verdicts_of(cases, lambda case: _one(solution, tester, entry, source, case))


async def _one(
    solution: Solution, tester: SolvingWorker, entry: str, source: str, case: tuple[str, str]
) -> GradingVerdict:
    await solution.load()
    if tester.session is None:
        await tester.start()
    _, classes = await solution.find({entry})
    if entry not in classes:
        return GradingVerdict("error", "NameError")
    request = {"do": "run", "source": source, "entry": entry, "case": list(case)}

    def call_of(said: dict[str, Any]) -> dict[str, Any]:
        return said["call"] | {key: said[key] for key in ("args", "kwargs", "in_place")}

    return await conversation(solution, tester, request, call_of)
