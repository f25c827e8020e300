"""Keeps objects of a solution for tests that use them. This text runs inside a sandbox, after those
of `plain.py` and `solution_worker.py`, in the process of the solution: its answers are untrusted.
Values that are not plain data stay here and are sent as a number."""

from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING or "_PlainPacker" not in globals():  # imported, instead of run after those texts
    from mrlm.sandbox.grading.plain import NotPlain, _PlainPacker, unpack
    from mrlm.sandbox.grading.solution_worker import DO, OBJECTS, objects, solution

numbers: dict[int, int] = {}
PROTOCOLS = {
    "__bool__": bool,
    "__iter__": iter,
    "__str__": str,
    "__contains__": lambda owner, item: item in owner,
}
"""Operators that Python derives from others if a class does not define them."""


class Keeper(_PlainPacker):
    """Packs values; an object becomes the number under which it is kept."""

    def value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool or any(issubclass(kind, base) for base, _ in self.HOW):
            return super().value(value, depth)
        if id(value) not in numbers:
            if len(objects) >= OBJECTS:
                raise NotPlain("too many objects")
            numbers[id(value)] = len(objects)
            objects.append(value)
        return {"o": numbers[id(value)]}


def kept(value: Any) -> Any:
    """A value as plain data, with numbers for the objects in it."""
    return Keeper().value(value, 60)


def target(request: dict[str, Any]) -> Any:
    """The object of a request, or the class."""
    number = request["on"]
    return solution.__dict__[request["class"]] if number is None else objects[number]


def new(request: dict[str, Any]) -> dict[str, Any]:
    """Create an object of the class."""
    return {"value": kept(target(request)(*given(request), **named(request)))}


def get(request: dict[str, Any]) -> dict[str, Any]:
    """Read an attribute: its value, or that it is callable."""
    found = getattr(target(request), request["name"])
    return {"value": ["call", None] if callable(found) else ["value", kept(found)]}


def put(request: dict[str, Any]) -> dict[str, Any]:
    """Set an attribute."""
    setattr(target(request), request["name"], *given(request))
    return {"value": None}


def invoke(request: dict[str, Any]) -> dict[str, Any]:
    """Call a method; names with two underscores are those of operators."""
    owner, name = target(request), request["name"]
    arguments = [given(request), named(request)]
    if name == "__is__":
        value = isinstance(owner, solution.__dict__[request["class"]])
    elif name in PROTOCOLS:
        value = PROTOCOLS[name](owner, *arguments[0])
    elif name[:2] == "__" and request["on"] is not None:
        if not hasattr(type(owner), name):
            raise TypeError(f"{type(owner).__name__} has no {name}")
        value = getattr(type(owner), name)(owner, *arguments[0])
    else:
        value = getattr(owner, name)(*arguments[0], **arguments[1])
    answered = {"value": kept(value)}
    if request.get("in_place"):
        answered["arguments"] = kept(arguments)
    return answered


def given(request: dict[str, Any]) -> list[Any]:
    """Arguments by position."""
    return unpack(request["args"], objects)


def named(request: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name."""
    return unpack(request["kwargs"], objects)


DO |= {"new": new, "get": get, "put": put, "invoke": invoke}
