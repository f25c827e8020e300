"""Exports of a record, read by the libraries that they are written for."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from exported import SPOKEN, make
from mrlm.record.exports.table import export_record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("exports") / "run")


def test_datasets_and_pyarrow_read_the_parquet_file(recorded: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "x.parquet"
    export_record(recorded, path, "parquet")
    table = pyarrow.parquet.read_table(path)
    assert table.column("text").to_pylist()[2:] == SPOKEN
    rows = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    assert rows["agent"][2:] == ["a", "b", "a", "b"]
    assert rows[1]["prompt_ids"] == [7, 8, 3, 4, 7, 8] and rows[1]["logprobs"] == [-0.5, -0.25]
    assert rows[4]["messages"] == [
        {"role": "user", "content": "b: no", "agent": None, "tool_calls": None}
    ]


def test_harbor_reads_the_trajectories(recorded: Path, tmp_path: Path) -> None:
    trajectories = pytest.importorskip("harbor.models.trajectories")
    export_record(recorded, tmp_path / "atif", "atif")
    read = [
        trajectories.Trajectory.model_validate_json(path.read_text())
        for path in sorted((tmp_path / "atif").iterdir())
    ]
    one, two, lost = read
    assert one.steps[2].metrics.logprobs == [-0.5, -0.25] and one.subagent_trajectories is None
    assert [step.message for step in two.steps if step.source == "agent"] == SPOKEN
    assert {each.trajectory_id for each in two.subagent_trajectories} == {"a", "b"}
    assert lost.extra["status"] == "error"


def test_datasets_reads_the_traces(recorded: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("teich")
    export_record(recorded, tmp_path / "traces", "hf-traces", "not failed")
    files = sorted(map(str, (tmp_path / "traces").iterdir()))
    rows = datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rows["session_id"][:] == ["eval/sums/0/0@0", "train/sums/0/0@1"]
    said = [m["content"] for m in rows[1]["messages"] if m["role"] == "assistant"]
    assert said == SPOKEN
    agents = [json.loads(line).get("agent") for line in rows[1]["trace"].splitlines()[1:]]
    assert set(agents) == {"a", "b"}


def test_inspect_reads_the_log(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: Any = pytest.importorskip("inspect_ai.log")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = str(tmp_path / "x.eval")
    export_record(recorded, path, "inspect")
    assert log.read_eval_log(path, header_only=True).results.total_samples == 3
    _, two, lost = log.read_eval_log(path).samples
    turns = [message for message in two.messages if message.source == "generate"]
    assert [message.text for message in turns] == SPOKEN
    assert [message.metadata["agent"] for message in turns] == ["a", "b", "a", "b"]
    assert two.scores["reward"].value == -1.0 and lost.error.message == "x.py\nbroke"
    one = log.read_eval_log_sample(path, id="eval/sums/0/0", epoch=0)
    assert [call.arguments for call in one.messages[2].tool_calls] == [{"a": 1}, {"a": 2}]
    assert len(log.read_eval_log_sample_summaries(path)) == 3
    analysis = pytest.importorskip("inspect_ai.analysis")
    assert analysis.samples_df(path)["score_reward"].tolist()[:2] == [1.0, -1.0]
