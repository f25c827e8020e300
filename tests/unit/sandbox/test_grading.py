"""Graders pay for right values and for nothing else, whatever the code does to its own process."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mrlm.core.errors import DataError
from mrlm.sandbox import open_sandbox
from mrlm.sandbox.grading import (
    FunctionCall,
    GradingVerdict,
    grade_asserts,
    grade_calls,
    grade_programs,
    plain,
)
from mrlm.sandbox.grading.comparing import SHOWN
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
from places import FIXTURES

SHORT = Limits(wall=0.3)
"""For what does nothing but hang."""
PATIENT = Limits(wall=4.0)
"""For what waits in one test and has to end in another, on a busy machine too."""
SMALL = Limits(wall=1.0, memory=256 * MIB)
"""For what tries to be slow or large."""
NAN = float("nan")
SUMS = [FunctionCall((1, 2), 3), FunctionCall((5, 7), 12), FunctionCall((-4, 4), 0)]
HONEST = "def add(a, b):\n    return a + b\n"
ATTACKS = yaml.load((FIXTURES / "hacks.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
HACKS = ATTACKS["hacks"] | {"too long": "#" * 300_000, "no Unicode": f"{HONEST}# \ud800"}
"""What it is -> the code."""


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
        self.answers, self.wait = list(answers), wait
        self.starts = [start] * 2 if start else []
        self.closed = 0

    async def run(self, *_: Any, **__: Any) -> SandboxResult:
        return self.answers.pop(0)

    async def session(self, *_: Any, **__: Any) -> Any:
        if self.starts:
            raise self.starts.pop()
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


def calls(
    sandbox: Any, code: str, tests: Any = None, entry: str = "add", **k: Any
) -> list[GradingVerdict]:
    limits = k.pop("limits", None)
    return asyncio.run(grade_calls(sandbox, code, entry, tests or SUMS, limits, **k))


def asserts(
    sandbox: Any, code: str, tests: Any, entry: str = "add", **k: Any
) -> list[GradingVerdict]:
    return asyncio.run(grade_asserts(sandbox, code, entry, tests, **k))


def programs(sandbox: Any, code: str, cases: Any, **k: Any) -> list[GradingVerdict]:
    return asyncio.run(grade_programs(sandbox, code, cases, **k))


def kinds(verdicts: list[GradingVerdict]) -> list[str]:
    return [verdict.kind for verdict in verdicts]


def all_passed(verdicts: list[GradingVerdict]) -> bool:
    return bool(verdicts) and all(verdict.passed for verdict in verdicts)


# -- honest code is paid in full -------------------------------------------------------------------

TYPES = """
def add(*values):
    return [type(value).__name__ for value in values]
