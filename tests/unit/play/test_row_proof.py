"""Every environment with rows and an expert proves that its own answers are rewarded."""

import asyncio
import inspect
from typing import Any

import pytest

from mrlm.core.environment import Environment
from mrlm.core.errors import DataError
from mrlm.core.registry import load, names
from mrlm.environments.shared.rows import RowTasks
from mrlm.environments.tools.builtin_tools import create_default_tool_registry
from mrlm.environments.tools.registry import ToolRegistry
from mrlm.environments.wrappers.wrapped import Wrapped
from mrlm.play import proof
from mrlm.play.proof import check_rows, proved

Rows = list[dict[str, Any]]
TEXT = "the red fox saw a small boat near the old stone bridge at noon"
SQUARE = "def aux(x):\n    return x * x\n"
SUM = "def total(xs):\n    return sum(aux(x) for x in xs)\n"
CODE = {"prompt": "Write total(xs).", "code": f"{SQUARE}\n{SUM}"}
TESTS = {"test_list": ["assert total([1, 2]) == 5", "assert total([3]) == 9"]}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "math": ({}, {"prompt": "1+1?", "answer": "2"}, {"answer": "$$"}),
    "qa": ({}, {"question": "Who?", "answer": "Ann"}, {"answer": "<answer>A</answer> B"}),
    "search_qa": ({}, {"question": "Who?", "answer": "Ann"}, {"answer": "a </answer> tag"}),
    "tools": ({}, {"prompt": "1+1?", "answer": "2"}, {"answer": "a </answer> tag"}),
    "translation": ({}, {"source": "Rano vel.", "target": "The dog runs."}, {"target": "?!"}),
    "reference": ({}, {"prompt": "Go!", "completion": TEXT}, {"completion": TEXT * 400}),
    "summarization": (
        {"max_words": 20},
        {"document": f"{TEXT} " * 9, "summary": TEXT},
        {"summary": f"{TEXT}. " * 5},
    ),
    "code_collaboration": (
        {},
        {**CODE, **TESTS, "codes": [SQUARE, SUM]},
        {"codes": [SQUARE, "def total(xs):\n    return 5\n"]},
    ),
    "debate": (
        {"reward": "truth", "dataset": "topics"},
        {"question": "1+1?", "answer": "2"},
        {"answer": "2\nAnswer: 3"},
    ),
    "noisy_debate": (
        {"wrong": 0.5, "dataset": "topics"},
        {"question": "1+1?", "answer": "2"},
        {"answer": "long " * 20},
    ),
}
ELSEWHERE = {"code", "class_completion", "writing"}
"""Proved below, and over whole data sets in the borders."""
NO_EXPERT = {"app", "reward", "world_model"}


def plugin(name: str) -> Any:
    return load("environments", name)


def make(name: str, rows: Rows, on_bad_row: str = "raise") -> Any:
    settings = dict(CASES[name][0])
    column = settings.pop("dataset", "tasks" if name == "tools" else "dataset")
    return plugin(name)(**{column: rows}, on_bad_row=on_bad_row, **settings)


def rows_in(kind: type) -> bool:
    return "on_bad_row" in inspect.signature(kind).parameters


def rows_of(name: str, bad: bool) -> Rows:
    _, good, change = CASES[name]
    question = next(iter(good))
    rows = [{**good, question: f"{good[question]} ({number})"} for number in range(4)]
    return [*rows[:2], {**rows[2], **change}, rows[3]] if bad else rows


@pytest.mark.parametrize("name", CASES)
def test_the_answer_of_every_row_is_rewarded_or_the_row_is_named(name: str) -> None:
    env = make(name, rows_of(name, bad=False))
    assert proved(env, "train").silent == 0
    check_rows(env, name)
    assert env.row_table.proved
    with pytest.raises(DataError, match="row 2"):
        check_rows(make(name, rows_of(name, bad=True)), name)
    rest = make(name, rows_of(name, bad=True), "skip")
    check_rows(rest, name)
    assert rest.row_table.count("train") == 3


def test_environments_with_rows_and_an_expert_prove_them() -> None:
    for name in names("environments"):
        kind = plugin(name)
        if isinstance(kind, type) and issubclass(kind, RowTasks) and rows_in(kind):
            expert = kind.expert is not Environment.expert
            assert expert == (name not in NO_EXPERT), name
            assert not expert or name in {*CASES, *ELSEWHERE}, name


def test_the_texts_of_writers_have_to_be_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = plugin("writing")
    task = kind("short").task(0)
    texts = [list(task.answer), ["no", "no"], [*task.answer]]
    rows = [{"document": f"{n} {task.prompt[0].content}", "texts": t} for n, t in enumerate(texts)]
    with pytest.raises(DataError, match="row 1: its own answer is rewarded 0"):
        check_rows(kind("short", rows), "writing")


def test_the_rows_of_a_wrapped_environment_are_proved() -> None:
    inner = make("qa", rows_of("qa", bad=True))
    with pytest.raises(DataError, match="row 2"):
        check_rows(Wrapped(inner), "wrapped")


def test_a_sample_of_many_rows_is_spread_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are proved at even distances; `mrlm data check` proves every one."""
    monkeypatch.setattr(proof, "SAMPLE", 1_000)
    rows = [{"question": f"Who is {n}?", "answer": "<answer>A</answer> B"} for n in range(2_500)]
    env = make("qa", rows)
    env.row_table._rows["train"] = rows
    sampled, whole = proved(env, "train"), proved(env, "train", None)
    assert (sampled.rows, sampled.checked, whole.checked) == (2_500, 1_000, 2_500)
    places = sorted(sampled.problems)
    assert places[:3] == [0, 2, 5] and places[-1] == 2_497 and len(whole.problems) == 2_500
    with pytest.raises(DataError, match="1000 of 1000 rows"):
        check_rows(env, "qa")


def test_no_service_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge grades nothing, a search engine finds nothing, a tool is not prepared."""

    def used(*_: Any, **__: Any) -> Any:
        raise AssertionError("a service was called")

    class Engine:
        search = used

    rows = rows_of("qa", bad=False)
    registry = create_default_tool_registry(("calculator",))
    monkeypatch.setattr(ToolRegistry, "open", used)
    texts = rows_of("reference", bad=False)
    weights = {"f1": 1.0, "judge": 1.0}
    envs = [
        plugin("search_qa")(search=Engine(), dataset=rows),
        plugin("tools")(registry, rows),
        plugin("reference")(texts, judge=used, weights=weights),
    ]
    for env in envs:
        check_rows(env, "env")
    assert plugin("reference")(texts, judge=used, weights={"judge": 1.0}).expert_return is None
    assert asyncio.run(proof._played(envs[0], "train", [0])) == {0: ""}
