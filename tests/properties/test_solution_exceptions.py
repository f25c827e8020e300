"""A solution's exception is data: whatever it raises, in whatever form it is tested, it fails; and
honest code that uses exceptions and iterators as Python means them passes as it always did."""

import asyncio
import builtins
import unittest
from collections.abc import Iterator

import pytest

from mrlm.sandbox import open_sandbox
from mrlm.sandbox.grading import FunctionCall, grade_asserts, grade_calls, grade_class
from mrlm.sandbox.types import Limits, Sandbox, SandboxUnavailableError

FORMS = {
    "assert": "assert add(1, 2) == 3",
    "for": "for x, want in [((1, 2), 3), ((2, 5), 7)]:\n    assert add(*x) == want",
    "zip of map": "for g, w in zip(map(add, [1, 2], [2, 5]), [3, 7]):\n    assert g == w",
    "all of map": "assert all(map(lambda x: add(x, 1) == x + 1, range(3)))",
    "all of generator": "assert all(add(x, 1) == x + 1 for x in range(3))",
    "check": (
        "def check(candidate):\n    for g, w in zip(map(candidate, [1], [2]), [3]):\n"
        "        assert g == w\n"
    ),
    "starmap": (
        "import itertools\n"
        "for g, w in zip(itertools.starmap(add, [(1, 2), (2, 5)]), [3, 7]):\n    assert g == w"
    ),
    "next of map": "assert next(map(add, [1], [2]), 3) == 3",
    "list of map": "assert list(map(add, [1], [2]))[:0] == []",
    "iter": "for got in iter(lambda: add(1, 2), 3):\n    assert False",
    "filter": "assert not list(filter(lambda x: add(x, 1) != x + 1, range(3)))",
    "takewhile": (
        "import itertools\n"
        "assert list(itertools.takewhile(lambda x: add(x, 1) != x + 1, range(3))) == []"
    ),
    "sum and default": "assert max(map(lambda x: add(x, 0) - x, [4]), default=0) == 0",
    "async": (
        "import asyncio\nclass Each:\n    def __aiter__(self): return self\n    n = 0\n"
        "    async def __anext__(self):\n        self.n += 1\n"
        "        if self.n > 2: raise StopAsyncIteration\n        return add(1, 2)\n"
        "async def run():\n    async for got in Each():\n        assert got == 3\n"
        "asyncio.run(run())"
    ),
    "try around": (
        "try:\n    import json\nexcept ImportError:\n    json = None\n"
        "for g, w in zip(map(add, [1], [2]), [3]):\n    assert g == w"
    ),
    "thread": (
        "import threading\nt = threading.Thread(target=lambda: add(1, 2))\nt.start()\nt.join()"
    ),
}
CASES = """
import unittest
class Tests(unittest.TestCase):
    def test_zip(self):
        box = Box()
        for g, w in zip(map(box.add, [1, 2], [2, 5]), [3, 7]):
            self.assertEqual(g, w)
    def test_all(self):
        box = Box()
        self.assertTrue(all(map(lambda x: box.add(x, 1) == x + 1, range(3))))
    def test_next(self):
        self.assertEqual(next(map(Box().add, [1], [2]), 3), 3)
    def test_call(self):
        for g, w in zip(map(Box(), [1], [2]), [3]):
            self.assertEqual(g, w)
    def test_static(self):
        for g, w in zip(map(Box.plus, [1], [2]), [3]):
            self.assertEqual(g, w)
"""
METHODS = [("Tests", f"test_{name}") for name in ("zip", "all", "next", "call", "static")]
SWALLOWED = {"StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit"}
SOME = {*SWALLOWED, "KeyboardInterrupt", "IndexError", "AttributeError", "KeyError", "TypeError"}
GIVEN = {
    "UnicodeDecodeError": "'utf-8', b'x', 0, 1, 'bad'",
    "UnicodeEncodeError": "'utf-8', 'x', 0, 1, 'bad'",
    "UnicodeTranslateError": "'x', 0, 1, 'bad'",
    "ExceptionGroup": "'all', [ValueError()]",
    "BaseExceptionGroup": "'all', [KeyboardInterrupt()]",
}
RAISED = sorted(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__name__ == name
)
LIMITS = Limits(wall=60.0)
"""Whatever is tried ends by itself."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    try:
        opened = open_sandbox()
    except SandboxUnavailableError as reason:
        pytest.skip(str(reason))
    yield opened
    opened.close()


def raising(statement: str) -> tuple[str, str]:
    """A function and a class that do nothing but raise."""
    function = f"def add(a, b):\n    {statement}\n"
    methods = "".join(
        f"{kind}    def {name}({me}a, b):\n        {statement}\n"
        for kind, name, me in (
            ("", "add", "self, "), ("", "__call__", "self, "), ("    @staticmethod\n", "plus", ""),
        )
    )  # fmt: skip
    return function, f"class Box:\n{methods}"


@pytest.mark.parametrize(
    "name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in RAISED]
)
def test_no_exception_is_paid_in_any_form(sandbox: Sandbox, name: str) -> None:
    function, box = raising(f"raise {name}({GIVEN.get(name, '')})")
    verdicts = asyncio.run(grade_asserts(sandbox, function, "add", list(FORMS.values()), LIMITS))
    assert [form for form, v in zip(FORMS, verdicts, strict=True) if v.passed] == []
    calls = asyncio.run(grade_calls(sandbox, function, "add", [FunctionCall((1, 2), 3)], LIMITS))
    assert not calls[0].passed and calls[0].error == name
    cases = asyncio.run(grade_class(sandbox, box, "Box", CASES, METHODS, LIMITS))
    assert [case for case, v in zip(METHODS, cases, strict=True) if v.passed] == []


@pytest.mark.parametrize(
    "statement",
    [
        "class Mine(StopIteration): pass\n    raise Mine('x')",
        "next(iter(()))",
        "raise StopIteration(3)",
        "raise type('E', (StopAsyncIteration,), {})()",
    ],
)
def test_nor_is_a_relative_of_those_that_end_loops(sandbox: Sandbox, statement: str) -> None:
    function, _ = raising(statement)
    verdicts = asyncio.run(grade_asserts(sandbox, function, "add", list(FORMS.values()), LIMITS))
    assert [form for form, v in zip(FORMS, verdicts, strict=True) if v.passed] == []


HONEST = {
    "plain": "def add(a, b):\n    return a + b\n",
    "next": "def add(a, b):\n    it = iter([a, b])\n    return next(it) + next(it)\n",
    "until it stops": (
        "def add(a, b):\n    it, total = iter([a, b]), 0\n    while True:\n        try:\n"
        "            total += next(it)\n        except StopIteration:\n            return total\n"
    ),
    "generator": (
        "def parts(*values):\n    yield from values\n    return 0\n"
        "def add(a, b):\n    return sum(parts(a, b))\n"
    ),
    "iterator class": (
        "class It:\n    def __init__(self, *v): self.v = list(v)\n    def __iter__(self):\n"
        "        return self\n    def __next__(self):\n        if not self.v: raise StopIteration\n"
        "        return self.v.pop()\ndef add(a, b):\n    return sum(It(a, b))\n"
    ),
    "context manager": (
        "import contextlib\n@contextlib.contextmanager\ndef kept():\n    yield 1\n"
        "def add(a, b):\n    with kept(), contextlib.suppress(StopIteration):\n"
        "        next(iter(()))\n    return a + b\n"
    ),
    "coroutine": (
        "def add(a, b):\n    async def go(): return a + b\n    c = go()\n    try:\n"
        "        c.send(None)\n    except StopIteration as end:\n        return end.value\n"
    ),
    "closed generator": (
        "def add(a, b):\n    def g():\n        try:\n            yield a\n"
        "        except GeneratorExit:\n            raise\n    it = g(); x = next(it); it.close()\n"
        "    return x + b\n"
    ),
}


def plainly(code: str, test: str) -> bool:
    """Whether the test passes in an ordinary Python."""
    space: dict[str, object] = {}
    try:
        exec(code, space)
        space["candidate"] = space["add"]
        exec(test, space)
        check = space.get("check")
        if callable(check):
            check(space["add"])
    except BaseException:
        return False
    return True


@pytest.mark.parametrize("name", HONEST)
def test_honest_code_passes_what_it_passes_in_plain_python(sandbox: Sandbox, name: str) -> None:
    code = HONEST[name]
    verdicts = asyncio.run(grade_asserts(sandbox, code, "add", list(FORMS.values()), LIMITS))
    plain = [plainly(code, test) for test in FORMS.values()]
    assert all(plain), "the forms themselves are right"
    assert [v.passed for v in verdicts] == plain


EXPECTING = {
    "except": (
        "StopIteration",
        "try:\n    add(1)\nexcept StopIteration:\n    pass\nelse:\n    assert 0",
    ),
    "one of two": (
        "StopIteration",
        "try:\n    add(1)\nexcept (KeyError, StopIteration) as error:\n"
        "    assert isinstance(error, StopIteration)\nelse:\n    assert 0",
    ),
    "async": (
        "StopAsyncIteration",
        "try:\n    add(1)\nexcept StopAsyncIteration:\n    pass\nelse:\n    assert 0",
    ),
    "any": ("StopIteration", "try:\n    add(1)\nexcept Exception:\n    pass\nelse:\n    assert 0"),
    "value": (
        "ValueError",
        "import contextlib\nwith contextlib.suppress(ValueError):\n    add(1)\n    assert 0",
    ),
    "helper": (
        "KeyError",
        "def fails(f, *a):\n    try:\n        f(*a)\n    except KeyError:\n        return True\n"
        "assert fails(add, 1)",
    ),
    "sentinel": ("", "assert next(iter([]), StopIteration) is StopIteration and add(1) is None"),
    "its own iterator": (
        "",
        "class Two:\n    n = 0\n    def __iter__(self): return self\n    def __next__(self):\n"
        "        self.n += 1\n        if self.n > 2: raise StopIteration\n        return self.n\n"
        "assert list(Two()) == [1, 2] and add(1) is None",
    ),
}


@pytest.mark.parametrize("name", EXPECTING)
def test_tests_may_expect_exceptions(sandbox: Sandbox, name: str) -> None:
    kind, test = EXPECTING[name]
    code = f"def add(a):\n    {f'raise {kind}' if kind else 'return None'}\n"
    (verdict,) = asyncio.run(grade_asserts(sandbox, code, "add", test, LIMITS))
    assert verdict.passed and plainly(code, test)
    (other,) = asyncio.run(
        grade_asserts(sandbox, "def add(a):\n    return 0\n", "add", test, LIMITS)
    )
    assert not other.passed


ITERATORS = """
import unittest
class Tests(unittest.TestCase):
    def test_loop(self):
        self.assertEqual([x for x in Box(3)], [0, 1, 2])
    def test_next(self):
        box = iter(Box(1))
        self.assertEqual(next(box), 0)
        self.assertEqual(next(box, "end"), "end")
        with self.assertRaises(StopIteration):
            next(box)
    def test_expected(self):
        self.assertRaises(StopIteration, Box(0).first)
        self.assertEqual(Box(2).first(), 0)
    def test_has(self):
        self.assertFalse(hasattr(Box(1), "absent"))
        self.assertEqual(getattr(Box(1), "absent", 5), 5)
    def test_with(self):
        with Box(2) as box:
            self.assertEqual([x for x in box], [0, 1])
"""
BOX = """
class Box:
    def __init__(self, n):
        self.n, self.at = n, 0
    def __iter__(self):
        return self
    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return self.at - 1
    def first(self):
        return next(iter(Box(self.n)))
    def __enter__(self):
        return self
    def __exit__(self, *error):
        return False
"""


@pytest.mark.system
def test_classes_that_are_iterators_pass_as_in_plain_python(sandbox: Sandbox) -> None:
    names = ["loop", "next", "expected", "has", "with"]
    cases = [("Tests", f"test_{name}") for name in names]
    verdicts = asyncio.run(grade_class(sandbox, BOX, "Box", ITERATORS, cases, LIMITS))
    space: dict[str, type] = {}
    exec(BOX + ITERATORS, space)
    for name, (_, method), verdict in zip(names, cases, verdicts, strict=True):
        result = unittest.TestResult()
        unittest.TestSuite([space["Tests"](method)]).run(result)
        assert verdict.passed and result.wasSuccessful(), name
