"""Runs the cases of unittest classes for a class of the solution. This text runs inside a sandbox
of its own, after those of `plain.py`, `tests_worker.py` and `objects_worker.py`: the solution is
never in this process. The verdict is computed here."""

import ast
import unittest
from collections.abc import Callable
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING or "PlainPacker" not in globals():  # imported, instead of run after those texts
    from mrlm.sandbox.grading.objects_worker import READS, ObjectTest, kind
    from mrlm.sandbox.grading.plain import NotPlain
    from mrlm.sandbox.grading.tests_worker import (
        IN_PLACE,
        KINDS,
        STOPPED,
        TestStatements,
        built_in,
        replacements,
    )


class BoundMethod:
    """A method of an object, or of the class."""

    def __init__(
        self, case: "Case", owner: Any, name: str, made: bool, in_place: bool = False
    ) -> None:
        self.what: tuple[Any, ...] = case, owner, name, made
        self.in_place = in_place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        case, owner, name, made = self.what
        case.unweighed(made, args, kwargs)
        return case.asked(case.said("invoke", owner, name), args, kwargs, self.in_place)


class CaseResult(unittest.TestResult):
    """The result of a case."""

    failed: str = ""

    def addError(self, test: Any, err: Any) -> None:
        self.failed: str = self.failed or err[0].__name__

    def addFailure(self, test: Any, err: Any) -> None:
        self.failed: str = self.failed or "AssertionError"

    def addSkip(self, test: Any, reason: str) -> None:
        self.failed: str = self.failed or "SkipTest"

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.failed: str = self.failed or "ExpectedFailure"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.failed: str = self.failed or "UnexpectedSuccess"

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.failed: str = self.failed or err[0].__name__


class Case(ObjectTest):
    """One case: a class of tests and the name of a method."""

    AHEAD = STRICT = False

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        self.case: list[str] = request["case"]
        self.over: bool = False

    def forwards(self, name: str, made: bool) -> bool:
        return made or (name in READS and name not in ("__bool__", "__len__"))

    def method(self, owner: Any, name: str, made: bool) -> Callable[..., Any]:
        return BoundMethod(self, owner, name, made)

    def run(self) -> None:
        try:
            tree = self.rewritten(TestStatements(ast.Name, ast.Attribute))
            space: dict[str, Any] = {"__name__": "tests", "unittest": unittest}
            space |= {self.entry: kind(self, self.entry)}
            space |= {IN_PLACE: in_place, **replacements()}
            exec(compile(tree, "<test>", "exec", dont_inherit=True, optimize=0), space)
            result = CaseResult()
            unittest.TestSuite([space[self.case[0]](self.case[1])]).run(result)
            failed = result.failed or ("" if result.testsRun == 1 else "NotRun")
        except BaseException as error:
            failed = type(error).__name__
        self.over = True
        self.outbox.put({"failed": failed, "unfit": self.unfit} if failed else self.passed())

    def raised(self, request: dict[str, Any], name: str, text: str) -> Exception:
        call = request["call"]
        if call["name"] == "__next__" and name == "StopIteration":
            return StopIteration(text)  # the end of an iterator
        if call["do"] == "get" or (call["name"][:2] == "__" and call["name"] != "__call__"):
            return STOPPED[name](text) if name in STOPPED else built_in(name, text)
        return super().raised(request, name, text)

    def abandon(self) -> None:
        self.over = True
        super().abandon()

    def asked(self, request: Any, args: Any, kwargs: Any, in_place: bool) -> Any:
        if self.over:  # cleanup after the end cannot be forwarded
            raise NotPlain("the case is over")
        return super().asked(request, args, kwargs, in_place)


def in_place(called: Any) -> Any:
    """A variant of the method that copies back the changes of its arguments."""
    if type(called) is BoundMethod:
        return BoundMethod(*called.what, in_place=True)
    return called


KINDS["run case"] = Case
