"""Class completion: what a class by several writers is paid, number by number, in a real sandbox;
and that nobody is paid for turning against the tests."""

from typing import Any

import pytest

from mrlm.core.errors import ConfigError, DataError, EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, StepResult
from mrlm.environments.programs.class_completion import ClassCompletionEnvironment
from mrlm.environments.programs.class_completion.generator import PLANS
from mrlm.environments.programs.class_completion.generator import row as generated
from mrlm.sandbox.grading import grade_class
from mrlm.sandbox.types import Limits, Sandbox

SKELETON = '''
import math

class Box:
    """A box of numbers."""

    def __init__(self, size=3):
        self.size = size
        self.items = []

    def put(self, number):
        """Add a number and return how many there are; a ValueError if the box is full."""

    def total(self):
        """The sum."""

    def mean(self, default=0):
        """The average, or default."""

    def scaled(self, factor, offset):
        """The numbers times factor plus offset."""
'''
PUT = """    def put(self, number):
        if len(self.items) >= self.size:
            raise ValueError("full")
        self.items.append(number)
        return len(self.items)
"""
TOTAL = "    def total(self):\n        return math.fsum(self.items)\n"
MEAN = """    def mean(self, default=0):
        return self.total() / len(self.items) if self.items else default
"""
SCALED = """    def scaled(self, factor, offset):
        return [factor * item + offset for item in self.items]
"""
INIT = """class Box:
    def __init__(self, size=3):
        self.size = size
        self.items = []
"""
TESTS = """
import unittest

class BoxTestPut(unittest.TestCase):
    def setUp(self):
        self.box = Box(2)
    def test_put(self):
        self.assertEqual(self.box.put(4), 1)
        self.assertEqual(self.box.items, [4])
    def test_full(self):
        self.box.items = [1, 2]
        with self.assertRaises(ValueError):
            self.box.put(3)

class BoxTestTotal(unittest.TestCase):
    def test_total(self):
        box = Box()
        box.items = [1, 2, 3.5]
        self.assertAlmostEqual(box.total(), 6.5)

class BoxTestMean(unittest.TestCase):
    def test_mean(self):
        box = Box()
        box.items = [1, 2, 6]
        self.assertEqual(box.mean(), 3)
    def test_default(self):
        self.assertEqual(Box().mean(7), 7)

class BoxTestScaled(unittest.TestCase):
    def test_scaled(self):
        box = Box()
        box.items = [1, 2]
        self.assertEqual(box.scaled(3, 1), [4, 7])
    def test_file(self):  # nothing that two sandboxes share
        with open("numbers.txt", "w") as file:
            file.write("1")
        self.assertEqual(Box().read("numbers.txt"), 1)
    def test_math(self):
        self.assertEqual(Box().scaled(math.pi, 0), [])
"""
METHODS = {"put": [], "total": [], "mean": ["total"], "scaled": []}
ROW = {
    "task_id": "ClassEval_0",
    "skeleton": SKELETON,
    "test": TESTS,
    "solution_code": f"import math\n\n{INIT}\n{PUT}\n{TOTAL}\n{MEAN}\n{SCALED}",
    "import_statement": ["import math"],
    "class_description": '    """A box of numbers."""\n',
    "methods_info": [
        {
            "method_name": name,
            "method_description": f"def {name}(self): ...",
            "test_class": f"BoxTest{name.title()}",
            "test_code": "",
            "solution_code": "",
            "dependencies": {"Standalone": not needs, "method_dependencies": needs},
        }
        for name, needs in METHODS.items()
    ],
    "class_name": "Box",
    "test_classes": ["BoxTestPut", "BoxTestTotal", "BoxTestMean", "BoxTestScaled"],
    "class_constructor": INIT.replace("Box:", "Box: ") + "\n",
    "fields": ["self.items"],
}
FIRST, SECOND = PUT + TOTAL, MEAN + SCALED  # by dependency: put, total / scaled, mean


