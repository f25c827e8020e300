"""Proxies of the solution's objects in the process of the tests. This text runs inside a sandbox,
after those of `plain.py` and `tests_worker.py`. What is not plain data stays in the solution's
process; an operation of the test is forwarded there, and plain data or another object comes back.
No operation that would take an expected value along is forwarded for an object that the test itself
has not created: such an object could answer that it is right."""

from collections.abc import Callable, Iterator
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING or "PlainPacker" not in globals():  # imported, instead of run after those texts
    from mrlm.sandbox.grading.plain import NotPlain, PlainPacker, PlainUnpacker
    from mrlm.sandbox.grading.tests_worker import KINDS, Test

READS = (
    "__len__", "__getitem__", "__iter__", "__next__", "__bool__", "__str__", "__int__", "__float__",
    "__neg__", "__call__", "__enter__",
)  # fmt: skip
"""Operators that reduce an object, or read a part of it."""
WEIGHS = (
    "__contains__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__sub__", "__mul__",
    "__truediv__", "__setitem__", "__delitem__",
)  # fmt: skip
"""Operators that hand over another value of the test. `==` is never forwarded: a result equals
nothing."""
MOST_AHEAD = 1024
"""Most items of an iterator that are read at once."""


class SolutionObject:
    """A proxy of an object of the solution."""

    __slots__ = ("_mrlm_case", "_mrlm_made", "_mrlm_number", "_mrlm_true")

    def __init__(self, case: "ObjectTest", number: int) -> None:
        object.__setattr__(self, "_mrlm_case", case)
        object.__setattr__(self, "_mrlm_number", number)
        object.__setattr__(self, "_mrlm_made", False)
        object.__setattr__(self, "_mrlm_true", None)

    def __getattr__(self, name: str) -> Any:
        return self._mrlm_case.attribute(self._mrlm_number, name, self._mrlm_made)

    def __setattr__(self, name: str, value: Any) -> None:
        self._mrlm_case.act("put", self._mrlm_number, name, value)

    def __exit__(self, *_: object) -> Any:
        return self._mrlm_case.act("invoke", self._mrlm_number, "__exit__", None, None, None)

    def __eq__(self, other: object) -> bool:
        if self is other or other is None or self._mrlm_made or not self._mrlm_case.STRICT:
            return self is other
        raise NotPlain("a result that is not plain data is not compared")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<object {self._mrlm_number}>"


def operator(name: str) -> Callable[..., Any]:
    """The method that forwards an operator."""

    def method(self: SolutionObject, *args: Any) -> Any:
        case: ObjectTest = self._mrlm_case
        if not case.forwards(name, self._mrlm_made):
            raise NotPlain("a result that is not plain data")
        if name == "__bool__":  # one answer, so that it cannot be true and false
            if self._mrlm_true is None:
                object.__setattr__(self, "_mrlm_true", case.act("invoke", self._mrlm_number, name))
            return self._mrlm_true
        if name == "__iter__" and case.AHEAD:
            return case.items(self._mrlm_number)
        return case.act("invoke", self._mrlm_number, name, *args)

    return method


for each in (*READS, *WEIGHS):
    setattr(SolutionObject, each, operator(each))


class Kind(type):
    """The metaclass of the proxy for a class of the solution."""

    case: "ObjectTest"

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        numbers = set(cls.case.seen)
        came = cls.case.asked(cls.case.said("new", cls.__name__, ""), args, kwargs, False)
        if type(came) is not SolutionObject or came._mrlm_number in numbers:
            raise NotPlain("no new object")
        made = SolutionObject(cls.case, came._mrlm_number)
        object.__setattr__(made, "_mrlm_made", True)
        return made

    def __getattr__(cls, name: str) -> Any:
        return cls.case.attribute(cls.__name__, name, True)

    def __setattr__(cls, name: str, value: Any) -> None:
        cls.case.act("put", cls.__name__, name, value)

    def __instancecheck__(cls, thing: Any) -> bool:
        if type(thing) is not SolutionObject:
            return False
        request = cls.case.said("invoke", thing._mrlm_number, "__is__")
        request["call"]["class"] = cls.__name__
        return cls.case.asked(request, (), {}, False) is True


