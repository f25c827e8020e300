"""Rows that are streamed, and the command that prepares data sets."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commands import Mrlm
from mrlm import load_config
from mrlm.config import parse_config
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.types import SamplingParams
from mrlm.data.sources import read_file
from mrlm.data.tasks import Reading, read_rows
from mrlm.environments.math import PLUGIN as MATH
from mrlm.experiment import dry_run, run_experiment
from mrlm.learn.checkpoint import verify
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.rows import Grouping
from mrlm.play.sources.streaming import StreamedRows
from places import ROOT

GSM8K = [
    {"question": f"How many are {i} and 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"}
    for i in range(6)
]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MRLM_DATA", str(tmp_path / "kept"))
    return tmp_path / "kept"


def jsonl(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


# -- streaming -------------------------------------------------------------------------------------


def numbered(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"p{i}", "completion": f"{i}"} for i in range(count)]


class Watched(list[Any]):
    """A list that knows which of its items were read."""

    read = 0

    def __getitem__(self, index: Any) -> Any:
        self.read = max(self.read, index + 1)
        return super().__getitem__(index)


def streamed(tokenizer: Any, rows: Any, buffer: int, seed: int = 0, **more: Any) -> StreamedRows:
    seat = AgentSettings("a", "p", Chat(tokenizer), SamplingParams(max_new_tokens=8), 90)
    return StreamedRows(Reading(rows, **more), Grouping({"a": seat}), seed, buffer)


def taken(source: StreamedRows, count: int) -> list[str]:
    """What was answered in the rows that were taken."""
    groups = asyncio.run(source.take(count))
    return [group.episodes[0].rollouts["a"].messages[-1].content for group in groups]


@pytest.mark.parametrize("buffer", [1, 4, 50])
def test_every_epoch_has_every_row_once(tokenizer: Any, buffer: int) -> None:
    source = streamed(tokenizer, numbered(20), buffer)
    first, second = taken(source, 20), taken(source, 20)
    whole = [str(i) for i in range(20)]
    assert sorted(first, key=int) == sorted(second, key=int) == whole
    assert (first == second == whole) == (buffer == 1), "a buffer shuffles, every epoch anew"
    assert first == taken(streamed(tokenizer, numbered(20), buffer), 20)
    if buffer > 1:
        assert first != taken(streamed(tokenizer, numbered(20), buffer, seed=1), 20)


def test_no_more_rows_are_in_memory_than_the_buffer_holds(tokenizer: Any) -> None:
    rows = Watched(numbered(1000))
    source = streamed(tokenizer, rows, 8)
    for count in range(1, 30):
        taken(source, 1)
        assert rows.read <= 8 + count


@pytest.mark.parametrize("place", [0, 3, 19, 20, 33])
def test_a_stream_goes_on_where_it_was(tokenizer: Any, place: int) -> None:
    source = streamed(tokenizer, numbered(20), 6)
    taken(source, place)
    state = json.loads(json.dumps(source.state_dict()))
    after = taken(source, 45)
    again = streamed(tokenizer, numbered(20), 6)
    again.load_state_dict(state)
    assert taken(again, 45) == after


def test_a_row_that_is_malformed_is_named_when_it_comes(tokenizer: Any, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [*numbered(3), {"prompt": "p"}, *numbered(2)])
    with pytest.raises(ConfigError, match="row 4: it needs"):
        taken(streamed(tokenizer, path, 1), 4)
    path.write_text(path.read_text().replace('{"prompt": "p"}', "{"))
    with pytest.raises(DataError, match=r"rows\.jsonl, line 4"):
        taken(streamed(tokenizer, path, 1), 4)
    kept = taken(streamed(tokenizer, path, 1, on_bad_row="skip"), 5)
    assert kept == ["0", "1", "2", "0", "1"]


def test_parquet_is_read_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(numbered(5000)), path, row_group_size=500)
    monkeypatch.setattr(parquet, "read_table", None)
    rows = read_file(path)
    assert next(rows) == (f"{path}, row 0", numbered(1)[0])
    assert len(list(rows)) == 4999


def test_the_hub_is_asked_for_rows_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        return datasets.Dataset.from_list(numbered(4)).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(list(Reading("org/name", streaming=True))) == 4
    assert asked == [{"split": "train", "streaming": True}]


def test_what_the_hub_client_has_in_its_cache_serves_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = pytest.importorskip("datasets")

    def load(*arguments: Any, streaming: bool = False, **options: Any) -> Any:
        if streaming:
            raise ConnectionError("offline")
        return datasets.Dataset.from_list(numbered(4))

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(list(Reading("org/name", streaming=True))) == 4


def config(data: Any, **more: Any) -> Any:
    training = {
        "algorithm": "sft",
        "num_iterations": 4,
        "batch_size": 2,
        "learning_rate": 1e-4,
        "report_to": "none",
        "save_steps": 2,
        **more,
    }
    return parse_config({"training": training, "data": data, "generation": {"max_new_tokens": 8}})


def test_a_run_streams_and_goes_on_bit_by_bit(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", numbered(5))
    data = {"dataset": str(path), "streaming": True, "shuffle_buffer": 3}
    whole = run_experiment(config(data).merged({"output_dir": "whole"})).history
    half = {"output_dir": "half", "training.num_iterations": 2}
    run_experiment(config(data).merged(half))
    rest = run_experiment(
        config(data).merged(half | {"training.num_iterations": 4}), resume="half"
    ).history
    assert [row["loss"] for row in rest] == [row["loss"] for row in whole]
    assert len({row["loss"] for row in whole}) == 4


def test_what_streaming_cannot_do_is_said_before_anything_is_loaded() -> None:
    data = {"dataset": numbered(4), "streaming": True}
    text, problems = dry_run(config(data))
    assert "optimizer step" in text and not problems
    _, problems = dry_run(config(data, num_iterations=None))
    assert "set training.num_iterations" in problems[0]
    _, problems = dry_run(config(data, algorithm="spin"))
    assert "spin passes over all rows in every round" in problems[0]


def test_preferences_that_have_messages_too_are_pairs(tokenizer: Any) -> None:
    talk = [{"role": "user", "content": "Say."}, {"role": "assistant", "content": "One."}]
    other = [talk[0], {"role": "assistant", "content": "No."}]
    row = {"prompt": "Say.", "chosen": talk, "rejected": other, "messages": talk}
    seat = AgentSettings("a", "p", Chat(tokenizer), SamplingParams(max_new_tokens=8), 90)
    pairs = Grouping({"a": seat}, pairs=True)
    (group,) = asyncio.run(StreamedRows(Reading([row]), pairs, 0, 1).take(1))
    said = [episode.rollouts["a"].turns[0].message.content for episode in group]  # type: ignore[union-attr]
    assert said == ["One.", "No."] and [episode.reward for episode in group] == [1.0, 0.0]


def test_a_pair_of_conversations_needs_no_prompt(tokenizer: Any) -> None:
    talk = [{"role": "user", "content": "Say."}, {"role": "assistant", "content": "One."}]
    other = [talk[0], {"role": "assistant", "content": "No."}]
    seat = AgentSettings("a", "p", Chat(tokenizer), SamplingParams(max_new_tokens=8), 90)
    groups = [
        asyncio.run(StreamedRows(Reading([row]), Grouping({"a": seat}, pairs=True), 0, 1).take(1))[
            0
        ]
        for row in (
            {"chosen": talk, "rejected": other},
            {"prompt": "Say.", "chosen": "One.", "rejected": "No."},
        )
    ]
    ids = [
        [(turn.prompt_ids, turn.completion_ids) for episode in group for turn in episode.turns]
        for group in groups
    ]
    assert ids[0] == ids[1]
    for row in ({"chosen": talk, "rejected": talk}, {"chosen": "One.", "rejected": "No."}):
        with pytest.raises(ConfigError, match="it needs `prompt` and `chosen` and `rejected`"):
            asyncio.run(
                StreamedRows(Reading([row]), Grouping({"a": seat}, pairs=True), 0, 1).take(1)
            )


# -- mrlm data -------------------------------------------------------------------------------------


def test_the_command_lists_presets(run: Mrlm, kept: Path) -> None:
    done = run("data")
    assert done.code == 0
    assert "openai/gsm8k:main, train / test\n" in done.out
    assert "OpenMLRL/CoopHumanEval, test\n" in done.out


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_data_set_is_prepared_once_and_found_by_its_name(
    kind: str, run: Mrlm, tmp_path: Path, kept: Path
) -> None:
    source = tmp_path / "copy"
    source.mkdir()
    jsonl(source / "train.jsonl", GSM8K[:4])
    jsonl(source / "test.jsonl", GSM8K[4:])
    done = run("data", "gsm8k", "--source", source, "--format", kind)
    assert done.code == 0 and "train 4, test 2 rows" in done.out, done
    assert "use it as dataset: gsm8k" in done.out
    assert verify(kept / "gsm8k") is None
    assert list(read_file(kept / "gsm8k" / f"test.{kind}"))[1][1] == GSM8K[5], "as it was"
    world = MATH(dataset="gsm8k")
    assert (world.num_tasks("train"), world.num_tasks("eval")) == (4, 2)
    assert world.task(1, "eval").answer == "6"
    named = run("data", "gsm8k", "--source", source, "--out", kept / "gsm8k", "--format", kind)
    assert f"rows in {kept / 'gsm8k'}\nuse it as dataset: gsm8k\n" in named.out
    assert f"openai/gsm8k:main, train / test; read from {kept / 'gsm8k'}\n" in run("data").out


def test_a_folder_of_ones_own_serves_by_its_path(run: Mrlm, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "any.jsonl", GSM8K)
    done = run("data", "gsm8k", "-o", "mine", "--source", source, "--split", "train", "--limit", 3)
    assert "train 3 rows in mine\nuse it as dataset: mine" in done.out
    rows = read_rows("mine")
    assert rows == read_rows("mine/train.jsonl") and len(rows) == 3
    assert rows[0] == {
        "prompt": "How many are 0 and 1?",
        "answer": "1",
        "completion": "0 + 1 = 1\n#### 1",
    }
    assert run("data", "gsm8k", "-o", "mine", "--source", source, "--split", "test").code == 0
    assert len(read_rows("mine")) == 3 and len(read_rows("mine", split="test")) == 6
    assert run("data", "gsm8k", "-o", "gsm8k", "--source", "mine").code == 0
    assert len(read_rows("gsm8k")) == 3, "a prepared folder of the name in this place"


def test_nothing_half_written_is_left(run: Mrlm, tmp_path: Path, kept: Path) -> None:
    source = jsonl(tmp_path / "bad.jsonl", [*GSM8K, {"question": "?", "answer": "none"}])
    whole = jsonl(tmp_path / "good.jsonl", GSM8K)
    assert run("data", "gsm8k", "--source", whole, "--split", "train").code == 0
    before = (kept / "gsm8k" / "train.jsonl").read_bytes()
    done = run("data", "gsm8k", "--source", source, "--split", "train")
    assert done.code == 2 and "bad.jsonl, line 7, column 'answer'" in done.err
    assert (kept / "gsm8k" / "train.jsonl").read_bytes() == before
    assert [path.name for path in kept.iterdir()] == ["gsm8k"]
    skipped = ("data", "gsm8k", "--source", source, "--split", "train", "--on-bad-row", "skip")
    done = run(*skipped)
    assert done.code == 0 and "train 6 rows" in done.out
    assert "1 malformed rows were skipped" in done.err
    (tmp_path / "empty").mkdir()
    assert run(*skipped, "--out", tmp_path / "empty").code == 0, "there is nothing to lose"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["data", "gsm8"], "did you mean 'gsm8k'"),
        (["data", "--out", "x"], "no data set is given"),
        (["data", "gsm8k", "--source", "no.jsonl"], "does not exist"),
        (["data", "gsm8k", "--limit", "0"], "--limit"),
        (
            ["data", "gsm8k", "--out", "full", "--source", "full/a.jsonl"],
            "was not made by mrlm data",
        ),
        (["data", "math", "--source", "full/a.jsonl"], "column 'problem': missing"),
        (["data", "gsm8k", "--source", "full"], "expected one file train.jsonl"),
    ],
)
def test_mistakes_are_named_and_exit_with_2(
    arguments: list[str], said: str, run: Mrlm, kept: Path
) -> None:
    Path("full").mkdir()
    jsonl(Path("full/a.jsonl"), GSM8K)
    jsonl(Path("full/b.jsonl"), GSM8K)
    done = run(*arguments)
    assert done.code == 2 and said in " ".join(done.err.split()), done
    assert not list(kept.glob("*"))


def test_self_play_takes_the_preset_with_its_own_columns(run: Mrlm, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "any.jsonl", GSM8K)
    assert run("data", "gsm8k", "--source", source).code == 0
    loaded = load_config(ROOT / "configs" / "spin_gsm8k.yaml")
    assert loaded.data.dataset == "gsm8k"
    text, problems = dry_run(loaded)
    assert not problems and "optimizer step" in text
    assert read_rows("gsm8k", columns=loaded.data.columns)[0]["completion"] == GSM8K[0]["answer"]
