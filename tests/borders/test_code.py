"""Programs are judged as plain Python judges them with the data set's own harness."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mrlm.core.types import Message, Role
from mrlm.environments.programs.class_completion import ClassCompletionEnvironment
from mrlm.environments.programs.code import CodeExecutionEnvironment
from mrlm.environments.programs.code.answers import extract_code
from mrlm.play.proof import proved
from mrlm.sandbox import open_sandbox
from mrlm.sandbox.grading import grade_asserts, grade_class, grade_programs
from mrlm.sandbox.types import Limits

TITLE = "Programs"
JUDGE = "Python with the harnesses of HumanEval (check), MBPP (asserts) and APPS (calls, programs)"
DIFFERENCES = (
    "a result that is not plain data equals nothing and has no order, because an object could "
    "answer that it is right",
    "a method of a result takes no arguments, because they could be the expected value",
)
ROWS = Path(__file__).parents[1] / "fixtures" / "code"
LIMITS = Limits(wall=30.0)


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROWS / f"{name}.jsonl").read_text().splitlines()]


def holds(program: str, stdin: str = "") -> bool:
    """Whether a program ends without an error in plain Python."""
    call = [sys.executable, "-c", program]
    return subprocess.run(call, input=stdin, capture_output=True, text=True).returncode == 0


def scored(env: Any, seed: int, code: str) -> Any:
    """The components of the last answer's score."""

    async def play() -> Any:
        twin = env.spawn()
        await as_coroutine(twin.reset(env.task(seed), seed))
        message = Message(f"```python\n{code}\n```", Role.ASSISTANT)
        return (await twin.step({"agent": message})).rewards["agent"].components

    return asyncio.run(play())


async def as_coroutine(result: Any) -> Any:
    return await result if hasattr(result, "__await__") else result


def solutions(row: dict[str, Any]) -> list[str]:
    """The reference solution, and two wrong ones."""
    name = row.get("entry_point") or row["test_list"][0].split("(")[0].split()[-1]
    right = row.get("code") or row["prompt"] + row["canonical_solution"]
    return [right, f"def {name}(*args):\n    return None", f"def {name}(*args):\n    return [[1]]"]


@pytest.mark.system
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_verdicts_are_those_of_the_harness(name: str, record_property: Any) -> None:
    table = rows(name)
    env = CodeExecutionEnvironment(dataset=table, eval_dataset=table, timeout=30.0)
    cases = 0
    for seed, row in enumerate(table):
        for code in solutions(row):
            if name == "humaneval":
                verdicts = [holds(f"{code}\n{row['test']}\ncheck({row['entry_point']})")]
            else:
                before = "\n".join([*row["test_imports"], code])
                verdicts = [holds(f"{before}\n{test}") for test in row["test_list"]]
            share = sum(verdicts) / len(verdicts)
            assert scored(env, seed, code)["passed"] == pytest.approx(share), (row, code)
            cases += len(verdicts)
    record_property("cases", cases)


OBJECTS = """
import collections, datetime, decimal, itertools, re
Pair = collections.namedtuple("Pair", "x y")
RESULTS = {
    "match": lambda: re.match("a", "abc"), "none": lambda: None,
    "squares": lambda: (i * i for i in range(4)), "texts": lambda: map(str, [1, 2]),
    "keys": lambda: {1: 2, 3: 4}.keys(), "items": lambda: {1: 2}.items(),
    "pair": lambda: Pair(1, 2),
    "decimal": lambda: decimal.Decimal("1.5"), "date": lambda: datetime.date(2020, 1, 2),
    "endless": itertools.count, "queue": lambda: collections.deque([1, 2]),
}
def f(name):
    return RESULTS[name]()
class Node:
    def __init__(self, value): self.value, self.left = value, None
    def add(self, n): self.value += n; return self.value
def depth(node): return 0 if node is None else 1 + depth(node.left)
"""
REDUCED = """
assert f("match")
assert not f("match")
assert not f("none")
assert f("match").group() == "a"
assert f("match").group() == "b"
assert f("match").span() == (0, 1)
assert f("match") is not None
assert list(f("squares")) == [0, 1, 4, 9]
assert list(f("squares")) == [0, 1, 4]
assert sum(f("squares")) == 14
assert sorted(f("squares"), reverse=True) == [9, 4, 1, 0]
assert list(f("texts")) == ["1", "2"]
assert f("keys") == {1, 3}
assert f("keys") == [1, 3]
assert list(f("items")) == [(1, 2)]
assert f("pair") == (1, 2) and f("pair").x == 1
assert f("decimal") == __import__("decimal").Decimal("1.5")
assert f("decimal") == 1.5
assert f("date").year == 2020
assert f("date") == __import__("datetime").date(2020, 1, 2)
assert next(f("endless")) == 0
assert [a for a, _ in zip(f("endless"), "abc")] == [0, 1, 2]
assert list(f("queue")) == [1, 2] and len(f("queue")) == 2
root = Node(1); root.left = Node(2); assert f("none") is None and depth(root) == 2
node = Node(1); assert f("none") is None and node.add(3) == 4 and node.value == 4
node = Node(1); assert f("none") is None and node.add(3) == 5
""".strip().splitlines()


