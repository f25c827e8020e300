"""Reading rows: every source a user may name, errors that say where, no leak into held-out rows."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from mrlm.core.errors import DataError
from mrlm.core.types import Message, Role
from mrlm.data.tasks import read_rows, row_messages, split_rows

ROWS = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}]


def jsonl(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


# -- sources ---------------------------------------------------------------------------------------


def test_files_of_every_kind_give_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    jsonl(tmp_path / "rows.jsonl", *map(json.dumps, ROWS))
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    (tmp_path / "rows.csv").write_text("question,answer\n1+1?,2\n2+2?,4\n")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for name in ("rows.jsonl", "rows.json", "rows.csv", "rows.parquet"):
        assert read_rows(tmp_path / name) == ROWS, name
        assert read_rows(str(tmp_path / name), max_rows=1) == ROWS[:1], name


def test_lists_and_datasets_and_save_to_disk_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(str(tmp_path / "one"))
    both = datasets.DatasetDict({"train": made, "test": made.select([1])})
    both.save_to_disk(str(tmp_path / "two"))
    assert read_rows(ROWS) == read_rows(made) == read_rows(tmp_path / "one") == ROWS
    assert read_rows(tmp_path / "two") == ROWS
    assert read_rows(tmp_path / "two", split="test") == read_rows(both, split="test") == ROWS[1:]
    with pytest.raises(DataError, match=r"split 'dev' does not exist; use train, test"):
        read_rows(both, split="dev")


def test_a_folder_with_a_file_per_split(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", json.dumps(ROWS[0]))
    jsonl(tmp_path / "test.jsonl", json.dumps(ROWS[1]))
    assert read_rows(tmp_path) == ROWS[:1]
    assert read_rows(tmp_path, split="test") == ROWS[1:]
    with pytest.raises(DataError, match=r"dev\.jsonl.*found test\.jsonl, train\.jsonl"):
        read_rows(tmp_path, split="dev")


def test_trajectories_are_read_back(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo", "agent": "a"},
    ]
    saved = [
        {"messages": turns, "agent": "a", "reward": 0.5, "environment": "math", "task_id": "t"}
    ]
    path = tmp_path / "trajectories.json"
    path.write_text(json.dumps(saved))
    (row,) = read_rows(str(path), required=("messages",))
    assert row == saved[0]
    assert row_messages(row["messages"])[1] == Message("yo", Role.ASSISTANT, agent="a")


def test_columns_are_renamed() -> None:
    assert read_rows(ROWS, columns={"prompt": "question"}) == [
        {"answer": "2", "prompt": "1+1?"},
        {"answer": "4", "prompt": "2+2?"},
    ]
    swapped = read_rows(
        [{"prompt": "a", "answer": "b"}], columns={"prompt": "answer", "answer": "prompt"}
    )
    assert swapped == [{"prompt": "b", "answer": "a"}]
    with pytest.raises(DataError, match=r"column 'quest': missing.*the row has question, answer"):
        read_rows(ROWS, columns={"prompt": "quest"})


def test_reading_does_not_change_the_users_rows() -> None:
    rows = [{"question": "q"}]
    read_rows(rows, columns={"prompt": "question"})[0]["new"] = 1
    assert rows == [{"question": "q"}]


# -- what is wrong, and where ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "a",}', r"line 2, column 16: not valid JSON"),
        ('["a"]', r"line 2: expected an object"),
        ('{"text": "a"}', r"line 2, column 'prompt': missing; it has text"),
        ('{"prompt": null}', r"line 2, column 'prompt': missing"),
        (
            '{"prompt": 3}',
            r"line 2, column 'prompt': expected text or a list of messages, not int 3",
        ),
        ('{"prompt": []}', r"line 2, column 'prompt'"),
        (
            '{"prompt": [{"role": "user"}]}',
            r"line 2, column 'prompt', message 0: 'content' must be text",
        ),
        (
            '{"prompt": [{"role": "boss", "content": ""}]}',
            r"line 2, column 'prompt', message 0: unknown role 'boss'",
        ),
        ('{"prompt": ["a"]}', r"line 2, column 'prompt', message 0: expected an object"),
        ('{"prompt": "a", "chosen": 5}', r"line 2, column 'chosen'"),
        ('{"prompt": ' + "[" * 100_000, r"line 2"),
    ],
)
def test_a_malformed_row_is_named_by_file_line_and_column(
    tmp_path: Path, line: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = jsonl(tmp_path / "rows.jsonl", '{"prompt": "fine"}', line, '{"prompt": "good"}')
    with pytest.raises(DataError, match=r"rows\.jsonl, " + says):
        read_rows(path, required=("prompt",))
    with caplog.at_level(logging.WARNING):
        kept = read_rows(path, required=("prompt",), on_bad_row="skip")
    assert [row["prompt"] for row in kept] == ["fine", "good"]
    (record,) = caplog.records
    assert "1 malformed rows were skipped" in record.message and "line 2" in record.message


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match="line 2"):
        read_rows(path)
    path.write_bytes('\ufeff{"prompt": "ä"}\r\n'.encode())
    assert read_rows(path) == [{"prompt": "ä"}]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", '[{"a": 1},\n {"a": }]', r"a\.json, line 2, column 8"),
        ("a.json", '{"a": 1}', "expected a list of objects"),
        ("a.json", "[1]", "item 0: expected an object"),
        ("a.csv", "a,b\n1,2\n3\n", r"a\.csv, line 3, column 'b': 1 values for 2 columns"),
        ("a.csv", "a,a\n1,2\n", "line 1"),
        ("a.csv", "", "line 1"),
        ("a.parquet", "nonsense", "not readable as parquet"),
        ("a.txt", "x", "must end in"),
        ("a.jsonl", "\n", "no row"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=says):
        read_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("missing.jsonl", "does not exist"), ("./nothing", "does not exist"), (" ", "is empty"),
        (3, "not int"), ([], "no row"), ([1], "row 0: expected an object"),
    ],
)  # fmt: skip
def test_a_source_that_is_none_is_named(source: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_rows(source)
    with pytest.raises(DataError, match="on_bad_row"):
        read_rows(ROWS, on_bad_row="ignore")  # type: ignore[arg-type]


def test_without_a_network_the_error_names_the_id_and_a_local_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def offline(*args: Any, **kwargs: Any) -> None:
        asked.append((args, kwargs))
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError, match=r"'openai/gsm8k:main'.*no route.*gsm8k\.jsonl"):
        read_rows("openai/gsm8k:main", split="test")
    assert asked == [(("openai/gsm8k", "main"), {"split": "test"})]
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **kwargs: datasets.Dataset.from_list(ROWS)
    )
    assert read_rows("org/name") == ROWS


def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    for module in ("datasets", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    for source in ("org/name", tmp_path / "a.parquet"):
        with pytest.raises(DataError, match=r'pip install "mrlm\[data\]"'):
            read_rows(source)
    assert read_rows(ROWS) == ROWS


# -- messages --------------------------------------------------------------------------------------


def test_row_messages() -> None:
    assert row_messages("hi") == [Message("hi")]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    (found,) = row_messages([Message("a"), call])[1].tool_calls
    assert found == {"type": "function", "function": {"name": "f", "arguments": {}}}
    with pytest.raises(DataError, match="here: expected text"):
        row_messages({"role": "user"}, "here")


# -- held-out rows ---------------------------------------------------------------------------------


def test_equal_prompts_never_fall_on_both_sides() -> None:
    rows = [{"prompt": f"question {i % 40}" + " " * (i % 3), "n": i} for i in range(400)]
    train, held = split_rows(rows, held_out=0.25)
    assert len(train) + len(held) == 400 and train and held
    sides = [{row["prompt"].strip() for row in side} for side in (train, held)]
    assert not sides[0] & sides[1]
    assert (train, held) == split_rows(rows, held_out=0.25)
    assert held != split_rows(rows, held_out=0.25, seed=1)[1]
    assert [row["n"] for row in train] == sorted(row["n"] for row in train)


def test_a_row_keeps_its_side_when_rows_are_added() -> None:
    rows = [{"question": f"q{i}"} for i in range(1000)]
    held = split_rows(rows)[1]
    assert 60 < len(held) < 140
    assert [row for row in split_rows(rows[:500])[1] if row not in held] == []


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_both_sides_have_rows_however_few_there_are(count: int) -> None:
    for seed in range(20):
        train, held = split_rows([{"prompt": f"p{i}"} for i in range(count)], 0.1, seed)
        assert train and held


def test_conversations_split_by_what_is_asked() -> None:
    def row(question: str, answer: str) -> dict[str, Any]:
        return {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }

    rows = [row(f"q{i % 10}", f"a{i}") for i in range(60)]
    train, held = split_rows(rows, 0.3)
    asked = [{r["messages"][0]["content"] for r in side} for side in (train, held)]
    assert asked[0] and asked[1] and not asked[0] & asked[1]


def test_nothing_is_held_out_where_nothing_can_be() -> None:
    assert split_rows([{"prompt": "same"}] * 5) == ([{"prompt": "same"}] * 5, [])
    assert split_rows(ROWS, held_out=0.0) == (ROWS, [])
    with pytest.raises(DataError, match="held_out"):
        split_rows(ROWS, held_out=1.0)
