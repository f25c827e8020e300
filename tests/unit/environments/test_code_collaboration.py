"""Code collaboration: what a program by several writers is paid, number by number, in a real
sandbox."""

from typing import Any

import pytest

from mrlm.core.errors import ConfigError, DataError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, StepResult, Task
from mrlm.environments.programs.code.formats import PROBLEM
from mrlm.environments.programs.code.problems import CodeProblem
from mrlm.environments.programs.code_collaboration import CodeCollaborationEnvironment
from mrlm.environments.programs.code_collaboration.structure import binds, function, is_thin, parsed
from mrlm.sandbox.types import Sandbox

TOTAL = CodeProblem(
    "Write `total(xs)`: the sum of the squares.",
    "calls",
    [[[[1, 2]], 5], [[[3]], 9], [[[]], 0], [[[907, 1]], 822650]],
    entry="total",
    visible=1,
)
SQUARE = "def aux(x):\n    return x * x"
SUM = "def total(xs):\n    return sum(aux(x) for x in xs)"
ALONE = "def total(xs):\n    return sum(x * x for x in xs)"
WHOLE = "def aux(xs):\n    return sum(x * x for x in xs)"


class Player:
    """One episode, in which several programs may be handed in."""

    def __init__(self, sandbox: Sandbox, problem: CodeProblem = TOTAL, **settings: Any) -> None:
        self.world = CodeCollaborationEnvironment(sandbox=sandbox, test_timeout=5.0, **settings)
        info = {PROBLEM: problem.record()}
        self.result = self.world.reset(Task("t", [Message(problem.question)], info=info))

    def says(self, *codes: str) -> StepResult:
        said = dict(zip(self.world.writers, map(Message, codes), strict=True))
        self.result = run_async(self.world.step(said))
        return self.result

    def told(self, agent: str = "main") -> str:
        return self.result.observations[agent].messages[0].content


def paid(sandbox: Sandbox, *codes: str, **settings: Any) -> float:
    found = Player(sandbox, **settings).says(*codes)
    (value,) = {round(reward.value, 9) for reward in found.rewards.values()}
    assert sum(found.rewards["main"].components.values()) == pytest.approx(value)
    return value


@pytest.mark.parametrize(
    ("aux", "main", "value"),
    [
        (SQUARE, SUM, 4.0), (f"Here:\n```python\n{SQUARE}\n```", f"```python\n{SUM}\n```", 4.0),
        ("", "", 0.0), (SQUARE, "", 0.4), ("", ALONE, 2.1),
        ("def aux(x):\n    print(x)", ALONE, 2.1), ("def aux(x):\n    return None", ALONE, 2.1),
        (SQUARE, "def total(xs):\n    print(1)", 0.4),
        (SQUARE, "def other(xs):\n    return 1", 0.4),
        (SQUARE, "def total(xs):\n    return (", 0.4), ("def aux(x:", ALONE, 0.6),
        (SQUARE, "def total(xs):\n    return -1", 1.5),
        (SQUARE, "def total(xs):\n    return 5", 1.75),
        (SQUARE, "def total(xs):\n    return 5 if aux(1) else 0", 3.25), (SQUARE, ALONE, 2.5),
        (WHOLE, "def total(xs):\n    return aux(xs)", 3.0),
        (WHOLE, "def total(xs):\n    '''Sum.'''\n    found = aux(xs)\n    return found", 3.0),
        (SQUARE, "def total(xs):\n    aux(1)\n    return sum(x * x for x in xs)", 3.5),
    ],
)  # fmt: skip
def test_what_a_program_is_paid(aux: str, main: str, value: float, sandbox: Sandbox) -> None:
    assert paid(sandbox, aux, main) == pytest.approx(value)


