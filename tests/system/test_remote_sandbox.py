"""A sandbox on another machine: whatever happens on the way, a program runs once, nobody hangs, and
nothing but the program's own end is a verdict about it."""

import asyncio
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mrlm.core.errors import ConfigError
from mrlm.sandbox.remote import RemoteSandbox, from_words
from mrlm.sandbox.remote import server as serving
from mrlm.sandbox.remote.hosted import Hosted, SandboxRefusal
from mrlm.sandbox.types import (
    AnswerError,
    Limits,
    Sandbox,
    SandboxError,
    SandboxResult,
    SandboxUnavailableError,
    SessionEnded,
)

TOKEN = "0123456789abcdef-test"
FAST = Limits(wall=10.0)
COUNTING = "open({place!r}, 'a').write('x')\nprint('done')"
WAITS = "import time\nwhile not open({place!r}).read(): time.sleep(0.02)\nprint('done')"
ADDS = "total = 0\ndef answer(n):\n    global total\n    total += n\n    return total"


class Running:
    """A server process."""

    def __init__(self, folder: Path, *words: str) -> None:
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "mrlm.sandbox.remote.server", "--token-file", str(token),
             "--isolation", "none-i-understand", *words],
            stdout=subprocess.PIPE, stderr=(folder / "log").open("w"), text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), (folder / "log").read_text()
        self.port: int = int(line.split(":")[1].split()[0])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **words: Any) -> RemoteSandbox:
        return RemoteSandbox(self.url, TOKEN, **({"limits": FAST, "grace": 5.0} | words))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("server"), "--max-runs", "3")
    yield one
    one.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*words: str) -> Running:
        folder = tmp_path / f"server{len(started)}"
        folder.mkdir()
        started.append(Running(folder, *words))
        return started[-1]

    yield begin
    for one in started:
        one.stop()


@pytest.fixture
def place() -> Iterator[Path]:
    """A file that programs can write to, whoever they run as; other runs of pytest close the
    folders that pytest gives."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        file = Path(folder, "count")
        file.touch()
        file.chmod(0o666)
        yield file


class Proxy:
    """Forwards whole requests, with the faults it is told, one for each connection."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.faults: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.requests: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url: str = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        try:
            fault = self.faults.get_nowait()
        except queue.Empty:
            fault = "none"
        with connection, suppress(OSError):  # the client may go at any time
            if fault == "reset":
                return
            request = whole(connection)
            self.requests.append(request)
            answers = {
                "redirect": b"HTTP/1.1 307 Away\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
                "garbage": b"\x00\xff not HTTP at all\r\n\r\n",
                "no json": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                "verdict": b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"status": "ok"}',
                "list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
                "endless": b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (30 << 20),
                "unwell": b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}",
            }
            if fault == "silence":
                time.sleep(30)
            elif fault == "drip":
                for _ in range(300):
                    connection.sendall(b"H")
                    time.sleep(0.1)
            elif fault in answers:
                connection.sendall(answers[fault])
            else:
                self.forward(connection, request, fault)

    def forward(self, connection: socket.socket, request: bytes, fault: str) -> None:
        if fault == "twice":
            self.ask(request)
        if fault == "at once":
            threading.Thread(target=self.ask, args=(request,)).start()
        reply = self.ask(request)
        if fault == "half":
            connection.sendall(reply[: len(reply) - 20])
        elif fault != "lost":
            connection.sendall(reply)

    def ask(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.target)) as upstream:
            upstream.sendall(request)
            parts = []
            while part := upstream.recv(65536):
                parts.append(part)
            return b"".join(parts)


def whole(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line[15:])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def proxy(shared: Running) -> Iterator[Proxy]:
    one = Proxy(shared.port)
    yield one
    one.listener.close()


def through(proxy: Proxy, *faults: str, **words: Any) -> RemoteSandbox:
    for fault in faults:
        proxy.faults.put(fault)
    return RemoteSandbox(proxy.url, TOKEN, **({"limits": FAST, "grace": 5.0} | words))


def run(sandbox: Sandbox, program: str, **words: Any) -> SandboxResult:
    return asyncio.run(sandbox.run(program, **words))


def raw(port: int, text: bytes, wait: float = 5.0) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        connection.sendall(text)
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except OSError:
            pass
        return b"".join(parts)


def post(path: str, body: bytes, token: str = TOKEN, length: str | None = None) -> bytes:
    length = str(len(body)) if length is None else length
    head = (
        f"POST {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
    )
    return head.encode("latin-1") + body


