"""Containers: what is asked of the engine, and what becomes of what it answers.

Where there is no engine, a stand-in client runs what the container would run, as a plain process:
that tries our half, not the isolation, which only a real engine can show (the tests at the end).
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mrlm.core.errors import ConfigError
from mrlm.sandbox.docker import DockerSandbox, from_words
from mrlm.sandbox.docker import container as _container
from mrlm.sandbox.docker import sandbox as docker
from mrlm.sandbox.docker.container import INSIDE, ContainerEngine
from mrlm.sandbox.types import (
    MIB,
    AnswerError,
    Limits,
    Sandbox,
    SandboxError,
    SandboxResult,
    SandboxUnavailableError,
    SessionEnded,
)
from waiting import until

ADDS = "total = 0\ndef answer(n):\n    global total\n    total += n\n    return total"

STAND_IN = """#!{python}
import json, os, signal, sys, time
folder, words = {folder!r}, sys.argv[1:]
with open(folder + "/log", "a") as log: log.write(json.dumps(words) + "\\n")
fault = open(folder + "/fault").read() if os.path.exists(folder + "/fault") else ""
if words[0] == "version":
    print("Cannot connect to the Docker daemon", file=sys.stderr)
    sys.exit(1 if fault == "no engine" else 0)
if words[0] == "image": sys.exit(1 if fault == "no image" else 0)
if words[0] == "rm":
    if fault == "cannot remove": sys.exit("Error response from daemon: busy")
    try: os.killpg(int(open(folder + "/" + words[-1]).read()), signal.SIGKILL)
    except (OSError, ValueError): sys.exit("Error: No such container: " + words[-1])
    sys.exit(0)
if fault == "once": os.remove(folder + "/fault")
if fault in ("no run", "once"):
    print("docker: Error response from daemon: no space left", file=sys.stderr)
    sys.exit(125)
if fault == "killed": os.write(1, b"s\\0\\0\\0\\0"); sys.exit(137)
if fault == "lost": os.write(1, b"s\\0\\0\\0\\0"); sys.exit(1)
if fault == "garbage": os.write(1, b"HTTP/1.1 200 OK"); time.sleep(20)
if fault == "report": os.write(1, b"s\\0\\0\\0\\0x\\4\\0\\0\\0nope"); sys.exit(0)
if fault == "slow": time.sleep(20)
name = words[words.index("--name") + 1]
open(folder + "/" + name, "w").write(str(os.getpid()))
rest = words[words.index("--entrypoint") + 3:]
os.execv({python!r}, [{python!r}, *rest])
"""


class StandIn:
    """A client that isolates nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "docker"
        self.path.write_text(STAND_IN.format(python=sys.executable, folder=str(folder)))
        self.path.chmod(0o755)

    def fault(self, name: str) -> None:
        (self.folder / "fault").write_text(name)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def sandbox(self, **words: Any) -> DockerSandbox:
        return DockerSandbox("image", docker=str(self.path), **words)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(_container, "FOLDER", str(tmp_path / "w"))
    return StandIn(tmp_path)


def run(sandbox: Sandbox, program: str, **words: Any) -> SandboxResult:
    return asyncio.run(sandbox.run(program, **words))


_there: set[int] = set()


@pytest.fixture(autouse=True)
def whoever_is_there_already() -> None:
    """Workers that other tests have left ready are none of ours."""
    _there.clear()
    _there.update(below())


