"""What a run writes down, and what happens to it when the run is resumed."""

import contextlib
import json
import math
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_trackers import fake as fake
from fake_trackers import open_log
from mrlm.core import registry
from mrlm.core.episodes import Episode
from mrlm.core.errors import PluginError, TrainingError
from mrlm.core.types import Message, Rollout, Task, Turn
from mrlm.record.plan import RecordPlan
from mrlm.record.rows import episode_row
from mrlm.tracking.completions import COLUMNS, MOST, completions, distributions
from mrlm.tracking.payoffs import Payoffs
from mrlm.tracking.run_log import RunLog
from recorded import episodes as recorded


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_metrics_are_lines_of_json_and_nan_is_null(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.log(1, {"reward/mean": 0.5, "loss": math.nan, "kl": math.inf, "entropy": None})
    assert log.history() == rows(tmp_path)
    log.close()
    (row,) = rows(tmp_path)
    assert [row[name] for name in ("step", "reward/mean")] == [1, 0.5]
    assert [row[name] for name in ("loss", "kl", "entropy")] == [None] * 3


def test_a_resumed_log_forgets_what_came_after_and_a_torn_line(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for step in range(6):
        log.log(step, {"loss": float(step)})
        log.episodes(step, [[Episode(f"e{step}", Task("t"))]])
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    log = open_log(tmp_path, resume_step=4)
    log.log(4, {"loss": 40.0})
    log.close()
    assert [row["loss"] for row in rows(tmp_path)] == [0.0, 1.0, 2.0, 3.0, 40.0]
    assert [row["step"] for row in recorded(tmp_path)] == [0, 1, 2, 3]


def test_a_damaged_line_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\x00\x00\xff\n{"step": 2}\n{"step": 3}\n{"step": 4}')
    open_log(tmp_path, resume_step=4).close()
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]
    assert "1 damaged lines" in caplog.text


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    log = RunLog.__new__(RunLog)
    log.folder = tmp_path
    with (tmp_path / "metrics.jsonl").open("a") as file:
        with pytest.raises(TrainingError, match=r"metrics.jsonl cannot be written: No space left"):
            log._append(file, [{"step": 1}])
        with contextlib.suppress(OSError):
            file.close()


def test_a_new_run_in_a_folder_starts_its_log_anew(tmp_path: Path) -> None:
    for _ in range(2):
        log = open_log(tmp_path)
        log.log(1, {"loss": 1.0})
        log.close()
    assert len(rows(tmp_path)) == 1


def test_episodes_keep_control_codes_escaped_and_secrets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret-value")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    log = open_log(tmp_path, record=RecordPlan(compress=False))
    said = Message("\x1b[2J key sk-very-secret-value abc", "assistant", agent="a")  # type: ignore[arg-type]
    rollout = Rollout("a", messages=[Message("hi"), said])
    log.episodes(1, [[Episode("id", Task("t"), {"a": rollout}, error=None)]])
    log.close()
    text = (tmp_path / "episodes.jsonl").read_text()
    assert "\x1b" not in text and "sk-very" not in text and "abc" in text
    assert "secret-value" not in text
    (row,) = recorded(tmp_path)
    assert row["agents"]["a"]["messages"][0] == {"role": "user", "content": "hi", "agent": None}


def test_tensorboard_is_written_and_resumed(tmp_path: Path) -> None:
    log = open_log(tmp_path, trackers=["tensorboard"])
    log.log(3, {"loss": 1.0})
    state = log.state()
    log.close()
    assert state["trackers"] == {"tensorboard": {"step": 3}}
    assert list((tmp_path / "tensorboard").glob("events*"))
    log = open_log(tmp_path, trackers=["tensorboard"], resume_step=4, state=state)
    log.close()


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_tracker_that_is_not_installed_names_its_extra(name: str, tmp_path: Path) -> None:
    if name in sys.modules:
        pytest.skip(f"{name} is installed here")
    with pytest.raises(PluginError, match=rf"pip install 'mrlm\[{name}\]'"):
        open_log(tmp_path, trackers=[name])


@pytest.mark.parametrize("fake", ["wandb", "trackio", "mlflow"], indirect=True)
def test_a_tracker_logs_and_goes_on_where_it_was(fake: Any, tmp_path: Path) -> None:
    name = fake.__name__
    log = open_log(tmp_path, trackers=[name])
    log.log(3, {"loss": 1.0, "kl": math.nan})
    state = json.loads(json.dumps(log.state()))
    log.close()
    assert ("log", {"loss": 1.0}, 3) in fake.calls and fake.calls[-1] == ("finish",)
    started = next(call[1] for call in fake.calls if call[0] == "init")
    assert started["name"].startswith("run")
    fake.calls.clear()
    open_log(tmp_path, trackers=[name], resume_step=4, state=state).close()
    ((_, words),) = [call for call in fake.calls if call[0] == "init"]
    (known,) = state["trackers"][name].values()
    assert known in (words.get("id"), words.get("name"))
    assert words.get("resume") == {"wandb": "allow", "trackio": "allow", "mlflow": None}[name]


def two_agents(name: str = "train/t/0") -> Episode:
    rollouts = {}
    for place, agent in enumerate("ab"):
        turn = Turn(agent, "p", [1], [2, 3], step=place, reward=place + 0.5, advantages=-0.25)
        turn.components = {"correct": 1.0}
        answer = Message(f"**{agent}** | says\n<b>sk-very-secret</b>", "assistant", turn=turn)  # type: ignore[arg-type]
        rollouts[agent] = Rollout(agent, "p", turns=[turn], messages=[Message("ask"), answer])
    return Episode.recorded(name, Task("t"), rollouts)


def test_tensorboard_has_completions_and_histograms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret")
    log = open_log(tmp_path, trackers=["tensorboard"])
    log.episodes(3, [[two_agents()]])
    log.episodes(3, [[two_agents("eval/t")]])
    log.close()
    (file,) = (tmp_path / "tensorboard").glob("events*")
    found = {(v.tag, event.step): v for event in events(file) for v in event.summary.value}
    text = found["train/completions/text_summary", 3].tensor.string_val[0].decode()
    first, _, *rows = text.splitlines()
    assert first == "| " + " | ".join(COLUMNS) + " |" and len(rows) == 2
    assert rows[0].count(" | ") == rows[1].count(" | ") == len(COLUMNS) - 1
    assert rows[1].startswith(
        "| train/t/0 | b | ask | **b** \\| says<br>&lt;b>[secret]&lt;/b> | 1.5"
    )
    assert found["train/rewards/b", 3].histo.sum == 1.5
    assert found["eval/lengths/a", 3].histo.max == 2
    assert found["train/advantages/a", 3].histo.min == -0.25


def events(file: Path) -> Iterator[Any]:
    """The events of a file: length, checksum, event, checksum, again and again."""
    from tensorboardX.proto.event_pb2 import Event

    data = file.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]