def test_results_that_are_not_plain_data_are_reduced(record_property: Any) -> None:
    async def grade() -> Any:
        return await grade_asserts(open_sandbox("auto"), OBJECTS, "f", REDUCED, LIMITS)

    for test, verdict in zip(REDUCED, asyncio.run(grade()), strict=True):
        space: dict[str, Any] = {}
        try:
            exec(f"{OBJECTS}\n{test}", space)
            right = True
        except AssertionError:
            right = False
        assert verdict.passed == right, (test, verdict)
    record_property("cases", len(REDUCED))


LIAR = """
class Liar:
    __bool__ = __lt__ = __gt__ = __contains__ = startswith = lambda *_: True
    __sub__ = __rsub__ = lambda *_: 0
    __eq__ = __ne__ = lambda *_: True
def f(x): return Liar()
class g(Liar):
    def __init__(self, x): pass
class Box:
    def value(self): return Liar()
"""
LIES = [
    f"assert {test.format(call)}"
    for call in ("f(1)", "g(1)")
    for test in (
        "{} == 3", "{} != 3", "{} > 3", "3 in {}", "abs({} - 3) < 1", "{}.startswith('a')",
        "not {}", "{} is None", "[{}] == [3]", "{} in [3]",
    )
]  # fmt: skip
UNITS = """
import unittest
class Tests(unittest.TestCase):
    def test_a(self): self.assertAlmostEqual(Box().value(), 3.5)
    def test_b(self): self.assertTrue(abs(Box().value() - 3.5) < 1e-6)
    def test_c(self): self.assertTrue(Box().value().startswith("x"))
    def test_d(self): self.assertEqual(Box().value(), 3)
    def test_e(self): self.assertIn(3, Box().value())
"""


def test_no_object_can_say_that_it_is_right() -> None:
    async def grade() -> Any:
        sandbox = open_sandbox("auto")
        verdicts = await grade_asserts(sandbox, LIAR, "f", LIES[:10], LIMITS)
        verdicts += await grade_asserts(sandbox, LIAR, "g", LIES[10:], LIMITS)
        cases = [("Tests", f"test_{letter}") for letter in "abcde"]
        return verdicts + await grade_class(sandbox, LIAR, "Box", UNITS, cases, LIMITS)

    assert not any(verdict.passed for verdict in asyncio.run(grade()))


IMPORTS = (
    "import math, heapq, collections\nfrom math import sqrt\nfrom heapq import *\n"
    "from collections import Counter, deque, defaultdict\nfrom typing import List, Tuple\n"
)
"""Some of the imports of APPS's harness."""
METHOD = "class Solution:\n    def go(self, nums: List[int]) -> List[int]:\n        return "
APPS: list[tuple[str, str | None, list[Any], list[Any]]] = [
    (METHOD + "[nums.index(max(nums)), 0]", "go", [[[1, 5]], [[7, 2]]], [[1, 0], [0, 0]]),
    (METHOD + "sorted(nums)[:1]", "go", [[[3, 1]], [[9, 2]]], [[1], [2]]),
    (METHOD + "Counter(nums).most_common(1)", "go", [[[3, 3]], [[2]]], [[[3, 2]], [[2, 1]]]),
    ("def root(x):\n    return int(sqrt(x))", "root", [[16], [81]], [4, 9]),
    ("def root(x):\n    return int(sqrt(x))", "root", [[16], [81]], [[4], [9]]),
    ("def pair(x):\n    return (x, [x])", "pair", [[1], [2]], [[1, [1]], [2, [2]]]),
    ("def keys(d):\n    return {k: v for k, v in d.items()}", "keys", [[{"a": 1}]], [{"a": 1}]),
    ("n = int(input())\nprint(sum(map(int, input().split())))", None,
     ["2\n1 2\n", "3\n1 2 3\n"], ["3\n", "6\n"]),
    ("import sys\nfor line in sys.stdin:\n    print(line.strip()[::-1])", None,
     [["ab", "cd"], ["x"]], [["ba", "dc"], ["x"]]),
    ("class Solution:\n    def go(self):\n        print(input(), end='')\n\n"
     "if __name__ == '__main__':\n    Solution().go()", None, ["a\n"], ["a\n\n"]),
]  # fmt: skip


