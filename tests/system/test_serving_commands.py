"""`mrlm serve` as a process: it starts without torch, says where it is, drains, and leaves nothing
behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from certificates import Authority
from commands import Mrlm
from forking import Launcher
from hosted import Client, Hosted
from mrlm.cli import serve
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.protocol.channels import failure_in
from places import IMPORTS, free_port
from waiting import until

SCENE = "served_worlds:Scene"


class Started:
    """`mrlm serve` in a process of its own."""

    def __init__(self, *arguments: object, path: str = "", **environment: str) -> None:
        paths = [path, IMPORTS, os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mrlm", "serve", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, paths)), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.match(r"serving on (\S+): ", self.line)
        if found is None:
            raise AssertionError(self.line + self.process.communicate()[1])
        self.address = found[1]

    @property
    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def end(self, *signals: int, timeout: float = 60.0) -> tuple[int, str]:
        """Send signals; returns the exit status and what it said."""
        for number in signals:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=timeout)
        return self.process.returncode, said


@pytest.fixture
def serving() -> Iterator[Any]:
    """Starts servers, and sees to it that none outlives the test."""
    started: list[Started] = []

    def start(*arguments: object, **more: str) -> Started:
        started.append(Started(*arguments, **more))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)


def test_worlds_are_served_where_there_is_no_torch(
    serving: Any, run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent" / "torch"
    absent.mkdir(parents=True)
    (absent / "__init__.py").write_text("raise ImportError('there is no torch here')")
    (tmp_path / "worlds.yaml").write_text(
        "environments:\n  - {env_type: math, name: easy, difficulty_range: [1, 1], max_turns: 2}\n"
        "training: {algorithm: no_such}\n"
    )
    served = serving(
        "--environments", f"code,math,debate,{SCENE}", "--port", 0, "--workers", 1,
        "--config", tmp_path / "worlds.yaml", "--token-env", "SECRET",
        "--lease", 30, "--max-sessions", 9,
        path=str(absent.parent), SECRET="abc",
    )  # fmt: skip
    assert "code, math, debate" in served.line and "token" in served.line
    monkeypatch.setenv("MRLM_TOKEN", "abc")
    told = run("info", "--server", served.address, "--wait", 30)
    assert told.code == 0, told.err
    for words in (
        "code, math, debate",
        "easy",
        "0 of 9",
        "lease 30 s",
        "epoch",
        "policies      none",
        "workers       1",
        "messages      up to",
    ):
        assert words in told.out
    with Client(served.address, "abc") as client:
        for name in ("code", "math", "debate", "easy"):
            client.open(name).reset()
        session = client.begin(SCENE)
        assert json.loads(session.step("environment").info_json)["torch"] is False
        assert client.stub.Describe(pb.World(environment="easy"), metadata=client.metadata).name
        for each in range(4):
            client.open("math", key=str(each)).reset()
        with pytest.raises(grpc.RpcError, match="9 sessions are open already"):
            client.open("math")
    workers = served.workers
    assert len(workers) == 1
    ended = served.end(signal.SIGTERM, signal.SIGINT)[0]
    assert ended - 128 in (signal.SIGINT, signal.SIGTERM)
    until(lambda: not any(worker.is_running() for worker in workers))


def test_a_drain_waits_for_open_sessions_and_exits_0(serving: Any) -> None:
    served = serving("-e", SCENE, "--port", 0, "--workers", 1, "--grace", 60)
    with Client(served.address) as client:
        session = client.begin(SCENE)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: client.info().draining)
        with pytest.raises(grpc.RpcError) as caught:
            client.open(SCENE)
        failure = failure_in(caught.value)
        assert failure is not None and failure.kind == pb.Failure.BUSY
        session.step()
        assert served.process.poll() is None
        session.close()
    code, said = served.end()
    assert code == 0
    assert "shutting down: open sessions (1) have" in said
    assert "Traceback" not in said


def test_the_grace_of_a_drain_ends(serving: Any) -> None:
    served = serving("-e", SCENE, "--port", 0, "--workers", 1, "--grace", 0.2)
    workers = served.workers
    with Client(served.address) as client:
        client.open(SCENE).reset()
        code, said = served.end(signal.SIGINT)
    assert code == 0 and "Traceback" not in said
    assert not any(worker.is_running() for worker in workers)


def test_a_killed_server_leaves_no_worker(serving: Any) -> None:
    served = serving("-e", SCENE, "--port", 0, "--workers", 2)
    workers = served.workers
    assert len(workers) == 2
    with Client(served.address) as client:
        session = client.begin(SCENE)
        threading.Thread(target=lambda: _quietly(session.step, "sleep 100"), daemon=True).start()
        time.sleep(0.3)
        served.end(signal.SIGKILL)
        until(lambda: not any(worker.is_running() for worker in workers))


def _quietly(ask: Any, *arguments: object) -> None:
    try:
        ask(*arguments)
    except (grpc.RpcError, ValueError):
        return


def test_a_server_that_stood_still_lost_nobody(serving: Any) -> None:
    served = serving("-e", SCENE, "--port", 0, "--workers", 1, "--lease", 2, "--timeout", 1)
    with Client(served.address) as client:
        session = client.begin(SCENE)
        served.process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        served.process.send_signal(signal.SIGCONT)
        session.step()
        assert client.info().sessions == 1


def test_bad_arguments_are_refused_with_words(run: Mrlm, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("environments: [math]")
    odd, held_out = tmp_path / "odd.yaml", tmp_path / "held_out.yaml"
    odd.write_text("environments: [{env_type: math, name: mine, rangee: [1, 2]}]")
    held_out.write_text("eval_envs: [{env_type: math, name: hard, rangee: [1, 2]}]")
    listed, none = tmp_path / "listed.yaml", tmp_path / "empty.yaml"
    listed.write_text("[math, environments]")
    none.write_text("# nothing\n")
    for arguments, words in [
        (["-e", "math", "--host", "0.0.0.0"], "needs TLS and a token (it has neither)"),
        (["-e", "math", "--host", "0.0.0.0", "--token", "t"], "a token but no TLS"),
        (["-e", "mathh"], "did you mean 'math'"),
        (["-c", tmp_path / "none.yaml"], "does not exist"),
        (["-c", file], "environments: must be a list of mappings"),
        (["-c", listed], "a config is a mapping of keys"),
        (["-c", none], "environments: must be a list of mappings"),
        (["-c", held_out], "environment 'hard': unknown argument 'rangee'"),
        (["-c", odd], "environment 'mine': unknown argument 'rangee'"),
        (["-e", "math", "--token-env", "NOT_THERE"], "this environment variable is not set"),
        (["-e", "math", "--token", "a", "--token-env", "HOME"], "not both"),
        (["-e", "math", "--tls-cert", "x.pem"], "needed together"),
    ]:
        done = run("serve", "--port", 0, *arguments)
        assert done.code == 2, done.err
        assert words in done.err
        assert "Traceback" not in done.err


def test_info_of_a_server_that_is_not_there(run: Mrlm, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("info", "--server", address, "--wait", 0.5)
        assert done.code == 1
        assert f"no server answers at {address} within 0.5 s" in done.err
    assert run("info", "--server", "localhost").code == 2
    clear = run("info", "--server", "example.org:1", "--token", "t")
    assert clear.code == 2
    assert "unencrypted" in clear.err
    assert run("info", "--server", "localhost:1", "--tls-ca", tmp_path / "no.pem").code == 2


def test_info_waits_for_a_server_that_starts(run: Mrlm) -> None:
    port = free_port()
    hosted = Hosted([], port=port, token="t")
    timer = threading.Timer(1.0, hosted.__enter__)
    timer.start()
    try:
        done = run("info", "--server", f"localhost:{port}", "--wait", 60, "--token", "t")
        assert done.code == 0, done.err
        assert "environments  none" in done.out
        wrong = run("info", "--server", f"localhost:{port}", "--token", "x")
        assert wrong.code == 1
        assert "refuses the token" in wrong.err
    finally:
        timer.join()
        hosted.__exit__()


def test_info_of_a_guarded_server(run: Mrlm, tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca")
    own, mine = ca.certify("server"), ca.certify("client")
    with Hosted([], tls_cert=own.cert, tls_key=own.key, client_ca=ca.pair.cert) as host:
        shown = ["--tls-ca", ca.pair.cert, "--tls-cert", mine.cert, "--tls-key", mine.key]
        done = run("info", "--server", host.server.address, "--wait", 30, *shown)
        assert done.code == 0, done.err
        done = run("info", "--server", host.server.address, "--tls-ca", ca.pair.cert)
        assert done.code == 1
        assert "no server answers" in done.err


def test_workers_do_not_get_the_token(serving: Any) -> None:
    """Neither under the name that `--token-env` gives it nor under the usual one: what a world runs
    could read it there."""
    more = {"SECRET": "open sesame", "MRLM_TOKEN": "another secret", "SHOWN": "not hidden"}
    served = serving("-e", SCENE, "--port", 0, "--workers", 2, "--token-env", "SECRET", **more)
    children = psutil.Process(served.process.pid).children(recursive=True)
    assert len(children) >= 2
    for each in children:
        found = each.environ()
        assert found["SHOWN"] == "not hidden"
        assert not {"SECRET", "MRLM_TOKEN"} & found.keys()
        assert not {"open sesame", "another secret"} & set(found.values())


def test_a_port_that_is_taken_and_a_server_that_is_not_there_are_a_line_each(
    tmp_path: Path, launcher: Launcher
) -> None:
    """The line is ours, and the network library prints none of its own."""

    def mrlm(*words: str) -> tuple[int, list[str]]:
        found = launcher.run(["mrlm", *words], tmp_path)
        return found.code, found.err.splitlines()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, lines = mrlm("serve", "-e", "math", "--port", port)
        assert code == 2 and len(lines) == 1, lines
        assert "cannot listen on" in lines[0] and "give another --port" in lines[0]
    code, lines = mrlm("info", "--server", f"127.0.0.1:{port}", "--wait", "0.1")
    assert code == 1 and len(lines) == 1, lines
    assert "no server answers" in lines[0] and "connection refused" in lines[0]
    assert "addresses" not in lines[0]


def test_every_option_reaches_the_server(
    run: Mrlm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    async def note(server: Any, grace: float, say: Any) -> None:
        asked.append((server.settings, grace))

    monkeypatch.setattr("mrlm.serving.environments.server.serve", note)
    options: dict[str, Any] = {
        "port": 0, "max-sessions": 7, "max-calls": 8, "max-message": 0.5, "lease": 9.0,
        "workers": 1, "timeout": 11.0, "metrics-port": 0, "grace": 3.0, "token": "word",
    }  # fmt: skip
    words = [part for name, value in options.items() for part in (f"--{name}", value)]
    done = run("serve", "-e", "math", "--no-arguments", *words)
    assert done.code == 0, done.err
    ((settings, grace),) = asked
    assert grace == 3.0 and settings.max_message_bytes == 2**19 and not settings.arguments
    for name in ("port", "max_sessions", "max_calls", "lease", "workers", "timeout", "token"):
        assert getattr(settings, name) == options[name.replace("_", "-")], name
    assert settings.metrics_port == 0 and settings.host == "127.0.0.1"


def test_what_guards_a_server_reaches_it_and_is_said(
    run: Mrlm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    async def note(server: Any, grace: float, say: Any) -> None:
        asked.append(server)
        say(server)

    monkeypatch.setattr("mrlm.serving.environments.server.serve", note)
    monkeypatch.setenv("SECRET", "from the variable")
    ca = Authority(tmp_path, "ca")
    own = ca.certify("server")
    config = tmp_path / "worlds.yaml"
    config.write_text(
        "eval_envs: [{env_type: relay}]\n"
        "environments:\n"
        "  - {env_type: math, name: easy, difficulty_range: [1, 1], max_turns: 2, timeout: 7}\n"
        "  - {env_type: math}\n"
    )
    guards = ("--tls-cert", own.cert, "--tls-key", own.key, "--client-ca", ca.pair.cert)
    words = ("-e", " relay, code,", "-e", "debate", "--port", 0, "--token-env", "SECRET")
    done = run("serve", *words, "-c", config, *guards, "--metrics-port", 9)
    assert done.code == 0, done.err
    settings = asked[0].settings
    assert (settings.token, settings.hidden) == ("from the variable", ("MRLM_TOKEN", "SECRET"))
    found = (settings.tls_cert, settings.tls_key, settings.client_ca)
    assert [str(each) for each in found] == [str(own.cert), str(own.key), str(ca.pair.cert)]
    assert list(settings.served) == ["relay", "code", "debate", "easy", "math"]
    easy, plain = settings.served["easy"], settings.served["math"]
    assert (easy.reference, easy.timeout, easy.whole) == ("math", 7.0, True)
    assert easy.arguments == {"difficulty_range": [1, 1], "max_turns": 2}
    assert (plain.timeout, plain.arguments) == (60.0, {}) and settings.arguments
    assert done.out.startswith("serving on 127.0.0.1:0: relay, code, debate, easy, math; ")
    assert done.out.endswith(" workers; TLS, token; metrics on port 9\n")
    serve._say(asked[0], "http://127.0.0.1:3")
    assert capfd.readouterr().out.endswith(
        "; metrics on port 9; OpenAI protocol at http://127.0.0.1:3/v1\n"
    )
    monkeypatch.setenv("MRLM_TOKEN", "the usual one")
    for more, token, hidden in (
        ((), "the usual one", ("MRLM_TOKEN",)),
        (("--token", "typed"), "typed", ("MRLM_TOKEN",)),
    ):
        done = run("serve", "-e", "math", "--workers", 3, *more)
        settings = asked[-1].settings
        assert (settings.token, settings.hidden, settings.workers) == (token, hidden, 3)
        assert done.out.endswith(" workers; no TLS, token\n")
