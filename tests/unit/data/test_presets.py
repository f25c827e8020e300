"""Data sets by their short names: rows in each one's true format become the right tasks, wherever
they are read from."""

import json
import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mrlm.core.environment import Environment
from mrlm.core.errors import DataError
from mrlm.core.types import Message
from mrlm.data.presets import PRESETS
from mrlm.data.sources import split_files
from mrlm.data.tasks import Reading, read_rows
from mrlm.environments.math import PLUGIN as MATH
from mrlm.environments.programs.class_completion import PLUGIN as CLASSES
from mrlm.environments.programs.code import PLUGIN as CODE
from mrlm.environments.programs.code_collaboration import PLUGIN as TOGETHER
from mrlm.environments.qa import PLUGIN as QA
from mrlm.environments.reward import PLUGIN as REWARD
from mrlm.environments.texts.writing import PLUGIN as WRITING

Raw = dict[str, Any]

SOLUTION = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n#### 1,024"
BOXED = "We have $\\frac{1}{2}\\cdot\\boxed{1} = x$, so $x = \\boxed{\\frac{3}{\\sqrt{2}}}$."
STUB = 'def add(a, b):\n    """Add.\n    >>> add(1, 2)\n    3\n    """\n'
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
CLASS = """class Pile:
    def __init__(self):
        self.items = []

    def put(self, item):
        '''Put an item on top.'''

    def top(self):
        '''Return the last item.'''
"""
WHOLE = """class Pile:
    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(item)

    def top(self):
        return self.items[-1]
"""
TESTS = """import unittest

class PileTestTop(unittest.TestCase):
    def test_top_1(self):
        pile = Pile()
        pile.items = [1, 2]
        self.assertEqual(pile.top(), 2)

class PileTestPut(unittest.TestCase):
    def test_put_1(self):
        pile = Pile()
        pile.put(3)
        self.assertEqual(pile.items, [3])
"""


def method(name: str, description: str, solution: str) -> Raw:
    return {
        "method_name": name,
        "method_description": f"def {name}:\n    '''{description}'''\n",
        "test_class": f"PileTest{name[:3].title()}",
        "test_code": "class PileTest(unittest.TestCase): ...",
        "solution_code": f"def {name}:\n    {solution}",
        "dependencies": {
            "Standalone": False,
            "lib_dependencies": [],
            "field_dependencies": ["self.items"],
            "method_dependencies": [],
        },
    }


METHODS = [
    method("put", "Put an item on top.", "self.items.append(item)"),
    method("top", "Return the last item.", "return self.items[-1]"),
]
ADD = "print(int(input()) + int(input()))"
PLUS = """import numpy as np
from math import inf

def is_floats(x) -> bool:
    # check if it is float; List[float]; Tuple[float]
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False


def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if out != exp and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert out == exp, f"out: {out}, exp: {exp}"


inputs = [[1, 2], [0.1, 0.2], [-5, 5]]
results = [3, 0.3, 0]
for i, (inp, exp) in enumerate(zip(inputs, results)):
    assertion(add(*inp), exp, 0)
"""
POST = "SUBREDDIT: r/cats\n\nTITLE: My cat\n\nPOST: The cat sat down and slept.\n\nTL;DR:"


def talk(prompt: str, answer: str) -> list[Raw]:
    return [{"content": prompt, "role": "user"}, {"content": answer, "role": "assistant"}]


FLASH = {
    "triviaqa": "train",
    "popqa": "test",
    "2wiki": "train",
    "musique": "train",
    "bamboogle": "test",
}
"""Name -> first split, of the data sets in the form of FlashRAG."""