# -- what works ------------------------------------------------------------------------------------


def test_programs_run_elsewhere_as_they_do_here(shared: Running) -> None:
    sandbox = shared.client()
    assert isinstance(sandbox, Sandbox) and sandbox.name == "remote"
    assert run(sandbox, "print(6 * 7)").stdout == "42\n"
    echoed = run(
        sandbox,
        "import sys\nprint(sys.stdin.read(), open('d/f', 'rb').read())",
        stdin="h\u00e9 \U0001f600",
        files={"d/f": b"\x00\xff"},
    )
    assert echoed.stdout == "h\u00e9 \U0001f600 b'\\x00\\xff'\n"
    failed = run(sandbox, "raise ValueError('boom')")
    assert (failed.status, failed.exit_code) == ("error", 1) and "boom" in failed.stderr
    late = run(sandbox, "while True: pass", limits=Limits(wall=0.3))
    assert late.status == "timeout" and late.usage.wall < 60
    loud = run(sandbox, "while True: print('\\0' * 9999)", limits=Limits(output=1 << 18))
    assert loud.status == "output_limit" and len(loud.output) <= 1 << 18
    for program in ("x = '\ud800'", "x = 1\0", "x = 1\n" * 300_000):
        assert run(sandbox, program).status == "refused"


def test_a_session_keeps_its_state_and_says_how_it_ended(shared: Running) -> None:
    async def use() -> None:
        sandbox = shared.client()
        session = await sandbox.session(ADDS)
        assert [await session.ask(n, 10.0) for n in (1, 2, 3)] == [1, 3, 6]
        with pytest.raises(AnswerError, match="TypeError"):
            await session.ask("text", 10.0)
        assert await session.ask(4, 10.0) == 10
        await session.close()
        await session.close()
        with pytest.raises(SessionEnded, match="closed"):
            await session.ask(1, 10.0)
        slow = await sandbox.session("def answer(x):\n    while x: pass")
        with pytest.raises(SessionEnded) as ended:
            await slow.ask(1, 0.3)
        assert ended.value.status == "timeout"
        dies = await sandbox.session("import os\ndef answer(x): os._exit(0)")
        with pytest.raises(SessionEnded) as ended:
            await dies.ask(1, 10.0)
        assert ended.value.status == "killed"
        with pytest.raises(SessionEnded):
            await sandbox.session("1 / 0")
        left = await sandbox.session(ADDS)
        sandbox_sessions = (await sandbox.health())["sessions"]
        await sandbox._close()
        assert (await sandbox.health())["sessions"] < sandbox_sessions
        with pytest.raises(SessionEnded):
            await left.ask(1, 1.0)

    asyncio.run(use())


def test_many_at_once_wait_for_their_turn(shared: Running) -> None:
    async def use() -> list[SandboxResult]:
        sandbox = shared.client(limits=Limits(wall=20.0))
        jobs = [sandbox.run(f"import time; time.sleep(0.2); print({n})") for n in range(16)]
        return await asyncio.gather(*jobs)

    results = asyncio.run(use())
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(16)]


# -- the way ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [("lost",), ("half",), ("reset", "lost"), ("twice",), ("at once",), ("lost", "twice"),
     ("unwell", "lost"), ("no json", "half"), ("garbage",)],
)  # fmt: skip
def test_a_program_runs_once_however_often_it_is_asked_for(
    faults: tuple[str, ...], proxy: Proxy, place: Path
) -> None:
    result = run(through(proxy, *faults), COUNTING.format(place=str(place)))
    assert (result.status, result.stdout) == ("ok", "done\n"), result
    assert place.read_text() == "x"


