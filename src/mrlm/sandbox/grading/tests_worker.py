"""Runs tests that are Python code. This text runs inside a sandbox of its own, after that of
`plain.py`: the solution is never in this process. Every call of the solution's functions is an
answer of this worker, and its result is the next request. The verdict is computed here."""

import ast
import builtins
import importlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mrlm.sandbox.grading.plain import DEPTH, NotPlain, PlainPacker, unpack

MODULES = (
    "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools",
    "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics", "string",
)  # fmt: skip
"""Modules that tests may use without an import, as some data sets do."""
IN_PLACE = "__in_place__"
STOPPED: dict[str, type[Exception]] = {
    name: type(name, (Exception,), {"value": None})
    for name in ("StopIteration", "StopAsyncIteration")
}
"""The exceptions that replace a solution's `raise StopIteration` in a test: a failure like any
other. The real one would end the loop, `zip`, `map` or `all` that called the solution."""
CATCHING = frozenset({"isinstance", "issubclass", "raises", "suppress"})
"""Calls that receive exceptions a test expects; names that begin with `assertRaises` do too."""

running: list["Test"] = []


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run a request; a running test answers with its next call, or with its end."""
    begin = time.monotonic()
    if request["do"] == "names":
        reply: dict[str, Any] = {"names": unknown(request["source"])}
    elif request["do"] == "go on":
        reply = running[0].go_on(request)
    else:
        if running:
            running.pop().abandon()
        running.append(KINDS[request["do"]](request))
        reply = running[0].start()
    return {**reply, "seconds": time.monotonic() - begin}


def unknown(source: str) -> list[str] | None:
    """The names that a test does not define itself; `None` if it is not valid Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
        compile(source, "<test>", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    used, defined = set(), {*dir(builtins), *MODULES}
    for node in nodes:
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            defined.add(node.name)
    return sorted(used - defined)


class Abandoned(BaseException):
    """Ends a test that was given up."""


class Test:
    """One test, in a thread of its own, which waits while the solution computes."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.source: str = request["source"]
        self.entry: str = request["entry"]
        self.inbox: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.unfit: bool = False
        self.catches = False
        self.swallowed: str = ""
        self.classes: list[str] = request.get("classes", [])
        self.modules: list[str] = request.get("modules", [])
        named: list[str] = request.get("functions", [])
        self.functions = {name: self.proxy(name, False) for name in {self.entry, *named}}
        self.in_place = {
            function: self.proxy(name, True) for name, function in self.functions.items()
        }
        self.functions["candidate"] = self.functions[self.entry]

    def start(self) -> dict[str, Any]:
        threading.Thread(target=self.run, daemon=True).start()
        return self.outbox.get()

    def go_on(self, what_came: dict[str, Any]) -> dict[str, Any]:
        self.inbox.put(what_came)
        return self.outbox.get()

    def abandon(self) -> None:
        self.inbox.put(None)

    def run(self) -> None:
        try:
            tree = self.rewritten(TestStatements(ast.Name))
            named = [*(name for name in MODULES if name in self.source), *self.modules]
            space: dict[str, Any] = {name: importlib.import_module(name) for name in named}
            space.update(self.functions, __name__="tests", **replacements())
            space[IN_PLACE] = lambda called: self.in_place.get(called, called)
            exec(compile(tree, "<test>", "exec", dont_inherit=True, optimize=0), space)
            check = space.get("check")
            if callable(check) and check not in self.in_place:
                check(self.functions[self.entry])
        except BaseException as error:  # an assertion, in most cases
            self.outbox.put({"failed": type(error).__name__, "unfit": self.unfit})
        else:
            self.outbox.put(self.passed())

    def rewritten(self, statements: ast.NodeTransformer) -> ast.Module:
        """The syntax tree of the test with its rewritten statements."""
        tree = Expected().visit(ast.parse(self.source))
        self.catches: bool = catches(tree)
        return ast.fix_missing_locations(statements.visit(tree))

    def passed(self) -> dict[str, Any]:
        """The verdict of a test that ran to its end: passed, unless a call failed and nothing in
        the test could have expected it."""
        if self.swallowed and not self.catches:
            return {"failed": self.swallowed, "unfit": self.unfit}
        return {"passed": True}

    def proxy(self, name: str, in_place: bool) -> Callable[..., Any]:
        call = {"do": "call", "name": name, "keep": True}

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.asked({"call": call}, args, kwargs, in_place)

        function.__name__ = name
        return function

    def asked(
        self, request: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], in_place: bool
    ) -> Any:
        try:
            packer = self.packer()
            packed = {"args": packer.value([*args], DEPTH), "kwargs": packer.value(kwargs, DEPTH)}
        except NotPlain:
            self.unfit = True
            raise
        self.outbox.put({**request, "in_place": in_place, **packed})
        came = self.inbox.get()
        if came is None:
            raise Abandoned
        if "raise" in came:
            raise self.raised(request, came["raise"], came["text"])
        if in_place:
            new_args, new_kwargs = self.unpacked(came["arguments"])
            for old, new in zip(args, new_args, strict=True):
                take_over(old, new)
            for key, new in new_kwargs.items():
                take_over(kwargs[key], new)
        return self.unpacked(came["value"])

    def raised(self, request: dict[str, Any], name: str, text: str) -> Exception:
        """The exception that a call of the solution raises in the test."""
        self.swallowed = name
        return STOPPED[name](text) if name in STOPPED else built_in(name, text)

    def packer(self) -> "PlainPacker":
        """Packs the arguments of one call: the same list in two of them arrives as one."""
        return PlainPacker(aliases=True)

    def unpacked(self, value: Any) -> Any:
        return unpack(value)


KINDS: dict[str, type[Test]] = {"run": Test}
"""Request that starts a test -> its class."""


class TestStatements(ast.NodeTransformer):
    """Marks a call whose value is unused (`sort(items)`) as made for its effect on its arguments.
    Other calls do not change them: otherwise `f(x) == sorted(x)` would hold for a function that
    empties `x` and returns it. `called` are the nodes that such a call may name."""

    def __init__(self, *called: type[ast.expr]) -> None:
        self.called = called

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, self.called):
            call.func = ast.Call(ast.Name(IN_PLACE, ast.Load()), [call.func], [])
        return node


class Expected(ast.NodeTransformer):
    """Adds the replacement exception wherever a test expects `StopIteration`."""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        if node.type is not None:
            node.type = either(node.type)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if catching(node):
            node.args = [either(argument) for argument in node.args]
        return self.generic_visit(node)


def both(node: ast.expr) -> list[ast.expr]:
    """The name of an exception, and that of its replacement if it has one."""
    if isinstance(node, ast.Name) and node.id in STOPPED:
        return [node, ast.Name(f"__{node.id}__", ast.Load())]
    return [node]


def either(node: ast.expr) -> ast.expr:
    """The names of exceptions with those of their replacements, as one expression."""
    given = node.elts if isinstance(node, ast.Tuple) else [node]
    names = [item for old in given for item in both(old)]
    return node if len(names) == len(given) else ast.Tuple(names, ast.Load())


def replacements() -> dict[str, Any]:
    """The replacement exceptions by name."""
    return {f"__{name}__": kind for name, kind in STOPPED.items()}


def catching(node: ast.Call) -> bool:
    """Whether a call receives exceptions that a test expects."""
    name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
    return name in CATCHING or name.startswith("assertRaises")


def catches(tree: ast.AST) -> bool:
    """Whether a test has anything that could expect an exception."""
    kinds = (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)
    return any(
        isinstance(node, kinds) or (isinstance(node, ast.Call) and catching(node))
        for node in ast.walk(tree)
    )


def take_over(old: Any, new: Any) -> None:
    """Replace the content of a list, a set or a dictionary."""
    if type(old) is not type(new) or not isinstance(old, list | set | dict):
        return
    old.clear()
    old.extend(new) if isinstance(old, list) else old.update(new)


def built_in(name: str, text: str) -> Exception:
    """The built-in error of this name; any other is an `Exception`."""
    kind = getattr(builtins, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return Exception(text)
    for base in kind.__mro__:
        try:
            return base(text)
        except TypeError:  # UnicodeDecodeError and others need more than a message
            continue
    raise AssertionError("Exception takes a message")
