"""Rows in the forms of other projects: the conversations are those that `datasets` and the formats'
own documentation give, or the row is refused by name."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from mrlm.core.errors import DataError
from mrlm.data.forms import training_row
from mrlm.data.tasks import Reading, row_messages
from mrlm.environments.qa import QASolverEnv

TITLE = "Rows of other projects"
JUDGE = (
    "the formats' documentation (LLaMA-Factory, TRL, KTO, MMLU, verl), TRL where it is there, and "
    "what csv, json, pyarrow, pandas and datasets write"
)
DIFFERENCES = (
    "a bad answer of KTO is refused, because no algorithm here trains on single bad answers",
    "images and weights are refused, because they would be dropped",
)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def read(row: dict[str, Any], pairs: bool = False) -> dict[str, list[tuple[str, str]]]:
    """Column -> the roles and texts in it, as a run reads the row."""
    (found,) = Reading([row], convert=lambda r, where: training_row(r, where, pairs))
    columns = ("messages", "prompt", "completion", "chosen", "rejected")
    return {
        name: [(str(m.role), m.content) for m in row_messages(found[name])]
        for name in columns
        if name in found
    }


Q, A, B, S = ("user", "Q?"), ("assistant", "a"), ("assistant", "b"), ("system", "s")
# The prompt of a pair, and each answer, by LLaMA-Factory's and TRL's documentation.
FORMS = {
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "a"}]},
        {"messages": [Q, A]},
    ),
    "ShareGPT with a system message": (
        {"conversations": [
            {"from": "system", "value": "s"}, {"from": "human", "value": "Q?"},
            {"from": "gpt", "value": "a"}]},
        {"messages": [S, Q, A]},
    ),
    "Alpaca": (
        {"instruction": "Add.", "input": "1+1", "output": "a"},
        {"prompt": [("user", "Add.\n1+1")], "completion": [("user", "a")]},
    ),
    "Alpaca with history": (
        {"instruction": "Q?", "input": "", "output": "a", "system": "s", "history": [["x", "y"]]},
        {"prompt": [S, ("user", "x"), ("assistant", "y"), Q], "completion": [("user", "a")]},
    ),
    "KTO, good": (
        {"prompt": "Q?", "completion": "a", "label": True},
        {"prompt": [Q], "completion": [("user", "a")]},
    ),
}  # fmt: skip
PAIRS = {
    "answers only": ({"prompt": "Q?", "chosen": "a", "rejected": "b"}, None),
    "messages": ({"prompt": [Q], "chosen": [A], "rejected": [B]}, [Q]),
    "the prompt repeated": ({"prompt": [Q], "chosen": [Q, A], "rejected": [Q, B]}, [Q]),
    "other white space": (
        {"prompt": "Q?", "chosen": [("user", " Q?\n"), A], "rejected": [("user", "Q?"), B]}, [Q]),
    "a system message in the answers": (
        {"prompt": "Q?", "chosen": [S, Q, A], "rejected": [S, Q, B]}, [S, Q]),
    "a system message in the prompt": (
        {"prompt": [S, Q], "chosen": [Q, A], "rejected": [Q, B]}, [S, Q]),
    "in both": ({"prompt": [S, Q], "chosen": [S, Q, A], "rejected": [S, Q, B]}, [S, Q]),
}  # fmt: skip
SAID = {"role": "user", "content": "Q?"}
REFUSED = {
    "label": {"prompt": "Q?", "completion": "a", "label": False},
    "images": {"prompt": "Q?", "completion": "a", "images": ["a.png"]},
    "weights": {"prompt": "Q?", "completion": "a", "weights": [0, 1]},
    "history": {"prompt": "Q?", "completion": "a", "history": [["x", "y"]]},
    "empty": {"prompt": "Q?", "completion": ""},
    "unknown speaker": {"conversations": [{"from": "bing", "value": "x"}]},
    "it needs": {"text": "x"},
    "different system messages": {
        "prompt": "Q?",
        "chosen": [message("system", "s"), SAID, message("assistant", "a")],
        "rejected": [message("system", "t"), SAID, message("assistant", "b")],
    },
    "does not repeat the prompt": {
        "prompt": "Q?", "chosen": [message("user", "R?"), message("assistant", "a")],
        "rejected": "b",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_read(name: str) -> None:
    row, expected = FORMS[name]
    assert read(row) == expected


def as_rows(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose pairs of role and text are messages."""
    return {
        name: value if isinstance(value, str) else [message(*pair) for pair in value]
        for name, value in row.items()
    }


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_has_its_question_once(name: str) -> None:
    row, prompt = PAIRS[name]
    columns = read(as_rows(row), pairs=True)
    assert columns["prompt"] == (prompt or [Q])
    assert [text for _, text in columns["chosen"] + columns["rejected"]] == ["a", "b"]