def test_a_session_is_asked_once_however_often_it_is_asked(proxy: Proxy) -> None:
    async def use() -> None:
        sandbox = through(
            proxy, "lost", "twice", "half", "at once", "lost", "reset", "none", "twice"
        )
        session = await sandbox.session(ADDS)
        assert [await session.ask(1, 10.0) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        await session.close()

    asyncio.run(use())
    assert sum(b"/session/ask" in r for r in proxy.requests) > 6


@pytest.mark.parametrize(
    "fault", ["redirect", "garbage", "no json", "verdict", "list", "endless", "unwell", "reset"]
)
def test_an_answer_that_is_none_is_no_verdict(fault: str, proxy: Proxy) -> None:
    sandbox = through(proxy, *[fault] * 5, attempts=2)
    result = run(sandbox, "print(1)")
    assert result.status == "infra_error" and result.reason and not result.output
    with pytest.raises(SandboxError):
        asyncio.run(sandbox.session(ADDS))
    with pytest.raises(SandboxUnavailableError, match="--token-file"):
        sandbox.check()


def test_the_pause_before_the_next_try_has_a_bound(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrlm.sandbox.remote.client.LONGEST_PAUSE", 0.05)
    sandbox = through(proxy, *["reset"] * 19, attempts=20)  # without a bound it is days
    assert run(sandbox, "print(1)").status == "ok"


@pytest.mark.parametrize("fault", ["silence", "drip"])
def test_a_server_that_does_not_answer_is_given_up(fault: str, proxy: Proxy) -> None:
    sandbox = through(proxy, fault, fault, attempts=2, grace=0.5)
    result = run(sandbox, "print(1)", limits=Limits(wall=0.5))
    assert result.status == "infra_error" and "no answer within 1 s" in result.reason


def test_giving_up_the_wait_is_at_once(proxy: Proxy) -> None:
    async def use() -> None:
        await asyncio.wait_for(through(proxy, "silence", grace=1e6).run("print(1)"), 0.3)

    with pytest.raises(TimeoutError):
        asyncio.run(use())


# -- the server goes -------------------------------------------------------------------------------


def test_a_killed_server_is_no_verdict(start: Callable[..., Running]) -> None:
    server = start()

    async def use() -> None:
        sandbox = server.client(attempts=2, grace=1.0)
        session = await sandbox.session(ADDS)
        assert await session.ask(1, 10.0) == 1
        running = asyncio.create_task(sandbox.run("import time; time.sleep(3)"))
        await asyncio.sleep(0.5)
        server.process.kill()
        result = await running
        assert result.status == "infra_error"
        with pytest.raises(SandboxError):
            await session.ask(1, 1.0)
        with pytest.raises(SessionEnded):
            await session.ask(1, 1.0)
        await session.close()
        with pytest.raises(SandboxError):
            await sandbox.session(ADDS)
        assert (await sandbox.run("print(1)")).status == "infra_error"

    asyncio.run(use())


def test_a_paused_server_is_given_up_and_a_resumed_one_runs_nothing_twice(
    start: Callable[..., Running], place: Path
) -> None:
    server = start()

    async def use() -> None:
        sandbox = server.client(attempts=8, grace=0.1)
        server.process.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(1.5, server.process.send_signal, signal.SIGCONT)
        program = COUNTING.format(place=str(place))
        result = await sandbox.run(program, limits=Limits(wall=1.0))
        assert result.status == "ok", result  # sent again and again, received all at once
        await asyncio.sleep(0.5)
        assert place.read_text() == "x"
        server.process.send_signal(signal.SIGSTOP)
        result = await server.client(attempts=2, grace=0.2).run("1", limits=Limits(wall=0.2))
        assert result.status == "infra_error"

    asyncio.run(use())


def test_sigterm_lets_what_runs_come_to_its_end(start: Callable[..., Running], place: Path) -> None:
    server = start()

    async def use() -> None:
        sandbox = server.client(attempts=1, limits=Limits(wall=30.0))
        session = await sandbox.session(ADDS)
        running = asyncio.create_task(sandbox.run(WAITS.format(place=str(place))))
        while not (await sandbox.health())["running"]:
            await asyncio.sleep(0.02)
        server.process.terminate()
        while not (await sandbox.health())["draining"]:
            await asyncio.sleep(0.02)
        refused = await sandbox.run("print(1)")
        assert refused.status == "infra_error" and "shutting down" in refused.reason
        with pytest.raises(SandboxError, match="shutting down"):
            await session.ask(1, 1.0)
        place.write_text("go")
        assert (await running).stdout == "done\n"

    asyncio.run(use())
    assert server.process.wait() == 0


def test_an_idle_session_is_freed(start: Callable[..., Running]) -> None:
    server = start("--lease", "0.5")

    async def use() -> None:
        sandbox = server.client()
        idle = await sandbox.session(ADDS)
        while (await sandbox.health())["sessions"]:
            await asyncio.sleep(0.1)
        with pytest.raises(SandboxError, match="session does not exist"):
            await idle.ask(1, 1.0)
        with pytest.raises(SessionEnded):
            await idle.ask(1, 1.0)

    asyncio.run(use())


class Sessions:
    """A sandbox whose sessions count what is asked."""

    name = "sessions"

    def __init__(self) -> None:
        self.open = 0

    async def session(self, *given: Any) -> Any:
        self.open += 1
        return self

    async def ask(self, request: Any, wall: float) -> Any:
        return request

    async def close(self) -> None:
        self.open -= 1


def test_half_of_many_sessions_vanish_and_are_freed() -> None:
    sandbox = Sessions()
    hosted = Hosted(sandbox, max_sessions=1000, lease=60.0)  # type: ignore[arg-type]
    names = [f"{n:032d}" for n in range(1000)]
    for name in names:
        hosted.open(json.dumps({"id": name, "program": "", "files": {}}).encode())
    with pytest.raises(SandboxRefusal, match="1000 sessions are open already") as full:
        hosted.open(json.dumps({"id": "x" * 32, "program": "", "files": {}}).encode())
    assert full.value.code == 429 and sandbox.open == 1000

    def a_minute_passes() -> None:
        for held in hosted._sessions.values():
            held.used -= 61.0

    a_minute_passes()
    for name in names[:500]:
        message = {"session": name, "number": 1, "request": name, "wall": 1}
        assert json.loads(hosted.ask(json.dumps(message).encode())) == {"answer": name}
    hosted.sweep()
    assert sandbox.open == 500 and list(hosted._sessions) == names[:500]
    a_minute_passes()
    hosted.sweep()
    assert sandbox.open == 0 and not hosted._sessions


# -- who may, and how much -------------------------------------------------------------------------


def test_every_door_asks_for_the_token(shared: Running) -> None:
    body = json.dumps({"id": "a" * 32, "program": "print(1)"}).encode()
    for token in ("", "wrong-wrong-wrong-wrong", TOKEN + "x", TOKEN[:-1], "\xff" * 20):
        for path in ("/run", "/session/open", "/session/ask", "/session/close", "/nothing"):
            assert raw(shared.port, post(path, body, token)).startswith(b"HTTP/1.1 401 ")
    basic = b"GET /health HTTP/1.1\r\nAuthorization: Basic " + TOKEN.encode() + b"\r\n\r\n"
    for head in (b"GET /health HTTP/1.1\r\n\r\n", b"POST /run HTTP/1.1\r\n\r\n", basic):
        assert raw(shared.port, head).startswith(b"HTTP/1.1 401 ")
    other = RemoteSandbox(shared.url, "another-token-entirely")
    result = run(other, "print(1)")
    assert result.status == "infra_error" and "401" in result.reason
    with pytest.raises(SandboxUnavailableError, match="the token is not the server's"):
        other.check()
    with pytest.raises(SandboxError, match="401"):
        asyncio.run(other.session(ADDS))
    assert "another-token" not in repr(vars(other)) + result.reason


def test_a_body_has_a_bound(start: Callable[..., Running]) -> None:
    server = start("--max-body", "100000")
    large = run(server.client(), "print(1)", files={"f": bytes(3 << 20)})
    assert large.status == "infra_error" and "413" in large.reason
    for length in ("9" * 30, "100001"):
        assert raw(server.port, post("/run", b"", length=length)).startswith(b"HTTP/1.1 413 ")
    for length in ("", "-1", "1e3", "\xb2", "1_0"):
        assert raw(server.port, post("/run", b"", length=length)).startswith(b"HTTP/1.1 411 ")
    head = b"POST /run HTTP/1.1\r\nAuthorization: Bearer " + TOKEN.encode()
    chunked = head + b"\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}"
    assert raw(server.port, chunked).startswith(b"HTTP/1.1 411 ")
    assert run(server.client(), "print(1)").status == "ok"


GOOD = {"id": "b" * 32, "program": "print(1)", "stdin": "", "files": {}, "limits": {"wall": 1}}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"id": ' + b"9" * 5000 + b"}"]
    + [
        json.dumps(GOOD | change).encode()
        for change in (
            {"id": "short"}, {"id": 7}, {"id": "../" * 10}, {"program": 7}, {"program": None},
            {"stdin": []}, {"files": []}, {"files": {"f": 7}}, {"files": {"f": "!"}},
            {"limits": 7}, {"limits": {"wall": "1"}}, {"limits": {"wall": True}},
            {"limits": {"wall": -1}}, {"limits": {"wall": 1e9}}, {"limits": {"wall": None}},
            {"limits": {"speed": 1}}, {"limits": {"memory": 0.5}},
            {"limits": {"wall": float("nan")}}, {"limits": {"memory": 10**400}},
        )
    ],
)  # fmt: skip
def test_a_request_that_is_none_is_refused(shared: Running, body: bytes) -> None:
    answer = raw(shared.port, post("/run", body))
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"Traceback" not in answer


def test_what_is_not_plain_http_does_not_hurt(shared: Running) -> None:
    many = b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n"
    for text in (b"\x00" * 100, b"GET\r\n\r\n", b"PUT /run HTTP/1.1\r\n\r\n", b"A" * 100_000, many,
                 b"\x16\x03\x01\x02\x00\x01"):  # fmt: skip
        assert not raw(shared.port, text, 0.5).startswith(b"HTTP/1.1 200")
    assert run(shared.client(), "print(1)").status == "ok"


def test_one_id_is_one_request(shared: Running) -> None:
    first, other = GOOD | {"id": "c" * 32}, GOOD | {"id": "c" * 32, "program": "print(2)"}
    answers = [
        raw(shared.port, post("/run", json.dumps(m).encode())) for m in (first, other, first)
    ]
    assert answers[1].startswith(b"HTTP/1.1 409 ")
    assert answers[0].partition(b"\r\n\r\n")[2] == answers[2].partition(b"\r\n\r\n")[2]


def test_a_request_that_leaves_one_out_is_refused(shared: Running) -> None:
    name = "d" * 32
    opened = {"id": name, "program": ADDS, "files": {}, "limits": {"wall": 5}}
    assert b"200 OK" in raw(shared.port, post("/session/open", json.dumps(opened).encode()))

    def ask(number: int, request: int) -> bytes:
        message = {"session": name, "number": number, "request": request, "wall": 2}
        return raw(shared.port, post("/session/ask", json.dumps(message).encode()))

    assert b'{"answer": 5}' in ask(1, 5)
    assert b'{"answer": 5}' in ask(1, 5)
    assert all(b"409 Conflict" in ask(*wrong) for wrong in ((1, 6), (3, 5), (0, 5), (-1, 5)))
    assert b'{"answer": 11}' in ask(2, 6)
    assert b"200 OK" in raw(
        shared.port, post("/session/close", json.dumps({"session": name}).encode())
    )


def test_a_busy_server_is_asked_again_when_it_says(
    start: Callable[..., Running], place: Path
) -> None:
    server = start("--max-runs", "1")

    async def use() -> None:
        sandbox = server.client(limits=Limits(wall=30.0))
        long = asyncio.create_task(sandbox.run(WAITS.format(place=str(place))))
        while not (await sandbox.health())["running"]:
            await asyncio.sleep(0.02)
        body = json.dumps(GOOD).encode()
        answer = await asyncio.to_thread(raw, server.port, post("/run", body))
        assert answer.startswith(b"HTTP/1.1 429 ") and b"\r\nRetry-After: 1\r\n" in answer
        hurried = await server.client(patience=0.1).run("print(1)")
        assert not long.done(), long
        assert hurried.status == "infra_error" and "429" in hurried.reason
        next_one = asyncio.create_task(sandbox.run("print(1)"))
        await asyncio.sleep(1.1)
        assert not next_one.done()
        place.write_text("go")
        assert (await long).status == (await next_one).status == "ok"

    asyncio.run(use())


def test_who_sends_slowly_is_cut_off() -> None:
    class Idle:
        name = "idle"

        def close(self) -> None:
            pass

    server = serving.SandboxServer(Hosted(Idle()), TOKEN, reading=0.5)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address) as connection, pytest.raises(OSError):
        while True:
            connection.sendall(b"G")
            time.sleep(0.1)
    assert b"401" in raw(server.port, b"GET /health HTTP/1.1\r\n\r\n")
    server.shutdown()
    server.server_close()