RAW: dict[str, Raw] = {
    "gsm8k": {"question": "How many clips {n}?", "answer": SOLUTION},
    "math": {"problem": "Find $x_{n}$.", "level": "Level 5", "type": "Algebra", "solution": BOXED},
    "dapo": {
        "prompt": "In triangle {n}, find $m$.",
        "solution": "34",
        "data_source": "math_dapo",
        "source_prompt": [
            {"content": "Solve the following math problem step by step. {n}", "role": "user"}
        ],
        "ability": "MATH",
        "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
    },
    "deepscaler": {
        "problem": "The operation {n} is defined.",
        "answer": "-\\frac{2}{3}",
        "solution": "1. Calculate.",
    },
    "aime": {
        "id": 0,
        "problem": "Quadratic polynomials {n}.",
        "solution": "Let $R(x)=P(x)+Q(x)$. Then $\\boxed{116}$.",
        "answer": "116",
        "url": "https://artofproblemsolving.com/wiki/index.php/2022_AIME_I_Problems/Problem_1",
    },
    "amc": {
        "id": 0,
        "problem": "What is $m+{n}$?",
        "answer": 142.0,
        "url": "https://artofproblemsolving.com/wiki/index.php/2022_AMC_12A_Problems/Problem_1",
    },
    "minerva": {"question": "Each of the {n} galaxies.", "answer": "4.5e33"},
    "cmath": {
        "grade": "1",
        "question": "小明有{n}个苹果",
        "golden": "10",
        "reasoning_step": "1",
        "num_digits": "2",
    },
    "humaneval": {
        "task_id": "HumanEval/{n}",
        "prompt": STUB.replace("Add.", "Add {n}."),
        "canonical_solution": "    return a + b\n",
        "test": CHECK,
        "entry_point": "add",
    },
    "mbpp": {
        "source_file": "Benchmark Questions Verification V2.ipynb",
        "task_id": 2,
        "prompt": "Write a function to add {n}.",
        "code": "import math\ndef add(a, b):\n    return a + b",
        "test_imports": ["import math"],
        "test_list": ["assert add(1, 2) == 3", "assert add(math.floor(1.5), 1) == 2"],
    },
    "mbpp_plus": {
        "task_id": 2,
        "code": "\ndef add(a, b):\n    return a + b",
        "prompt": "Write a function to add {n}.",
        "source_file": "Benchmark Questions Verification V2.ipynb",
        "test_imports": [],
        "test_list": ["assert add(1, 2) == 3"],
        "test": PLUS,
    },
    "coophumaneval": {
        "task_id": "CoopHumanEval/{n}",
        "prompt": STUB.replace("Add.", "Add {n}."),
        "test": CHECK,
        "entry_point": "add",
    },
    "classeval": {
        "task_id": "ClassEval_{n}",
        "skeleton": CLASS,
        "test": TESTS,
        "solution_code": WHOLE,
        "import_statement": [],
        "class_description": "A pile {n}.",
        "methods_info": METHODS,
        "class_name": "Pile",
        "test_classes": ["PileTestPut", "PileTestTop"],
        "class_constructor": "class Pile:\n    def __init__(self):\n        self.items = []\n",
        "fields": ["self.items"],
    },
    "apps": {
        "problem_id": 7,
        "question": "Add two numbers {n}.",
        "solutions": json.dumps([ADD, "pass"]),
        "input_output": json.dumps({"inputs": ["1\n2\n", "2\n2\n"], "outputs": ["3\n", "4\n"]}),
        "difficulty": "introductory",
        "url": "https://example.org/7",
        "starter_code": "",
    },
    "tldr": {"prompt": POST.replace("cat sat", "cat {n} sat"), "completion": " A cat slept."},
    "arxiv": {"article_id": "1.{n}", "abstract_text": "we study <S> {n} cats .", "token_count": 5},
    "nq": {"question": "who was number {n}", "answer": ["Ada", "Ada Lovelace"]},
    "hotpotqa": {
        "id": "5a{n}",
        "question": "Who is older {n}?",
        "answer": "Ada",
        "type": "comparison",
        "level": "hard",
        "supporting_facts": {"title": ["Ada", "Bob"], "sent_id": [0, 1]},
        "context": {"title": ["Ada", "Bob"], "sentences": [["She."], ["He.", "Was."]]},
    },
    **{
        name: {
            "id": f"{split}_{{n}}",
            "question": "who was number {n}",
            "golden_answers": ["Ada", "Ada Lovelace"],
            "metadata": {"type": "comparison"},
        }
        for name, split in FLASH.items()
    },
    "ultrafeedback": {
        "prompt": "Say {n}.",
        "prompt_id": "ab{n}",
        "chosen": talk("Say {n}.", "One."),
        "rejected": talk("Say {n}.", "No."),
        "messages": talk("Say {n}.", "One."),
        "score_chosen": 9.0,
        "score_rejected": 3.5,
    },
}


