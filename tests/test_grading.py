"""Graders pay for right values and for nothing else, whatever the code does to its own process."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrlm.core.errors import DataError
from mrlm.sandbox import open_sandbox
from mrlm.sandbox.comparing import SHOWN, same_packed, show
from mrlm.sandbox.grading import Call, Verdict, grade_asserts, grade_calls, grade_programs, same
from mrlm.sandbox.plain import BITS, DEPTH, ITEMS, Handle, NotPlain, pack, unpack
from mrlm.sandbox.types import (
    MIB,
    AnswerError,
    Limits,
    Sandbox,
    SandboxError,
    SandboxResult,
    SandboxUnavailableError,
    Session,
    SessionEnded,
)

QUICK = Limits(wall=0.5)
"""For what must be stopped."""
SMALL = Limits(wall=1.0, memory=256 * MIB)
"""For what tries to be slow or large."""
SUMS = [Call((1, 2), 3), Call((5, 7), 12), Call((-4, 4), 0)]
HONEST = "def add(a, b):\n    return a + b\n"


class Watched:
    """A sandbox that remembers its sessions."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.name = sandbox, sandbox.name
        self.started = self.closed = 0
        self.sent: list[str] = []

    async def run(self, *args: Any, **kwargs: Any) -> SandboxResult:
        return await self.sandbox.run(*args, **kwargs)

    async def session(
        self, program: str, files: Mapping[str, bytes] | None = None, limits: Limits | None = None
    ) -> Session:
        session = await self.sandbox.session(program, files, limits)
        self.started += 1
        self.sent.append(program)
        return WatchedSession(self, session)

    def close(self) -> None:
        self.sandbox.close()


class WatchedSession:
    def __init__(self, watched: Watched, session: Session) -> None:
        self.watched, self.session = watched, session

    async def ask(self, request: Any, wall: float) -> Any:
        self.watched.sent.append(json.dumps(request))
        return await self.session.ask(request, wall)

    async def close(self) -> None:
        await self.session.close()
        self.watched.closed += 1


class Scripted:
    """A sandbox whose programs answer what a test says."""

    name = "scripted"

    def __init__(self, *answers: Any, start: Any = None, wait: float = 0.0) -> None:
        self.answers, self.start, self.wait = list(answers), start, wait
        self.closed = 0

    async def run(self, *_: Any, **__: Any) -> SandboxResult:
        return self.answers.pop(0)

    async def session(self, *_: Any, **__: Any) -> Any:
        if self.start is not None:
            raise self.start
        return self

    async def ask(self, request: Any, wall: float) -> Any:
        assert wall > 0
        await asyncio.sleep(self.wait)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:  # type: ignore[override]
        self.closed += 1


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Watched]:
    try:
        opened = open_sandbox()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    watched = Watched(opened)
    yield watched
    assert watched.started == watched.closed  # whatever happened


def calls(sandbox: Any, code: str, tests: Any = None, entry: str = "add", **k: Any) -> list[Verdict]:
    limits = k.pop("limits", None)
    return asyncio.run(grade_calls(sandbox, code, entry, tests or SUMS, limits, **k))


def asserts(sandbox: Any, code: str, tests: Any, entry: str = "add", **k: Any) -> list[Verdict]:
    return asyncio.run(grade_asserts(sandbox, code, entry, tests, **k))


def programs(sandbox: Any, code: str, cases: Any, **k: Any) -> list[Verdict]:
    return asyncio.run(grade_programs(sandbox, code, cases, **k))


def kinds(verdicts: list[Verdict]) -> list[str]:
    return [verdict.kind for verdict in verdicts]


def all_passed(verdicts: list[Verdict]) -> bool:
    return bool(verdicts) and all(verdict.passed for verdict in verdicts)


# -- what is the same ------------------------------------------------------------------------------

Point = namedtuple("Point", "x y")
NAN = float("nan")


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (3, 3), (3, 3.0), (3.0, 3), (-0.0, 0), (True, True), (None, None), ("a", "a"), (b"a", b"a"),
        ([1, [2]], [1, [2]]), ((1, 2), [1, 2]), ([(1, 2)], [[1, 2]]), ((1, 2), (1, 2)),
        ({1, 2}, {2, 1}), (frozenset({1}), {1}), ({1.0}, {1}), ({(1, 2)}, {(1, 2)}),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}), ({1: "x"}, {1.0: "x"}), ({(1, "k"): 0}, {(1, "k"): 0}),
        (2**70, 2**70), (-(2**53), -(2**53)), (1e300, 1e300), (float("inf"), float("inf")),
        (1 + 2j, 1 + 2j), (1 + 0j, 1), (range(3), range(0, 3)), ("\ud800", "\ud800"),
        (Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(a=1), {"a": 1}), (Point(1, 2), (1, 2)),
        (defaultdict(int, {"a": 1}), {"a": 1}), (bytearray(b"x"), b"x"), ((), []), ("", ""),
        ({frozenset({1, 2}): 1}, {frozenset({2, 1}): 1}), ("é\n\x00", "é\n\x00"), (10**4000, 10**4000),
    ],
)  # fmt: skip
def test_equal_values_are_the_same(got: Any, wanted: Any) -> None:
    assert same(got, wanted)
    assert same(unpack(json.loads(json.dumps(pack(got)))), wanted)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (True, 1), (1, True), (False, 0), (0, False), (1.0, True), ([True], [1]), ({True}, {1}),
        ({1: 0}, {True: 0}), (NAN, NAN), ([NAN], [NAN]), ({NAN}, {NAN}), ([1, 2], (1, 2)),
        ([[1, 2]], [(1, 2)]), ("3", 3), (b"a", "a"), (None, False), (None, 0), ("", None), ([], None),
        ([1], [1, 1]), ([1, 2], [2, 1]), ({1}, [1]), ([1], {1}), ({1: 1}, {"1": 1}), ({}, []), ((), set()),
        ({"a": 1}, {"a": 1, "b": 2}), ({"a": 1, "b": 2}, {"a": 1}), (2**53 + 1, float(2**53)),
        (2**53, 2**53 + 1), (0.1 + 0.2, 0.3), (range(3), [0, 1, 2]), (float("inf"), 1e308),
        (object(), object()), (iter([1]), [1]), (math, math), (len, len), ("a", "a "), (1 + 1j, 1),
        ((1,), 1), (Handle(1), Handle(1)),
    ],
)  # fmt: skip
def test_other_values_are_not(got: Any, wanted: Any) -> None:
    assert not same(got, wanted)