# -- how it is set up ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.1", "example.org", "127.0.0.1.evil"])
def test_others_are_heard_over_tls_only(host: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with pytest.raises(ConfigError, match=r"--certificate and --key"):
        serving.SandboxServer(None, TOKEN, host)  # type: ignore[arg-type]
    words = ["--token-file", str(token), "--host", host, "--isolation", "none-i-understand"]
    assert serving.main(words) == 2


def test_a_token_is_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    for text, mode, said in (
        ("short", 0o600, "at least 16"), ("two words in a token", 0o600, "one word"),
        (TOKEN, 0o644, "chmod 600"), (TOKEN, 0o640, "chmod 600"), ("\u00e9" * 20, 0o600, "read"),
    ):  # fmt: skip
        token.write_text(text)
        token.chmod(mode)
        assert serving.main(["--token-file", str(token)]) == 2
        assert said in capsys.readouterr().err
    assert serving.main(["--token-file", str(tmp_path / "none")]) == 2
    with pytest.raises(ConfigError, match="token"):
        serving.SandboxServer(None, "", "127.0.0.1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "needs the url"),
        ({"url": 7}, "needs the url"),
        ({"url": "http://example.org:80"}, "unencrypted"),
        ({"url": "http://169.254.169.254/"}, "unencrypted"),
        ({"url": "ftp://127.0.0.1"}, "not the URL"),
        ({"url": "http://127.0.0.1/path"}, "not the URL"),
        ({"url": "http://user:pw@127.0.0.1"}, "not the URL"),
        ({"url": "http://127.0.0.1:99999"}, "not the URL"),
        ({"url": "127.0.0.1:80"}, "not the URL"),
        ({"url": "http://127.0.0.1", "token": TOKEN}, "saved with every run"),
        ({"url": "http://127.0.0.1", "tokenfile": "x"}, "did you mean 'token_file'"),
        ({"url": "http://127.0.0.1", "patience": -1}, "patience"),
        ({"url": "http://127.0.0.1", "token_file": 7}, "must be a path"),
        ({"url": "https://127.0.0.1", "ca_file": "none.pem"}, "none.pem"),
    ],
)
def test_words_that_cannot_be_meant_are_said(
    words: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRLM_SANDBOX_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match=said):
        from_words(words)


