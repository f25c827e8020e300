"""Every reader of a record shows an episode that was a row as that row: each message once."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mrlm
from commands import Mrlm
from mrlm.record.exports.table import export_record
from mrlm.record.exports.transcripts import transcript
from mrlm.record.reader import RecordedEpisode, read_run
from mrlm.tracking.completions import completions

pytestmark = pytest.mark.system

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
TALK = [
    ("system", "be short"), ("user", "first question"), ("assistant", "first answer"),
    ("user", "second question"), ("assistant", "second answer"), ("user", "thanks"),
]  # fmt: skip
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "talk": ("SFT", {"messages": [{"role": r, "content": c} for r, c in TALK]}, {}),
    "world model": (
        "SFT",
        {"messages": [{"role": r, "content": c} for r, c in TALK]},
        {"mode": "combined"},
    ),
    "calls": (
        "SFT",
        {
            "messages": [
                {"role": "user", "content": "2+2="},
                {"role": "assistant", "content": "I add", "tool_calls": [CALL]},
                {"role": "tool", "content": "four"},
                {"role": "assistant", "content": "it is 4"},
            ]
        },
        {},
    ),
    "pair": ("DPO", {"prompt": "2+2=", "chosen": "four", "rejected": "five"}, {}),
}


@pytest.fixture(params=ROWS)
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, list[Any]]]:
    """A run of two copies of a row, and the messages of the first of its episodes."""
    name, row, words = ROWS[request.param]
    getattr(mrlm, f"{name}Trainer")(
        model=mrlm.default_model(),
        train_dataset=[row, row],
        num_iterations=1,
        output_dir=str(tmp_path / "run"),
        report_to="none",
        **words,
    ).train()
    messages = row.get("messages") or [
        {"role": "user", "content": row["prompt"]},
        {"role": "assistant", "content": row["chosen"]},
    ]
    yield tmp_path / "run", [(each["role"], each["content"]) for each in messages]


def episode(folder: Path) -> RecordedEpisode:
    return read_run(folder).episode("row-0/0")


def of_exports(folder: Path) -> list[Any]:
    return [(entry.role, entry.text) for entry in transcript(episode(folder))]


def of_trackers(folder: Path) -> list[Any]:
    """Their tables have a row per turn: what was read last, and the answer."""
    table = completions([episode(folder).row])
    return [part for row in table for part in (row["prompt"], row["completion"])]


def of_turns(folder: Path) -> list[Any]:
    messages = [
        (m["role"], m["content"]) for m in episode(folder).row["agents"]["agent"]["messages"]
    ]
    places = [turn.row["message"] for turn in episode(folder).turns]
    assert [messages[place][0] for place in places if place is not None] == [
        role for role, _ in messages if role == "assistant"
    ]
    return messages


@pytest.mark.parametrize("reader", [of_exports, of_turns])
def test_the_row_is_shown(
    trained: tuple[Path, list[Any]], reader: Callable[[Path], list[Any]]
) -> None:
    folder, messages = trained
    assert reader(folder) == messages


def test_trackers_show_what_was_read_and_the_answer(trained: tuple[Path, list[Any]]) -> None:
    folder, messages = trained
    answers = [place for place, (role, _) in enumerate(messages) if role == "assistant"]
    expected = [messages[place + k][1] for place in answers for k in (-1, 0)]
    if any(role == "tool" for role, _ in messages):
        expected[1] += f"\n{json.dumps([CALL])}"
    assert of_trackers(folder) == expected


def test_tables_have_the_calls(trained: tuple[Path, list[Any]], tmp_path: Path) -> None:
    """Those of turns, and of messages that were read."""
    folder, messages = trained
    export_record(folder, tmp_path / "x.parquet", "parquet")
    for table in (pd.read_parquet(tmp_path / "x.parquet"), read_run(folder).frame()):
        calls = [json.loads(text) for text in table.tool_calls.dropna()]
        called = any(role == "tool" for role, _ in messages)
        assert [call["function"] for (call,) in calls] == [CALL["function"]] * 2 * called


def test_the_terminal_shows_each_message_once(trained: tuple[Path, list[Any]], run: Mrlm) -> None:
    folder, messages = trained
    done = run("look", folder, "--episode", "row-0/0")
    assert done.code == 0
    places = [done.out.index(text) for _, text in messages]
    assert places == sorted(places)
    assert all(done.out.count(text) == 1 for _, text in messages)
    called = any(role == "tool" for role, _ in messages)
    assert ('calls add({"a": 2})' in done.out) is called
    done = run("look", folder, "--episode", "row-0/0", "--tokens", "maks")
    assert done.code == 2 and "did you mean 'mask'?" in done.err


def test_json_has_all_rows(tmp_path: Path, run: Mrlm) -> None:
    rows = [{"prompt": f"{n}", "completion": "x"} for n in range(23)]
    mrlm.SFTTrainer(
        model=mrlm.default_model(),
        train_dataset=rows,
        batch_size=23,
        num_iterations=1,
        output_dir=str(tmp_path),
        report_to="none",
    ).train()
    run("info")  # takes what training has printed
    assert len(run("look", tmp_path, "--json").out.splitlines()) == 23
    assert len(run("look", tmp_path, "--json", "--limit", 4).out.splitlines()) == 4
    shown = run("look", tmp_path).out.splitlines()
    assert len(shown) == 22 and "and 3 more" in shown[-1]
    assert json.loads(run("look", tmp_path, "--json").out.splitlines()[0])["schema"] == 2


def test_rows_and_episodes_train_the_same_observations(tmp_path: Path, run: Mrlm) -> None:
    """What was collected and read back gives the tokens that playing gives, the last one too."""
    config = tmp_path / "play.json"
    sections = {
        "environments": [{"env_type": "math", "difficulty_range": [1, 1]}],
        "training": {"algorithm": "sft", "num_iterations": 1, "batch_size": 3, "report_to": "none"},
        "sft": {"mode": "world_model", "teacher": "expert"},
        "output_dir": str(tmp_path / "played"),
    }
    config.write_text(json.dumps(sections))
    assert run("train", "--config", config).code == 0
    played = read_run(tmp_path / "played")
    rows = [
        {"messages": episode.row["agents"]["agent"]["messages"]} for episode in played.episodes()
    ]
    mrlm.SFTTrainer(
        model=mrlm.default_model(),
        train_dataset=rows,
        mode="world_model",
        shuffle=False,
        batch_size=3,
        num_iterations=1,
        output_dir=str(tmp_path / "rows"),
        report_to="none",
    ).train()

    def tokens(folder: str) -> list[Any]:
        found = read_run(tmp_path / folder).episodes()
        turns = [turn for each in found for turn in each.turns]
        assert {turn.row["finish_reason"] for turn in turns} >= {"observation"}
        return [
            (turn.prompt_ids.tolist(), turn.ids.tolist(), turn.row["advantage"])
            for turn in turns
            if turn.prompt_ids is not None and turn.ids is not None
        ]

    assert tokens("rows") == tokens("played") and len(tokens("rows")) >= 4
    done = run("train", "--config", config, "--dry-run")
    assert "agent (not trained)" in done.out
