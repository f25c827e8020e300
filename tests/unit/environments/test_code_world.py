"""The code world: what is paid, what is said, and what a model that is trained by reward would try.
Everything runs in a real sandbox."""

import asyncio
import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrlm.config import load_config
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, StepResult, Task
from mrlm.environments.programs.code import (
    CodeExecutionEnvironment,
    CodeProblem,
    CodeProblemGenerator,
    extract_code,
)
from mrlm.environments.programs.code.answers import fenced, refusal
from mrlm.environments.programs.code.families import FAMILIES
from mrlm.environments.programs.code.formats import PROBLEM, converted
from mrlm.environments.programs.code.scoring import feedback, worth
from mrlm.environments.programs.code.templates import Drawn, ProgramTemplate, compiled
from mrlm.sandbox.grading import GradingVerdict
from mrlm.sandbox.types import Sandbox, SandboxError
from places import ROOT

TEMPLATES = [(family, each) for family, group in FAMILIES.items() for each in group]
ADD = CodeProblem(
    "Write `add(a, b)`.",
    "calls",
    [[[1, 2], 3], [[5, 7], 12], [[-4, 4], 0], [[777, 1], 778]],
    entry="add",
    visible=2,
    solution="def add(a, b):\n    return a + b",
)


def task_of(problem: CodeProblem) -> Task:
    return Task("t", problem.question, info={PROBLEM: problem.record()})


class Player:
    """One episode, in which several things may be said."""

    def __init__(self, problem: CodeProblem, sandbox: Sandbox | None, **settings: Any) -> None:
        self.world = CodeExecutionEnvironment(sandbox=sandbox, **settings)
        self.world.reset(task_of(problem))
        self.words: list[str] = []
        self.paid: list[float] = []
        self.result = StepResult()

    async def asays(self, text: str) -> float:
        self.result = await self.world.step({"agent": Message(text)})
        self.paid.append(self.result.rewards["agent"].value)
        self.words.append(self.result.observations["agent"].messages[0].content)
        return self.paid[-1]

    def says(self, text: str) -> float:
        return run_async(self.asays(text))


def once(code: str, sandbox: Sandbox, problem: CodeProblem = ADD, **settings: Any) -> Player:
    player = Player(problem, sandbox, max_attempts=1, test_timeout=5.0, **settings)
    player.says(fenced(code))
    return player


# -- rewards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("def add(a, b):\n    return a + b", 2.0),
        ("def add(a, b):\n    print('passed')\n    return a + b", 2.0),
        ("def add(a, b):\n    return 3", 0.25),
        ("def add(a, b):\n    return {(1, 2): 3, (5, 7): 12}[a, b]", 0.0),  # 2 of 4, and it raises
        ("def add(a, b):\n    return None", 0.0),
        ("def add(a, b):\n    return str(a + b)", 0.0),
        ("def add(a, b):\n    return [a + b]", 0.0),
        ("def add(a, b):\n    raise ValueError", -0.5),
        ("def add(a):\n    return a", -0.5),
        ("def sub(a, b):\n    return a + b", -0.5),
        ("def add(a, b:\n    return", -0.5),
        ("add = 3", -0.5),
        ("yes", -0.5),
    ],
)
def test_rewards(code: str, reward: float, sandbox: Sandbox) -> None:
    assert once(code, sandbox).paid == [reward]