def test_words_open_a_sandbox(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="MRLM_SANDBOX_TOKEN"):
        from_words({"url": shared.url})
    monkeypatch.setenv("MRLM_SANDBOX_TOKEN", TOKEN)
    assert run(from_words({"url": shared.url}, FAST), "print(1)").status == "ok"


def test_tls_is_spoken_and_its_certificate_checked(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    pair = [str(tmp_path / name) for name in ("c.pem", "k.pem")]
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-out", pair[0], "-keyout", pair[1]],
        capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl is not here, to make a certificate")
    server = start("--certificate", pair[0], "--key", pair[1])
    url = server.url.replace("http", "https")
    with socket.create_connection(("127.0.0.1", server.port)):  # who says nothing delays nobody
        trusted = RemoteSandbox(url, TOKEN, ca_file=pair[0], grace=5)
        assert run(trusted, "print(1)").stdout == "1\n"
    for wrong in (
        RemoteSandbox(url, TOKEN, attempts=1),
        RemoteSandbox(server.url, TOKEN, attempts=1),
    ):
        assert run(wrong, "print(1)").status == "infra_error"
    context = ssl.create_default_context(cafile=pair[0])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", server.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        assert wrapped.version() == "TLSv1.2"


# -- what is kept ----------------------------------------------------------------------------------


def test_results_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    class Counting:
        name = "counting"

        async def run(self, *given: Any) -> SandboxResult:
            ran.append(given)
            return SandboxResult("ok", "x" * 1000, exit_code=0)

        def close(self) -> None:
            pass

    hosted = Hosted(Counting())  # type: ignore[arg-type]
    first = json.dumps(GOOD | {"id": "e" * 32}).encode()
    assert hosted.run(first) == hosted.run(first) and len(ran) == 1
    monkeypatch.setattr("mrlm.sandbox.remote.hosted.KEPT_BYTES", 500)
    hosted.sweep()
    with pytest.raises(SandboxRefusal, match="no longer kept") as gone:
        hosted.run(first)
    assert gone.value.code == 410 and len(ran) == 1
    monkeypatch.setattr("mrlm.sandbox.remote.hosted.REMEMBERED", 0.0)
    hosted.sweep()
    assert not hosted._done
    hosted.shut_down()


def test_a_sandbox_that_fails_is_no_verdict() -> None:
    class Broken:
        name = "broken"

        async def run(self, *given: Any) -> SandboxResult:
            raise SandboxError("no room")

        async def session(self, *given: Any) -> Any:
            raise SandboxError("no room")

        def close(self) -> None:
            pass

    server = serving.SandboxServer(Hosted(Broken()), TOKEN)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    sandbox = RemoteSandbox(f"http://127.0.0.1:{server.port}", TOKEN)
    assert run(sandbox, "1") == SandboxResult("infra_error", reason="no room")
    with pytest.raises(SandboxError, match="no room"):
        asyncio.run(sandbox.session(ADDS))
    server.shutdown()
    server.server_close()