"""
A_CLASS_BESIDE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Sum:
    value: int

def add(a, b):
    print('adding', a, b, flush=True)
    sys.stderr.write('noise')
    return Sum(a + b).value

import sys
if __name__ == '__main__':
    print(add(*map(int, input().split())))
"""
OWN_NAMES = """
len = list = type = None
def pack(x):
    return x
def answer(a, b):
    return pack(a) + b
add = answer
"""
CONTROLS = {
    "plain": (HONEST, SUMS),
    "a class, noise, a main part": (A_CLASS_BESIDE, SUMS),
    "own names": (OWN_NAMES, SUMS),
    "many types": (
        "def add(a, b):\n    return {'k': [a, b, (a + b) / 2, None, True]}",
        [FunctionCall((1, 3), {"k": [1, 3, 2.0, None, True]})],
    ),
    "keywords": (
        "def add(a, *, b=1):\n    return a + b",
        [FunctionCall((1,), 5, {"b": 4}), FunctionCall((1,), 2)],
    ),
    "changes its argument": (
        "def add(a, b):\n    a.append(b)\n    return a",
        [FunctionCall(([1], 2), [1, 2]), FunctionCall(([1], 2), [1, 2])],
    ),
    "recursive": (
        "def add(n):\n    return 1 if n < 2 else n * add(n - 1)",
        [FunctionCall((200,), math.factorial(200))],
    ),
    "a class as a function": (
        "class add:\n    def __new__(cls, a, b):\n        return a + b",
        SUMS,
    ),
    "keeps a cache": ("seen = {}\ndef add(a, b):\n    return seen.setdefault((a, b), a + b)", SUMS),
    "a counter": (
        "from collections import *\ndef add(s):\n    return Counter(s)",
        [FunctionCall(("aab",), {"a": 2, "b": 1})],
    ),
    "tuples and sets": (
        "def add(x):\n    return {(type(x).__name__, frozenset(x))}",
        [
            FunctionCall(((1, 2),), {("tuple", frozenset({1, 2}))}),
            FunctionCall(([1],), {("list", frozenset({1}))}),
        ],
    ),
    "types of arguments": (
        TYPES,
        [
            FunctionCall(({1}, b"a", 2.0, True, 1), ["set", "bytes", "float", "bool", "int"]),
            FunctionCall((None, {1: 2}, 1j, 2**80), ["NoneType", "dict", "complex", "int"]),
        ],
    ),
    "large": (
        "def add(n):\n    return list(range(n))",
        [FunctionCall((50_000,), list(range(50_000)))],
    ),
    "unicode": (
        "def add(s):\n    return s[::-1] + '\U0001f600'",
        [FunctionCall(("é\ud800",), "\ud800é\U0001f600")],
    ),
    "a rounding": ("def add(x):\n    return x * 3", [FunctionCall((0.1,), 0.3)]),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_honest_code_is_paid(sandbox: Watched, name: str) -> None:
    code, tests = CONTROLS[name]
    verdicts = calls(sandbox, code, tests, rel_tol=1e-9)
    assert all_passed(verdicts), verdicts


# -- hacks are not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HACKS)
def test_a_hack_is_not_paid(sandbox: Watched, name: str) -> None:
    verdicts = calls(sandbox, HACKS[name], limits=SMALL)
    assert not any(verdict.passed for verdict in verdicts), verdicts
    for verdict in verdicts:
        assert (
            len(verdict.got) <= SHOWN and len(verdict.error) <= 80 and verdict.error.isprintable()
        )
    assert all_passed(calls(sandbox, HONEST))  # whoever comes next does not notice


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def add(a, b): return True", [FunctionCall((0, 1), 1)]),
        ("def add(a): return {True}", [FunctionCall((0,), {1})]),
        ("def add(a): return [1]", [FunctionCall((0,), (1,))]),
        ("def add(a): return float('nan')", [FunctionCall((0,), NAN)]),
        (
            "def add(a, b):\n    a.clear(); a.extend(b); return a",
            [FunctionCall(([1, 2], [9, 9]), [1, 2])],
        ),
        (
            "def add(a): return type('E', (), {'__eq__': lambda s, o: True})",
            [FunctionCall((0,), None)],
        ),
        ("def add(a): return {'i': '3'}", [FunctionCall((0,), 3)]),
        ("def add(a): return {'t': [1]}", [FunctionCall((0,), (1,))]),
    ],
)
def test_values_that_look_right(sandbox: Watched, code: str, tests: list[FunctionCall]) -> None:
    assert kinds(calls(sandbox, code, tests))[0] in ("wrong", "error")


def test_one_right_value_pays_one_test(sandbox: Watched) -> None:
    assert kinds(calls(sandbox, "def add(a, b): return 3")) == ["passed", "wrong", "wrong"]
    forged = "import __main__\n__main__.answer = lambda r: {'value': 3}\ndef add(a, b): return 0"
    assert kinds(calls(sandbox, forged)) == ["passed", "wrong", "wrong"]


# -- deadlines, errors, leftovers ------------------------------------------------------------------


def test_a_call_that_hangs_costs_its_own_test(sandbox: Watched) -> None:
    code = "import time\ndef add(a, b):\n    if b == 7: time.sleep(99)\n    return a + b"
    assert kinds(calls(sandbox, code, limits=PATIENT)) == ["passed", "timeout", "passed"]
    code = "import os\ndef add(a, b):\n    if b == 7: os._exit(0)\n    return a + b"
    verdicts = calls(sandbox, code)
    assert kinds(verdicts) == ["passed", "error", "passed"]
    assert verdicts[1].error == "ProcessEnded"


def test_code_that_always_hangs_is_given_up(sandbox: Watched) -> None:
    started = sandbox.started
    code = "def add(a, b):\n    while True:\n        try:\n            while True: pass\n"
    code += "        except BaseException: pass"
    assert set(kinds(calls(sandbox, code, SUMS * 100, limits=SHORT))) == {"timeout"}
    assert sandbox.started - started == 4
    assert set(kinds(calls(sandbox, "while True: pass", SUMS * 100, limits=SHORT))) == {"timeout"}