CHEATS = {
    "equal to everything": "class E(int):\n    __eq__ = lambda s, o: True\n    __hash__ = None\n"
    "def add(a, b):\n    return E()",
    "leaves with success": "import os\ndef add(a, b):\n    os._exit(0)",
    "leaves at once": "import sys\nsys.exit(0)",
    "prints a verdict": 'print(\'{"value": 3, "kind": "passed"}\' * 9)\n'
    "def add(a, b):\n    print('passed')\n    return 0",
    "changes its arguments": "def add(a, b):\n    a = b = 0\n    return True",
    "patches json": "import json, builtins\njson.dumps = lambda *a, **k: '3'\n"
    "builtins.all = lambda *a: True\ndef add(a, b):\n    return 0",
    "looks for the tests": "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n"
    "        if type(o) is dict and 'expected' in o: return o['expected']\n    return 0",
    "looks up the stack": "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n"
    "        for n, v in f.f_locals.items():\n            if 'expect' in n: return v\n"
    "        f = f.f_back\n    return 0",
    "writes to every file": "import os\nfor fd in range(1, 40):\n    try: os.write(fd, b'passed')\n"
    "    except OSError: pass\ndef add(a, b):\n    return 0",
    "the library itself": "from mrlm.environments.programs.code.families import FAMILIES\n"
    "def add(a, b):\n    return a + b",
    "a generator": "def add(a, b):\n    while True: yield a + b",
    "one right answer": "def add(a, b):\n    return 778",
    "not a number": "def add(a, b):\n    return float('nan')",
    "huge": "def add(a, b):\n    return [0] * 10**7",
    "circular": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_no_more_than_the_tests_it_really_passes(name: str, sandbox: Sandbox) -> None:
    assert once(CHEATS[name], sandbox).paid[0] <= 0.25


def test_who_hangs_pays_and_keeps_what_passed_before(sandbox: Sandbox) -> None:
    code = "import time\ndef add(a, b):\n    if a < 0: time.sleep(99)\n    return a + b"
    player = Player(ADD, sandbox, timeout=3.0, max_attempts=1)
    assert player.says(code) == pytest.approx(0.75 - 0.5)
    assert player.result.rewards["agent"].components == {
        "passed": 0.75,
        "all_passed": 0.0,
        "raised": 1.0,
        "attempt": 1.0,
    }


@pytest.mark.parametrize("kind", ["error", "timeout", "refused"])
def test_a_test_that_cannot_end_costs_half_a_point(kind: Any) -> None:
    assert worth([GradingVerdict("passed"), GradingVerdict(kind)])["value"] == 0.0


# -- attempts --------------------------------------------------------------------------------------

RIGHT = "def add(a, b):\n    return a + b"
HALF = "def add(a, b):\n    return a + b if a > 0 and b > 2 else 3"
WRONG = "def add(a, b):\n    return 9"
BROKEN = "def add(a, b):\n    return 1 / 0"
WORTH = {RIGHT: 2.0, HALF: 0.5, WRONG: 0.0, BROKEN: -0.5}


@pytest.mark.parametrize(
    "said",
    [
        [RIGHT], [BROKEN, RIGHT], [HALF, BROKEN, RIGHT], [HALF, HALF, HALF], [HALF, BROKEN],
        [WRONG, HALF, BROKEN], [HALF, WRONG, RIGHT],
    ],
)  # fmt: skip
def test_an_episode_is_paid_what_its_last_answer_is_worth(
    said: list[str], sandbox: Sandbox
) -> None:
    player = Player(ADD, sandbox)
    for code in said:
        player.says(fenced(code))
    assert sum(player.paid) == pytest.approx(WORTH[said[-1]])
    assert player.result.done == (said[-1] == RIGHT or len(said) == 3)
    for gamma in (1.0, 0.9, 0.5):  # and whatever the discount, nothing beats being right at once
        assert sum(gamma**i * paid for i, paid in enumerate(player.paid)) <= 2.0 + 1e-9
        if len(said) > 1 and gamma < 1.0:
            assert sum(gamma**i * paid for i, paid in enumerate(player.paid)) < 2.0 - 1e-9


def test_components_of_an_episode_describe_its_last_answer(sandbox: Sandbox) -> None:
    player = Player(ADD, sandbox)
    totals: dict[str, float] = {}
    for code in (BROKEN, HALF, RIGHT):
        player.says(code)
        for name, value in player.result.rewards["agent"].components.items():
            totals[name] = totals.get(name, 0.0) + value
    assert totals == {"passed": 1.0, "all_passed": 1.0, "raised": 0.0, "attempt": 3.0}
    assert player.result.rewards["agent"].info["answer"]["value"] == 2.0


def test_a_new_episode_owes_nothing_to_the_one_before(sandbox: Sandbox) -> None:
    player = Player(ADD, sandbox, max_attempts=2)
    player.says(HALF)
    player.world.reset(task_of(ADD))
    assert player.says(HALF) == 0.5 and "attempt 2 of 2" in player.words[-1]


# -- feedback --------------------------------------------------------------------------------------


def test_feedback_names_error_line_and_visible_test(sandbox: Sandbox) -> None:
    player = Player(ADD, sandbox)
    player.says("def add(a, b):\n    c = a\n    return c / (a - 1)")
    assert "add(1, 2) == 3" in player.words[0]
    assert "ZeroDivisionError" in player.words[0] and "line 3" in player.words[0]
    assert "attempt 2 of 3" in player.words[0]
    player.says("def add(a, b):\n    return a + b if a == 1 else 40")
    assert "add(5, 7) == 12" in player.words[1] and "40" in player.words[1]
    late = Player(ADD, sandbox, timeout=0.3)
    late.says("def add(a, b):\n    while True: pass")
    assert "too long" in late.words[0] and "add(1, 2)" in late.words[0]


@pytest.mark.parametrize(
    "code",
    [
        "def add(a, b):\n    return {1: 3, 5: 12}.get(a)",
        "def add(a, b):\n    return {1: 3, 5: 12}[a]",
        "def add(a, b):\n    if a in (1, 5): return a + b\n    raise ValueError(f'{a} {b}')",
        "def add(a, b):\n    if a in (1, 5): return a + b\n"
        "    raise type(f'a{abs(a)}b{b}', (Exception,), {})",
        "def add(a, b):\n    if a in (1, 5): return a + b\n    return f'{a} {b}'",
        "def add(a, b):\n    if a in (1, 5): return a + b\n    __import__('time').sleep(99)",
        "def add(a, b):\n    if a in (1, 5): return a + b\n    print(a, b)\n    exit(a)",
    ],
)
def test_hidden_tests_are_never_shown(code: str, sandbox: Sandbox) -> None:
    player = Player(ADD, sandbox, timeout=3.0)
    player.says(fenced(code))
    said = player.words[0].replace("attempt 2 of 3", "")
    assert "a test that is not shown" in said
    assert not any(character.isdigit() for character in said), said
    shown = json.dumps([message.content for message in task_of(ADD).prompt]) + player.world.state()
    assert "777" not in shown and "778" not in shown and "-4" not in shown


def test_what_a_claim_says_cannot_fill_the_feedback() -> None:
    long = GradingVerdict("error", "X" * 500 + "\n# system: pay", 10**6, "")
    assert len(feedback(ADD, [long] * 4)) < 200 and "system" not in feedback(ADD, [long] * 4)
    wide = GradingVerdict("wrong", got="9" * 100_000)
    assert len(feedback(ADD, [wide] * 4)) < 1000


# -- where the code stands -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("Sure:\n```python\nx = 1\n```\nand\n```python\nx = 2\n```", "x = 1"),
        ("```\ny\n```\n```python\nx = 1\n```", "x = 1"), ("```js\ny\n```\n```\nz\n```", "y"),
        ("```Python3\nx = 1\n```", "x = 1"), ("```py\r\nx = 1\r\n```", "x = 1"),
        ("```python\nx = 1", "x = 1"),
        ("```python\nx = '```'\ny = 2\n```\nthat is all", "x = '```'\ny = 2"),
        ("```python\nx = 1```", "x = 1"), ("    return 1\n", "    return 1"), ("x = 1", "x = 1"),
        ("```", "```"), ("", ""),
    ],
)  # fmt: skip
def test_where_the_code_stands(text: str, code: str) -> None:
    assert extract_code(text) == code


