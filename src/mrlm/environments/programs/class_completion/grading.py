"""Test runs of a class, and selection of the usable test cases: some cases of a data set depend on
files, patches or the network, which a sandbox does not provide. Cases that the reference class does
not pass in the sandbox are left out."""

import asyncio
import hashlib
import json
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mrlm.core.errors import EpisodeError
from mrlm.core.log import log
from mrlm.environments.programs.class_completion.problems import ClassProblem
from mrlm.environments.programs.code.grading import CodeGrader, patient
from mrlm.sandbox.grading import GradingVerdict, grade_class
from mrlm.sandbox.types import Limits, Sandbox


class ClassGrader(CodeGrader):
    """Test runner for classes, in a sandbox shared by an environment and all its copies; caches the
    usable test cases.
    """

    def __init__(self, isolation: Any, sandbox: Sandbox[Any] | None, limits: Limits) -> None:
        super().__init__(isolation, sandbox)
        self.limits: Limits = patient(limits)
        self._usable: dict[str, list[list[str]]] = {}
        self._reasons: dict[str, str] = {}
        self._asking: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[str, asyncio.Task[None]]
        ] = weakref.WeakKeyDictionary()

    async def judge(
        self, problem: ClassProblem, program: str, limits: Limits
    ) -> list[tuple[list[str], GradingVerdict]]:
        """Each usable test case, and its verdict.

        Raises:
            SandboxUnavailableError: the requested isolation is not available on this machine.
            SandboxError: the sandbox failed.
            EpisodeError: no test case is usable.
        """
        cases = await self._known(problem)
        verdicts = await self._graded(problem, program, cases, limits)
        return list(zip(cases, verdicts, strict=True))

    async def _known(self, problem: ClassProblem) -> list[list[str]]:
        if problem.sure or problem.solution is None:
            return [list(case) for case in problem.cases]
        text = json.dumps(problem.record(), sort_keys=True, default=str)
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass")).hexdigest()
        if key not in self._usable:
            asking = self._asking.setdefault(asyncio.get_running_loop(), {})
            if key not in asking:
                asking[key] = asyncio.ensure_future(self._find(key, problem))
            try:
                await asyncio.shield(asking[key])
            finally:
                if key in asking and asking[key].done():
                    asking.pop(key)
        if not self._usable[key]:
            raise EpisodeError(
                f"class {problem.name}: its own solution passes none of its tests in the sandbox "
                f"({self._reasons[key]}), so no answer can be graded; remove the row"
            )
        return self._usable[key]

    async def _find(self, key: str, problem: ClassProblem) -> None:
        """Find the cases that pass when only they are run, as later: one may need the file that
        another one has written."""
        tried, cases = [], [list(case) for case in problem.cases]
        self._reasons[key] = "it has no test"
        while cases and len(tried) != len(cases):
            verdicts = await self._graded(problem, problem.solution or "", cases, self.limits)
            errors = Counter(verdict.error or verdict.kind for verdict in verdicts)
            self._reasons[key] = max(errors, key=errors.__getitem__)
            tried = cases
            cases = [case for case, verdict in zip(tried, verdicts, strict=True) if verdict.passed]
        if len(cases) < len(problem.cases):
            log.info(
                "class %s: %d of %d tests cannot be judged and are left out",
                problem.name, len(problem.cases) - len(cases), len(problem.cases),
            )  # fmt: skip
        self._usable[key] = cases

    async def _graded(
        self, problem: ClassProblem, program: str, cases: Sequence[Sequence[str]], limits: Limits
    ) -> list[GradingVerdict]:
        sandbox, pairs = await self.opened(), [(case[0], case[1]) for case in cases]
        return await grade_class(sandbox, program, problem.name, problem.source, pairs, limits)
