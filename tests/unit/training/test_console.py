"""What a person sees of a run: on a real (pseudo) terminal, in a pipe, in a narrow window, and when
the terminal goes away."""

import fcntl
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from mrlm.tracking.console import ConsoleLog, clock, printable
from mrlm.tracking.curves import learning_curve
from mrlm.tracking.shown_metrics import ShownMetrics, sparkline

PROGRAM = """
import sys, time
from mrlm.tracking.console import ConsoleLog
log = ConsoleLog("[red]my run", 5)
log.note("policy first: own weights")
for step in range(1, 6):
    metrics = {"reward/mean": step / 10, "loss": -0.5, "tokens_per_second": 1234.0}
    if step == 4:
        metrics["eval/reward/mean"] = 0.25
    log.log(step, metrics)
    if step == 2:
        print("a word from elsewhere", file=sys.stderr)
        log.note("said by a model: \\x1b[2J\\x07")
    time.sleep(0.1)
"""


def on_terminal(program: str, columns: int = 90, **variables: str) -> str:
    """Everything that a program draws on a terminal of its own."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **variables}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        if name not in variables:
            environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=slave, stderr=slave, stdin=slave, env=environment
    )
    os.close(slave)
    drawn = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        drawn += piece
    os.close(master)
    assert process.wait() == 0, drawn.decode(errors="replace")
    return drawn.decode()


def last_frame(drawn: str) -> list[str]:
    """The lines of the panel as it stays on the screen, without colours."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    return [line.strip("\r") for line in text[text.rindex("╭") :].splitlines() if line.strip()]


def test_a_terminal_gets_a_live_panel_with_everything_in_it() -> None:
    drawn = on_terminal(PROGRAM + "log.close()")
    frame = last_frame(drawn)
    assert frame[0].startswith("╭─ [red]my run") and frame[-1].startswith("╰")
    text = "\n".join(frame)
    for word in ("step", "5/5", "reward", "0.500", "eval", "0.250", "loss", "-0.5000", "tok/s"):
        assert word in text, word
    for word in ("1,234", "elapsed", "left", "▁", "policy first: own weights"):
        assert word in text, word
    assert "a word from elsewhere" in drawn and "a word from elsewhere" not in text
    assert drawn.count("my run") > 2, "it is redrawn while the run goes on"


def test_the_panel_has_the_progress_of_the_step_and_lines_have_not() -> None:
    program = """
from mrlm.tracking.console import ConsoleLog
log = ConsoleLog("run", 2)
log.note("8 prompts")
log.progress("episodes", 3, 8)
"""
    assert any("step 1: episodes 3/8" in line for line in last_frame(on_terminal(program)))
    assert "episodes" not in on_terminal(program, TERM="dumb")
    done = 'log.log(2, {"reward/mean": 0.5})'
    assert not any("episodes" in line for line in last_frame(on_terminal(program + done)))


def test_no_color_is_honoured() -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert colour.search(on_terminal(PROGRAM))
    assert not colour.search(on_terminal(PROGRAM, NO_COLOR="1"))


def test_what_a_model_says_cannot_steer_the_terminal() -> None:
    drawn = on_terminal(PROGRAM)
    assert "\x1b[2J" not in drawn and "\x07" not in drawn
    assert r"said by a model: \x1b[2J\x07" in "\n".join(last_frame(drawn))
    assert printable("é ü 你 \u202e\x9b\r\n") == "é ü 你 \\u202e\\x9b\\r\n"


def test_a_log_that_is_never_closed_gives_the_cursor_back() -> None:
    drawn = on_terminal(PROGRAM)
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")


def test_a_terminal_that_can_only_append_gets_lines() -> None:
    lines = on_terminal(PROGRAM, TERM="dumb").splitlines()
    assert "\x1b" not in "".join(lines) and sum("step " in line for line in lines) == 5


def test_elsewhere_each_logged_step_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = ConsoleLog("run", 10)
    for step in range(1, 11):
        metrics = {"reward/mean": 0.5, "loss": 1.0, "tokens_per_second": 5321.4}
        if step == 5:
            metrics["eval/reward/mean"] = 0.75
        log.log(step, metrics, shown=step % 4 == 0)
    log.close()
    lines = capsys.readouterr().out.splitlines()
    assert [re.search(r"step (\d+)/10", line)[1] for line in lines] == ["4", "5", "8", "10"]  # type: ignore[index]
    assert lines[0].startswith("run  step 4/10  reward 0.500  loss 1.0000  tok/s 5,321  left 0:0")
    assert "eval 0.750" in lines[1] and "left" not in lines[-1]


def test_data_show_their_loss_and_no_reward(capsys: pytest.CaptureFixture[str]) -> None:
    log = ConsoleLog("run", 2)
    log.log(1, {"loss": 1.5})
    log.log(2, {"loss": 1.25, "eval/reward/mean": 0.75})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("run  step 1/2  loss 1.5000") and "reward" not in second
    assert "eval 0.750" in second
    drawn = on_terminal(PROGRAM.replace("reward/mean", "data/reward/mean"))
    assert "loss" in drawn and "reward" not in drawn


def test_a_pipe_that_is_closed_does_not_end_the_run(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + "print('more')\nprint('done', file=sys.stderr)")
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} {script} | head -1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the display of the run is stopped") == 1
    assert "done" in done.stderr and "Exception" not in done.stderr


def test_an_output_without_unicode_is_enough(tmp_path: Path) -> None:
    program = 'from mrlm.tracking.console import ConsoleLog\nConsoleLog("r", 2).note("naïve 你")'
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "na\\xefve \\u4f60\n"