def test_slow_code_has_a_total() -> None:
    sandbox = Scripted({"value": None}, *[{"value": 3}] * 99, wait=0.008)
    found = kinds(calls(sandbox, HONEST, SUMS[:1] * 30, limits=Limits(wall=0.01)))
    assert found[:5] == ["passed"] * 5 and found[15:] == ["timeout"] * 15


def test_time_spent_waiting_for_others_is_not_counted() -> None:
    sandbox = Scripted({"value": None}, *[{"value": 3, "seconds": 0.001}] * 30, wait=0.008)
    assert all_passed(calls(sandbox, HONEST, SUMS[:1] * 30, limits=Limits(wall=0.01)))
    for claim in (-1e9, float("nan"), 1e9, "0", True):  # what nobody believes
        sandbox = Scripted({"value": None}, *[{"value": 3, "seconds": claim}] * 30, wait=0.008)
        assert (
            kinds(calls(sandbox, HONEST, SUMS[:1] * 30, limits=Limits(wall=0.01)))[-1] == "timeout"
        )


def test_what_goes_wrong_is_said(sandbox: Watched) -> None:
    code = "def add(a, b):\n    x = 1\n    return a / (b - 2)"
    verdicts = calls(sandbox, code, [FunctionCall((1, 2), 3), FunctionCall((1, 3), 1)])
    assert verdicts[0] == GradingVerdict("error", "ZeroDivisionError", 3) and verdicts[1].passed
    assert calls(sandbox, "x = 1\ndef add(a:\n")[0] == GradingVerdict("error", "SyntaxError", 2)
    assert calls(sandbox, "x = 1\n1 / 0")[0] == GradingVerdict("error", "ZeroDivisionError", 2)
    assert calls(sandbox, "x = 1")[0] == GradingVerdict("error", "NameError")
    own = calls(sandbox, "class Odd(Exception): pass\ndef add(a, b): raise Odd")
    assert own[0] == GradingVerdict("error", "Odd", 2)
    assert calls(sandbox, "def add(a, b): return [a]", [FunctionCall((1, 2), 3)])[0].got == "[1]"
    assert calls(sandbox, "def add(a, b): return print", SUMS)[0] == GradingVerdict(
        "error", "NotPlain"
    )


def test_a_solution_never_sees_what_is_wanted(sandbox: Watched) -> None:
    del sandbox.sent[:]
    secret = 918_273_645
    calls(sandbox, HONEST, [FunctionCall((1, 2), secret), FunctionCall((1, 2), f"s{secret}")])
    assert sandbox.sent and not any(str(secret) in sent for sent in sandbox.sent)
    del sandbox.sent[:]
    asserts(sandbox, HONEST + "#here", [f"assert add(1, 2) == {secret}"])
    assert [sent for sent in sandbox.sent if "#here" in sent and str(secret) in sent] == []
    assert sum("#here" in sent for sent in sandbox.sent) == 1


def test_arguments_that_are_no_data_name_the_test() -> None:
    for call in (
        FunctionCall((object(),), 1),
        FunctionCall((1,), object()),
        FunctionCall((1,), 1, {"k": iter([])}),
    ):
        with pytest.raises(DataError, match="test 1 of 'add'"):
            calls(Scripted(), HONEST, [SUMS[0], call])


def test_what_is_no_test_is_named() -> None:
    with pytest.raises(DataError, match=r"test 1 of 'add' must be Python code"):
        asserts(Scripted(), HONEST, ["assert add(1, 2) == 3", 7])
    for entry in ("", "a.b", "a b", None):
        with pytest.raises(DataError, match="entry point"):
            asyncio.run(grade_calls(Scripted(), HONEST, entry, SUMS))  # type: ignore[arg-type]
        with pytest.raises(DataError, match="entry point"):
            asserts(Scripted(), HONEST, ["assert a.b(1) == 3"], entry)


