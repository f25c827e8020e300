"""Loads a solution and calls its functions. This text runs inside a sandbox, after that of
`plain.py`. It receives arguments, but neither the expected values nor the test of a call. Its
process belongs to the solution: its answers are untrusted."""

import builtins
import json
import sys
import time
import types
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mrlm.sandbox.grading.plain import Handle, NotPlain, pack, unpack

FILE = "<solution>"
ANSWER = 1_000_000
"""Most bytes of an answer."""
TEXT_SHOWN = 500
"""Most characters of an error's message."""
OBJECTS = 10_000
"""Most objects that are kept for tests that create them."""

solution: types.ModuleType = types.ModuleType("solution")
objects: list[Any] = []


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
    compiled = compile(request["code"], FILE, "exec", dont_inherit=True, optimize=0)
    exec(compiled, solution.__dict__)
    return {"value": None}


def find(request: dict[str, Any]) -> dict[str, Any]:
    """Find the names that are functions, and those of these that are classes."""
    found = {name: solution.__dict__.get(name) for name in request["names"]}
    functions = [name for name, each in found.items() if callable(each)]
    return {"value": [functions, [name for name in functions if isinstance(found[name], type)]]}


def call(request: dict[str, Any]) -> dict[str, Any]:
    """Call a function once."""
    arguments = [unpack(request["args"], objects), unpack(request["kwargs"], objects)]
    if request["name"] not in solution.__dict__:
        raise NameError(f"name {request['name']!r} is not defined")
    value = solution.__dict__[request["name"]](*arguments[0], **arguments[1])
    if request.get("keep") and type(value).__module__ != builtins.__name__:
        if len(objects) >= OBJECTS:
            raise NotPlain("too many objects")
        objects.append(value)
        value = Handle(len(objects) - 1)
    answered = {"value": pack(value)}
    if request.get("in_place"):
        answered["arguments"] = pack(arguments)
    return answered


def raised(error: BaseException) -> dict[str, Any]:
    """Describe an error: its class, its built-in base class, its message, and the solution's
    line."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is None and isinstance(error, SyntaxError) and error.filename == FILE:
        line = error.lineno
    bases = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == builtins.__name__]
    said = error.args[0] if len(error.args) == 1 else error  # KeyError would quote it
    text = str(said)[:TEXT_SHOWN].encode("utf-8", "replace").decode()
    return {"error": type(error).__name__, "base": bases[0], "text": text, "line": line}


DO = {"load": load, "find": find, "call": call}