def test_lines_that_are_to_stay_come_after_the_panel_and_above_it() -> None:
    drawn = on_terminal(
        PROGRAM + "log.say('first line\\nsaid: \\x07')\nlog.close()\nlog.say('last')"
    )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    assert text.index("first line") < text.rindex("╭") < text.rindex("╰") < text.rindex("last")
    assert "\x07" not in drawn and r"said: \x07" in drawn


def test_a_quiet_logger_keeps_the_console_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("mrlm"), "level", logging.WARNING)
    log = ConsoleLog("run", 2)
    log.log(1, {"loss": 1.0})
    log.note("a note")
    log.say("a table")
    assert capsys.readouterr().out == ""


def test_the_time_left_follows_the_pace_of_the_last_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("mrlm.tracking.console.time.monotonic", lambda: now[0])
    log = ConsoleLog("run", 100, start=41)  # resumed: 40 steps were done by others
    for step in range(41, 81):
        now[0] += 10.0 if step < 60 else 2.0
        log.log(step, {})
    assert log.seconds_left() == pytest.approx(2.0 * 20)


def test_clock() -> None:
    assert [clock(5), clock(65), clock(3723)] == ["0:05", "1:05", "1:02:03"]


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" and sparkline([1.0]) == ""
    assert sparkline([2.0, 2.0]) == "▁▁"


# -- the curve at the end ----------------------------------------------------------------------


def rows(drawn: str) -> list[str]:
    return [found[1] for line in drawn.splitlines() if (found := re.match(r"[^|]*\|(.*)", line))]


def test_the_curve_has_both_series_and_rises() -> None:
    history: list[dict[str, Any]] = [{"step": i, "reward/mean": i / 20} for i in range(21)]
    history += [{"step": i, "eval/reward/mean": 1.0 - i / 40} for i in (0, 20)]
    drawn = learning_curve(history, width=70, height=10)
    lines = drawn.splitlines()
    assert all(len(line) <= 70 for line in lines)
    assert "1.00" in lines[0] and rows(drawn)[0].startswith("o") and "step 20" in lines[-2]
    first = [line.rfind(".") for line in rows(drawn) if "." in line]
    assert len(first) == 10 and first == sorted(first, reverse=True)


@pytest.mark.parametrize("values", [[1.0] * 9, [1e-6 * i for i in range(9)], [-1e9, 0, 1e9, 1e9]])
def test_the_curve_of_any_scale_has_a_mark_for_every_point(values: list[float]) -> None:
    history = [{"step": i, "loss": value, "reward/mean": None} for i, value in enumerate(values)]
    drawn = learning_curve(history, width=60)
    assert sum(line.count(".") for line in rows(drawn)) == len(values)
    assert max(map(len, drawn.splitlines())) <= 60 and "loss" in drawn


@pytest.mark.parametrize("columns", [20, 21, 37, 80, 133, 300])
def test_the_curve_fits_any_terminal(columns: int) -> None:
    program = """
from mrlm.tracking.curves import learning_curve
row = {"eval/reward/mean": 0.5}
print(learning_curve([row | {"step": 10**5 + i, "reward/mean": i - 1e4} for i in range(9)]))
"""
    lines = on_terminal(program, columns).splitlines()
    assert max(map(len, lines)) <= columns and "\x1b" not in "".join(lines)
    assert sum(line.startswith(" " * 99) for line in lines) == 0
    drawn = [line.rpartition("|")[2] for line in lines if "|" in line]
    assert len(drawn) == 12 and max(map(len, drawn)) > columns - 12
    assert any("held-out" in line for line in lines)


AGENTS = {
    **{"reward/mean": 0.5, "loss": 0.25, "reward/first/mean": 0.25, "reward/second/mean": 0.75},
    **{"eval/reward/first/mean": 0.5, "completion_length/second/mean": 12.0, "entropy/base": 1.5},
}


def test_the_panel_has_numbers_by_agent() -> None:
    program = f"""
from mrlm.tracking.console import ConsoleLog
log = ConsoleLog("run", 2)
log.log(1, {AGENTS!r})
log.close()
"""
    frame = [line.strip("│ ").split() for line in last_frame(on_terminal(program))]
    assert ["reward", "eval", "length", "entropy"] in frame
    assert ["first", "0.250", "0.500", "-", "-"] in frame
    assert ["second", "0.750", "-", "12.0", "-"] in frame
    assert ["base", "-", "-", "-", "1.500"] in frame
    for columns in (20, 40):
        assert {len(line) for line in last_frame(on_terminal(program, columns))} == {columns}


def test_chosen_metrics_are_shown_instead(capfd: pytest.CaptureFixture[str]) -> None:
    program = f"""
from mrlm.tracking.console import ConsoleLog
log = ConsoleLog("run", 2, show=["reward/*/mean", "los"])
log.log(1, {AGENTS!r})
log.log(2, {{"reward/first/mean": 2000.0}})
log.close()
"""
    drawn = on_terminal(program)
    text = "\n".join(last_frame(drawn))
    assert re.search(r"reward/first/mean +2,000 +▁█", text), text
    assert re.search(r"reward/second/mean +0.750", text) and "entropy" not in text
    assert "--show los: no metric of this run has this name; did you mean 'loss'?" in drawn
    lines = on_terminal(program, TERM="dumb").splitlines()
    assert "reward/first/mean 0.250  reward/second/mean 0.750" in lines[0]


def test_many_rows_are_counted() -> None:
    shown = ShownMetrics(["x/*"])
    assert shown.table() == [] and shown.unknown()
    shown.add({f"x/{number:02}": float(number) for number in range(20)})
    assert len(shown.table()) == 14 and shown.table()[-1] == ["8 more", "", ""]
