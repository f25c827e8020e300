"""Loads a solution, calls its functions, and keeps objects for tests that use them. This text runs
inside a sandbox, after that of `plain.py`. It receives arguments, but neither the expected values
nor the test of a call. Its process belongs to the solution: its answers are untrusted."""

import builtins
import json
import sys
import time
import types
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING or "PlainPacker" not in globals():  # imported, instead of run after that text
    from mrlm.sandbox.grading.plain import DEPTH, NotPlain, PlainPacker, PlainUnpacker, pack

FILE = "<solution>"
ANSWER = 1_000_000
"""Most bytes of an answer."""
TEXT_SHOWN = 500
"""Most characters of an error's message."""
OBJECTS = 10_000
"""Most objects that are kept."""
PROTOCOLS = {
    "__bool__": bool,
    "__iter__": iter,
    "__str__": str,
    "__contains__": lambda owner, item: item in owner,
}
"""Operators that Python derives from others if a class does not define them."""

solution: types.ModuleType = types.ModuleType("solution")
objects: list[Any] = []
numbers: dict[int, int] = {}
stopped: dict[int, BaseException] = {}
"""Iterators that failed after items that were read ahead, and their errors."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run a request, and return its outcome: `value` (packed), or `error`."""
    begin = time.monotonic()
    try:
        answered = DO[request["do"]](request)
        if len(json.dumps(answered)) > ANSWER:
            raise NotPlain("too large")
    except BaseException as error:  # a solution may raise anything, also SystemExit
        try:
            answered = raised(error)
        except BaseException:
            answered = {"error": "Exception"}
    return {**answered, "seconds": time.monotonic() - begin}


def load(request: dict[str, Any]) -> dict[str, Any]:
    """Run the code as a module."""
    sys.modules["solution"] = solution  # dataclasses look their module up
    solution.__file__ = "main.py"
    compiled = compile(request["code"], FILE, "exec", dont_inherit=True, optimize=0)
    exec(compiled, solution.__dict__)
    return {"value": None}


def find(request: dict[str, Any]) -> dict[str, Any]:
    """Find the names that are functions, and those of these that are classes."""
    values = {name: solution.__dict__.get(name) for name in request["names"]}
    functions = [name for name, value in values.items() if callable(value)]
    return {"value": [functions, [name for name in functions if isinstance(values[name], type)]]}


def call(request: dict[str, Any]) -> dict[str, Any]:
    """Call a function once; tests that `keep` objects get a number for one that it returns."""
    args, kwargs = given(request)
    value = function(request["name"])(*args, **kwargs)
    return outcome(request, value, [args, kwargs], kept if request.get("keep") else pack)


def function(name: str) -> Any:
    """The function of a name: of the module, or a method of its class `Solution`."""
    if name in solution.__dict__:
        return solution.__dict__[name]
    if isinstance(solution.__dict__.get("Solution"), type):
        return getattr(solution.__dict__["Solution"](), name)
    raise NameError(f"name {name!r} is not defined")


def given(request: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments by position and by name."""
    unpacker = PlainUnpacker(objects, aliases=True)
    return unpacker.value(request["args"], DEPTH), unpacker.value(request["kwargs"], DEPTH)


def outcome(request: dict[str, Any], value: Any, arguments: Any, form: Any) -> dict[str, Any]:
    """A value as plain data, and the arguments after the call if they are requested."""
    answered = {"value": form(value)}
    if request.get("in_place"):
        answered["arguments"] = form(arguments)
    return answered


# -- objects: what is not plain data stays here, and is sent as a number ---------------------------


class Keeper(PlainPacker):
    """Packs values; an object becomes the number under which it is kept."""

    def value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if (packed := self.of_library(value, depth)) is not None:
            return packed
        if value is None or kind is bool or any(issubclass(kind, base) for base, _ in self.HOW):
            return super().value(value, depth)
        return {"o": number_of(value)}


def number_of(value: Any) -> int:
    """The number under which an object is kept."""
    if id(value) not in numbers:
        if len(objects) >= OBJECTS:
            raise NotPlain("too many objects")
        numbers[id(value)] = len(objects)
        objects.append(value)
    return numbers[id(value)]


def kept(value: Any) -> Any:
    """A value as plain data, with numbers for the objects in it."""
    return Keeper().value(value, DEPTH)


def target(request: dict[str, Any]) -> Any:
    """The object of a request, or the class."""
    number = request["on"]
    return solution.__dict__[request["class"]] if number is None else objects[number]


def new(request: dict[str, Any]) -> dict[str, Any]:
    """Create an object of the class, which is kept, also where it is a list or a named tuple."""
    args, kwargs = given(request)
    value = target(request)(*args, **kwargs)
    plain = type(value).__module__ == builtins.__name__
    return {"value": kept(value) if plain else {"o": number_of(value)}}


def get(request: dict[str, Any]) -> dict[str, Any]:
    """Read an attribute: its value, or that it is callable."""
    value = getattr(target(request), request["name"])
    return {"value": ["call", None] if callable(value) else ["value", kept(value)]}


def put(request: dict[str, Any]) -> dict[str, Any]:
    """Set an attribute."""
    setattr(target(request), request["name"], *given(request)[0])
    return {"value": None}


def invoke(request: dict[str, Any]) -> dict[str, Any]:
    """Call a method; names with two underscores are those of operators."""
    owner, name = target(request), request["name"]
    args, kwargs = given(request)
    if name == "__is__":
        value = isinstance(owner, solution.__dict__[request["class"]])
    elif name in PROTOCOLS:
        value = PROTOCOLS[name](owner, *args)
    elif name[:2] == "__" and request["on"] is not None:
        if not hasattr(type(owner), name):
            raise TypeError(f"{type(owner).__name__} has no {name}")
        value = getattr(type(owner), name)(owner, *args)
    else:
        value = getattr(owner, name)(*args, **kwargs)
    return outcome(request, value, [args, kwargs], kept)


def ahead(request: dict[str, Any]) -> dict[str, Any]:
    """Read the next items of an iterator: a list, and whether there may be more."""
    (count,), _ = given(request)
    items: list[Any] = []
    if request["on"] in stopped:
        raise stopped.pop(request["on"])
    for _ in range(count):
        try:
            items.append(next(target(request)))
        except StopIteration:
            return {"value": [kept(items), False]}
        except Exception as error:
            if not items:
                raise
            stopped[request["on"]] = error
            break
    return {"value": [kept(items), True]}


def raised(error: BaseException) -> dict[str, Any]:
    """Describe an error: its class, its built-in base class, its message, and the line."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is None and isinstance(error, SyntaxError) and error.filename == FILE:
        line = error.lineno
    bases = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == builtins.__name__]
    message = error.args[0] if len(error.args) == 1 else error  # KeyError would quote it
    text = str(message)[:TEXT_SHOWN].encode("utf-8", "replace").decode()
    return {"error": type(error).__name__, "base": bases[0], "text": text, "line": line}


DO = {each.__name__: each for each in (load, find, call, new, get, put, invoke, ahead)}