@pytest.mark.parametrize(
    ("aux", "main", "value"),
    [
        # a wrapper that looks like work
        (WHOLE, "def total(xs):\n    return aux(xs) + 0", 3.0),
        (WHOLE, "def total(xs):\n    if True:\n        return aux([x for x in xs])", 3.0),
        # named, and not called
        (SQUARE, f"{ALONE}  # aux(1)", 2.5),
        (SQUARE, f"{ALONE}\n    return aux(xs)", 2.5),
        (SQUARE, f"def total(xs):\n    if False:\n        aux(1)\n    {ALONE[19:].strip()}", 2.5),
        (SQUARE, "def total(xs):\n    text = 'aux(xs)'\n    return sum(x * x for x in xs)", 2.5),
        # called, and not needed
        (SQUARE, "def total(xs):\n    try:\n        aux(1)\n    except Exception:\n        pass\n"
                 "    return sum(x * x for x in xs)", 2.5),
        (SQUARE, "def total(xs):\n    y = aux(1)\n    return sum(x * x for x in xs)", 3.5),
        # the entry point's writer writes everything
        (SQUARE, f"{SQUARE}\n{SUM}", 2.5),
        (SQUARE, f"def total(xs):\n    aux = lambda x: x * x\n    return {SUM[26:]}", 2.5),
        # both hand in the same
        (f"{SQUARE}\n{SUM}", f"{SQUARE}\n{SUM}", 2.5),
        # what is said about tests is no test
        (SQUARE, "import sys\nsys.exit(0)\ndef total(xs):\n    return aux(1)", 1.5),
        (SQUARE, "class E(int):\n    def __eq__(self, o): return True\n"
                 "def total(xs):\n    return E(aux(1))", 1.5),
    ],
)  # fmt: skip
def test_hacks_earn_less(aux: str, main: str, value: float, sandbox: Sandbox) -> None:
    assert paid(sandbox, aux, main) == pytest.approx(value) and value < 4.0


def test_more_writers_share_what_aux_is_paid(sandbox: Sandbox) -> None:
    one, two = SQUARE.replace("aux", "aux_1"), "def aux_2(xs):\n    return sum(xs)"
    both = "def total(xs):\n    return aux_2([aux_1(x) for x in xs])"
    seats = {"agents": ["a", "b", "main"]}
    assert paid(sandbox, one, two, both, **seats) == pytest.approx(4.0)
    first = "def total(xs):\n    return sum(aux_1(x) for x in xs)"
    assert paid(sandbox, one, two, first, **seats) == pytest.approx(3.75)
    assert paid(sandbox, one, "", first, **seats) == pytest.approx(3.55)
    chained = "def aux_2(xs):\n    return sum(aux_1(x) for x in xs)"
    through = "def total(xs):\n    return sum([aux_2(xs), 1]) - 1"
    assert paid(sandbox, one, chained, through, **seats) == pytest.approx(3.0), "aux_2 is enough"


def test_rewards_of_each_writer(sandbox: Sandbox) -> None:
    values = Player(sandbox, rewards="individual").says(SQUARE, SUM).rewards
    assert values["aux"].value == pytest.approx(2.4) and values["main"].value == pytest.approx(3.6)
    values = Player(sandbox, rewards="individual").says("", ALONE).rewards
    assert values["aux"].value == pytest.approx(1.5) and values["main"].value == pytest.approx(2.1)


def test_an_episode_is_paid_what_its_last_program_is_worth(sandbox: Sandbox) -> None:
    player = Player(sandbox, max_turns=3)
    found = []
    for codes in ((SQUARE, "def total(xs):\n    return 5"), ("", ""), (SQUARE, SUM)):
        found.append(player.says(*codes))
    assert [r.rewards["main"].value for r in found] == pytest.approx([1.75, -1.75, 4.0])
    assert found[-1].done and not found[0].done


@pytest.mark.parametrize(
    ("mode", "has", "lacks"),
    [
        ("none", [], ["test", "aux"]),
        ("count", ["1 of 4 tests pass"], ["aux"]),
        ("graded", ["Some tests pass", "does not need aux"], ["1 of 4"]),
        ("tests", ["Test 1 passes", "not shown", "does not need aux"], ["907", "822650"]),
    ],
)
def test_what_is_told(mode: Any, has: list[str], lacks: list[str], sandbox: Sandbox) -> None:
    player = Player(sandbox, max_turns=2, feedback=mode)
    player.says(SQUARE, "def total(xs):\n    return 5")
    for agent in ("aux", "main"):
        assert "attempt 2 of 2" in player.told(agent)
        assert all(words in player.told(agent) for words in has)
        assert not any(words in player.told(agent) for words in lacks)


def test_errors_of_visible_tests_are_told_with_the_line_of_the_writer(sandbox: Sandbox) -> None:
    player = Player(sandbox, max_turns=2)
    player.says(SQUARE, "def total(xs):\n    y = aux(1)\n    return y / 0")
    assert "ZeroDivisionError in line 3" in player.told() and "Test 1 fails" in player.told()