class Player:
    """One episode, in which several classes may be handed in."""

    def __init__(self, sandbox: Sandbox, row: dict[str, Any] = ROW, **settings: Any) -> None:
        division = [["put", "total"], ["scaled", "mean"]]
        settings = {"division": division, "test_timeout": 0.5, **settings}
        self.world = ClassCompletionEnvironment([row], sandbox=sandbox, **settings)
        self.result = self.world.reset(self.world.task(0))

    def says(self, *codes: str) -> StepResult:
        said = dict(zip(self.result.observations, map(Message, codes), strict=True))
        self.result = run_async(self.world.step(said))
        return self.result

    def told(self, agent: str = "first") -> str:
        return self.result.observations[agent].messages[0].content


def paid(sandbox: Sandbox, *codes: str, **settings: Any) -> tuple[float, ...]:
    found = Player(sandbox, **settings).says(*codes)
    for reward in found.rewards.values():
        if settings.get("rewards") != "individual":
            assert sum(reward.components.values()) == pytest.approx(reward.value)
    return tuple(round(reward.value, 9) for reward in found.rewards.values())


@pytest.fixture(scope="module")
def known(sandbox: Sandbox) -> dict[str, Any]:
    """The row without the test that cannot be judged, so that nothing has to be found out."""
    cut = TESTS.replace("    def test_file(self)", "    def no_file(self)")
    return ROW | {"test": cut, "sure": True}


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        (FIRST, SECOND, 6.0),
        (f"{INIT}\n{FIRST}", f"Mine:\n```python\nimport math\nclass Box:\n{SECOND}```", 6.0),
        (FIRST.replace("    def put", "def put", 1), SECOND, 6.0),  # the first indent is lost
        ("", "", 0.0),
        (FIRST, "", 1.0 + 4 * 3 / 7),
        ("", SECOND, 1.0 + 4 * 3 / 7),  # the default, the scaled numbers and pi
        (FIRST, MEAN, 1.5 + 4 * 5 / 7),
        (FIRST, "def mean(:", 0.0),  # not Python
        (FIRST, "    def mean(self, default=0):\n        return 1\n" + SCALED, 2.0 + 4 * 5 / 7),
        # each writes everything: the other's methods are charged, and left out
        (FIRST + SECOND, FIRST + SECOND, 5.0),
        (FIRST + SECOND, SECOND, 5.5),
        (FIRST + MEAN.replace("7", "8"), SECOND, 5.75),
        # only one works
        (FIRST + SECOND, "", 1.0 + 4 * 3 / 7 - 0.5),
        # stubs
        ("".join(f"    def {name}(self):\n        pass\n" for name in ("put", "total")), "", 0.0),
        (f'    def put(self, number):\n        """Add."""\n        ...\n{TOTAL}', "", 0.5 + 4 / 7),
        ("    def put(self, number):\n        raise NotImplementedError\n", "", 0.0),
        # other parameters than asked for are not what was asked for
        ("    def put(self):\n        return 1\n", "", 0.0),
        ("    def put(self, *args):\n        return 1\n", "", 0.5),
        # the given constructor cannot be replaced, nor how the class behaves
        (f"    def __init__(self, size=3):\n        self.items = [9] * 9\n{FIRST}", SECOND, 6.0),
        (f"    def __eq__(self, other):\n        return True\n{FIRST}", SECOND, 6.0),
        # helpers are welcome
        (f"{FIRST}    def _all(self):\n        return self.items\n",
         SECOND.replace("in self.items]", "in self._all()]"), 6.0),
    ],
)  # fmt: skip
def test_what_a_class_is_paid(
    first: str, second: str, value: float, sandbox: Sandbox, known: dict[str, Any]
) -> None:
    assert paid(sandbox, first, second, row=known) == pytest.approx((value, value))


ALWAYS = "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = None\n"
DOES = "    def {}(self, *args):\n        {}\n"