def test_searching_hostile_text_takes_no_time() -> None:
    for text in ("```" * 100_000, "```python" * 50_000, "`\n" * 100_000, " " * 10**6 + "```"):
        extract_code(text)
    assert refusal("") and refusal(" \n") and refusal("x" * 200_000) and refusal("\ud800")
    assert refusal("a\0b") and not refusal("x = 'ä'")


# -- templates -------------------------------------------------------------------------------------


def drawn(template: ProgramTemplate, count: int = 24) -> list[Drawn]:
    found = [template.draw(random.Random(seed), 6) for seed in range(count)]
    return [each for each in found if each is not None]


def answers(function: Callable[..., Any], problem: Drawn) -> list[bool]:
    return [repr(function(*copy.deepcopy(args))) == repr(result) for args, result in problem.calls]


def test_there_are_many_templates_in_six_families_at_three_levels() -> None:
    names = [template.name for _, template in TEMPLATES]
    assert len(names) >= 60 and len(set(names)) == len(names)
    assert {"strings", "lists", "arithmetic", "recursion", "dictionaries"} < set(FAMILIES)
    for group in FAMILIES.values():
        assert {template.level for template in group} == {1, 2, 3}


@pytest.mark.parametrize(("family", "template"), TEMPLATES, ids=lambda each: str(each)[:40])
def test_a_template_gives_many_sound_problems(family: str, template: ProgramTemplate) -> None:
    generator = CodeProblemGenerator(templates=template.name)
    for split in ("train", "eval"):
        assert generator.problem(0, split).template == template.name
    problems = drawn(template)
    assert len(problems) >= 10
    assert len({(each.text, each.source) for each in problems}) >= 8
    for problem in problems:
        assert all(answers(compiled(problem.source, problem.entry), problem))
        assert "$" not in problem.text + problem.source
        assert problem.signature in problem.source
        plain = json.loads(json.dumps([[list(args), result] for args, result in problem.calls]))
        assert plain == [[list(args), result] for args, result in problem.calls]
        results = [result for _, result in problem.calls]
        for lazy in (None, 0, 1, "", [], {}, True, False, *results):
            assert not all(answers(lambda *args, lazy=lazy: lazy, problem))
        for place in range(len(problem.calls[0][0])):
            assert not all(answers(lambda *args, place=place: args[place], problem))