def below() -> set[int]:
    """Processes below this one that have not ended."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if _runs(child)} - _there


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


# -- what is asked ---------------------------------------------------------------------------------


def test_the_command_is_this_one() -> None:
    limits = Limits(memory=512 * MIB, disk=32 * MIB, processes=20, open_files=100, output=1)
    command = ContainerEngine("python:3.12-slim", cpus=0.5, runtime="runsc").command(
        "mrlm-7", limits
    )
    assert command == [
        "docker", "run", "--rm", "--interactive", "--name", "mrlm-7", "--pull", "never",
        "--runtime", "runsc",
        "--network", "none", "--ipc", "private", "--hostname", "sandbox",
        "--read-only",
        "--tmpfs", "/tmp:rw,nosuid,nodev,size=33554432,nr_inodes=4096,mode=1777",
        "--shm-size", "16777216",
        "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534",
        "--pids-limit", "22",
        "--memory", "637534208", "--memory-swap", "637534208", "--cpus", "0.5",
        "--ulimit", "core=0", "--ulimit", "nofile=100",
        "--log-driver", "none", "--workdir", "/tmp",
        "--env", "PATH=/usr/local/bin:/usr/bin:/bin", "--env", "HOME=/tmp/w",
        "--env", "LANG=C.UTF-8", "--env", "PYTHONHASHSEED=0", "--env", "OMP_NUM_THREADS=1",
        "--env", "HTTP_PROXY=", "--env", "http_proxy=", "--env", "HTTPS_PROXY=",
        "--env", "https_proxy=", "--env", "FTP_PROXY=", "--env", "ftp_proxy=",
        "--env", "NO_PROXY=", "--env", "no_proxy=", "--env", "ALL_PROXY=", "--env", "all_proxy=",
        "--entrypoint", "python3", "python:3.12-slim",
        "-s", "-B", "-X", "utf8", "-c", INSIDE.read_text(),
    ]  # fmt: skip
    assert "--runtime" not in ContainerEngine("x").command("n", limits)
    assert (512 + 32 + 64) * MIB == 637534208


def test_a_client_that_is_here_knows_these_options() -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker client is installed")
    manual = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True).stdout
    words = ContainerEngine("x", runtime="y").command("n", Limits())
    options = {word for word in words[: words.index("--entrypoint")] if word.startswith("--")}
    assert [option for option in options if f"{option} " not in manual] == []


def test_nothing_of_a_program_is_in_the_command(client: StandIn) -> None:
    sandbox = client.sandbox()
    for number in (1, 2):
        program = f"secret_{number} = open('f').read(), input()"
        assert run(sandbox, program, stdin=f"input_{number}", files={"f": b"file_7"}).ok
    first, second = client.calls()
    assert not any(mark in word for word in first for mark in ("secret_", "input_", "file_7"))
    changed = [(a, b) for a, b in zip(first, second, strict=True) if a != b]
    assert [a[:5] for a, _ in changed] == ["mrlm-"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"image": "--privileged"}, "image"), ({"image": ""}, "image"), ({"image": 7}, "image"),
        ({"runtime": "--volume=/:/host"}, "runtime"), ({"cpus": 0}, "cpus"),
        ({"workers": -1}, "workers"), ({"img": "python"}, "did you mean 'image'"),
    ],
)  # fmt: skip
def test_words_that_cannot_be_meant_are_said(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_words(words)


def test_no_engine_is_said_with_what_to_do(client: StandIn, tmp_path: Path) -> None:
    words = {"image": "python:3.12-slim", "docker": str(client.path)}
    client.fault("no engine")
    with pytest.raises(SandboxUnavailableError, match=r"Cannot connect.*systemctl start docker"):
        from_words(words)
    client.fault("no image")
    with pytest.raises(SandboxUnavailableError, match=r"docker pull python:3\.12-slim"):
        from_words(words)
    with pytest.raises(SandboxUnavailableError, match="install Docker"):
        from_words({"docker": str(tmp_path / "none")})
    client.fault("")
    assert from_words(words, Limits(wall=1)).limits.wall == 1
    assert not any(call[0] in ("run", "pull") for call in client.calls())


# -- what becomes of the answer --------------------------------------------------------------------


def test_a_program_runs_to_its_end(client: StandIn) -> None:
    sandbox = client.sandbox()
    assert isinstance(sandbox, Sandbox) and sandbox.name == "docker"
    result = run(
        sandbox,
        "import os, sys\nprint(sys.stdin.read(), open('d/f').read(), sorted(os.environ))",
        stdin="h\u00e9 \U0001f600",
        files={"d/f": b"file"},
    )
    assert result.status == "ok", result
    assert result.stdout.startswith("h\u00e9 \U0001f600 file ['HOME', 'LANG'")
    assert "TOKEN" not in result.stdout and result.usage.memory > MIB
    failed = run(sandbox, "import sys\nprint('x' * 10)\nsys.exit(3)")
    assert (failed.status, failed.exit_code, failed.stdout) == ("error", 3, "x" * 10 + "\n")
    assert "boom-17" in run(sandbox, "raise ValueError('boom-17')").stderr
    for program in ("x = 1\0", "x = '\ud800'"):
        assert run(sandbox, program).status == "refused"
    unwritable = run(sandbox, "print(1)", files={"d": b"", "d/f": b""})
    assert unwritable.status == "refused" and "its files" in unwritable.reason


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(1e6)", "timeout"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "timeout"),
        ("import signal; signal.pthread_sigmask(0, range(1, 60))\nwhile True: pass", "timeout"),
        ("while True: print('A' * 65536)", "output_limit"),
        ("import sys\nwhile True: sys.stderr.write('A' * 65536)", "output_limit"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
        ("import ctypes; ctypes.string_at(0)", "killed"),
        ("x = bytearray(1 << 45)", "oom"),
        ("import os; os._exit(0)", "ok"),
        ("import os; os.kill(os.getppid(), 2)", "ok"),
        ("import os; os.close(1); os.close(2); os._exit(7)", "error"),
        (
            "import os\nif os.fork() == 0:\n  os.setsid()\n  while True: os.write(1, b'x' * 99)",
            "ok",
        ),
    ],
)
def test_every_end_is_told_apart(program: str, status: str, client: StandIn) -> None:
    before = below()
    limits = Limits(wall=0.5 if status == "timeout" else 60.0, output=100_000)
    result = run(client.sandbox(), program, limits=limits)
    assert result.status == status or (status == "ok" and result.status == "output_limit"), result
    assert len(result.output) <= limits.output
    if "fork" not in program:  # a real container takes its orphans with it
        until(lambda: not below() - before)
    for process in psutil.process_iter():
        if process.pid in below() - before:
            process.kill()


def test_a_program_does_not_speak_for_the_container(client: StandIn) -> None:
    forged = "import os, struct\nd = b'{\"code\": 0}'\n"
    forged += "for fd in range(9):\n    try: os.write(fd, b'x' + struct.pack('<I', len(d)) + d)\n"
    forged += "    except OSError: pass\nos._exit(5)"
    result = run(client.sandbox(), forged)
    assert (result.status, result.exit_code) == ("error", 5)
    assert result.stdout.startswith("x\x0b")


@pytest.mark.parametrize("fault", ["no run", "lost", "killed", "garbage", "report"])
def test_an_engine_that_fails_is_no_verdict(fault: str, client: StandIn) -> None:
    client.fault(fault)
    result = run(client.sandbox(), "print(1)")
    assert result.status == "infra_error" and result.reason, result
    assert len([call for call in client.calls() if call[0] == "run"]) == 2
    with pytest.raises(SandboxError):
        asyncio.run(client.sandbox().session(ADDS))
    assert not below()


def test_a_failure_is_tried_once_more(client: StandIn) -> None:
    client.fault("once")
    assert run(client.sandbox(), "print(1)").stdout == "1\n"


def test_a_container_that_cannot_be_removed_is_said(client: StandIn) -> None:
    client.fault("cannot remove")
    result = run(client.sandbox(), "while True: pass", limits=Limits(wall=0.3))
    assert result.status == "infra_error" and "rm --force mrlm-" in result.reason
    assert not below()


def test_a_container_that_does_not_start_is_given_up(
    client: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "STARTING", 0.3)
    client.fault("slow")
    assert "did not start within" in run(client.sandbox(), "print(1)").reason


def test_containers_are_removed_by_their_name(client: StandIn) -> None:
    run(client.sandbox(), "while True: pass", limits=Limits(wall=0.3))
    started, removed = client.calls()
    assert removed == ["rm", "--force", started[started.index("--name") + 1]]
    assert run(client.sandbox(), "print(1)").ok
    assert client.calls()[-1][0] == "run"  # what ended by itself is gone


def test_giving_up_the_wait_ends_the_container(client: StandIn) -> None:
    async def use() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.sandbox().run("import time; time.sleep(60)"), 1.0)

    asyncio.run(use())
    until(lambda: not below())


def test_a_container_ends_when_whoever_asked_is_gone(client: StandIn) -> None:
    code = (
        "import asyncio, sys\nfrom mrlm.sandbox.docker import container as _container\n"
        "from mrlm.sandbox.docker import DockerSandbox\n"
        f"_container.FOLDER = {str(client.folder / 'w')!r}\n"
        f"sandbox = DockerSandbox('image', docker={str(client.path)!r})\n"
        "asyncio.run(sandbox.run('import time; print(1, flush=True); time.sleep(60)'))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: any(path.read_text() for path in client.folder.glob("mrlm-*")))
    (path,) = client.folder.glob("mrlm-*")
    pid = int(path.read_text())
    assert psutil.pid_exists(pid)
    caller.kill()
    caller.wait()
    until(lambda: not psutil.pid_exists(pid))


def test_closing_ends_whatever_runs(client: StandIn) -> None:
    async def use() -> None:
        sandbox = client.sandbox(limits=Limits(wall=30.0))
        idle, busy = (
            await sandbox.session(ADDS),
            await sandbox.session("def answer(x):\n  while x: 1"),
        )
        jobs = [
            asyncio.create_task(job)
            for job in (sandbox.run("while True: pass"), busy.ask(1, 30.0), sandbox.run("1" * 999))
        ]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(sandbox.close)
        ran, asked, _ = await asyncio.gather(*jobs, return_exceptions=True)
        assert not below()
        assert isinstance(ran, SandboxResult) and ran.status == "infra_error"
        assert isinstance(asked, SandboxError)
        with pytest.raises(SessionEnded):
            await idle.ask(1, 1.0)
        assert (await sandbox.run("print(1)")).status == "infra_error"

    asyncio.run(use())


def test_a_session_keeps_its_state_and_says_how_it_ended(client: StandIn) -> None:
    async def use() -> None:
        sandbox = client.sandbox(limits=Limits(wall=5.0))
        session = await sandbox.session(ADDS)
        assert [await session.ask(n, 5.0) for n in (1, 2, 3)] == [1, 3, 6]
        with pytest.raises(AnswerError, match="TypeError"):
            await session.ask("text", 5.0)
        assert await session.ask(4, 5.0) == 10
        await session.close()
        await session.close()
        with pytest.raises(SessionEnded, match="closed"):
            await session.ask(1, 5.0)
        for program, status in (
            ("def answer(x):\n    while x: pass", "timeout"),
            ("import os\ndef answer(x): os._exit(0)", "killed"),
            ("def answer(x): return 'x' * (2 << 20)", "output_limit"),
        ):
            session = await sandbox.session(program)
            with pytest.raises(SessionEnded) as ended:
                await session.ask(1, 0.5 if status == "timeout" else 20.0)
            assert ended.value.status == status
        for program in ("1 / 0", "x = 1", "import os; os._exit(0)"):
            with pytest.raises(SessionEnded):
                await sandbox.session(program)
        await sandbox.session(ADDS)
        sandbox.close()

    asyncio.run(use())
    assert not below()


# -- process 1 ------------------------------------------------------------------------------------

AGAINST_PROCESS_1 = {
    "import os\nfor s in range(1, 65): os.kill(1, s) if s != 32 and s != 33 else 0": "",
    "print(open('/proc/1/environ').read())": "Permission denied",
    "import os; print(os.readlink('/proc/1/fd/1'))": "Permission denied",
    "open('/proc/1/fd/1', 'wb').write(b'x')": "Permission denied",
    "open('/proc/1/mem', 'rb+')": "Permission denied",
    "import ctypes; assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0": "AssertionError",
    "assert open('/proc/self/oom_score_adj').read() != '1000\\n'": "AssertionError",
}
IN_BUBBLEWRAP = """#!{python}
import os, sys
words = sys.argv[1:]
if words[0] == "rm": sys.exit("No such container")
given = dict(w.split("=", 1) for w, before in zip(words[1:], words) if before == "--env")
os.execvpe("bwrap", ["bwrap", "--unshare-all", "--as-pid-1", "--die-with-parent", "--uid", "65534",
    "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--chdir", "/tmp",
    {python!r}, *words[words.index("--entrypoint") + 3:]], given | {{"PATH": os.environ["PATH"]}})
