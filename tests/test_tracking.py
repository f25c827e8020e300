"""What a run writes down, and what happens to it when the run is resumed."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from mrlm.console import clock, learning_curve
from mrlm.core import registry
from mrlm.core.errors import PluginError
from mrlm.core.types import Episode, Message, Rollout, Task
from mrlm.tracking import RunLog


def open_log(folder: Path, **more: Any) -> RunLog:
    return RunLog(folder, "run", {"training": {"seed": 0}}, 10, **more)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_metrics_are_lines_of_json_and_nan_is_null(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.log(1, {"reward/mean": 0.5, "loss": math.nan, "kl": math.inf})
    assert log.history() == rows(tmp_path)
    log.close()
    (row,) = rows(tmp_path)
    assert (row["step"], row["reward/mean"], row["loss"], row["kl"]) == (1, 0.5, None, None)


def test_a_resumed_log_forgets_what_came_after_and_a_torn_line(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for step in range(6):
        log.log(step, {"loss": float(step)})
        log.episodes(step, [Episode(f"e{step}", Task("t"))])
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    log = open_log(tmp_path, resume_step=4)
    log.log(4, {"loss": 40.0})
    log.close()
    assert [row["loss"] for row in rows(tmp_path)] == [0.0, 1.0, 2.0, 3.0, 40.0]
    assert [row["step"] for row in rows(tmp_path, "episodes.jsonl")] == [0, 1, 2, 3]


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
    log = open_log(tmp_path)
    said = Message("\x1b[2J key sk-very-secret-value abc", "assistant", agent="a")  # type: ignore[arg-type]
    rollout = Rollout("a", messages=[Message("hi"), said])
    log.episodes(1, [Episode("id", Task("t"), {"a": rollout}, error=None)])
    log.close()
    text = (tmp_path / "episodes.jsonl").read_text()
    assert "\x1b" not in text and "sk-very" not in text and "abc" in text
    (row,) = rows(tmp_path, "episodes.jsonl")
    assert row["agents"]["a"]["messages"][0] == {"role": "user", "content": "hi", "agent": None}


def test_tensorboard_is_written_and_resumed(tmp_path: Path) -> None:
    log = open_log(tmp_path, trackers=["tensorboard"])
    log.log(3, {"loss": 1.0})
    state = log.state()
    log.close()
    assert state == {"tensorboard": {"step": 3}}
    assert list((tmp_path / "tensorboard").glob("events*"))
    log = open_log(tmp_path, trackers=["tensorboard"], resume_step=4, state=state)
    log.close()


FAKE = """
import json, pathlib
calls = []
class _Run:
    def __init__(self, id): self.id = id; self.info = type("I", (), {"run_id": id})
    def log(self, metrics, step=None): calls.append(("log", metrics, step))
    def finish(self): calls.append(("finish",))
def init(**k): calls.append(("init", k)); return _Run(k.get("id") or "new-id")
def log(metrics, step=None): calls.append(("log", metrics, step))
def finish(): calls.append(("finish",))
def set_experiment(name): calls.append(("experiment", name))
def start_run(run_id=None, run_name=None): calls.append(("start", run_id, run_name)); return _Run(run_id or "new-id")
def log_params(p): calls.append(("params", p))
def log_metrics(metrics, step=None): calls.append(("log", metrics, step))
def end_run(): calls.append(("finish",))
"""


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_tracker_that_is_not_installed_names_its_extra(name: str, tmp_path: Path) -> None:
    if name in sys.modules:
        pytest.skip(f"{name} is installed here")
    with pytest.raises(PluginError, match=rf"pip install 'mrlm\[{name}\]'"):
        open_log(tmp_path, trackers=[name])


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_tracker_logs_and_goes_on_under_its_id(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(FAKE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = __import__(name)
    try:
        plugin = registry.load("trackers", name)
        first = plugin(tmp_path, "run", {"training": {"seed": 1}}, None)
        first.log(3, {"loss": 1.0})
        state = json.loads(json.dumps(first.state()))
        first.close()
        assert ("log", {"loss": 1.0}, 3) in module.calls and module.calls[-1] == ("finish",)
        module.calls.clear()
        again = plugin(tmp_path, "run", {}, state)
        again.close()
        assert any(value in str(module.calls[0:2]) for value in state.values())
    finally:
        sys.modules.pop(name, None)


def test_an_unknown_tracker_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="tensorbord.*did you mean 'tensorboard'"):
        open_log(tmp_path, trackers=["tensorbord"])


def test_the_curve_has_both_series_and_rises() -> None:
    history = [{"step": i, "reward/mean": i / 20} for i in range(21)]
    history += [{"step": i, "eval/reward/mean": 1.0 - i / 40} for i in (0, 20)]
    lines = learning_curve(history, width=70, height=10).splitlines()
    assert all(len(line) <= 70 for line in lines)
    assert "1.00" in lines[0] and "o" in lines[0] and "step 20" in lines[-2]
    first = [line.rfind(".", 9) for line in lines[:10] if "." in line[9:]]
    assert first == sorted(first, reverse=True)
    assert learning_curve([]) == "" and learning_curve([{"step": 1, "loss": 2.0}]) == ""


def test_clock() -> None:
    assert [clock(5), clock(65), clock(3723)] == ["0:05", "1:05", "1:02:03"]


def test_a_terminal_gets_a_live_panel(tmp_path: Path) -> None:
    """A real terminal: the panel is drawn and redrawn, with everything a person wants to know in
    it."""
    script = textwrap.dedent(f"""
        import time, pathlib, warnings, sys
        from mrlm.tracking import RunLog
        log = RunLog(pathlib.Path({str(tmp_path)!r}), "my run", {{}}, 5)
        for step in range(1, 6):
            log.log(step, {{"reward/mean": step / 10, "eval/reward/mean": 0.25, "loss": -0.5,
                            "tokens_per_second": 1234.0}})
            time.sleep(0.15)
            if step == 2:
                print("a word from elsewhere", file=sys.stderr)
        log.close()
    """)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=slave, stderr=slave, stdin=slave, env=environment
    )
    os.close(slave)
    drawn = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        drawn += piece
    assert process.wait() == 0
    text = drawn.decode(errors="replace")
    for word in (
        "my run",
        "5/5",
        "0.500",
        "0.250",
        "1,234",
        "tok/s",
        "left",
        "a word from elsewhere",
    ):
        assert word in text, word
    assert text.count("my run") > 2


def test_elsewhere_each_logged_step_is_one_line(tmp_path: Path, capsys: Any) -> None:
    log = open_log(tmp_path, every=2)
    for step in range(1, 6):
        log.log(step, {"reward/mean": 0.5, "loss": 1.0})
    log.close()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith("run  step 2/10  reward 0.500  loss 1.0000")