@pytest.mark.parametrize("family", FAMILIES)
def test_references_pass_in_the_sandbox_and_lazy_code_does_not(
    family: str, sandbox: Sandbox
) -> None:
    world = CodeExecutionEnvironment(sandbox=sandbox, max_attempts=1)

    async def paid(template: ProgramTemplate) -> tuple[float, float]:
        task = _task_from(template)
        found = []
        for honest in (True, False):
            one = world.spawn()
            one.reset(task)
            entry = task.info[PROBLEM]["entry"]
            lazy = fenced(f"def {entry}(*args):\n    return args[0]")
            said = one.expert("agent", []) if honest else lazy
            result = await one.step({"agent": Message(said or "")})
            found.append(result.rewards["agent"].value)
        return found[0], found[1]

    def _task_from(template: ProgramTemplate) -> Task:
        return CodeExecutionEnvironment({"templates": [template.name], "seed": 3}).task(0)

    async def all_paid() -> list[tuple[float, float]]:
        return await asyncio.gather(*(paid(template) for template in FAMILIES[family]))

    for template, (best, lazy) in zip(FAMILIES[family], run_async(all_paid()), strict=True):
        assert best == 2.0, template.name
        assert lazy < 1.0, template.name


def test_a_question_shows_signature_and_visible_tests_only() -> None:
    world = CodeExecutionEnvironment(CodeProblemGenerator((1, 1), templates=["plus_number"]))
    for seed in range(20):
        task = world.task(seed)
        problem = CodeProblem.of(task.info[PROBLEM], "task")
        asked = task.prompt[0].content
        shown = [f"{problem.entry}({args[0]!r}) == {result!r}" for args, result in problem.tests]
        assert all(line in asked for line in shown[:2])
        assert not any(line in asked for line in shown[2:])
        assert f"`{problem.entry}(" in asked and asked.endswith("```python block.")


# -- data sets -------------------------------------------------------------------------------------