@pytest.mark.parametrize("name", ["the prompt repeated", "a system message in the answers"])
def test_a_pair_is_read_as_trl_reads_it(name: str) -> None:
    """TRL takes the common beginning of two whole conversations for the prompt."""
    trl = pytest.importorskip("trl.data_utils", reason="the package trl is not installed")
    row, _ = PAIRS[name]
    whole = {side: as_rows(row)[side] for side in ("chosen", "rejected")}
    theirs = trl.extract_prompt(whole)
    columns = read(as_rows(row), pairs=True)
    for column in ("prompt", "chosen", "rejected"):
        assert columns[column] == [(m["role"], m["content"]) for m in theirs[column]]


@pytest.mark.parametrize("says", REFUSED)
def test_other_rows_are_refused_by_name(says: str) -> None:
    with pytest.raises(DataError, match=says):
        read(REFUSED[says])


@pytest.mark.parametrize(
    ("row", "question", "answers"),
    [
        ({"question": "2+2?", "choices": ["3", "4"], "answer": 1}, "2+2?\n(A) 3\n(B) 4",
         ["B", "4"]),
        ({"question": "2+2?", "choices": ["3", "4"], "answer": "A"}, "2+2?\n(A) 3\n(B) 4",
         ["A", "3"]),
        ({"prompt": [message("user", "2+2?")], "data_source": "x",
          "reward_model": {"style": "rule", "ground_truth": "4"}}, "2+2?", ["4"]),
    ],
)  # fmt: skip
def test_questions_of_mmlu_and_verl(row: Any, question: str, answers: list[str]) -> None:
    env = QASolverEnv(dataset=[row])
    task = env.task(0)
    assert task.prompt[-1].content == question and task.answer == answers


def test_an_index_without_a_choice_is_refused() -> None:
    with pytest.raises(DataError, match="none of its 2 choices"):
        QASolverEnv(dataset=[{"question": "?", "choices": ["a", "b"], "answer": 2}])


TEXTS = ["007", "1.50", "1,000", "true", "None", "null", "1e3", "2020-01-02", "NaN", "3/4", " 5 "]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "binary", "pandas", "datasets"])
def test_a_column_of_text_is_what_another_program_wrote(kind: str, tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": text} for n, text in enumerate(TEXTS)]
    assert [row["answer"] for row in Reading(by_another_program(kind, rows, tmp_path))] == TEXTS


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "pandas", "datasets"])
def test_columns_of_numbers_and_lists_are_what_another_program_wrote(
    kind: str, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": [{"role": "user", "content": "a?"}], "answer": 7, "answers": ["x", "y"]},
        {"prompt": [{"role": "user", "content": "b?"}], "answer": 8, "answers": ["z"]},
    ]
    source = by_another_program(kind, rows, tmp_path)
    if kind == "pandas":  # whose own reader of Parquet has arrays
        source.to_parquet(tmp_path / "t.parquet")
        source = type(source)(pytest.importorskip("pandas").read_parquet(tmp_path / "t.parquet"))
    assert [{name: row[name] for name in rows[0]} for row in Reading(source)] == rows


def by_another_program(kind: str, rows: list[dict[str, Any]], folder: Path) -> Any:
    """A source that csv, json, pyarrow, pandas or datasets wrote."""
    file = folder / f"rows.{kind.replace('binary', 'parquet')}"
    if kind == "csv":
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif kind == "pandas":
        return pytest.importorskip("pandas").DataFrame(rows)
    elif kind == "datasets":
        return pytest.importorskip("datasets").Dataset.from_list(rows)
    else:
        arrow = pytest.importorskip("pyarrow.parquet")
        table = __import__("pyarrow").Table.from_pylist(rows)
        if kind == "binary":  # text as some writers leave it
            table = table.cast(__import__("pyarrow").schema(dict.fromkeys(rows[0], "binary")))
        arrow.write_table(table, file)
    return str(file)


def test_a_whole_number_of_a_column_of_floats_may_be_answered_as_one() -> None:
    env = QASolverEnv(dataset=[{"question": "How many?", "answer": 3.0}])
    assert env.task(0).answer == ["3.0", "3"]