@pytest.mark.parametrize(
    "before",
    [
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n",
        "import unittest\nclass TestCase: pass\nunittest.TestCase = TestCase\n",
        "import sys\nsys.exit(0)\n",
        "import os\nos._exit(0)\n",
        "print('OK')\nprint('Ran 7 tests')\n",
        "import atexit\natexit.register(print, '{\"passed\": true}')\n",
        "import builtins\nbuiltins.AssertionError = Exception\n",
        "import gc\nfor each in gc.get_objects():\n    pass\n",
        ALWAYS,
    ],
)
def test_turning_against_the_tests_is_not_paid(
    before: str, sandbox: Sandbox, known: dict[str, Any]
) -> None:
    methods = "".join(DOES.format(name, "return E(0)") for name in ("put", "total"))
    others = "".join(DOES.format(name, "raise AssertionError") for name in ("scaled", "mean"))
    (value, _) = paid(sandbox, before + ALWAYS + f"class Box:\n{methods}", others, row=known)
    assert value <= 2.0


def test_only_what_the_honest_class_passes_is_counted(sandbox: Sandbox) -> None:
    player = Player(sandbox)
    assert len(player.world._problem.cases) == 8
    found = player.says(FIRST, SECOND)
    assert found.rewards["first"].value == pytest.approx(6.0)
    assert len(next(iter(player.world._bench._usable.values()))) == 7  # all but the file
    wrong = ROW | {"solution_code": f"import math\n{INIT}"}
    with pytest.raises(EpisodeError, match="none of its tests"):
        Player(sandbox, wrong).says(FIRST, SECOND)
    alone = ROW | {"solution_code": None}
    assert paid(sandbox, FIRST, SECOND, row=alone)[0] == pytest.approx(2 + 4 * 7 / 8)


def test_each_may_be_paid_for_its_own(sandbox: Sandbox, known: dict[str, Any]) -> None:
    own = {"row": known, "rewards": "individual"}
    assert paid(sandbox, FIRST, "", **own) == pytest.approx((2 + 12 / 7, 12 / 7))
    assert paid(sandbox, FIRST + SECOND, SECOND, **own) == pytest.approx((5.5, 6.0))


def test_turns_earn_the_difference_and_feedback_gives_no_hidden_test_away(
    sandbox: Sandbox, known: dict[str, Any]
) -> None:
    player = Player(sandbox, known, max_turns=3, feedback="tests")
    assert "This must hold:\nself.assertEqual(self.box.put(4), 1)" in player.told()
    assert "`put`, `total`" in player.told() and "`scaled`, `mean`" in player.told("second")
    total = player.says("    def put(self, number):\n        pass\n", SECOND).rewards["first"].value
    said = player.told()
    assert "put, total" in said and "This does not hold (wrong)" in said and "3 of 7" in said
    assert "scaled(3" not in said and "Box().mean(7)" not in said and "attempt 2 of 3" in said
    total += player.says(FIRST, SECOND).rewards["first"].value
    assert player.result.done and total == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("mode", "says"),
    [("none", "Try again"), ("count", "5 of 7 tests pass."), ("graded", "Most tests pass.")],
)
def test_modes_of_feedback(mode: Any, says: str, sandbox: Sandbox, known: dict[str, Any]) -> None:
    player = Player(sandbox, known, max_turns=2, feedback=mode)
    player.says(FIRST, MEAN)
    assert player.told().startswith(says) or says in player.told()
    assert ("scaled" in player.told()) == (mode == "graded")


def test_somebody_may_advise(sandbox: Sandbox, known: dict[str, Any]) -> None:
    player = Player(sandbox, known, max_turns=2, feedback="expert", expert_agent="eve")
    assert player.world.agents == ("first", "second", "eve") and player.world.max_turns == 3
    player.says(FIRST, "")
    assert "The writer of `scaled`, `mean`" in player.told("eve")
    advice = player.world.expert("eve", [])
    assert advice is not None and "def mean" in advice
    player.says(advice)
    assert "Advice:" in player.told("second")
    rewards = player.says(FIRST, SECOND).rewards
    assert (
        rewards["eve"].value == pytest.approx(rewards["first"].value) == pytest.approx(5 - 12 / 7)
    )