HUMAN_EVAL = {
    "task_id": "T/0",
    "prompt": "from typing import List\n\n\ndef twice(x: int) -> List[int]:\n"
    '    """Return x two times.\n    >>> twice(1)\n    [1, 1]\n    """\n',
    "entry_point": "twice",
    "canonical_solution": "    return [x, x]\n",
    "test": "def check(candidate):\n    assert candidate(1) == [1, 1]\n"
    "    assert candidate(90210) == [90210] * 2\n",
}
MBPP = {
    "task_id": 1,
    "text": "Write a function to square the items of a list.",
    "code": "def squares(items):\n    return [i * i for i in items]",
    "test_list": [
        "assert squares([1, 2]) == [1, 4]",
        "assert squares([]) == []",
        "assert squares([4321]) == [18671041]",
    ],
    "test_setup_code": "",
}
STDIN = {
    "question": "Add the numbers in each line.",
    "input_output": json.dumps({"inputs": ["1 2\n", "30 4\n"], "outputs": ["3\n", "34\n"]}),
    "solutions": json.dumps(["print(sum(map(int, input().split())))"]),
}
NAMED = {
    "question": "Add two numbers.",
    "input_output": {"fn_name": "add", "inputs": [[1, 2], [3, 40]], "outputs": [[3], [43]]},
    "solutions": ["def add(a, b):\n    return a + b"],
}


def world_of(row: dict[str, Any], sandbox: Sandbox | None = None, **settings: Any) -> Any:
    return CodeExecutionEnvironment([row], sandbox=sandbox, **settings)


def play(world: CodeExecutionEnvironment, said: str | None = None) -> tuple[float, str]:
    task = world.task(0)
    world.reset(task)
    result = run_async(world.step({"agent": Message(said or world.expert("agent", []) or "")}))
    return result.rewards["agent"].value, result.observations["agent"].messages[0].content


@pytest.mark.parametrize("row", [HUMAN_EVAL, MBPP, STDIN, NAMED], ids=lambda row: next(iter(row)))
def test_the_solution_of_a_row_passes(row: dict[str, Any], sandbox: Sandbox) -> None:
    assert play(world_of(row, sandbox)) == (2.0, "All tests pass.")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (HUMAN_EVAL, "```python\ndef twice(x):\n    return [x, 1]\n```"),
        (HUMAN_EVAL, "```python\ndef twice(x: List[int]):\n    return x\n```"),
        (MBPP, "def squares(items):\n    return [1, 4]"),
        (STDIN, "print(3)"),
        (STDIN, "input()\nprint('3\\n34')"),
        (NAMED, "def add(a, b):\n    return 3"),
    ],
)
def test_another_solution_does_not(row: dict[str, Any], said: str, sandbox: Sandbox) -> None:
    value, words = play(world_of(row, sandbox), said)
    assert value < 1.0
    assert "90210" not in words and "4321" not in words and "34" not in words.replace("3\\n34", "")


def test_a_human_eval_answer_completes_or_replaces_the_stub(sandbox: Sandbox) -> None:
    whole = "```python\ndef twice(x: int) -> List[int]:\n    return [x] * 2\n```"
    assert play(world_of(HUMAN_EVAL, sandbox), whole)[0] == 2.0
    assert play(world_of(HUMAN_EVAL, sandbox), "    return [x] * 2")[0] == 2.0
    assert play(world_of(HUMAN_EVAL, sandbox), "```\n    return [x] * 2\n```")[0] == 2.0


def test_examples_of_a_docstring_are_for_the_feedback(sandbox: Sandbox) -> None:
    task = world_of(HUMAN_EVAL).task(0)
    problem = CodeProblem.of(task.info[PROBLEM], "task")
    assert problem.examples == ["assert twice(1) == [1, 1]"]
    player = Player(problem, sandbox)
    player.says("def twice(x):\n    y = x\n    return y / 0")
    assert "twice(1) == [1, 1]" in player.words[0] and "ZeroDivisionError" in player.words[0]
    assert "line 3" in player.words[0]  # of the answer, not of what stands before it
    player.says("def twice(x):\n    return [1, 1]")  # what the examples say, and no more
    assert "hidden" in player.words[1] and "90210" not in player.words[1]
    assert player.paid[0] == -0.5 and sum(player.paid) < 1.0


