"""One process writes to a run's folder; closed terminals, changed folders and hostile files."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from commands import Mrlm
from mrlm.build import lock as locks
from mrlm.build.folder import claim, has_earlier_run
from mrlm.core.errors import ConfigError

CODE = """\
import os, time
from mrlm.core.environment import SimulatedEnvironment
from mrlm.core.types import Message, Observation, Reward

class Slow(SimulatedEnvironment):
    def reset(self, seed=None):
        return Observation([Message("x")])

    def step(self, action):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        os.chdir("/")
        return Observation(done=True), Reward(float(len(action.content) % 2))
"""
CONFIG = """\
environments: [{env_type: 'slow:Slow'}]
training: {algorithm: reinforce, num_iterations: 100000, batch_size: 2, learning_rate: 1e-3}
generation: {max_new_tokens: 4}
"""


TERMINAL = """\
import os, pty, signal, sys
pid, terminal = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup before the tests is not meant for it
    os.execv(sys.argv[1], sys.argv[1:])
print(pid, flush=True)
sys.stdin.read()
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""Runs a command in a terminal that only this process holds, and closes it when its standard input
ends; exits with the command's code."""


@dataclass
class Terminal:
    """A run in a terminal.

    Args:
        holder: the process of `TERMINAL`.
        pid: the process of the run.
    """

    holder: subprocess.Popen[str]
    pid: int

    def close(self) -> int:
        """Closes the terminal; the exit code of the run."""
        self.holder.communicate()
        return self.holder.returncode


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Terminal]]:
    """Starts a run in a terminal, in the folder `run`; it has made a step then."""
    (tmp_path / "slow.py").write_text(CODE)
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    terminals: list[Terminal] = []

    def start() -> Terminal:
        words = [sys.executable, "-m", "mrlm", "train", "-c", "c.yaml", "-o", "run"]
        holder = subprocess.Popen(
            [sys.executable, "-c", TERMINAL, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PAUSE": "0.05"},
        )
        assert holder.stdout is not None
        terminals.append(Terminal(holder, int(holder.stdout.readline())))
        log = tmp_path / "run" / "metrics.jsonl"
        while not (log.is_file() and log.read_text()):
            assert holder.poll() is None
            time.sleep(0.05)
        return terminals[-1]

    yield start
    for terminal in terminals:
        if terminal.holder.poll() is None:
            os.kill(terminal.pid, signal.SIGKILL)
            terminal.close()
    sys.modules.pop("slow", None)


def test_a_second_start_is_refused_and_a_closed_terminal_saves(
    begun: Callable[[], Terminal], run: Mrlm, tmp_path: Path
) -> None:
    terminal = begun()
    for words in (["-c", "c.yaml", "-o", "run"], ["--resume", "run"], ["--resume", "run/"]):
        done = run("train", *words)
        assert done.code == 2 and f"process {terminal.pid} on " in done.err, done.err
        assert "writes there since" in done.err
    assert [each.name for each in tmp_path.glob("run*")] == ["run"]
    assert terminal.close() == 130
    folder = tmp_path / "run"
    assert list(folder.glob("checkpoint-*")) and not (folder / locks.LOCK).exists()
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").open()]
    done = run("train", "--resume", "run", f"training.num_iterations={steps[-1] + 1}")
    assert done.code == 0, done.err
    assert (folder / "final" / "config.json").is_file() and not (folder / locks.LOCK).exists()


@pytest.mark.slow
def test_the_lock_of_a_dead_process_is_taken_over(
    begun: Callable[[], Terminal], run: Mrlm, tmp_path: Path
) -> None:
    terminal = begun()
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.close() == -signal.SIGKILL % 256
    assert (tmp_path / "run" / locks.LOCK).exists()
    done = run("train", "-c", "c.yaml", "-o", "run", "--steps", "1")  # its reward changes folders
    assert done.code == 0, done.err
    assert (tmp_path / "run.1").is_dir() and not list(tmp_path.glob("run*/.lock"))
    assert (tmp_path / "run" / "final" / "config.json").is_file()
    assert "run folder: run " in done.out


@pytest.mark.parametrize(("pid", "host", "free"), [(1, "", False), (2**22 + 1, "", True),
                                                   (1, "elsewhere", False)])  # fmt: skip
def test_without_locks_of_the_file_system_the_named_process_decides(
    pid: int, host: str, free: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*arguments: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "lockf", unsupported)
    owner = {"pid": pid, "host": host or locks.socket.gethostname(), "since": "then"}
    (tmp_path / locks.LOCK).write_text(json.dumps(owner))
    if free:
        with locks.locked(tmp_path), locks.locked(tmp_path):
            assert json.loads((tmp_path / locks.LOCK).read_text())["pid"] == os.getpid()
        return
    with pytest.raises(ConfigError, match=f"process {pid} on .* since then"):
        locks.lock(tmp_path)


FOLDERS = {
    "config.yaml metrics.jsonl notes.txt": "renamed renamed",
    "config.yaml inputs.json": "renamed renamed",
    "1-a/config.yaml 1-a/metrics.jsonl run.html final/x": "renamed renamed",
    "a/config.yaml a/metrics.jsonl b/notes.txt": "refused refused",
    "1-a/config.yaml 1-a/metrics.jsonl src/x.py": "refused refused",
    "config.yaml main.py": "refused refused",
    "notes.txt": "left refused",
    ".lock": "left left",
}
"""Files of a folder -> what becomes of it if a run and if a pipeline begins there."""


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("files", FOLDERS)
def test_only_what_a_run_wrote_is_renamed(
    files: str, pipeline: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, outcome = tmp_path / "run", FOLDERS[files].split()[pipeline]
    for name in files.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    if outcome == "refused":
        with pytest.raises(ConfigError, match="run has other files; give a new folder"):
            has_earlier_run(folder, pipeline=pipeline)
        return
    claim(folder, has_earlier_run(folder, pipeline=pipeline))
    locks.unlock(folder)
    assert {*os.listdir(folder)} == ({"notes.txt"} & {files} if outcome == "left" else set())
    assert caplog.text.count("WARNING") == (outcome == "renamed")


def test_a_run_with_a_stage_that_another_process_writes_is_not_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "2-b").mkdir()
    for name in ("config.yaml", "metrics.jsonl", "2-b/.lock"):
        (tmp_path / name).touch()
    monkeypatch.setattr(locks, "_acquire", lambda file: False)
    with pytest.raises(ConfigError, match=r"2-b: process .* writes there"):
        has_earlier_run(tmp_path)


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "gone" / "far")
    with pytest.raises(ConfigError, match="dangling link"):
        locks.lock(tmp_path / "run")


