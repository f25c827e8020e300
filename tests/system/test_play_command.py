"""`mrlm play`: a person in any seat, over a pipe and in a terminal."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import Done, Mrlm
from mrlm.cli.play import Terminal
from mrlm.core.types import Message, Role
from mrlm.runs import handling, interrupt

PROGRAM = [sys.executable, "-m", "mrlm", "play"]
QUIET = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
EXPERT = ("--others", "expert")

Play = Callable[..., Done]


@pytest.fixture
def play(run: Mrlm, monkeypatch: pytest.MonkeyPatch) -> Play:
    """The command in this process, with these lines on its standard input."""

    def call(lines: str, *arguments: object) -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return run("play", *arguments)

    return call


def written(name: str, **config: Any) -> Path:
    path = Path(f"{name}.yaml")
    config = {"generation": {"max_new_tokens": 4}, **config}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def math(**more: Any) -> dict[str, Any]:
    rows = [{"prompt": "2+3=?", "answer": "5"}]
    return {"env_type": "math", "dataset": rows, "max_attempts": 2, "instruction": "", **more}


def test_one_seat_is_asked_told_and_paid(play: Play) -> None:
    agents = {"pupil": {"system_prompt": "Be exact."}}
    done = play("4\n5\n", "--config", written("one", environments=[math()], agents=agents))
    assert done.code == 0, done
    assert done.out == (
        "You are pupil. /help lists the commands.\n"
        "\n=== episode 1 of 1 ===\n"
        "[system]\nBe exact.\n"
        "[environment]\n2+3=?\n"
        "pupil> 4\n"
        "reward of pupil: +0 (correct 0, unparseable 0)\n"
        "[environment]\nThat is not correct. Try again (attempt 2 of 2).\n"
        "pupil> 5\n"
        "[environment]\nThat is correct.\n"
        "reward of pupil: +1 (correct 1, unparseable 0)\n"
        "=== done after 2 step(s); the team +1; pupil +1\n"
    )


def test_a_game_against_the_world_s_own_player(play: Play) -> None:
    done = play("5\n\n.\nnonsense\n", "-e", "tic_tac_toe", "--seat", "o", *EXPERT, "--seed", 1)
    assert done.code == 0, done
    assert done.out.startswith("You are o; with you: x (expert).")
    boards = re.findall(r"\[environment\]\n(?:Tic-tac-toe\..*\n)?(.+\n.+\n.+)\nYou are O", done.out)
    assert len(boards) == 2 and boards[0].count("X") == 1
    assert (boards[1].count("X"), boards[1].count("O")) == (2, 1), "empty lines are not sent"
    assert "reward of o: -1.5" in done.out and "reward of x: +1 (won 1)" in done.out
    again = play("5\nnonsense\n", "-e", "tic_tac_toe", "--seat", "o", *EXPERT, "--seed", 1)
    assert re.findall(r"reward.*", again.out) == re.findall(r"reward.*", done.out)


def test_the_board_is_shown_where_it_changed_and_hides_what_the_player_may_not_see(
    play: Play,
) -> None:
    done = play("5\n", "-e", "tic_tac_toe", "--seat", "o", *EXPERT, "--seed", 1)
    boards = re.findall(r"\[board\]\n((?:[^\[\n].*\n|\[[XO]\].*\n)+)", done.out)
    assert boards[0] == "1 2 3\n4 5 6\n7 8 9\nX (x) to move\n"
    assert boards[1].count("[X]") == 1 and "O (o) to move" in boards[1]
    assert "[O]" in boards[2] and "X (x) to move" in boards[2]
    assert len(set(boards)) == len(boards), "only where it changed"
    done = play("bet\n", "-e", "kuhn_poker", "--seat", "first", *EXPERT, "--seed", 3)
    assert done.code == 0 and "hand  first  second  moves" in done.out, done
    rows = re.findall(r"^1 +(\S) +(\S) +(.*)$", done.out, re.MULTILINE)
    assert len(rows) >= 2 and {other for _, other, _ in rows} == {"?"}
    assert rows[0][0] in "JQK" and rows[-1][2].startswith("bet, ")


def test_the_others_are_the_policies_of_the_config(play: Play) -> None:
    worlds = [{"env_type": "relay", "max_number": 3, "name": "small"}, math(name="sums")]
    config = written("two", environments=worlds, training={"algorithm": "magrpo"})
    done = play("1\n2\n", "-c", config, "-e", "small", "--seat", "second", "--episodes", 2)
    assert done.code == 0, done
    assert "You are second; with you: first (policy)." in done.out
    assert done.out.count("=== done after 2 step(s)") == 2
    assert done.out.count("reward of first:") == done.out.count("reward of second:") == 2
    one = play("5\n", "-c", config, "-e", "sums")
    assert one.code == 0 and "You are agent. " in one.out and "the team +1" in one.out, one


def test_a_seat_of_a_team_is_shown_what_the_others_said(play: Play) -> None:
    config = written(
        "team",
        environments=[math(max_attempts=1)],
        workflow="chain",
        agents={"solver": {}, "checker": {}},
        policies={"both": {}},
    )
    done = play("5\n", "-c", config, "--seat", "checker", *EXPERT)
    assert done.code == 0, done
    assert "[environment]\n2+3=?\n[solver]\nsolver: 5\nchecker> 5\n" in done.out
    assert done.out.endswith("; the team +1; solver +1, checker +1\n")
    first = play("4\n", "-c", config, *EXPERT)
    assert "You are solver; with you: checker (expert)." in first.out


LONG = "```python\ndef f():\n\n    return 1\n```\n"


@pytest.mark.parametrize(
    ("lines", "more", "said"),
    [
        ("/long\none\ntwo\n\n", (), ["one\ntwo"]),
        ("/long\none\ntwo\n.\n", (), ["one\ntwo"]),
        (f"{LONG}\n", (), [LONG.strip()]),
        (f"{LONG}.\n", (), [LONG.strip()]),
        (LONG, (), [LONG.strip()]),
        ("one\ntwo\n\nthree\n.\n", ("--multiline",), ["one\ntwo", "three"]),
        ("one\ntwo\n", (), ["one", "two"]),
        ("/HELP\n/again\none\n", (), ["one"]),
    ],
)
def test_answers_of_several_lines(
    lines: str, more: tuple[str, ...], said: list[str], play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mrlm.environments.math import PLUGIN

    heard: list[str] = []
    step = PLUGIN.step

    def note(self: Any, actions: Any) -> Any:
        heard.extend(message.content for message in actions.values())
        return step(self, actions)

    monkeypatch.setattr("mrlm.build.environments.check_rows", lambda *_: None)
    monkeypatch.setattr(PLUGIN, "step", note)
    config = written("sums", environments=[math(max_attempts=len(said))])
    done = play(lines, "-c", config, *more)
    assert done.code == 0 and heard == said, done
    assert ("/quit leaves" in done.out) == ("/HELP" in lines)
    assert done.out.count("[environment]\n2+3=?") == 1 + ("/again" in lines)


@pytest.mark.parametrize("lines", ["", "/quit\n", "/long\n", "4\n", "4\n /QUIT \n5\n"])
def test_leaving_is_no_error(lines: str, play: Play) -> None:
    done = play(lines, "-c", written("sums", environments=[math()]))
    assert done.code == 0 and done.out.endswith("You have left.\n"), done
    assert "Traceback" not in done.err and "never retrieved" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no experiment is given"),
        (("-e", "tic_tac_to"), "did you mean 'tic_tac_toe'"),
        (("-e", "tic_tac_toe", "--seat", "X"), "agents: 'X' does not exist (known: x, o)"),
        (("-e", "tic_tac_toe", "--others", "nobody"), "--others"),
        (("-c", "nowhere.yaml"), "nowhere.yaml: this file does not exist"),
        (("-e", "tic_tac_toe", "--episodes", "0"), "--episodes"),
    ],
)
def test_mistakes_exit_with_2(arguments: tuple[str, ...], said: str, play: Play) -> None:
    done = play("1\n", *arguments)
    assert done.code == 2 and said in " ".join(done.err.split()), done
    assert done.out == ""


def test_a_world_without_its_own_player_says_so(play: Play) -> None:
    config = written(
        "free",
        environments=[
            {
                "env_type": "reward",
                "dataset": [{"prompt": "Write."}],
                "reward_func": "operator:concat",
                "agents": ["a", "b"],
            }
        ],
    )
    done = play("x\n", "-c", config, *EXPERT)
    assert done.code == 1 and "has no expert for agent 'b'" in done.err, done


def test_what_worlds_say_cannot_steer_the_terminal(play: Play) -> None:
    rows = [{"prompt": "2+3?\x1b[2J", "answer": "5"}]
    done = play("5\n", "-c", written("esc", environments=[math(dataset=rows)]))
    assert done.code == 0 and "\x1b" not in done.out and "2+3?\\x1b[2J" in done.out


@pytest.mark.slow
def test_a_pipe_is_enough() -> None:
    arguments = ["-e", "tic_tac_toe", "--others", "expert"]
    done = subprocess.run(
        [*PROGRAM, *arguments], input="/quit\n", capture_output=True, text=True, env=QUIET
    )
    assert done.returncode == 0, done.stderr
    assert "Which cell?\nx> /quit\nYou have left.\n" in done.stdout


def read_until(terminal: int, wanted: str) -> str:
    """What a program shows in a terminal, up to some text."""
    shown = ""
    while wanted not in shown:
        try:
            shown += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # the program has ended
            break
    return shown.replace("\r\n", "\n")


def test_a_terminal_and_its_interrupt() -> None:
    mine, its = pty.openpty()
    arguments = ["-e", "tic_tac_toe", "--others", "expert", "--seed", "1"]
    program = subprocess.Popen(
        [*PROGRAM, *arguments], stdin=its, stdout=its, stderr=its, env=QUIET, start_new_session=True
    )
    os.close(its)
    try:
        assert "You are X. Which cell?" in read_until(mine, "x> ")
        os.write(mine, b"5\n")
        board = read_until(mine, "x> ")
        assert "4 X 6" in board and board.count("Which cell?") == 1
        for _ in range(12):  # between a prompt and the wait for a key Python does not see the first
            program.send_signal(signal.SIGINT)
            if select.select([mine], [], [], 10)[0]:  # it has heard: a second would meet its exit
                break
        assert "interrupted" in read_until(mine, "interrupted")
        assert program.wait() == 130
    finally:
        program.kill()
        os.close(mine)


def test_what_is_new_is_shown_and_a_new_conversation_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\nthree\nfour\n"))
    terminal = Terminal(multiline=False)
    terminal.name = "me"
    first = [Message("a"), Message("b", Role.SYSTEM)]
    more = [*first, Message("one", Role.ASSISTANT), Message("c", agent="you")]
    for messages, said in (
        (first, "[environment]\na\n[system]\nb\nme> one\n"),
        (more, "[you]\nc\nme> two\n"),
        (first, "(a new conversation)\n[environment]\na\n[system]\nb\nme> three\n"),  # asked anew
        (
            [Message("x"), *first],
            "(a new conversation)\n[environment]\nx\n[environment]\na\n[system]\nb\nme> four\n",
        ),
    ):
        terminal.ask("me", messages)
        assert capsys.readouterr().out == said


def test_what_is_said_is_there_before_anybody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a program listens, through a pipe that would keep it back."""
    seen: list[str] = []

    class Pipe(io.StringIO):
        def flush(self) -> None:
            seen.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Pipe())
    Terminal(multiline=False).say("your turn")
    assert seen == ["your turn\n"]


def test_three_fences_are_one_closed_and_one_open(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["```", "a", "```", "```", "", "b", "```", ""]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(typed) + "\nrest\n"))
    assert Terminal(multiline=True)._lines([]) == "\n".join(typed[:-1])


def test_an_interrupt_is_for_others_again_when_the_game_is_over() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), handling(("SIGINT",), interrupt):
        assert signal.getsignal(signal.SIGINT) is not before
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