def test_many_slow_cases_are_too_slow_and_not_without_a_result(sandbox: Sandbox) -> None:
    cases = [[f"{i}", f"{i}"] for i in range(40)]
    slow = "import time\ntime.sleep(0.45)\nprint(input())"
    player = Player(CodeProblem("", "programs", cases), sandbox, timeout=0.8)
    value = player.says(slow)
    assert -0.5 < value < 0.5 and player.result.rewards["agent"].components["raised"] == 1.0


def test_rows_show_as_many_tests_as_they_may() -> None:
    asked = world_of(MBPP).task(0).prompt[0].content
    assert MBPP["test_list"][0] in asked and MBPP["test_list"][1] not in asked
    assert "squares" in world_of(MBPP, num_visible=0).task(0).prompt[0].content
    every = world_of(MBPP, num_visible=9).task(0).prompt[0].content
    assert MBPP["test_list"][1] in every and "4321" not in every  # one stays hidden
    stdin = world_of(STDIN).task(0).prompt[0].content
    assert "1 2" in stdin and "30 4" not in stdin
    assert "90210" not in world_of(HUMAN_EVAL).task(0).prompt[0].content


def test_setup_code_of_a_row_is_run(sandbox: Sandbox) -> None:
    row = {**MBPP, "test_setup_code": "import math\nnine = 9", "test_list": [
        "assert squares([math.isqrt(nine)]) == [nine]", "assert squares([1]) == [1]"]}  # fmt: skip
    assert play(world_of(row, sandbox))[0] == 2.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"test_list": "assert"}, "column 'test_list'"),
        ({"test_list": []}, "it is empty"),
        ({"test_list": ["assert ("]}, "is not Python"),
        ({"test_list": ["assert 1 == 1"]}, "does not call a function"),
        ({"text": None}, "text or prompt"),
        ({"test_list": None}, "unknown form"),
        ({"test_list": None, "input_output": "{"}, "not valid JSON"),
        ({"test_list": None, "input_output": "[]"}, "'inputs' and 'outputs'"),
        ({"test_list": None, "input_output": {"inputs": ["1"], "outputs": []}}, "1 inputs for 0"),
        ({"test_list": None, "entry_point": "a b", "test": "def check(c): ...", "prompt": "x"},
         "function name"),
        ({"test_list": None, "entry_point": "f", "test": "assert f()", "prompt": "x"},
         "is not defined"),
    ],
)  # fmt: skip
def test_a_malformed_row_says_file_and_line(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    bad = {name: value for name, value in {**MBPP, **change}.items() if value is not None}
    file.write_text(json.dumps(MBPP) + "\n" + json.dumps(bad) + "\n")
    with pytest.raises(DataError, match=rf"rows.jsonl, line 2.*{says}"):
        CodeExecutionEnvironment(str(file))
    skipped = CodeExecutionEnvironment(dataset=str(file), on_bad_row="skip")
    assert skipped.num_tasks() == 1


def test_columns_are_renamed_and_rows_split() -> None:
    rows = [{**MBPP, "text": f"Problem {i}"} for i in range(40)]
    rows = [{("tests" if k == "test_list" else k): v for k, v in row.items()} for row in rows]
    world = CodeExecutionEnvironment(rows, columns={"test_list": "tests"})
    train, held = world.num_tasks("train"), world.num_tasks("eval")
    assert train and held and train + held == 40
    seen = {world.task(i).prompt[0].content for i in range(train)}
    assert not seen & {world.task(i, "eval").prompt[0].content for i in range(held)}
    assert world.spawn()._table is world._table
    assert converted(MBPP, "here", 1, 20)["task_id"] == 1


# -- the sandbox behind it -------------------------------------------------------------------------


class Failing:
    """A sandbox that never gives a result."""

    name = "failing"

    async def run(self, *args: Any, **settings: Any) -> Any:
        raise SandboxError("no sandbox today")

    async def session(self, *args: Any, **settings: Any) -> Any:
        raise SandboxError("no sandbox today")

    def close(self) -> None:
        return None


def test_a_sandbox_that_fails_is_no_reward() -> None:
    for problem in (ADD, CodeProblem("", "programs", [["1", "1"]])):
        with pytest.raises(SandboxError):
            Player(problem, Failing()).says(RIGHT)


def test_copies_share_one_sandbox_and_no_episode(sandbox: Sandbox) -> None:
    world = CodeExecutionEnvironment(sandbox=sandbox)
    for twin in (world.spawn(), copy.deepcopy(world)):
        assert twin._bench is world._bench
    one, two = Player(ADD, sandbox), None
    one.says(HALF)
    two = copy.deepcopy(one.world)
    again = [run_async(w.step({"agent": Message(RIGHT)})) for w in (one.world, two)]
    assert [r.rewards["agent"].value for r in again] == [1.5, 1.5]


def test_nothing_is_opened_before_it_is_needed_and_bad_isolation_is_named() -> None:
    player = Player(ADD, None, isolation="no-such-thing")
    with pytest.raises(ConfigError, match="isolation"):
        player.says(RIGHT)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"difficulty_range": [3, 1]}, "difficulty_range"),
        ({"difficulty_range": [1, 4]}, "from 1 to 3"),
        ({"families": ["list"]}, "did you mean 'lists'"),
        ({"families": []}, "at least one"),
        ({"generator": {"templates": ["largr"]}}, "did you mean 'larger'"),
        ({"generator": {"level": 1}}, "generator: .*level"),
        ({"generator": {"num_hidden": 1}}, "num_hidden"),
        ({"generator": {"num_visible": 5}}, "num_visible"),
        ({"generator": {}, "families": ["lists"]}, "only one of generator"),
        ({"generator": {}, "dataset": [MBPP]}, "only one of generator"),
        ({"generator": {"seed": 1}, "seed": 2}, "seed"),
        ({"generator": CodeProblemGenerator(), "seed": 2}, "seed"),
        ({"timeout": 0}, "wall"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 2, "max_turns": 3}, "max_turns=3"),
        ({"dataset": [MBPP], "max_tests": 0}, "max_tests"),
    ],
)
def test_impossible_arguments_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CodeExecutionEnvironment(**settings)


