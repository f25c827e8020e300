"""Exports of a record for other libraries; `tests/extras` reads them with those libraries."""

import json
import zlib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import jsonschema
import pandas as pd
import pytest

from commands import Mrlm
from exported import SPOKEN, make
from mrlm.record.exports.table import FORMATS, export_record
from places import ROOT

SCHEMAS = json.loads((ROOT / "tests/fixtures/export_schemas.json").read_text())


def fits(value: Any, name: str) -> None:
    jsonschema.validate(value, {"$ref": f"#/$defs/{name}", **SCHEMAS})


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


def test_parquet_has_a_row_per_turn(recorded: Path, tmp_path: Path) -> None:
    assert export_record(recorded, tmp_path / "x.parquet", "parquet") == 3
    table = pd.read_parquet(tmp_path / "x.parquet")
    assert len(table) == 6
    two = table[table.step == 1]
    assert list(two.text) == SPOKEN
    assert list(two.agent) == ["a", "b", "a", "b"]
    assert list(zip(two.joint_step, two.order, strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert two["component/correct"].tolist() == [1.0] * 4
    assert [m["content"] for m in two.messages.iloc[2]] == ["b: no"]
    assert two.messages.iloc[1][0]["agent"] == "a"
    last = table[table.step == 0].iloc[1]
    assert last.ids.tolist() == [3, 4] and last.prompt_ids.tolist() == [7, 8, 3, 4, 7, 8]
    assert last.logprobs.tolist() == [-0.5, -0.25] and last.advantages.tolist() == [0.25, 0.25]
    assert two.ids.iloc[0] is None and last.answer == "3"


def test_a_trajectory_has_tools_and_tokens(recorded: Path, tmp_path: Path) -> None:
    export_record(recorded, tmp_path / "atif", "atif", "eval")
    (path,) = (tmp_path / "atif").iterdir()
    made = json.loads(path.read_text())
    fits(made, "atif")
    assert "subagent_trajectories" not in made and made["agent"]["model_name"] == "base"
    step = made["steps"][2]
    assert [call["arguments"] for call in step["tool_calls"]] == [{"a": 1}, {"a": 2}]
    calls = [call["tool_call_id"] for call in step["tool_calls"]]
    assert [each["source_call_id"] for each in step["observation"]["results"]] == calls
    assert step["metrics"]["logprobs"] == [-0.5, -0.25]
    assert step["metrics"]["extra"]["entropies"] == [None, 0.5]


def test_agents_of_a_trajectory_stay_apart(recorded: Path, tmp_path: Path) -> None:
    export_record(recorded, tmp_path / "atif", "atif", "train")
    two, lost = (json.loads(path.read_text()) for path in sorted((tmp_path / "atif").iterdir()))
    fits(two, "atif")
    fits(lost, "atif")
    turns = [step for step in two["steps"] if step["source"] == "agent"]
    assert [step["message"] for step in turns] == SPOKEN
    own = {each["trajectory_id"]: each for each in two["subagent_trajectories"]}
    for step in turns:
        (reference,) = step["observation"]["results"][0]["subagent_trajectory_ref"]
        place = reference["extra"]["step_id"]
        assert own[reference["trajectory_id"]]["steps"][place - 1]["message"] == step["message"]
    assert own["b"]["agent"]["model_name"] == "past-7"
    assert lost["extra"]["error"] == "x.py\nbroke" and lost["extra"]["reward"] is None


def test_a_session_has_all_agents_in_order(recorded: Path, tmp_path: Path) -> None:
    assert export_record(recorded, tmp_path / "traces", "hf-traces") == 3
    spoken = []
    for path in sorted((tmp_path / "traces").iterdir()):
        head, *lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        fits(head, "session")
        for line in lines:
            fits(line, "session_message")
        spoken.append([line["message"] for line in lines])
    turns = [message for message in spoken[1] if message["role"] == "assistant"]
    assert [message["content"] for message in turns] == SPOKEN
    assert [message["model"] for message in turns] == ["a (p)", "b (past-7)"] * 2
    called = [call["id"] for message in spoken[0] for call in message.get("toolCalls", ())]
    assert [m["toolCallId"] for m in spoken[0] if m["role"] == "tool"] == called


def test_a_log_has_rewards_and_components_as_scores(recorded: Path, tmp_path: Path) -> None:
    assert export_record(recorded, tmp_path / "x.eval", "inspect") == 3
    with ZipFile(tmp_path / "x.eval") as file:
        head = json.loads(file.read("header.json"))
        summaries = json.loads(file.read("summaries.json"))
        samples = [
            json.loads(file.read(f"samples/{each['id']}_epoch_{each['epoch']}.json"))
            for each in summaries
        ]
    fits(head, "eval_header")
    for sample in samples:
        fits(sample, "eval_sample")
    scores = {each["name"]: each["metrics"]["mean"]["value"] for each in head["results"]["scores"]}
    assert scores["reward"] == 0.0 and scores["solver/correct"] == 1.0 and scores["a/reward"] == 0.5
    assert "b/reward" not in samples[1]["scores"]  # it has none
    turns = [each for each in samples[1]["messages"] if each["source"] == "generate"]
    assert [each["content"] for each in turns] == SPOKEN
    assert [each["metadata"]["agent"] for each in turns] == ["a", "b", "a", "b"]
    assert samples[2]["error"]["message"] == "x.py\nbroke"
    assert head["eval"]["model"] == "base, past-7, p"


def test_the_command_chooses_format_and_episodes(
    run: Mrlm, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for format, made in FORMATS.items():
        done = run("export", recorded, "--format", format, "--where", "step:1 not failed")
        assert done.code == 0 and done.out == f"{made.output}: 1 episode\n", done.err
        assert Path(made.output).exists()
    done = run("export", recorded, "-o", "deep/x.eval")
    assert done.out == "deep/x.eval: 3 episodes\n"
    done = run("export", recorded, "-o", "x.html", "--where", "eval")
    assert done.out.startswith("x.html: 1 episode,"), done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "parquett"], "--format: 'parquett' does not exist; did you mean 'parquet'?"),
        (["--format", "atif", "--max-mb", "3"], "--max-mb limits a page; it has no effect on"),
        (["--format", "atif", "-o", "."], "exists; a file per episode needs a new folder"),
        (["-o", "x.pdf"], "no format has the suffix '.pdf'"),
        (["-o", "x.html", "--merge"], "--merge is for models"),
        (["--format", "inspect", "-o", "."], "is a folder; give a file"),
        (["--format", "atif", "--where", "reward>9"], "no episode fits the filter 'reward>9'"),
        (["--where", "reward>9"], "no episode fits the filter 'reward>9'"),
        (["--where", "rewrd>0"], "did you mean 'reward'"),
        (["--format", "atif", "--where", "rewrd>0"], "did you mean 'reward'"),
        (["--where", "cut and"], "nothing follows `and`"),
        (["--format", "parquet", "-o", "/dev/null/x"], "/dev/null/x cannot be written"),
    ],
)
def test_mistakes_are_explained(
    run: Mrlm, recorded: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded)
    before = sorted(recorded.iterdir())
    done = run("export", recorded, *arguments)
    assert done.code == 2 and message in done.err, done.err
    assert sorted(recorded.iterdir()) == before


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_record_leaves_no_export(recorded: Path, tmp_path: Path, format: str) -> None:
    path = recorded / "episodes.jsonl.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-60] + b"\0" * 60)  # the last part
    with pytest.raises((OSError, EOFError, zlib.error)):
        export_record(recorded, tmp_path / "x", format)
    assert [each.name for each in tmp_path.iterdir()] == ["run"]