@pytest.mark.parametrize("fake", ["wandb", "trackio", "mlflow"], indirect=True)
def test_completions_go_to_trackers_as_tables(fake: Any, tmp_path: Path) -> None:
    log = open_log(tmp_path, trackers=[fake.__name__])
    log.episodes(3, [[two_agents(), two_agents()]])
    log.log(3, {"loss": 1.0})
    log.close()
    if fake.__name__ == "mlflow":
        (found,) = [call for call in fake.calls if call[0] == "dict"]
        assert found[2] == "completions/train/000003.json"
        assert [row["agent"] for row in found[1]["completions"]] == ["a", "b", "a", "b"]
        assert found[1]["distributions"]["rewards/b"] == [1.5, 1.5]
        assert json.loads(json.dumps(found[1])) == found[1]
        return
    sent = next(call for call in fake.calls if "train/completions" in call[1])
    assert sent[2] == 3 and sent[1]["train/rewards/a"].numbers == [0.5, 0.5]
    table = sent[1]["train/completions"]
    assert table.columns == list(COLUMNS) and [row[1] for row in table.data] == list("abab")


PAYOFFS = Payoffs(["p@0", "p|3"], [[None, 0.25], [0.75, 1.0]])


def pixels_of(png: bytes) -> np.ndarray:
    """The pixels of a PNG without filters."""
    parts, at = {}, 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size]) == (
            zlib.crc32(name + data),
        )
        parts[name], at = data, at + 12 + size
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_payoffs_go_to_tensorboard_as_a_picture_and_a_table(tmp_path: Path) -> None:
    log = open_log(tmp_path, trackers=["tensorboard"])
    log.payoffs(2, Payoffs([], []))
    log.payoffs(4, PAYOFFS)
    log.close()
    (file,) = (tmp_path / "tensorboard").glob("events*")
    found = {(v.tag, event.step): v for event in events(file) for v in event.summary.value}
    assert sorted(found) == [("payoffs", 4), ("payoffs/text_summary", 4)]
    image = found["payoffs", 4].image
    assert (image.width, image.height) == (168, 84)
    assert (pixels_of(image.encoded_image_string) == PAYOFFS.pixels()).all()