def test_floats_may_differ_a_little_and_integers_may_not() -> None:
    assert same(0.1 + 0.2, 0.3, rel_tol=1e-9) and same([1.0000001], [1.0], rel_tol=1e-6)
    assert same(3, 3.0000001, rel_tol=1e-6) and same(1e-17, 0.0, rel_tol=1e-9)
    assert same(1 + 1e-9j, 1 + 0j, rel_tol=1e-6)
    assert not same(1.1, 1.0, rel_tol=1e-6) and not same(1e-17, 1e-9, rel_tol=1e-9)
    assert not same(10**12 + 1, 10**12, rel_tol=1e-6)
    assert not same(10**400, 1.0, rel_tol=1e-6) and not same(NAN, NAN, rel_tol=1.0)
    assert not same(True, 1.0, rel_tol=1.0) and not same(1e308, float("inf"), rel_tol=1e-6)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=4)
    | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers(), st.text()), inner, max_size=4)
    | st.sets(st.integers() | st.text() | st.booleans() | st.floats(), max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(plain, plain)
def test_same_is_equality_of_plain_data(one: Any, other: Any) -> None:
    again = unpack(json.loads(json.dumps(pack(one))))
    assert repr(again) == repr(one) or isinstance(one, set | dict | list | tuple)
    if "nan" not in repr(one):
        assert again == one and same(again, one) and same(one, again)
    else:
        assert not same(again, one)
    if one != other:
        lists_for_tuples = "(" in repr(one) and "[" in repr(other)
        assert not same(one, other) or lists_for_tuples


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["i", "f", "c", "t", "s", "z", "d", "r", "o", "b", "u", "x"]), inner, max_size=2),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(json_values)
def test_anything_that_claims_to_be_packed_is_harmless(claim: Any) -> None:
    try:
        value = unpack(claim)
    except NotPlain:
        value = None
    except (OverflowError, RecursionError) as error:  # pragma: no cover
        pytest.fail(f"{error!r}")
    assert len(show(claim)) <= SHOWN
    try:
        verdict = same_packed(claim, pack([1, "two"]))
    except NotPlain:
        verdict = False
    assert verdict == (value in ([1, "two"], (1, "two")) and not isinstance(value[0], bool))  # type: ignore[index]


def test_what_is_no_plain_data_is_refused() -> None:
    deep: Any = []
    for _ in range(DEPTH + 1):
        deep = [deep]
    cycle: list[Any] = []
    cycle.append(cycle)
    laughs: Any = [0]
    for _ in range(50):
        laughs = [laughs, laughs]
    for value in (deep, cycle, laughs, [0] * (ITEMS + 1), 1 << BITS, "x" * 10**6, object(), {1: object()},
                  (n for n in [1]), range(1 << BITS), NotPlain, map(str, [])):  # fmt: skip
        with pytest.raises(NotPlain):
            pack(value)
        assert not same(value, value)
    for claim in ({}, {"t": 1}, {"i": "zz"}, {"i": "1" * 10**5}, {"d": [[1]]}, {"s": [[1]]}, {"q": 1},
                  {"f": "1"}, {"c": [1]}, {"r": [1, 2, 0]}, {"t": [], "s": []}, {"b": "x"}, 1j):  # fmt: skip
        with pytest.raises(NotPlain):
            unpack(claim)


def test_a_value_is_shown_short_and_without_control_codes() -> None:
    assert show(pack({"a": (1,), "b": [None, True]})) == "{'a': (1,), 'b': [None, True]}"
    assert show(pack(set())) == "set()"
    assert "\x1b" not in show(pack("\x1b[2J")) and "\u202e" not in show(pack("\u202e"))
    for value in ([0] * 10_000, "x" * 10_000, 1 << 60_000, {n: [n] * 99 for n in range(999)}):
        assert len(show(pack(value))) <= SHOWN
    nested: Any = "x"
    for _ in range(50):
        nested = [nested] * 3 if _ < 5 else [nested]
    assert len(show(pack(nested))) <= SHOWN


def test_numbers_with_one_hash_take_no_quadratic_time() -> None:
    same_hash = {n * (2**61 - 1): 0 for n in range(200)}
    packed = {"d": [[{"i": f"{n * (2**61 - 1):x}"}, 0] for n in range(30_000)]}
    begin = time.monotonic()
    assert not same_packed(packed, pack(same_hash))
    assert time.monotonic() - begin < 2


# -- honest code is paid in full -------------------------------------------------------------------