def test_assertions_count_also_where_python_leaves_them_out() -> None:
    here = Path(plain.__file__).parent
    requests = [
        {"do": "run", "source": "assert add(1) == 2", "entry": "add", "functions": ["add"]},
        {"do": "go on", "value": 3, "arguments": None},
    ]
    parts = [(here / name).read_text() for name in ("plain.py", "tests_worker.py")]
    script = "\n".join([*parts, f"for request in {requests!r}: print(answer(request), flush=True)"])
    ran = [sys.executable, "-O", "-c", script]
    done = subprocess.run(ran, capture_output=True, text=True)
    assert "'failed': 'AssertionError'" in done.stdout, done


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
    healed = Scripted({"value": None}, {"value": 3}, start=SandboxError("a worker died"))
    healed.starts.pop()
    assert all_passed(calls(healed, HONEST, SUMS[:1]))
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


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*"ifctszdrobux"]), inner, max_size=2)
    ),
    max_leaves=10,
)


claims = anything | st.dictionaries(st.sampled_from(["value", "error", "seconds"]), anything)


@settings(max_examples=80, deadline=None)
@given(st.lists(claims, min_size=4, max_size=4))
def test_a_process_can_answer_what_it_wants(answers: list[Any]) -> None:
    sandbox = Scripted({"value": None}, *answers)
    verdicts = calls(sandbox, HONEST, [FunctionCall((), "no such value")] * 4)
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
    assert verdicts[1].got == "3" and verdicts[3] == GradingVerdict("error", "TypeError", 2)


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
    for raised, wanted in (
        ("ValueError", "ValueError"),
        ("Own", "ValueError"),
        ("KeyError", "Exception"),
    ):
        expected = test.format(wanted).replace("str(error)", "error.args[0]")
        assert all_passed(asserts(sandbox, code.format(raised), [expected])), raised
    verdict = asserts(sandbox, code.format("TypeError"), [test.format("ValueError")])[0]
    assert verdict == GradingVerdict("error", "TypeError", 3)
    decoding = "def add(n):\n    return b'\\xff'.decode()"
    assert all_passed(asserts(sandbox, decoding, ["try: add(1)\nexcept ValueError: pass"]))


def test_other_names_of_the_solution_can_be_used(sandbox: Watched) -> None:
    code = (
        "def twice(x): return x * 2\ndef half(x): return x // 2\n"
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
        "def total(pairs): return sum(p.a + p.b for p in pairs)\n"
        "import collections\nPoint = collections.namedtuple('Point', 'a b')"
    )
    tests = [
        "assert half(twice(4)) == 4",
        "assert total([Pair(1, 2), Pair(3, b=4)]) == 10",
        "assert total([Pair(1, 2)]) == 4",
        "assert total([Point(1, 2), Pair(3, 4)]) == 10",
        "assert nothing(1) == total([])",
    ]
    assert kinds(asserts(sandbox, code, tests, "total")) == [
        "passed", "passed", "wrong", "passed", "refused",
    ]  # fmt: skip


def test_arguments_are_changed_where_that_is_what_a_call_is_for(sandbox: Watched) -> None:
    code = "def sort(x, seen=None):\n    x.sort()\n    if seen is not None: seen.add(len(x))"
    tests = [
        "x = [3, 1, 2]\nsort(x)\nassert x == [1, 2, 3]",
        "x, s = [2, 1], set()\ny = x\nsort(x, seen=s)\nassert y == [1, 2] and s == {2}",
        "def check(candidate):\n    x = [2, 1]\n    candidate(x)\n    assert x == [1, 2]",
        "x = [2, 1]\nassert sort(x) is None and x == [2, 1]",
    ]
    assert all_passed(asserts(sandbox, code, tests, "sort"))


@pytest.mark.parametrize("name", ATTACKS["assert_hacks"])
def test_a_hack_of_asserts_is_not_paid(sandbox: Watched, name: str) -> None:
    code, test = ATTACKS["assert_hacks"][name].values()
    refused = name.startswith("a test")
    limits = Limits(wall=60.0 if refused else 1.0)
    verdict = asserts(sandbox, code, [test], limits=limits)[0]
    assert verdict.kind == ("refused" if refused else verdict.kind)
    assert not verdict.passed, verdict
    assert all_passed(asserts(sandbox, HONEST, ["assert add(1, 2) == 3"]))