def kind(case: "ObjectTest", name: str) -> Kind:
    """The proxy of a class."""
    made = Kind(name, (), {})
    type.__setattr__(made, "case", case)
    return made


class Packer(PlainPacker):
    """Packs values with objects of the solution in them."""

    def value(self, value: Any, depth: int) -> Any:
        if type(value) is SolutionObject:
            return {"o": value._mrlm_number}
        packed = self.of_library(value, depth)
        return super().value(value, depth) if packed is None else packed


class Unpacker(PlainUnpacker):
    """Unpacks values of the solution, with its objects."""

    def __init__(self, case: "ObjectTest") -> None:
        super().__init__(None)
        self.case = case

    def tagged(self, tag: str, content: Any, depth: int) -> Any:
        return self.case.remote(content) if tag == "o" else super().tagged(tag, content, depth)


class ObjectTest(Test):
    """A test that may use objects of the solution: those of its classes other than the tested
    name, which it creates, and results. A result's methods take no arguments."""

    AHEAD = True
    """Whether items of an iterator are read ahead."""
    STRICT = True
    """Whether a comparison with a result ends the test, so that `!=` does not hold for it."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        self.seen: set[int] = set()
        for name in {*self.classes} - {self.entry}:
            self.functions[name] = kind(self, name)

    def raised(self, request: dict[str, Any], name: str, text: str) -> Exception:
        if request["call"]["name"] == "__len__" and name == "TypeError":
            return TypeError(text)  # `list` tries to get a length and needs none
        return super().raised(request, name, text)

    def forwards(self, name: str, made: bool) -> bool:
        """Whether an operator is forwarded, for an object that the test has made or not."""
        return name in READS or (made and name in ("__setitem__", "__delitem__"))

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

    def said(self, do: str, owner: Any, name: str) -> dict[str, Any]:
        """A request about an object (by its number) or a class (by its name)."""
        number, title = (owner, self.entry) if type(owner) is int else (None, owner)
        return {"call": {"do": do, "on": number, "class": title, "name": name}}

    def act(self, do: str, owner: Any, name: str, *args: Any) -> Any:
        return self.asked(self.said(do, owner, name), args, {}, False)

    def attribute(self, owner: Any, name: str, made: bool) -> Any:
        """The value of an attribute, or the method."""
        answer = self.act("get", owner, name)
        if type(answer) is not list or len(answer) != 2:
            raise NotPlain("no attribute")
        return self.method(owner, name, made) if answer[0] == "call" else answer[1]

    def method(self, owner: Any, name: str, made: bool) -> Callable[..., Any]:
        """A method of an object or a class."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.unweighed(made, args, kwargs)
            return self.asked(self.said("invoke", owner, name), args, kwargs, False)

        return call

    def unweighed(self, made: bool, args: Any, kwargs: Any) -> None:
        """Refuse to hand a value of the test to a method of a result."""
        if (args or kwargs) and not made:
            raise NotPlain("an argument for a method of a result that is not plain data")

    def items(self, number: int) -> Iterator[Any]:
        """The items of a result, read ahead: a request for each would take too long."""
        ahead, iterator = 1, self.act("invoke", number, "__iter__")
        if type(iterator) is not SolutionObject:
            raise NotPlain("no iterator")
        more: Any = True
        while more is True:
            answer = self.act("ahead", iterator._mrlm_number, "", ahead)
            if type(answer) is not list or len(answer) != 2 or type(answer[0]) is not list:
                raise NotPlain("no items")
            yield from answer[0]
            more, ahead = answer[1], min(2 * ahead, MOST_AHEAD)


KINDS["run"] = ObjectTest