CONTROLS = {
    "plain": (HONEST, SUMS),
    "many types": (
        "def add(a, b):\n    return {'k': [a, b, (a + b) / 2, None, True]}",
        [Call((1, 3), {"k": [1, 3, 2.0, None, True]})],
    ),
    "prints and warns": (
        "import sys, warnings\ndef add(a, b):\n    print('a =', a, flush=True)\n    sys.stderr.write('x')\n"
        "    warnings.warn('w')\n    return a + b",
        SUMS,
    ),
    "keywords": ("def add(a, *, b=1):\n    return a + b", [Call((1,), 5, {"b": 4}), Call((1,), 2)]),
    "changes its argument": (
        "def add(a, b):\n    a.append(b)\n    return a",
        [Call(([1], 2), [1, 2]), Call(([1], 2), [1, 2])],
    ),
    "recursive": ("def add(n):\n    return 1 if n < 2 else n * add(n - 1)", [Call((200,), math.factorial(200))]),
    "a class beside it": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n"
        "    x: int\ndef add(a, b):\n    return P(a + b).x",
        SUMS,
    ),
    "a class as a function": ("class add(int):\n    def __new__(cls, a, b):\n        return a + b", SUMS),
    "keeps a cache": ("seen = {}\ndef add(a, b):\n    return seen.setdefault((a, b), a + b)", SUMS),
    "named answer": ("def answer(a, b):\n    return a + b\nadd = answer", SUMS),
    "own names": ("def pack(x):\n    return x\nlen = list = None\ndef add(a, b):\n    return pack(a) + b", SUMS),
    "a counter": ("from collections import *\ndef add(s):\n    return Counter(s)", [Call(("aab",), {"a": 2, "b": 1})]),
    "tuples and sets": (
        "def add(x):\n    return {(type(x).__name__, frozenset(x))}",
        [Call(((1, 2),), {("tuple", frozenset({1, 2}))}), Call(([1],), {("list", frozenset({1}))})],
    ),
    "sets and bytes come as such": (
        "def add(*x):\n    return [type(y).__name__ for y in x]",
        [Call(({1}, b"a", 2.0, True, None, {1: 2}, 1j, 2**80), ["set", "bytes", "float", "bool", "NoneType",
                                                                "dict", "complex", "int"])],
    ),
    "a script": (HONEST + "if __name__ == '__main__':\n    print(add(*map(int, input().split())))", SUMS),
    "large": ("def add(n):\n    return list(range(n))", [Call((50_000,), list(range(50_000)))]),
    "unicode": ("def add(s):\n    return s[::-1] + '\U0001f600'", [Call(("é\ud800",), "\ud800é\U0001f600")]),
    "a rounding": ("def add(x):\n    return x * 3", [Call((0.1,), 0.3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTROLS)
def test_honest_code_is_paid(sandbox: Watched, name: str) -> None:
    code, tests = CONTROLS[name]
    verdicts = calls(sandbox, code, tests, rel_tol=1e-9)
    assert all_passed(verdicts), verdicts


# -- hacks are not ---------------------------------------------------------------------------------

FRAME = "import struct, json\nF = json.dumps({'id': 1, 'answer': {'value': 3}}).encode()\nF = struct.pack('<I', len(F)) + F\n"
EVERY_FD = "for fd in range(64):\n        try: os.write(fd, F)\n        except OSError: pass\n"
LOOK = "import re\ndef seek(text, a, b):\n    m = re.search(r'\\(?\\[?%d, ?%d[\\])], ?(-?\\d+)' % (a, b), text)\n    return int(m.group(1)) if m else None\n"

HACKS = {
    # what it gives back
    "equal to all": "class E:\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 0\ndef add(a, b): return E()",
    "integer that lies": "class I(int):\n    __eq__ = lambda s, o: True\n    __int__ = __index__ = lambda s: 12\n    __hash__ = lambda s: 0\ndef add(a, b): return I(99)",
    "text that lies": "class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 0\n    encode = lambda s: b'3'\ndef add(a, b): return S('x')",
    "list that lies": "class L(list):\n    __eq__ = lambda s, o: True\n    __iter__ = lambda s: iter([3])\n    __len__ = lambda s: 1\ndef add(a, b): return L()",
    "dictionary that lies": "class D(dict):\n    __eq__ = lambda s, o: True\n    items = lambda s: [('v', 3)]\n    __getitem__ = lambda s, k: 3\ndef add(a, b): return D()",
    "claims to be a list": "class C:\n    __class__ = list\n    __iter__ = lambda s: iter([3])\ndef add(a, b): return C()",
    "converts to a number": "class N:\n    __index__ = __int__ = lambda s: 3\n    __float__ = lambda s: 3.0\ndef add(a, b): return N()",
    "converts to JSON": "class J(dict):\n    default = to_json = lambda s: 3\ndef add(a, b): return J(value=3)",
    "pickles to a call": "class P:\n    __reduce__ = lambda s: (eval, ('3',))\ndef add(a, b): return P()",
    "not a number": "def add(a, b): return float('nan')",
    "infinite": "def add(a, b): return float('inf')",
    "text of a number": "def add(a, b): return str(a + b)",
    "in a list": "def add(a, b): return [a + b]",
    "truth": "def add(a, b): return True",
    "nothing": "def add(a, b): pass",
    "itself": "def add(a, b): return add",
    "a generator": "def add(a, b):\n    while True: yield a + b",
    "endless iterator": "import itertools\ndef add(a, b): return itertools.repeat(a + b)",
    "a coroutine": "async def add(a, b): return a + b",
    "a huge list": "def add(a, b): return [0] * 10**7",
    "a huge text": "def add(a, b): return 'x' * 10**8",
    "a huge number": "def add(a, b): return 1 << 10**8",
    "a deep list": "def add(a, b):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "a cycle": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "a billion laughs": "def add(a, b):\n    x = [0]\n    for _ in range(60): x = [x, x]\n    return x",
    "a chameleon function": "add = type('X', (), {'__call__': lambda s, *a: s, '__eq__': lambda s, o: True, '__getattr__': lambda s, n: s, '__iter__': lambda s: iter(())})()",
    "a lying metaclass": "class M(type):\n    mro = lambda c: [c, int, object]\n    __instancecheck__ = __subclasscheck__ = lambda *a: True\n    __eq__ = lambda *a: True\n    __hash__ = lambda s: 0\ntry:\n    class V(metaclass=M): pass\nexcept TypeError: V = object\ndef add(a, b): return V()",
    # how it ends
    "exits at once": "import sys\ndef add(a, b): return 0\nsys.exit(0)",
    "exits when called": "import sys\ndef add(a, b): sys.exit(0)",
    "exits hard": "import os\ndef add(a, b): os._exit(0)",
    "ends well at exit": "import atexit, os\natexit.register(lambda: os._exit(0))\ndef add(a, b): raise ValueError",
    "hooks exceptions": "import sys\nsys.excepthook = sys.unraisablehook = lambda *a: sys.exit(0)\ndef add(a, b): raise ValueError",
    "raises a verdict": "class passed(BaseException): pass\ndef add(a, b): raise passed('passed')",
    "kills itself": "import os\ndef add(a, b): os.kill(os.getpid(), 9)",
    "kills all": "import os\ndef add(a, b):\n    for p in (os.getppid(), 0, -1):\n        if p != 1: os.kill(p, 15)\n    return 0",
    "overflows the stack": "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b): return add(a, b)",
    "becomes another program": "import os, sys\ndef add(a, b): os.execv(sys.executable, [sys.executable, '-c', 'print(3)'])",
    "forks": "import os\ndef add(a, b):\n    os.fork()\n    return -1",
    "ends later": "import os, threading\ndef add(a, b):\n    threading.Timer(0.01, os._exit, [0]).start()\n    return -1",
    "syntax": "def add(a, b:\n  return",
    "missing": "def sub(a, b): return a - b",
    "wrong": "def add(a, b): return a - b - 1",
    "too long": "#" * 300_000 + "\n" + HONEST,
    "NUL": HONEST + "\x00",
    "no Unicode": HONEST + "# \ud800",
    # where it looks
    "reads frames": LOOK + "import sys\ndef add(a, b):\n    f = sys._getframe(1)\n    while f:\n        for d in (f.f_locals, f.f_globals):\n            for k, v in list(d.items()):\n                if k in ('expected', 'want', 'gold', 'answer_', 'output'): return v\n                r = seek(repr(v), a, b) if k != 'd' else None\n                if r is not None: return r\n        f = f.f_back",
    "reads the heap": LOOK + "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n        if type(o) in (list, tuple, dict) and len(o) < 50:\n            r = seek(repr(o)[:9999], a, b)\n            if r is not None: return r",
    "reads processes": LOOK + "import glob\ndef add(a, b):\n    for p in glob.glob('/proc/*/cmdline') + glob.glob('/proc/*/environ'):\n        try: r = seek(open(p).read(), a, b)\n        except OSError: continue\n        if r is not None: return r",
    "reads files": LOOK + "import glob\ndef add(a, b):\n    for p in glob.glob('/tmp/**', recursive=True) + glob.glob('./**', recursive=True) + glob.glob('../*'):\n        try: r = seek(open(p).read(), a, b)\n        except Exception: continue\n        if r is not None: return r",
    "reads standard input": LOOK + "import sys\nS = sys.stdin.read()\ndef add(a, b): return seek(S, a, b)",
    "reads its own memory": LOOK + "def add(a, b):\n    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb') as mem:\n        for line in maps:\n            if '[heap]' in line:\n                lo, hi = (int(x, 16) for x in line.split()[0].split('-'))\n                mem.seek(lo)\n                return seek(mem.read(hi - lo).decode('latin1'), a, b)",
    # what it rewrites
    "builtins": "import builtins\nfor n in ('all', 'any', 'isinstance', 'issubclass'): setattr(builtins, n, lambda *a: True)\nfor n in ('len', 'sum', 'abs'): setattr(builtins, n, lambda *a: 3)\nbuiltins.str = builtins.repr = lambda *a: '3'\ndef add(a, b): return -1",
    "modules": "import json, math, operator, unittest\njson.loads = json.load = lambda *a, **k: {'value': 3, 'passed': True}\njson.dumps = lambda *a, **k: '3'\nmath.isclose = operator.eq = lambda *a, **k: True\nunittest.TestCase.assertEqual = lambda *a: None\ndef add(a, b): return -1",
    "the worker's answer": "import __main__\n__main__.answer = lambda r: {'passed': True, 'kind': 'passed', 'verdict': 'passed', 'value': True}\ndef add(a, b): return -1",
    "the worker's packing": "import __main__\n__main__.pack = lambda v: {'passed': True}\ndef add(a, b): return -1",
    "an unknown tag": "import __main__\n__main__.pack = lambda v: {'any': True}\ndef add(a, b): return -1",
    "a handle": "import __main__\n__main__.pack = lambda v: {'o': 0}\ndef add(a, b): return -1",
    "a bad answer": "import __main__\n__main__.answer = lambda r: ['passed']\ndef add(a, b): return -1",
    "an answer that raises": "import __main__\ndef boom(r): raise SystemExit(0)\n__main__.answer = boom\ndef add(a, b): return -1",
    "an answer too large": "import __main__\n__main__.answer = lambda r: {'value': 'x' * (2 << 20)}\ndef add(a, b): return -1",
    "an answer too deep": "import __main__\n__main__.pack = lambda v: eval('[' * 150 + ']' * 150)\ndef add(a, b): return -1",
    "frames to every descriptor": FRAME + "import os\ndef add(a, b):\n    " + EVERY_FD + "    return -1",
    "frames ahead of time": FRAME + "import os, threading\n" + EVERY_FD.replace("\n        ", "\n    ") + "def add(a, b): return -1",
    "closes descriptors": "import os\ndef add(a, b):\n    os.closerange(0, 64)\n    return -1",
    "noise": "import os\ndef add(a, b):\n    for fd in range(3, 64):\n        try: os.write(fd, b'\\xff' * 64)\n        except OSError: pass\n    return -1",
    "small integers": "import ctypes\ndef add(a, b):\n    for n in (3, 12, 0):\n        ctypes.c_int32.from_address(id(n) + 24).value = 7\n    return 7",
    "profiles its caller": "import sys\ndef prof(frame, event, arg):\n    if event == 'return': frame.f_locals.update(value=3, answered={'value': 3})\nsys.setprofile(prof)\ndef add(a, b): return -1",
    "its clock": "import time\ntime.monotonic = lambda: 0.0\ndef add(a, b): return -1",
    "remembers": "n = iter([True, None, 'x'])\ndef add(a, b): return next(n)",
    "changes its arguments": "def add(a, b):\n    a = b = 0\n    return None",
    "names its error": "def add(a, b): raise type('x\\n\\x1b[2J' * 99, (Exception,), {'__module__': 'builtins'})('y' * 10**6)",
    "an error that cannot be shown": "class E(Exception):\n    def __str__(s): raise SystemExit\ndef add(a, b): raise E",
    "handles signals": "import os, signal\nfor s in (1, 2, 10, 12, 14, 15, 24): signal.signal(s, lambda *a: os._exit(0))\nsignal.alarm(1)\ndef add(a, b): return -1",
}  # fmt: skip


@pytest.mark.parametrize("name", HACKS)
def test_a_hack_is_not_paid(sandbox: Watched, name: str) -> None:
    begin = time.monotonic()
    verdicts = calls(sandbox, HACKS[name], limits=SMALL)
    assert not any(verdict.passed for verdict in verdicts), verdicts
    assert time.monotonic() - begin < 8
    for verdict in verdicts:
        assert len(verdict.got) <= SHOWN and len(verdict.error) <= 80 and verdict.error.isprintable()
    assert all_passed(calls(sandbox, HONEST))  # whoever comes next does not notice


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def add(a, b): return True", [Call((0, 1), 1)]),
        ("def add(a): return {True}", [Call((0,), {1})]),
        ("def add(a): return [1]", [Call((0,), (1,))]),
        ("def add(a): return float('nan')", [Call((0,), NAN)]),
        ("def add(a, b):\n    a.clear(); a.extend(b); return a", [Call(([1, 2], [9, 9]), [1, 2])]),
        ("def add(a): return type('E', (), {'__eq__': lambda s, o: True})", [Call((0,), None)]),
        ("def add(a): return {'i': '3'}", [Call((0,), 3)]),
        ("def add(a): return {'t': [1]}", [Call((0,), (1,))]),
    ],
)
def test_values_that_look_right(sandbox: Watched, code: str, tests: list[Call]) -> None:
    assert kinds(calls(sandbox, code, tests))[0] in ("wrong", "error")