def numbered(value: Any, number: int) -> Any:
    """A row with `{n}` filled in, wherever it stands."""
    if isinstance(value, str):
        return value.replace("{n}", str(number))
    if isinstance(value, dict):
        return {key: numbered(each, number) for key, each in value.items()}
    return [numbered(each, number) for each in value] if isinstance(value, list) else value


def raw(name: str, *numbers: int) -> list[Raw]:
    return [numbered(RAW[name], number) for number in numbers]


def write(path: Path, rows: list[Raw]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def snapshot(folder: Path, name: str, kind: str = "parquet") -> Path:
    """A repository of the hub as it is, with two training rows and a held-out one."""
    preset = PRESETS[name]
    inside = folder / (preset.config or "data")
    for place, split in enumerate(preset.splits):
        rows = raw(name, 0, 1) if place == 0 else raw(name, 7)
        parts = [rows] if place else [[row] for row in rows]
        for number, part in enumerate(parts):
            write(inside / f"{split}-{number:05d}-of-{len(parts):05d}.{kind}", part)
    return folder


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    monkeypatch.setenv("MRLM_DATA", str(folder))
    return folder


def boxed(question: str) -> str:
    return f"{question}\nPut the final answer in \\boxed{{}}."


def coded(question: str) -> str:
    return f"{question}\nAnswer with the code in one ```python block."


def judged(dataset: str) -> Environment:
    return REWARD(dataset, lambda completions: [1.0] * len(completions))


HUMAN = "Complete the Python function `add`.\n\n" + STUB.replace("Add.", "Add 0.")
MADE: dict[str, tuple[Any, str, Any]] = {
    "gsm8k": (MATH, boxed("How many clips 0?"), "1024"),
    "math": (MATH, boxed("Find $x_0$."), "\\frac{3}{\\sqrt{2}}"),
    "dapo": (MATH, boxed("In triangle 0, find $m$."), "34"),
    "deepscaler": (MATH, boxed("The operation 0 is defined."), "-\\frac{2}{3}"),
    "aime": (MATH, boxed("Quadratic polynomials 0."), "116"),
    "amc": (MATH, boxed("What is $m+0$?"), "142"),
    "minerva": (MATH, boxed("Each of the 0 galaxies."), "4.5e33"),
    "cmath": (MATH, boxed("小明有0个苹果"), "10"),
    "humaneval": (CODE, coded(HUMAN), STUB.replace("Add.", "Add 0.") + "    return a + b\n"),
    "mbpp": (
        CODE,
        coded(
            "Write a function to add 0.\nCall the function `add`.\nimport math\n"
            "assert add(1, 2) == 3"
        ),
        "import math\ndef add(a, b):\n    return a + b",
    ),
    "mbpp_plus": (
        CODE,
        coded("Write a function to add 0.\nCall the function `add`.\nassert add(1, 2) == 3"),
        "\ndef add(a, b):\n    return a + b",
    ),
    "coophumaneval": (TOGETHER, HUMAN, None),
    "classeval": (
        CLASSES,
        f"Complete the class `Pile`.\n\n{CLASS.strip()}\nThis must hold:\npile = Pile()\n"
        "pile.items = [1, 2]\nself.assertEqual(pile.top(), 2)",
        WHOLE,
    ),
    "apps": (
        CODE,
        coded(
            "Add two numbers 0.\nRead from standard input and print the answer.\nInput:\n1\n2\n"
            "Output:\n3"
        ),
        ADD,
    ),
    "tldr": (WRITING, POST.replace("cat sat", "cat 0 sat"), None),
    "arxiv": (partial(WRITING, preset="arxiv"), "we study <S> 0 cats .", None),
    "nq": (QA, "who was number 0", ["Ada", "Ada Lovelace"]),
    "hotpotqa": (QA, "Who is older 0?", ["Ada"]),
    **{name: (QA, "who was number 0", ["Ada", "Ada Lovelace"]) for name in FLASH},
    "ultrafeedback": (judged, "Say 0.", None),
}
"""What a world makes of row 0: the world, the question, the answer."""


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_snapshot_becomes_the_right_tasks(name: str, kind: str, kept: Path) -> None:
    snapshot(kept / name, name, kind)
    make, question, answer = MADE[name]
    world = make(dataset=name)
    task = world.task(0, "train")
    assert task.prompt[-1].content == question
    assert task.answer == answer
    held = world.task(0, "eval")
    if PRESETS[name].held_out is None:  # two rows are too few to hold one out
        assert world.num_tasks("train") == world.num_tasks("eval") == 2
    else:
        assert (world.num_tasks("train"), world.num_tasks("eval")) == (2, 1)
        assert held.prompt[-1].content == question.replace("0", "7", 1)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("gsm8k", {"prompt": "How many clips 0?", "answer": "1024", "completion": SOLUTION}),
        ("humaneval", {"completion": "    return a + b\n", "task_id": "HumanEval/0"}),
        ("mbpp", {"completion": RAW["mbpp"]["code"], "test_imports": ["import math"]}),
        ("classeval", {"completion": WHOLE, "methods_info": METHODS}),
        ("apps", {"completion": ADD, "difficulty": "introductory"}),
        ("hotpotqa", {"type": "comparison", "level": "hard"}),
        ("ultrafeedback", {"chosen": talk("Say 0.", "One."), "rejected": talk("Say 0.", "No.")}),
    ],
)
def test_rows_serve_supervised_learning_and_preferences(name: str, row: Raw, kept: Path) -> None:
    snapshot(kept / name, name)
    first, second = read_rows(name)
    assert row.items() <= first.items()
    assert "context" not in first and "messages" not in first
    assert len(first) == len(second)