"""


@pytest.fixture
def namespaces(tmp_path: Path) -> DockerSandbox:
    words = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    if shutil.which("bwrap") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("no bubblewrap to make a process 1 with")
    client = tmp_path / "docker"
    client.write_text(IN_BUBBLEWRAP.format(python=os.path.realpath(sys.executable)))
    client.chmod(0o755)
    return DockerSandbox("image", docker=str(client))


@pytest.mark.parametrize("program", AGAINST_PROCESS_1)
def test_process_1_is_out_of_reach(program: str, namespaces: DockerSandbox) -> None:
    result = run(namespaces, f"{program}\nprint('went on')")
    said = AGAINST_PROCESS_1[program]
    assert said in result.stderr and result.status == ("error" if said else "ok"), result
    assert ("went on" in result.stdout) == (not said)


# -- a real engine ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> DockerSandbox:
    try:
        return from_words({"image": os.environ.get("MRLM_TEST_IMAGE", docker.IMAGE)})
    except SandboxUnavailableError as error:
        pytest.skip(f"no Docker engine to try: {error}")


REAL: dict[str, tuple[str, Callable[[SandboxResult], bool]]] = {
    "runs": ("print(6 * 7)", lambda r: r.stdout == "42\n"),
    "is nobody": (
        "import os; print(os.getuid(), os.getgid())",
        lambda r: r.stdout == "65534 65534\n",
    ),
    "scratch": ("open('f', 'w').write('x'); print(open('f').read())", lambda r: r.ok),
    "system": ("open('/etc/x', 'w')", lambda r: "Read-only" in r.stderr),
    "network": (
        "import socket; socket.create_connection(('1.1.1.1', 80), 2)",
        lambda r: "unreachable" in r.stderr,
    ),
    "fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        lambda r: r.status in ("timeout", "killed"),
    ),
    "memory": ("x = []\nwhile True: x.append(bytearray(1 << 20))", lambda r: r.status == "oom"),
    "disk": ("f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))", lambda r: not r.ok),
    "process 1": ("print(open('/proc/1/environ').read())", lambda r: r.status == "error"),
    "sleeps": ("import time; time.sleep(1e6)", lambda r: r.status == "timeout"),
}


@pytest.mark.parametrize("name", REAL)
def test_in_a_real_container(name: str, engine: DockerSandbox) -> None:
    program, held = REAL[name]
    result = run(engine, program, limits=Limits(wall=3.0))
    assert held(result), result
