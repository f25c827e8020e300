"""The sandbox of an environment, and test runs of an answer in it."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrlm.core.sync_async import in_thread
from mrlm.environments.programs.code.problems import CodeProblem
from mrlm.environments.shared.rows import SharedByCopies
from mrlm.sandbox import open_sandbox
from mrlm.sandbox.grading import (
    FunctionCall,
    GradingVerdict,
    grade_asserts,
    grade_calls,
    grade_programs,
)
from mrlm.sandbox.grading.solving import turn
from mrlm.sandbox.types import Limits, Sandbox, SandboxError

REL_TOL = 1e-9
"""Relative tolerance of floating-point results: two correct orders of addition may differ in the
last bit."""

MOST_TIME = 6
"""Total time limit of all cases of a program, in multiples of the deadline of one case."""

PATIENCE = 3.0
"""Factor on the deadline of a test for a reference solution, so that it fails no test by chance."""


def patient(limits: Limits) -> Limits:
    """The limits of a reference solution."""
    return replace(limits, wall=limits.wall * PATIENCE)


class CodeGrader(SharedByCopies):
    """A test runner for answers, in a sandbox shared by an environment and all its copies. The
    sandbox is opened on first use.
    """

    def __init__(
        self, isolation: str | Mapping[str, Any] = "auto", sandbox: Sandbox[Any] | None = None
    ) -> None:
        self.isolation = isolation
        self._sandbox = sandbox

    async def test(
        self, problem: CodeProblem, program: str, limits: Limits
    ) -> list[GradingVerdict]:
        """A verdict for every test of a problem, in their order.

        Raises:
            SandboxUnavailableError: the requested isolation is not available on this machine.
            SandboxError: the sandbox failed, or returned no verdict for some test.
        """
        sandbox = await self.opened()
        if problem.kind == "calls":
            calls = [
                FunctionCall(tuple(args), expected, also=also)
                for args, expected, *also in problem.tests
            ]
            verdicts = await grade_calls(sandbox, program, problem.entry, calls, limits, REL_TOL)
        elif problem.kind == "programs":
            verdicts = await _programs(sandbox, problem, program, limits)
        else:
            tests = problem.tests[0] if problem.kind == "check" else list(problem.tests)
            verdicts = await grade_asserts(sandbox, program, problem.entry, tests, limits)
        if not verdicts or (problem.kind != "check" and len(verdicts) != len(problem.tests)):
            raise SandboxError(f"{len(verdicts)} verdicts returned for {len(problem.tests)} tests")
        return verdicts

    async def opened(self) -> Sandbox:
        """The sandbox."""
        if self._sandbox is None:
            self._sandbox = await in_thread(lambda: open_sandbox(self.isolation))
        return self._sandbox


async def _programs(
    sandbox: Sandbox[Any], problem: CodeProblem, program: str, limits: Limits
) -> list[GradingVerdict]:
    """Run case by case, so that many slow cases end as timeouts instead of failing the step."""
    verdicts: list[GradingVerdict] = []
    async with turn():
        end = time.monotonic() + MOST_TIME * limits.wall
        for stdin, stdout in problem.tests:
            if time.monotonic() > end:
                verdicts.append(GradingVerdict("timeout"))
            else:
                verdicts += await grade_programs(sandbox, program, [(stdin, stdout)], limits)
    return verdicts