def test_every_preset_is_tried() -> None:
    assert list(RAW) == list(MADE) == list(PRESETS)
    for name, preset in PRESETS.items():
        needed = {*preset.columns.values(), *preset.keep}
        assert needed <= set(RAW[name]), "the table names columns that the data set has"


# -- where rows are found --------------------------------------------------------------------------


def test_the_same_rows_from_a_snapshot_a_folder_a_file_and_the_hub(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = raw("gsm8k", 0, 1)
    made = datasets.Dataset.from_list(rows)
    asked: list[Any] = []

    def load(*arguments: Any, **options: Any) -> Any:
        asked.append((arguments, options))
        return made

    monkeypatch.setattr(datasets, "load_dataset", load)
    from_hub = read_rows("gsm8k")
    assert asked == [(("openai/gsm8k", "main"), {"split": "train"})]
    snapshot(kept / "gsm8k", "gsm8k")
    assert read_rows("gsm8k") == from_hub
    (kept / "gsm8k").rename(tmp_path / "elsewhere")
    datasets.DatasetDict({"train": made}).save_to_disk(str(kept / "gsm8k"))
    assert read_rows("gsm8k") == from_hub
    (kept / "gsm8k").rename(tmp_path / "saved")
    write(kept / "gsm8k.jsonl", rows)
    assert read_rows("gsm8k") == from_hub
    assert len(asked) == 1


def test_data_that_are_not_in_the_main_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load(*arguments: Any, **options: Any) -> Any:
        asked.append((arguments, options))
        return datasets.Dataset.from_list(raw("apps", 0))

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(read_rows("apps", split="test")) == 1
    files = {"train": "all/train/*.parquet", "test": "all/test/*.parquet"}
    more = {"split": "test", "revision": "refs/convert/parquet", "data_files": files}
    assert asked == [(("codeparrot/apps", None), more)]


def test_columns_of_the_user_are_those_of_the_data_set(kept: Path) -> None:
    snapshot(kept / "hotpotqa", "hotpotqa")
    row = read_rows("hotpotqa", columns={"context": "context", "prompt": "id"})[0]
    assert row["prompt"] == "5a0" and row["context"] == RAW["hotpotqa"]["context"]
    assert row["answer"] == "Ada"
    with pytest.raises(DataError, match=r"column 'nope': missing"):
        read_rows("hotpotqa", columns={"context": "nope"})


def test_a_readme_says_where_files_are(tmp_path: Path) -> None:
    readme = {
        "main": "- split: train\n    path: parts/a-*.jsonl\n"
        "  - split: test\n    path: parts/b.jsonl",
        "other": "- split: train\n    path: c.jsonl",
    }
    text = "".join(
        f"- config_name: {name}\n  data_files:\n  {files}\n" for name, files in readme.items()
    )
    (tmp_path / "README.md").write_text(f"---\nlicense: mit\nconfigs:\n{text}---\n# Data\n")
    for name in ("parts/a-1.jsonl", "parts/a-2.jsonl", "parts/b.jsonl", "c.jsonl"):
        write(tmp_path / name, [{"prompt": name}])
    found = {
        split: [p.name for p in files] for split, files in split_files(tmp_path, "main").items()
    }
    assert found == {"train": ["a-1.jsonl", "a-2.jsonl"], "test": ["b.jsonl"]}
    assert [row["prompt"] for row in read_rows(f"{tmp_path}:main")] == [
        "parts/a-1.jsonl",
        "parts/a-2.jsonl",
    ]
    assert read_rows(f"{tmp_path}:other") == [{"prompt": "c.jsonl"}]


def test_a_copy_may_name_its_splits_as_is_usual(kept: Path) -> None:
    rows = raw("ultrafeedback", 0, 1)
    plain = [{"chosen": row["chosen"], "rejected": row["rejected"]} for row in rows]
    write(kept / "ultrafeedback" / "train.parquet", plain)
    write(kept / "ultrafeedback" / "test.parquet", plain[:1])
    reading = Reading("ultrafeedback")
    assert list(reading) == plain
    assert reading.found.preset and reading.found.preset.splits == ("train", "test")


def test_a_path_is_written_as_a_path(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "math" / "train.jsonl", [{"prompt": "mine"}])
    snapshot(kept / "math", "math")
    assert read_rows("math")[0]["prompt"] == "Find $x_0$."
    assert read_rows("./math") == [{"prompt": "mine"}]


def test_without_a_network_the_error_names_preset_id_folder_and_command(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")

    def offline(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError) as failed:
        MATH(dataset="gsm8k")
    for part in ("'gsm8k'", "openai/gsm8k:main", "no route", f"{kept / 'gsm8k'}/"):
        assert part in str(failed.value)
    assert "mrlm data gsm8k --source PATH" in str(failed.value)
    with pytest.raises(DataError, match="did you mean 'gsm8k'"):
        read_rows("gsm8")


@pytest.mark.slow
def test_what_the_hub_client_has_kept_is_enough(tmp_path: Path) -> None:
    home = tmp_path / "home"
    repository = home / "hub" / "datasets--openai--gsm8k"
    snapshot(repository / "snapshots" / ("a" * 40), "gsm8k")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    program = "from mrlm.data.tasks import read_rows; print(read_rows('gsm8k')[0]['answer'])"
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.stdout == "1024\n", done.stderr


# -- what is wrong, and what is held out -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("gsm8k", {"answer": "seven"}, r"line 2, column 'answer': no answer after '####'"),
        ("gsm8k", {"answer": 7}, r"line 2, column 'answer'"),
        ("amc", {"answer": "A"}, r"line 2, column 'answer'"),
        ("gsm8k", {"question": None}, r"line 2, column 'question': missing; the preset 'gsm8k'"),
        ("math", {"solution": "It is 3."}, r"column 'solution': no answer in a \\boxed"),
        ("math", {"solution": "\\boxed{3"}, r"column 'solution': no answer in a \\boxed"),
        ("nq", {"answer": []}, r"column 'answer': no answer"),
        ("apps", {"solutions": "{"}, r"column 'solutions'"),
        ("ultrafeedback", {"chosen": 3}, r"column 'chosen': expected text or a list"),
    ],
)
def test_a_malformed_row_is_named_or_skipped_and_counted(
    name: str, change: Raw, said: str, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(kept / f"{name}.jsonl", [*raw(name, 0), *[{**row, **change} for row in raw(name, 1)]])
    with pytest.raises(DataError, match=said):
        read_rows(name)
    with caplog.at_level(logging.WARNING):
        assert len(read_rows(name, on_bad_row="skip")) == 1
    assert "1 malformed rows were skipped" in caplog.text


def test_a_program_without_a_solution_is_a_problem_all_the_same(kept: Path) -> None:
    write(kept / "apps.jsonl", [{**row, "solutions": ""} for row in raw("apps", 0)])
    (row,) = read_rows("apps")
    assert "completion" not in row and CODE("apps").task(0).answer is None


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("def add(a, b):\n    return a + b", 1.0),
        ("def add(a, b):\n    return abs(a + b) if a + b < 9 and a > 0 else 1", 0.5),
        ("def add(a, b):\n    return 3", 0.5),
    ],
)
def test_mbpp_plus_runs_its_additional_tests_without_numpy(
    program: str, passed: float, kept: Path
) -> None:
    write(kept / "mbpp_plus.jsonl", raw("mbpp_plus", 0))
    world = CODE("mbpp_plus", max_attempts=1)
    world.reset()
    result = world.step(Message(f"```python\n{program}\n```"))
    assert result.rewards["agent"].components["passed"] == passed


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (PLUS.replace("np.allclose", "np.isclose"), r"column 'test': it needs numpy\.isclose"),
        ("print(1)", r"column 'test': expected a program of MBPP\+"),
    ],
)
def test_a_program_of_mbpp_plus_that_cannot_be_run(test: str, said: str, kept: Path) -> None:
    write(kept / "mbpp_plus.jsonl", [{**raw("mbpp_plus", 0)[0], "test": test}])
    with pytest.raises(DataError, match=said):
        CODE("mbpp_plus")