@pytest.mark.parametrize("fake", ["wandb", "trackio", "mlflow"], indirect=True)
def test_payoffs_go_to_trackers_as_tables(fake: Any, tmp_path: Path) -> None:
    log = open_log(tmp_path, trackers=[fake.__name__])
    log.payoffs(4, PAYOFFS)
    log.close()
    if fake.__name__ == "mlflow":
        ((_, found, place),) = [call for call in fake.calls if call[0] == "dict"]
        assert place == "payoffs/000004.json" and found["scores"][1] == [0.75, 1.0]
        ((_, data, folder),) = [call for call in fake.calls if call[0] == "artifact"]
        assert (pixels_of(data) == PAYOFFS.pixels()).all() and folder == "payoffs"
        return
    sent = next(call for call in fake.calls if "payoffs" in call[1])
    table = sent[1]["payoffs"]
    assert sent[2] == 4 and table.columns == ["player", "number", "p@0", "p|3"]
    assert table.data == [["p@0", 1, None, 0.25], ["p|3", 2, 0.75, 1.0]]


def test_only_the_first_episodes_of_a_step_are_shown() -> None:
    rows = [episode_row(two_agents(f"train/t/{i}")) for i in range(100)]
    assert len(completions(rows)) == MOST and len(distributions(rows)["rewards/a"]) == 100
    assert completions([]) == [] and distributions([]) == {}


@pytest.mark.parametrize("fake", ["trackio"], indirect=True)
def test_two_runs_of_one_name_are_two_in_trackio(fake: Any, tmp_path: Path) -> None:
    """It finds runs by their names, so a resumed run could go on in another's curves."""
    for _ in range(2):
        open_log(tmp_path, trackers=["trackio"]).close()
    first, second = (call[1]["name"] for call in fake.calls if call[0] == "init")
    assert first != second


@pytest.mark.parametrize("fake", ["mlflow"], indirect=True)
def test_mlflow_gets_every_setting_in_parts_it_takes(fake: Any, tmp_path: Path) -> None:
    plugin = registry.load("trackers", "mlflow")
    plugin(tmp_path, "run", {"section": {f"key@{i}": i for i in range(250)}}, None).close()
    parts = [call[1] for call in fake.calls if call[0] == "params"]
    assert [len(part) for part in parts] == [100, 100, 50]
    assert parts[0]["section.key_0"] == "0"


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_secrets_in_the_config_do_not_leave_the_machine(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", "sk-0123456789")
    config = {"environments": [{"url": "https://host/?key=sk-0123456789"}]}
    RunLog(tmp_path, "run", config, 10, ["wandb"]).close()
    (sent,) = [call[1]["config"] for call in fake.calls if call[0] == "init"]
    assert sent == {"environments": [{"url": "https://host/?key=[secret]"}]}


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_a_tracker_that_fails_later_is_dropped_and_said_and_nothing_is_lost(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, trackers=["wandb"])
    log.log(1, {"loss": 1.0})

    def gone(run: Any, metrics: Any, step: int) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(fake._Run, "log", gone)
    log.log(2, {"loss": 2.0})
    log.log(3, {"loss": 3.0})
    assert log.state()["trackers"] == {"wandb": {"id": "new-id"}}
    log.close()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "'wandb' failed at step 2" in said and "the server is gone" in said
    assert [row["loss"] for row in rows(tmp_path)] == [1.0, 2.0, 3.0]


def test_an_unknown_tracker_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"tensorbord.*did you mean 'tensorboard'"):
        open_log(tmp_path, trackers=["tensorbord"])