# -- who writes what -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "count", "parts"),
    [
        ("dependency", 2, [["put", "total"], ["scaled", "mean"]]),
        ("parameters", 2, [["total", "put"], ["mean", "scaled"]]),
        ("parameters", 3, [["total", "put"], ["mean"], ["scaled"]]),
        ("dependency", 4, [["put"], ["total"], ["scaled"], ["mean"]]),
        ("dependency", 1, [["put", "total", "scaled", "mean"]]),
        ([["mean"], ["put", "total", "scaled"]], 2, [["mean"], ["put", "total", "scaled"]]),
    ],
)
def test_methods_are_divided(by: Any, count: int, parts: list[list[str]]) -> None:
    names = [f"w{i}" for i in range(count)]
    world = ClassCompletionEnvironment([ROW], agents=names, division=by)
    world.reset(world.task(0))
    assert world._division == parts
    said = [world.expert(name, []) or "" for name in names]
    assert all(f"def {name}(" in said[i] for i, part in enumerate(parts) for name in part)


def test_a_row_may_say_who_writes_what_and_must_fit() -> None:
    row = ROW | {"division": [["mean", "put"], ["total", "scaled"]]}
    world = ClassCompletionEnvironment([row])
    world.reset(world.task(0))
    assert world._division == [["mean", "put"], ["total", "scaled"]]
    for wrong in ([["mean"], ["put"]], [["mean", "put", "total", "scaled"], []], [["a"], ["b"]]):
        world = ClassCompletionEnvironment([ROW], division=wrong)
        with pytest.raises(ConfigError, match="each method to one writer"):
            world.reset(world.task(0))
    with pytest.raises(ConfigError, match="parameters"):
        ClassCompletionEnvironment([ROW], division="size")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"skeleton": None}, "column 'skeleton' is missing"),
        ({"skeleton": "class Other:\n    pass"}, "class 'Box' is not defined"),
        ({"skeleton": "class Box("}, "column 'skeleton': not valid Python"),
        ({"test": "import unittest"}, "0 tests"),
        ({"methods_info": [{"method_name": "fly"}]}, "no method 'fly'"),
        ({"methods_info": "[1"}, "cannot be parsed as a list"),
        ({"methods_info": ROW["methods_info"][:1]}, "cannot be divided among 2"),
    ],
)
def test_rows_that_cannot_be_used_say_where(change: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        ClassCompletionEnvironment([ROW | change])


def test_lists_may_be_text_as_some_files_hold_them() -> None:
    columns = ("methods_info", "import_statement", "test_classes")
    row = ROW | {name: repr(ROW[name]) for name in columns}
    one, two = (ClassCompletionEnvironment([each]).task(0) for each in (ROW, row))
    assert one.prompt == two.prompt and one.info["class_problem"] == two.info["class_problem"]


def test_generated_classes_are_in_the_form_of_the_data_set_and_their_tests_can_tell() -> None:
    keys = set(ROW) | {"sure"}
    seen = set()
    for seed in range(60):
        row = generated(str(seed), "train")
        assert set(row) == keys
        seen.add(row["class_constructor"].split("def")[0].split('"""')[1][:12])
        for info in row["methods_info"]:
            expected = [line.rsplit(", ", 1)[-1] for line in info["test_code"].splitlines()
                        if "assertEqual" in line]  # fmt: skip
            assert info["test_code"].count("def test_") == 3 and expected
    assert len(seen) == len(PLANS)


# -- the grader ------------------------------------------------------------------------------------

OBJECTS = """
import unittest
class T(unittest.TestCase):
    def test_same(self):
        one = Pair(1, 2)
        self.assertIsInstance(one.me(), Pair)
        self.assertEqual(one.me().a, 1)
        self.assertEqual([len(one), list(one), 2 in one], [2, [1, 2], True])
        self.assertEqual([one[1], str(one)], [2, "P"])
    def test_itself(self):
        one = Pair(1, 2)
        self.assertIs(one.me(), one)
    def test_holds_itself(self):
        one = Pair(4, 2)
        self.assertIn(4, one.me())
    def test_equal(self):
        self.assertEqual(Pair(1, 2).plus(Pair(1, 1)), Pair(2, 3))
    def test_last(self):
        wanted = Pair(2, 3)
        self.assertEqual(Pair(1, 2).plus(wanted), Pair(3, 5))
    def test_changed(self):
        items = [3, 1, 2]
        Pair(1, 2).sort(items)
        self.assertEqual(items, [1, 2, 3])
    def test_static(self):
        self.assertEqual((Pair.SIZE, Pair.twice(4)), (2, 8))
    def test_none(self):
        self.assertTrue(True)
    def test_held(self):
        self.assertIn(4, Pair(4, 2).both())
    def test_true(self):
        self.assertTrue(Pair(4, 2).both())
    def test_more(self):
        self.assertGreater(Pair(4, 2).high(), 3)
    def test_long(self):
        self.assertEqual(len(Pair(4, 2).both()), 2)
    @unittest.skip("later")
    def test_skipped(self):
        Pair(1, 2)
"""
PAIR = """
class Pair:
    SIZE = 2
    def __init__(self, a, b): self.a, self.b = a, b
    def me(self): return self
    def __len__(self): return 2
    def __iter__(self): return iter([self.a, self.b])
    def __getitem__(self, i): return [self.a, self.b][i]
    def __str__(self): return "P"
    def __eq__(self, other): return [*self] == [*other]
    def plus(self, other): return Pair(self.a + other.a, self.b + other.b)
    def both(self): return [self.a, self.b]
    def high(self): return max(self.a, self.b)
    def sort(self, items): items.sort()
    @staticmethod
    def twice(x): return 2 * x
"""
SINGLE = """
class Pair:
    only = None
    def __new__(cls, *args):
        cls.only = cls.only or object.__new__(cls)
        return cls.only
    def __eq__(self, other): return True
    def __getattr__(self, name): return lambda *args: self
    me = plus = lambda self, *args: self
"""
LAST = """
class Pair:
    made = []
    def __init__(self, a, b): self.made.append(self)
    def plus(self, other): return self.made[-1]
"""


LIAR = """
class All:
    def __contains__(self, item): return True
    def __bool__(self): return True
    def __len__(self): return 2
    def __eq__(self, other): return True
    __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: True
class Pair(All):
    def __init__(self, *args): pass
    both = high = plus = sort = lambda self, *args: All()
    me = lambda self: self
    twice = staticmethod(lambda x: All())
    SIZE = All()
"""


def test_objects_of_a_class_are_used_and_never_compared(sandbox: Sandbox) -> None:
    names = ["same", "equal", "last", "changed", "static", "none", "skipped"]
    names += ["held", "true", "more", "long", "itself", "holds_itself"]

    def kinds(code: str) -> dict[str, str]:
        cases = [("T", f"test_{name}") for name in names]
        found = run_async(grade_class(sandbox, code, "Pair", OBJECTS, cases, Limits(wall=60.0)))
        return {name: verdict.kind for name, verdict in zip(names, found, strict=True)}

    honest = kinds(PAIR)
    assert [name for name in names if honest[name] == "passed"] == [
        "same", "changed", "static", "held", "true", "more", "long",
    ]  # fmt: skip
    assert honest["none"] == honest["skipped"] == "refused"  # it asks nothing of the solution
    for hack in (SINGLE, LAST, LIAR):
        assert "passed" not in kinds(hack).values()
    assert set(kinds("Pair = 3").values()) == {"error"}