def test_rows_that_are_held_out_are_not_learned_from(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(kept / "gsm8k" / "train.jsonl", raw("gsm8k", 0, 1, 2))
    write(kept / "gsm8k" / "test.jsonl", [numbered(RAW["gsm8k"], 1), numbered(RAW["gsm8k"], 9)])
    with caplog.at_level(logging.WARNING):
        world = MATH(dataset="gsm8k")
    asked = [world.task(index).info["question"] for index in range(world.num_tasks() or 0)]
    assert asked == ["How many clips 0?", "How many clips 2?"]
    assert "1 training rows have the prompt of a held-out row" in caplog.text


def test_another_data_set_s_held_out_rows_serve_evaluation(kept: Path) -> None:
    snapshot(kept / "gsm8k", "gsm8k")
    world = MATH(dataset=[{"prompt": "1+1?", "answer": "2"}], eval_dataset="gsm8k")
    assert world.num_tasks("eval") == 1
    assert world.task(0, "eval").info["question"] == "How many clips 7?"


def test_a_split_that_is_held_out_can_be_cut_in_two(kept: Path) -> None:
    write(kept / "gsm8k" / "train.jsonl", raw("gsm8k", *range(5)))
    write(kept / "gsm8k" / "test.jsonl", raw("gsm8k", *range(100, 140)))
    world = MATH(dataset="gsm8k", split="test")
    sides = [
        {world.task(i, side).info["question"] for i in range(world.num_tasks(side) or 0)}
        for side in ("train", "eval")
    ]
    assert len(sides[0] | sides[1]) == 40 and not sides[0] & sides[1] and sides[1]


def test_a_table_reads_no_more_than_it_is_told(kept: Path) -> None:
    snapshot(kept / "nq", "nq")
    reading = Reading("nq", max_rows=1)
    assert [row["prompt"] for row in reading] == ["who was number 0"]
    assert [row["prompt"] for row in reading] == ["who was number 0"], "it can be read again"