def of_apps(code: str, entry: str | None, given: Any, right: Any) -> bool:
    """The verdict of APPS's harness on one test, by plain Python."""
    if entry is None:
        given, right = ("\n".join(t) if isinstance(t, list) else t for t in (given, right))
        run = subprocess.run(
            [sys.executable, "-c", code], input=given, text=True, capture_output=True
        )
        return run.returncode == 0 and run.stdout.rstrip() == right.rstrip()
    names: dict[str, Any] = {}
    exec(IMPORTS + code, names)
    owner = names["Solution"]() if "class Solution" in code else None
    value = json.loads(json.dumps((getattr(owner, entry) if owner else names[entry])(*given)))
    return value == right or (isinstance(right, list) and value == right[0])


@pytest.mark.parametrize(("code", "entry", "inputs", "outputs"), APPS)
def test_rows_of_apps_as_in_their_harness(
    code: str, entry: str | None, inputs: list[Any], outputs: list[Any], record_property: Any
) -> None:
    table = {"inputs": inputs, "outputs": outputs} | ({"fn_name": entry} if entry else {})
    row = {"question": "Go.", "input_output": json.dumps(table), "solutions": json.dumps([code])}
    env = CodeExecutionEnvironment(dataset=[row], eval_dataset=[row])
    proof = proved(env, "train")
    assert proof.silent == 0 and not proof.problems
    wrong = code.replace("return ", "return 5, ").replace("print(", "print('no', ")
    for text in (code, wrong):
        verdicts = [of_apps(text, entry, *test) for test in zip(inputs, outputs, strict=True)]
        assert scored(env, 0, text)["passed"] == sum(verdicts) / len(verdicts)
        assert all(verdicts) == (text is code)
    record_property("cases", 2 * len(inputs))


def test_the_starter_code_of_apps_is_shown() -> None:
    table = json.dumps({"fn_name": "go", "inputs": [[1], [2]], "outputs": [1, 2]})
    row = {"question": "Go.", "input_output": table, "starter_code": "class Solution:\n    "}
    prompt = CodeExecutionEnvironment(dataset=[row], eval_dataset=[row]).task(0).prompt[0].content
    assert "Write the function `go`. Begin with:\nclass Solution:" in prompt


@pytest.mark.parametrize(
    "code",
    [
        "print(1); exit()", "print(1)\nquit()", "print(1); exit(0); print(2)", "exit(3)",
        "exit('no')", "import os\nprint(len(os.path.basename(__file__)) > 0)",
    ],
)  # fmt: skip
def test_programs_run_as_with_python(code: str, tmp_path: Path) -> None:
    file = tmp_path / "prog.py"
    file.write_text(code)
    run = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)

    async def grade() -> Any:
        return await grade_programs(open_sandbox("auto"), code, [("", run.stdout)], LIMITS)

    (verdict,) = asyncio.run(grade())
    assert verdict.passed == (run.returncode == 0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1. First:\n   ```python\n   def f():\n       return 1\n   ```\n2. Done.",
         "def f():\n    return 1"),
        ("- ```python\n  x = 1\n  ```", "x = 1"),
        ("It prints:\n```\n5\n```\nand\n```python\ny = 2\n```\nThat is it.", "y = 2"),
        ("def f():\n    return 1\n```", "def f():\n    return 1"),
        ("~~~python\nx = 3\n~~~", "x = 3"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''"),
        ("use ```x = 1``` here", "use ```x = 1``` here"),
        ("That was it.\n```\n\nNow:\n```python\nz = 4\n```", "z = 4"),
    ],
)  # fmt: skip
def test_blocks_of_markdown(text: str, code: str) -> None:
    assert extract_code(text) == code


def test_rows_are_proved_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MRLM_CACHE", str(tmp_path))  # an earlier proof would prove nothing
    env = ClassCompletionEnvironment(rows("classeval"), eval_dataset=rows("classeval"))
    proof = proved(env, "train")
    assert proof.checked == 2 and list(proof.problems) == [1]
    assert "passes none of its tests in the sandbox (FileNotFoundError)" in proof.problems[1]
