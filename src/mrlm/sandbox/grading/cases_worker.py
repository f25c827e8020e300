"""Runs the cases of unittest classes for a class of the solution. This text runs inside a sandbox
of its own, after those of `plain.py` and `tests_worker.py`: the solution is never in this process.
The proxies of its class and its objects forward every operation. The verdict is computed here."""

import ast
import unittest
from collections.abc import Callable
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING or "PlainPacker" not in globals():  # imported, instead of run after those texts
    from mrlm.sandbox.grading.plain import NotPlain, PlainPacker, PlainUnpacker
    from mrlm.sandbox.grading.tests_worker import (
        IN_PLACE,
        KINDS,
        STOPPED,
        Test,
        TestStatements,
        built_in,
        replacements,
    )

OPERATORS = (
    "__len__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__call__", "__iter__",
    "__next__", "__bool__", "__str__", "__int__", "__float__", "__neg__", "__add__", "__sub__",
    "__mul__", "__truediv__", "__lt__", "__le__", "__gt__", "__ge__", "__enter__",
)  # fmt: skip
"""Operators that are forwarded for an object. Not `==`: a result equals nothing."""
ANSWERS = ("__contains__", "__bool__", "__len__", "__lt__", "__le__", "__gt__", "__ge__")
"""Operators that are available only on objects created by the test itself: a result that contains
everything and is larger than all would pass for the expected list or number."""


class SolutionObject:
    """A proxy of an object of the solution."""

    __slots__ = ("_mrlm_case", "_mrlm_made", "_mrlm_number")

    def __init__(self, case: "Case", number: int) -> None:
        object.__setattr__(self, "_mrlm_case", case)
        object.__setattr__(self, "_mrlm_number", number)
        object.__setattr__(self, "_mrlm_made", False)

    def __getattr__(self, name: str) -> Any:
        return self._mrlm_case.attribute(self._mrlm_number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._mrlm_case.act("put", self._mrlm_number, name, value)

    def __exit__(self, *_: object) -> Any:
        return self._mrlm_case.act("invoke", self._mrlm_number, "__exit__", None, None, None)

    def __repr__(self) -> str:
        return f"<object {self._mrlm_number}>"


def operator(name: str) -> Callable[..., Any]:
    """The method that forwards an operator."""

    def method(self: SolutionObject, *args: Any) -> Any:
        if name in ANSWERS and not self._mrlm_made:
            raise NotPlain("a result that is not plain data")
        return self._mrlm_case.act("invoke", self._mrlm_number, name, *args)

    return method


for each in OPERATORS:
    setattr(SolutionObject, each, operator(each))


class Bound:
    """A method of an object, or of the class."""

    def __init__(self, case: "Case", number: int | None, name: str, in_place: bool = False) -> None:
        self.what: tuple[Any, ...] = case, number, name
        self.in_place = in_place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        case, number, name = self.what
        said = case.said("invoke", number, name)
        return case.asked(said, args, kwargs, self.in_place)


class Kind(type):
    """The metaclass of the proxy for the solution's class."""

    case: "Case"

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = set(cls.case.seen)
        came = cls.case.asked(cls.case.said("new", None, ""), args, kwargs, False)
        if type(came) is not SolutionObject or came._mrlm_number in known:
            raise NotPlain("no new object")
        made = SolutionObject(cls.case, came._mrlm_number)
        object.__setattr__(made, "_mrlm_made", True)
        return made

    def __getattr__(cls, name: str) -> Any:
        return cls.case.attribute(None, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        cls.case.act("put", None, name, value)

    def __instancecheck__(cls, thing: Any) -> bool:
        if type(thing) is not SolutionObject:
            return False
        return cls.case.act("invoke", thing._mrlm_number, "__is__") is True


class Packer(PlainPacker):
    """Packs values with objects of the solution in them."""

    def value(self, value: Any, depth: int) -> Any:
        return (
            {"o": value._mrlm_number}
            if type(value) is SolutionObject
            else super().value(value, depth)
        )


class Unpacker(PlainUnpacker):
    """Unpacks values of the solution, with its objects."""

    def __init__(self, case: "Case") -> None:
        super().__init__(None)
        self.case = case

    def tagged(self, tag: str, content: Any, depth: int) -> Any:
        return self.case.remote(content) if tag == "o" else super().tagged(tag, content, depth)


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


class Case(Test):
    """One case: a class of tests and the name of a method."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        self.case: list[str] = request["case"]
        self.seen: set[int] = set()
        self.over: bool = False

    def run(self) -> None:
        try:
            tree = self.rewritten(TestStatements(ast.Name, ast.Attribute))
            kind = Kind(self.entry, (), {})
            type.__setattr__(kind, "case", self)
            space: dict[str, Any] = {"__name__": "tests", "unittest": unittest, self.entry: kind}
            space |= {IN_PLACE: in_place, **replacements()}
            exec(compile(tree, "<test>", "exec", dont_inherit=True, optimize=0), space)
            result = CaseResult()
            unittest.TestSuite([space[self.case[0]](self.case[1])]).run(result)
            failed = result.failed or ("" if result.testsRun == 1 else "NotRun")
        except BaseException as error:
            failed = type(error).__name__
        self.over = True
        self.outbox.put({"failed": failed, "unfit": self.unfit} if failed else self.passed())

    def raised(self, said: dict[str, Any], name: str, text: str) -> Exception:
        call = said["call"]
        if call["name"] == "__next__" and name == "StopIteration":
            return StopIteration(text)  # the end of an iterator
        if call["do"] == "get" or (call["name"][:2] == "__" and call["name"] != "__call__"):
            return STOPPED[name](text) if name in STOPPED else built_in(name, text)
        return super().raised(said, name, text)

    def abandon(self) -> None:
        self.over = True
        super().abandon()

    def asked(self, said: Any, args: Any, kwargs: Any, in_place: bool) -> Any:
        if self.over:  # cleanup after the end cannot be forwarded
            raise NotPlain("the case is over")
        return super().asked(said, args, kwargs, in_place)

    def packer(self) -> "PlainPacker":
        return Packer(aliases=True)

    def unpacked(self, value: Any) -> Any:
        return Unpacker(self).value(value, 60)

    def remote(self, number: Any) -> SolutionObject:
        """A proxy for an object that is a result: a new one each time, also for objects created by
        the test itself, so that a method that returns `self` reveals no more than any other."""
        if type(number) is not int or not 0 <= number < 1_000_000:
            raise NotPlain("no number of an object")
        self.seen.add(number)
        return SolutionObject(self, number)

    def said(self, do: str, number: int | None, name: str) -> dict[str, Any]:
        return {"call": {"do": do, "on": number, "class": self.entry, "name": name}}

    def act(self, do: str, number: int | None, name: str, *args: Any) -> Any:
        return self.asked(self.said(do, number, name), args, {}, False)

    def attribute(self, number: int | None, name: str) -> Any:
        found = self.act("get", number, name)
        if type(found) is not list or len(found) != 2:
            raise NotPlain("no attribute")
        return Bound(self, number, name) if found[0] == "call" else found[1]


def in_place(called: Any) -> Any:
    """A variant of the method that copies back the changes of its arguments."""
    if type(called) is Bound:
        return Bound(*called.what, in_place=True)
    return called


KINDS["run case"] = Case