def test_a_test_that_hangs_or_dies_costs_itself(sandbox: Watched) -> None:
    tests = [
        "add(1, 2)\nimport time\ntime.sleep(99)",
        "assert add(1, 2) == 3",
        "import os\nadd(1, 2)\nos._exit(0)",
        "assert add(1, 2) == 3",
    ]
    found = kinds(asserts(sandbox, HONEST, tests, limits=PATIENT))
    assert found == ["timeout", "passed", "error", "passed"]


def test_calls_without_end_are_stopped(sandbox: Watched) -> None:
    limits = Limits(wall=0.1)
    assert kinds(asserts(sandbox, HONEST, ["while True:\n    add(1, 2)"], limits=limits)) == [
        "timeout"
    ]


def test_tests_that_were_given_up_do_not_come_back(sandbox: Watched) -> None:
    tests = ["try:\n    add(1, 2)\nexcept BaseException:\n    add(1, 2)"] * 40
    code = "def add(a, b): raise SystemExit"
    assert set(kinds(asserts(sandbox, code, tests))) == {"error"}


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "stdin", "wanted", "kind"),
    [
        ("print(sum(map(int, input().split())))", "1 2\n", "3\n", "passed"),
        ("print(3)", "", "3", "passed"), ("print('3  ')\nprint()\nprint()", "", "3\n", "passed"),
        ("print('a\\r')\nprint('b')", "", "a\nb\n", "passed"),
        ("import sys\nprint('é')\nsys.stderr.write('noise')", "", "é", "passed"),
        ("print('3')\nimport sys\nsys.exit(0)", "", "3", "passed"),
        ("print(' 3')", "", "3", "wrong"), ("print()\nprint(3)", "", "3", "wrong"),
        ("print('A')", "", "a", "wrong"), ("print('3\\n3')", "", "3", "wrong"),
        ("print('a b')", "", "a  b", "wrong"), ("print('3.0')", "", "3", "wrong"),
        ("pass", "", "3", "wrong"), ("import os\nos._exit(0)", "", "3", "wrong"),
        ("print('passed')", "", "3", "wrong"),
        ("print(3)\nimport sys\nsys.exit(1)", "", "3", "error"),
        ("print(3)\n1 / 0", "", "3", "error"),
        ("print(3, flush=True)\nimport os\nos.abort()", "", "3", "error"),
        ("print(3, flush=True)\nwhile True: pass", "", "3", "timeout"),
        ("while True: print(3)", "", "3", "error"), ("print(3\x00)", "", "3", "refused"),
    ],
)  # fmt: skip
def test_programs(sandbox: Watched, code: str, stdin: str, wanted: str, kind: str) -> None:
    limits = Limits(wall=1.0 if kind == "timeout" else 60.0)
    assert kinds(programs(sandbox, code, [(stdin, wanted)], limits=limits)) == [kind]


def test_a_program_says_what_went_wrong_and_where(sandbox: Watched) -> None:
    code = "import json\nx = input()\njson.loads(x)\nprint(1 / int(x))"
    cases = [("4", "0.25"), ("0", ""), ("{", ""), ("4", "1")]
    verdicts = programs(sandbox, code, cases)
    assert verdicts[0].passed and verdicts[1] == GradingVerdict("error", "ZeroDivisionError", 4)
    assert verdicts[2] == GradingVerdict("error", "JSONDecodeError", 3)
    assert verdicts[3] == GradingVerdict("wrong", got="'0.25\\n'")


def test_a_program_that_hangs_is_given_up(sandbox: Watched) -> None:
    verdicts = programs(sandbox, "while True: pass", [("", "")] * 300, limits=SHORT)
    assert set(kinds(verdicts)) == {"timeout"}


def test_the_same_list_arrives_as_the_same(sandbox: Any) -> None:
    code = """
def add(a, b, c=None):
    if isinstance(b, dict):
        return b["x"][0] is a
    a.append(1)
    return [a is b, b is c, len(b)]
"""
    tests = [
        "x = []\nassert add(x, x) == [True, False, 1]",
        "x, y = [], []\nassert add(x, y) == [False, False, 0]",
        "x = []\nassert add(x, x, c=x) == [True, True, 1]",
        "x = [[]]\nassert add(x[0], {'x': x})",
        "x = []\nadd(x, x)\nassert x == [1]",
        "x, y = {1}, [{1}]\nassert add([], y) == [False, False, 1]",
    ]
    assert [each.kind for each in asserts(sandbox, code, tests)] == ["passed"] * len(tests)