def test_an_expert_sees_the_program_and_is_paid_for_what_it_brings(sandbox: Sandbox) -> None:
    player = Player(sandbox, max_turns=2, feedback="expert", expert_agent="teacher")
    assert player.world.agents == ("aux", "main", "teacher") and player.world.max_turns == 3
    first = player.says(SQUARE, "def total(xs):\n    return 5")
    assert set(first.observations) == {"teacher"} and "teacher" not in first.rewards
    shown = player.told("teacher")
    assert "x * x" in shown and "return 5" in shown and "907" not in shown
    advice = run_async(player.world.step({"teacher": Message("Call aux.")}))
    assert set(advice.observations) == {"aux", "main"} and not advice.rewards
    assert "Call aux." in advice.observations["aux"].messages[0].content
    last = player.says(SQUARE, SUM)
    assert last.done and last.rewards["main"].value == pytest.approx(2.25)


def test_the_expert_is_paid_in_the_next_turn(sandbox: Sandbox) -> None:
    player = Player(sandbox, max_turns=2, feedback="expert")
    player.says("", "")
    run_async(player.world.step({}))
    assert player.says(SQUARE, SUM).rewards["expert"].value == pytest.approx(4.0)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_honest_writers_of_generated_problems_earn_the_most(split: Any, sandbox: Sandbox) -> None:
    world = CodeCollaborationEnvironment(sandbox=sandbox)
    texts = {world.task(seed, split).prompt[0].content for seed in range(200)}
    assert len(texts) >= 40
    for seed in range(8):
        world.reset(world.task(seed, split))
        said = {name: Message(world.expert(name, []) or "") for name in world.agents}
        assert run_async(world.step(said)).rewards["main"].value == pytest.approx(4.0)


def test_rows_of_the_known_data_sets(sandbox: Sandbox) -> None:
    mbpp = {"text": "Sum the squares.", "test_list": [
        "assert total([1, 2]) == 5", "assert total([3]) == 9"], "codes": [SQUARE, SUM]}  # fmt: skip
    stub = "def total(xs):\n    '''Sum the squares.'''\n"
    human = {"prompt": stub, "entry_point": "total",
             "test": "def check(candidate):\n    assert candidate([1, 2]) == 5"}  # fmt: skip
    world = CodeCollaborationEnvironment([mbpp], sandbox=sandbox)
    world.reset(world.task(0))
    said = {name: Message(world.expert(name, []) or "") for name in world.agents}
    assert run_async(world.step(said)).rewards["main"].value == pytest.approx(4.0)
    world = CodeCollaborationEnvironment([human], sandbox=sandbox)
    for main in (SUM, "    return sum(aux(x) for x in xs)"):
        world.reset(world.task(0))
        assert world.expert("aux", []) is None
        said = {"aux": Message(SQUARE), "main": Message(main)}
        assert run_async(world.step(said)).rewards["main"].value == pytest.approx(4.0)
    stdin = {"question": "Add.", "input_output": {"inputs": ["1", "2"], "outputs": ["1", "2"]}}
    with pytest.raises(DataError, match=r"row 0.*tests of a function are needed"):
        CodeCollaborationEnvironment([stdin])
    with pytest.raises(DataError, match=r"row 0, column 'codes'.*2 texts"):
        CodeCollaborationEnvironment([{**mbpp, "codes": ["x"]}])


def test_the_structure_of_a_text() -> None:
    assert function(parsed("def f():\n    def g():\n        return 1"), "f") is None
    assert function(parsed("def f():\n    return 1\ndef f():\n    pass"), "f") is None
    assert function(parsed("class f:\n    def f(self):\n        return 1"), "f") is None
    for text in ("import x as aux", "aux = 1", "def f(aux): ...", "for aux in x: ...",
                 "def f():\n    global aux\n    aux = 2", "class aux: ..."):  # fmt: skip
        assert binds(parsed(text), "aux"), text
    assert not binds(parsed("x = aux(1)\ny.aux = 2"), "aux")
    thin = function(parsed("def f(a, *b):\n    return aux(a, *b, c=1)"), "f")
    wide = function(parsed("def f(a):\n    return aux(a)[0]"), "f")
    assert thin and is_thin(thin, ["aux"]) and wide and not is_thin(wide, ["aux"])
    for hostile in (
        "(" * 19_000,
        "-" * 19_000 + "1",
        "a" + ".b" * 9_000,
        "x" * 99_999,
        "\0",
        "\ud800",
    ):
        assert parsed(hostile) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"agents": ["one"]}, "at least two"),
        ({"feedback": "test"}, "did you mean 'tests'"),
        ({"feedback": "expert", "expert_agent": "main"}, "different names"),
        ({"rewards": "all"}, "one of team, individual"),
        ({"max_turns": 0}, "max_attempts"),
        ({"num_hidden": 1}, "num_hidden"),
        ({"test_timeout": 0}, "wall"),
    ],
)
def test_impossible_arguments_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CodeCollaborationEnvironment(**settings)