def test_one_right_value_pays_one_test(sandbox: Watched) -> None:
    assert kinds(calls(sandbox, "def add(a, b): return 3")) == ["passed", "wrong", "wrong"]
    forged = "import __main__\n__main__.answer = lambda r: {'value': 3}\ndef add(a, b): return 0"
    assert kinds(calls(sandbox, forged)) == ["passed", "wrong", "wrong"]


# -- deadlines, errors, leftovers ------------------------------------------------------------------


def test_a_call_that_hangs_costs_its_own_test(sandbox: Watched) -> None:
    code = "import time\ndef add(a, b):\n    if b == 7: time.sleep(99)\n    return a + b"
    assert kinds(calls(sandbox, code, limits=QUICK)) == ["passed", "timeout", "passed"]
    code = "import os\ndef add(a, b):\n    if b == 7: os._exit(0)\n    return a + b"
    verdicts = calls(sandbox, code)
    assert kinds(verdicts) == ["passed", "error", "passed"]
    assert verdicts[1].error == "ProcessEnded"


def test_code_that_always_hangs_is_given_up(sandbox: Watched) -> None:
    started, begin = sandbox.started, time.monotonic()
    code = "def add(a, b):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass"
    assert set(kinds(calls(sandbox, code, SUMS * 10, limits=Limits(wall=0.3)))) == {"timeout"}
    assert sandbox.started - started == 4 and time.monotonic() - begin < 5
    begin = time.monotonic()
    assert set(kinds(calls(sandbox, "while True: pass", SUMS * 10, limits=QUICK))) == {"timeout"}
    assert time.monotonic() - begin < 3