ROW = '{"schema": 2, "id": "train/0", "step": 1, "agents": {}, "status": "completed"}'


@pytest.mark.parametrize("format", ["html", "atif", "hf-traces", "parquet"])
@pytest.mark.parametrize(
    "files",
    [
        {"episodes.jsonl": "[]\n"},
        {"episodes.jsonl": "{\n"},
        {"episodes.jsonl": '{"id": 5, "agents": [1], "step": "x"}\n'},
        {"episodes.jsonl": "[" * 100_000 + "\n"},
        {"episodes.jsonl": ROW + "\n", "metrics.jsonl": "7\n"},
        {"episodes.jsonl": ROW + "\n", "alarms.jsonl": "null\n"},
        {"episodes.jsonl": ROW + "\n", "episodes.index": "x\n"},
        {"episodes.jsonl": ROW + "\n", "vocabulary.json.gz": "x"},
        {"episodes.jsonl": ROW + "\n", "ratings.json": "["},
        {"episodes.jsonl": None},
        {"episodes.jsonl": ROW + "\n", "metrics.jsonl": None},
        {"episodes.jsonl": ROW + "\n", "config.yaml": None},
    ],
)
def test_an_export_reads_nothing_outside_and_fails_in_words(
    files: dict[str, str | None], format: str, run: Mrlm, tmp_path: Path
) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow")
    folder, secret = tmp_path / "run", tmp_path / "secret"
    folder.mkdir()
    secret.write_text('{"id": "s3cret", "step": 1, "loss": 77, "agents": {}}\n')
    for name, text in files.items():
        if text is None:
            (folder / name).symlink_to(secret)
        else:
            (folder / name).write_text(text)
    done = run("export", folder, "-o", tmp_path / "out.html", "--format", format)
    assert "Traceback" not in done.err and done.code in (0, 2), done.err
    written = [each for each in tmp_path.rglob("out*") if each.is_file()]
    assert not any("s3cret" in each.read_text(errors="replace") for each in written)
    if "links" in done.err or None in files.values():
        assert done.code == 2 or format != "html"


def test_a_home_folder_is_the_users(
    run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "c.yaml").write_text(
        "environments: [{env_type: relay}]\noutput_dir: ~/runs\n"
        "training: {algorithm: reinforce, num_iterations: 1, batch_size: 2}\n"
    )
    assert run("train", "--config=~/c.yaml").code == 0
    assert (tmp_path / "home" / "runs" / "final").is_dir()
    assert run("export", "~/runs", "--output=~/x.html").code == 0
    assert [each.name for each in tmp_path.iterdir()] == ["home"]
