"""The sandbox behind a world, and how an answer is put to the tests of its problem."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from mrlm.core.running import in_thread
from mrlm.environments.code.problems import CodeProblem
from mrlm.sandbox import open_sandbox
from mrlm.sandbox.grading import Call, Verdict, grade_asserts, grade_calls, grade_programs
from mrlm.sandbox.types import Limits, Sandbox, SandboxError

REL_TOL = 1e-9
"""How far floating-point results of calls may differ: two honest ways of adding do not agree to the
last bit."""


class Bench:
    """A sandbox that a world and all its copies share; opened when it is first needed, and closed
    when nobody holds it any more.

    Args:
        isolation: as `open_sandbox` takes it.
        sandbox: one that is open already; whoever opened it closes it.
    """

    def __init__(self, isolation: str = "auto", sandbox: Sandbox | None = None) -> None:
        self.isolation = isolation
        self._sandbox = sandbox
        self._opening = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Bench:
        return self

    async def sandbox(self) -> Sandbox:
        """The sandbox.

        Raises:
            SandboxUnavailableError: nothing here can isolate a program as asked.
        """
        return self._sandbox or await in_thread(self._opened)

    def _opened(self) -> Sandbox:
        with self._opening:
            if self._sandbox is None:
                self._sandbox = open_sandbox(self.isolation)
                weakref.finalize(self, self._sandbox.close)
            return self._sandbox


async def tested(
    sandbox: Sandbox, problem: CodeProblem, program: str, limits: Limits
) -> list[Verdict]:
    """A verdict for every test of a problem, in their order.

    Raises:
        SandboxError: the sandbox failed, or gave no verdict for some test.
    """
    if problem.kind == "calls":
        calls = [Call(tuple(args), expected) for args, expected in problem.tests]
        verdicts = await grade_calls(sandbox, program, problem.entry, calls, limits, REL_TOL)
    elif problem.kind == "programs":
        cases = [(stdin, stdout) for stdin, stdout in problem.tests]
        verdicts = await grade_programs(sandbox, program, cases, limits)
    else:
        whole = problem.kind == "check"
        tests = problem.tests[0] if whole else list(problem.tests)
        verdicts = await grade_asserts(sandbox, program, problem.entry, tests, limits)
    if not verdicts or (problem.kind != "check" and len(verdicts) != len(problem.tests)):
        raise SandboxError(f"{len(verdicts)} verdicts came for {len(problem.tests)} tests")
    return verdicts