def test_slow_code_has_a_total() -> None:
    sandbox = Scripted({"value": None}, *[{"value": 3}] * 99, wait=0.008)
    found = kinds(calls(sandbox, HONEST, SUMS[:1] * 30, limits=Limits(wall=0.01)))
    assert found[:5] == ["passed"] * 5 and found[15:] == ["timeout"] * 15


def test_time_spent_waiting_for_others_is_not_counted() -> None:
    sandbox = Scripted({"value": None}, *[{"value": 3, "seconds": 0.001}] * 30, wait=0.008)
    assert all_passed(calls(sandbox, HONEST, SUMS[:1] * 30, limits=Limits(wall=0.01)))
    for claim in (-1e9, float("nan"), 1e9, "0", True):  # what nobody believes
        sandbox = Scripted({"value": None}, *[{"value": 3, "seconds": claim}] * 30, wait=0.008)
        assert kinds(calls(sandbox, HONEST, SUMS[:1] * 30, limits=Limits(wall=0.01)))[-1] == "timeout"


def test_what_goes_wrong_is_said(sandbox: Watched) -> None:
    code = "def add(a, b):\n    x = 1\n    return a / (b - 2)"
    verdicts = calls(sandbox, code, [Call((1, 2), 3), Call((1, 3), 1)])
    assert verdicts[0] == Verdict("error", "ZeroDivisionError", 3) and verdicts[1].passed
    assert calls(sandbox, "x = 1\ndef add(a:\n")[0] == Verdict("error", "SyntaxError", 2)
    assert calls(sandbox, "x = 1\n1 / 0")[0] == Verdict("error", "ZeroDivisionError", 2)
    assert calls(sandbox, "x = 1")[0] == Verdict("error", "NameError")
    own = calls(sandbox, "class Odd(Exception): pass\ndef add(a, b): raise Odd")
    assert own[0] == Verdict("error", "Odd", 2)
    assert calls(sandbox, "def add(a, b): return [a]", [Call((1, 2), 3)])[0].got == "[1]"
    assert calls(sandbox, "def add(a, b): return print", SUMS)[0] == Verdict("error", "NotPlain")