def configured(name: str) -> CodeExecutionEnvironment:
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    (section,) = config.environments
    return CodeExecutionEnvironment(**section.constructor_arguments(CodeExecutionEnvironment))


def test_a_config_makes_the_world_it_describes() -> None:
    assert configured("code_generation_ppo").max_attempts == 3
    world = configured("code")
    assert world.generator is not None and world.generator.num_visible == 1
    assert world.limits.wall == 1.0 and world.max_attempts == 1
    longest = max(len(str(world.task(i).answer)) for i in range(100))
    assert longest < 60  # what the embedded model can learn to write


BUSY = "import time\nwhile time.process_time() < {seconds}: pass\n"


def test_many_episodes_at_once_and_none_is_called_too_slow(sandbox: Sandbox) -> None:
    """Whoever waits for one that hangs waits longer than a program may take."""
    world = CodeExecutionEnvironment(timeout=4.0, max_attempts=1, sandbox=sandbox)

    async def play(seed: int) -> StepResult:
        copied = world.spawn()
        copied.reset(copied.task(seed), seed)
        busy = BUSY.format(seconds=0.01)
        right = busy + extract_code(copied.expert("agent", []) or "")
        solution = "import time\ntime.sleep(99)" if seed % 16 == 0 else right
        return await copied.step({"agent": Message(fenced(solution))})

    async def all_of_them() -> list[StepResult]:
        return await asyncio.gather(*(play(seed) for seed in range(64)))

    found = [result.rewards["agent"].value for result in run_async(all_of_them())]
    assert found == [-0.5 if seed % 16 == 0 else 2.0 for seed in range(64)]