def test_a_solution_never_sees_what_is_wanted(sandbox: Watched) -> None:
    del sandbox.sent[:]
    secret = 918_273_645
    calls(sandbox, HONEST, [Call((1, 2), secret), Call((1, 2), f"s{secret}")])
    assert sandbox.sent and not any(str(secret) in sent for sent in sandbox.sent)
    del sandbox.sent[:]
    asserts(sandbox, HONEST + "#here", [f"assert add(1, 2) == {secret}"])
    assert [sent for sent in sandbox.sent if "#here" in sent and str(secret) in sent] == []
    assert sum("#here" in sent for sent in sandbox.sent) == 1


def test_arguments_that_are_no_data_name_the_test() -> None:
    for call in (Call((object(),), 1), Call((1,), object()), Call((1,), 1, {"k": iter([])})):
        with pytest.raises(DataError, match="test 1 of 'add'"):
            calls(Scripted(), HONEST, [SUMS[0], call])


def test_nothing_to_test_gives_no_verdict(sandbox: Watched) -> None:
    assert asyncio.run(grade_calls(sandbox, HONEST, "add", [])) == []
    assert asserts(sandbox, HONEST, []) == [] and programs(sandbox, "", []) == []


def test_a_cancelled_grading_leaves_no_session(sandbox: Watched) -> None:
    async def cancelled(work: Any) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop = "def add(a, b):\n    while True: pass"
    limits = Limits(wall=0.6)
    asyncio.run(cancelled(grade_calls(sandbox, loop, "add", SUMS, limits)))
    asyncio.run(cancelled(grade_asserts(sandbox, loop, "add", ["assert add(1, 2) == 3"], limits)))
    assert sandbox.started == sandbox.closed


# -- when the sandbox fails ------------------------------------------------------------------------


def test_a_sandbox_that_fails_gives_no_verdict() -> None:
    failing = [
        Scripted(start=SandboxError("no room")),
        Scripted(start=SessionEnded("killed", "it did not start")),
        Scripted({"value": None}, SandboxError("gone")),
        Scripted({"value": None}, SessionEnded("infra_error", "gone")),
    ]
    for sandbox in failing:
        with pytest.raises(SandboxError):
            calls(sandbox, HONEST)
    with pytest.raises(SandboxError):
        asserts(Scripted(start=SandboxError("no room")), HONEST, ["assert add(1, 2) == 3"])
    with pytest.raises(SandboxError, match="no disk"):
        programs(Scripted(SandboxResult("infra_error", reason="no disk")), "print(3)", [("", "3")])


@settings(max_examples=80, deadline=None)
@given(st.lists(json_values | st.dictionaries(st.sampled_from(["value", "error", "seconds"]), json_values), min_size=4, max_size=4))  # fmt: skip
def test_a_process_can_answer_what_it_wants(answers: list[Any]) -> None:
    sandbox = Scripted({"value": None}, *answers)
    verdicts = calls(sandbox, HONEST, [Call((), "no such value")] * 4)
    assert not any(verdict.passed for verdict in verdicts) and sandbox.closed == 1


@pytest.mark.parametrize("status", ["error", "killed", "oom", "output_limit", "timeout"])
def test_a_session_that_ends_is_the_solutions_doing(status: Any) -> None:
    ended = SessionEnded(status, "it ended")
    sandbox = Scripted({"value": None}, ended, {"value": None}, {"value": 12}, AnswerError("no"))
    found = kinds(calls(sandbox, HONEST))
    assert found == ["timeout" if status == "timeout" else "error", "passed", "error"]


# -- tests that are code ---------------------------------------------------------------------------

CHECK = """
METADATA = {'author': 'x'}

def check(candidate):
    assert candidate([3, 1, 2]) == [1, 2, 3]
    import random
    rng = random.Random(0)
    for _ in range(20):
        x = [rng.randint(-9, 9) for _ in range(rng.randint(0, 9))]
        assert candidate(copy.deepcopy(x)) == sorted(x), "not sorted"
"""


def test_assert_lines_are_judged_one_by_one(sandbox: Watched) -> None:
    tests = [
        "assert add(1, 2) == 3",
        "assert add(1, 2) == 4",
        "assert add('a', 'b') == 'ab', 'text'",
        "assert add(1, 'b') == 'ab'",
        "assert math.isclose(add(0.1, 0.2), 0.3)",
        "assert add(b=(1,), a=(2,)) == (2, 1) and isinstance(add([1], [2]), list)",
        "x = {'k': {1, 2}}\nassert add([x], []) == [{'k': {2, 1}}]",
    ]
    verdicts = asserts(sandbox, HONEST, tests)
    wanted = ["passed", "wrong", "passed", "error", "passed", "passed", "passed"]
    assert kinds(verdicts) == wanted, verdicts
    assert verdicts[1].got == "3" and verdicts[3] == Verdict("error", "TypeError", 2)


def test_a_check_function_is_called(sandbox: Watched) -> None:
    assert all_passed(asserts(sandbox, "def f(x):\n    return sorted(x)", CHECK, "f"))
    assert kinds(asserts(sandbox, "def f(x):\n    return x", CHECK, "f")) == ["wrong"]
    assert kinds(asserts(sandbox, "def f(x):\n    return 1 / 0", CHECK, "f")) == ["error"]
    assert kinds(asserts(sandbox, "def g(x):\n    return 1", CHECK, "f")) == ["error"]
    assert kinds(asserts(sandbox, "def f(x:", [CHECK, CHECK], "f")) == ["error", "error"]


def test_errors_can_be_expected(sandbox: Watched) -> None:
    test = (
        "try:\n    add(-1)\nexcept {0} as error:\n    assert str(error) == 'below 0'\n"
        "else:\n    raise AssertionError('no error')"
    )
    code = "class Own(ValueError): pass\ndef add(n):\n    raise {0}('below 0')"
    for raised, wanted in (("ValueError", "ValueError"), ("Own", "ValueError"), ("KeyError", "Exception")):
        expected = test.format(wanted).replace("str(error)", "error.args[0]")
        assert all_passed(asserts(sandbox, code.format(raised), [expected])), raised
    verdict = asserts(sandbox, code.format("TypeError"), [test.format("ValueError")])[0]
    assert verdict == Verdict("error", "TypeError", 3)
    decoding = "def add(n):\n    return b'\\xff'.decode()"
    assert all_passed(asserts(sandbox, decoding, ["try: add(1)\nexcept ValueError: pass"]))


def test_other_names_of_the_solution_can_be_used(sandbox: Watched) -> None:
    code = (
        "def twice(x): return x * 2\ndef half(x): return x // 2\n"
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
        "def total(pairs): return sum(p.a + p.b for p in pairs)"
    )
    tests = [
        "assert half(twice(4)) == 4",
        "assert total([Pair(1, 2), Pair(3, b=4)]) == 10",
        "assert total([Pair(1, 2)]) == 4",
        "assert nothing(1) == total([])",
    ]
    assert kinds(asserts(sandbox, code, tests, "total")) == ["passed", "passed", "wrong", "refused"]


def test_arguments_are_changed_where_that_is_what_a_call_is_for(sandbox: Watched) -> None:
    code = "def sort(x, seen=None):\n    x.sort()\n    if seen is not None: seen.add(len(x))"
    tests = [
        "x = [3, 1, 2]\nsort(x)\nassert x == [1, 2, 3]",
        "x, s = [2, 1], set()\ny = x\nsort(x, seen=s)\nassert y == [1, 2] and s == {2}",
        "def check(candidate):\n    x = [2, 1]\n    candidate(x)\n    assert x == [1, 2]",
        "x = [2, 1]\nassert sort(x) is None and x == [2, 1]",
    ]
    assert all_passed(asserts(sandbox, code, tests, "sort"))


ASSERT_HACKS = {
    "equal to all": ("class E:\n    __eq__ = lambda s, o: True\ndef add(*a): return E()", "assert add(1, 2) == 3"),
    "differs from none": ("class E:\n    __ne__ = __eq__ = __lt__ = lambda s, o: True\ndef add(*a): return E()", "assert add(1, 2) != 4"),
    "text that lies": ("class S(str):\n    __eq__ = lambda s, o: True\ndef add(*a): return S()", "assert add(1, 2) == 'x'"),
    "empties its argument": ("def add(x):\n    x.clear()\n    return x", "x = [3, 1]\nassert add(x) == sorted(x)"),
    "empties a dictionary": ("def add(x):\n    x.clear()", "x = {'k': 3}\nassert add(x) == x.get('k')"),
    "own sorted": ("sorted = set = list = lambda x: None\ndef add(x): return None", "assert add([1]) == sorted([1])"),
    "own builtins": ("import builtins\nbuiltins.sorted = builtins.abs = builtins.len = lambda *x: 0\ndef add(x): return 0", "assert len([1]) == add([1])"),
    "own isclose": ("class math:\n    isclose = lambda *a: True\ndef add(x): return 9", "assert math.isclose(add(1), 1)"),
    "own check": ("def check(candidate): return True\ndef add(x): return 9", "def check(candidate):\n    assert candidate(1) == 1"),
    "own candidate": ("def candidate(x): return 1\ndef add(x): return 9", "assert candidate(1) == 1"),
    "own oracle": ("def oracle(x): return 9\ndef add(x): return 9", "def oracle(x): return x\nassert add(1) == oracle(1)"),
    "own statement": ("__in_place__ = check = lambda *a: None\ndef add(x): return 9", "x = [1]\nadd(x)\nassert add(1) == 1"),
    "own modules": ("import sys\nsys.modules['math'] = sys.modules['copy'] = type('m', (), {'isclose': lambda *a: True})\ndef add(x): return 9", "import math\nassert math.isclose(add(1), 1)"),
    "exits": ("import sys\ndef add(*a): sys.exit(0)", "try:\n    add(1)\nexcept BaseException:\n    pass"),
    "exits hard": ("import os\ndef add(*a): os._exit(0)", "try:\n    add(1)\nexcept BaseException:\n    pass"),
    "hangs": ("def add(*a):\n    while True: pass", "try:\n    add(1)\nexcept BaseException:\n    pass"),
    "interrupts": ("def add(*a): raise KeyboardInterrupt", "try:\n    add(1)\nexcept BaseException:\n    pass"),
    "an object where an error is wanted": ("def add(*a): return object()", "try:\n    add(1)\n    assert False\nexcept ValueError: pass"),
    "an assertion": ("def add(*a): raise AssertionError", "assert add(1) == 1"),
    "stops": ("def add(*a): raise StopIteration", "assert [add(1)] == [1]"),
    "a forged end": ("import __main__\n__main__.answer = lambda r: {'passed': True, 'done': True}\ndef add(*a): pass", "assert add(1) == 1"),
    "a forged handle": ("import __main__\n__main__.pack = lambda v: {'o': 0}\ndef add(*a): pass", "assert add(1) == 1"),
    "a forged value": ("import __main__\n__main__.pack = lambda v: {'no': 0}\ndef add(*a): pass", "try:\n    assert add(1) == 1\nexcept TypeError: pass"),
    "forged arguments": ("import __main__\nP = __main__.pack\n__main__.pack = lambda v: 7\ndef add(*a): pass", "x = [2, 1]\nadd(x)\nassert x == [1, 2]"),
    "a forged error": ("import __main__\n__main__.answer = lambda r: {'error': 'passed', 'base': 'SystemExit', 'value': 1}\ndef add(*a): pass", "try: add(1)\nexcept BaseException: pass"),
    "claims every name": ("import __main__\n__main__.find = __main__.DO['find'] = lambda r: {'value': [['sorted', 'abs', 'add', 'math'], ['add']]}\ndef add(*a): return 9", "assert add(1) == abs(1)"),
    "reads the tests": (LOOK + "import glob\ndef add(a, b):\n    for p in glob.glob('/proc/*/cmdline') + glob.glob('/tmp/**', recursive=True):\n        try: r = seek(open(p, errors='replace').read(), a, b)\n        except OSError: continue\n        if r is not None: return r", "assert add(41, 42) == 83"),
    "a test of nothing": (HONEST, "assert True"),
    "a test that is none": (HONEST, "assert add(1, 2 == 3"),
    "a test with an object": (HONEST, "assert add(object(), 2) == 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSERT_HACKS)
def test_a_hack_of_asserts_is_not_paid(sandbox: Watched, name: str) -> None:
    code, test = ASSERT_HACKS[name]
    verdict = asserts(sandbox, code, [test], limits=Limits(wall=1.0))[0]
    assert verdict.kind == ("refused" if name.startswith("a test") else verdict.kind)
    assert not verdict.passed, verdict
    assert all_passed(asserts(sandbox, HONEST, ["assert add(1, 2) == 3"]))


def test_a_test_that_hangs_or_dies_costs_itself(sandbox: Watched) -> None:
    tests = [
        "add(1, 2)\nwhile True: pass",
        "assert add(1, 2) == 3",
        "import os\nadd(1, 2)\nos._exit(0)",
        "while True:\n    add(1, 2)",
        "assert add(1, 2) == 3",
    ]
    begin = time.monotonic()
    found = kinds(asserts(sandbox, HONEST, tests, limits=Limits(wall=0.3)))
    assert found == ["timeout", "passed", "error", "timeout", "passed"]
    assert time.monotonic() - begin < 6


def test_tests_that_were_given_up_do_not_come_back(sandbox: Watched) -> None:
    tests = ["try:\n    add(1, 2)\nexcept BaseException:\n    add(1, 2)"] * 40
    code = "def add(a, b): return object()"
    assert set(kinds(asserts(sandbox, code, tests))) == {"error"}


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "stdin", "wanted", "kind"),
    [
        ("print(sum(map(int, input().split())))", "1 2\n", "3\n", "passed"),
        ("print(3)", "", "3", "passed"),
        ("print('3  ')\nprint()\nprint()", "", "3\n", "passed"),
        ("print('a\\r')\nprint('b')", "", "a\nb\n", "passed"),
        ("import sys\nprint('é')\nsys.stderr.write('noise')", "", "é", "passed"),
        ("print('3')\nimport sys\nsys.exit(0)", "", "3", "passed"),
        ("print(' 3')", "", "3", "wrong"),
        ("print()\nprint(3)", "", "3", "wrong"),
        ("print('A')", "", "a", "wrong"),
        ("print('3\\n3')", "", "3", "wrong"),
        ("print('a b')", "", "a  b", "wrong"),
        ("print('3.0')", "", "3", "wrong"),
        ("pass", "", "3", "wrong"),
        ("import os\nos._exit(0)", "", "3", "wrong"),
        ("print('passed')", "", "3", "wrong"),
        ("print(3)\nimport sys\nsys.exit(1)", "", "3", "error"),
        ("print(3)\n1 / 0", "", "3", "error"),
        ("print(3, flush=True)\nimport os\nos.abort()", "", "3", "error"),
        ("print(3, flush=True)\nwhile True: pass", "", "3", "timeout"),
        ("while True: print(3)", "", "3", "error"),
        ("print(3\x00)", "", "3", "refused"),
    ],
)
def test_programs(sandbox: Watched, code: str, stdin: str, wanted: str, kind: str) -> None:
    limits = Limits(wall=1.0 if kind == "timeout" else 5.0)
    assert kinds(programs(sandbox, code, [(stdin, wanted)], limits=limits)) == [kind]


def test_a_program_says_what_went_wrong_and_where(sandbox: Watched) -> None:
    code = "import json\nx = input()\njson.loads(x)\nprint(1 / int(x))"
    cases = [("4", "0.25"), ("0", ""), ("{", ""), ("4", "1")]
    verdicts = programs(sandbox, code, cases)
    assert verdicts[0].passed and verdicts[1] == Verdict("error", "ZeroDivisionError", 4)
    assert verdicts[2] == Verdict("error", "JSONDecodeError", 3)
    assert verdicts[3] == Verdict("wrong", got="'0.25\\n'")


def test_a_program_that_hangs_is_given_up(sandbox: Watched) -> None:
    begin = time.monotonic()
    verdicts = programs(sandbox, "while True: pass", [("", "")] * 30, limits=Limits(wall=0.3))
    assert set(kinds(verdicts)) == {"timeout"} and time.monotonic() - begin < 5
