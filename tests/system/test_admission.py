"""What the doors of a server let in is decided before it works: a real server, asked for more than
it can ever do, by its CPU time, by its replies, and by whether others are answered meanwhile."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import pytest

from forking import Launcher
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.policies.admission import count_repeated
from mrlm.serving.protocol.channels import service_stub
from policy_server import Process, policy_process
from waiting import until

MOST = 0.1
"""CPU seconds that refusing one request may cost the server."""
TICKS = os.sysconf("SC_CLK_TCK")
CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory, tiny_path: str
) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("server")
    words = ("--policy", f"base={tiny_path}", "--environments", "math")
    with policy_process(launcher, folder, *words) as found:
        ask(found, CHAT, {"model": "base", "messages": message("hi"), "max_tokens": 1})  # warm
        yield found


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def ask(server: Process, path: str, body: Any) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(server.url + path, content=data, timeout=None, trust_env=False)


def cpu(server: Process) -> float:
    """CPU seconds of the server's process so far."""
    fields = Path(f"/proc/{server.started.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def least(server: Process, asked: Callable[[], float]) -> float:
    """The CPU seconds that a request costs the server at the least: of three times, since work is
    dearer where others use the caches. What is asked returns what of it is not the request's."""
    costs: list[float] = []
    while len(costs) < 3 and (not costs or min(costs) > MOST):
        before = cpu(server)
        others = asked()
        costs.append(cpu(server) - before - others)
    return min(costs)


@contextmanager
def healthy(server: Process) -> Iterator[list[float]]:
    """Ask for its health all the time; the seconds that each answer took.

    The body begins when the first has come, so there is at least one.
    """
    waits: list[float] = []
    begun, over = threading.Event(), threading.Event()

    def watch(client: httpx.Client) -> None:
        try:
            while not over.is_set():
                since = time.monotonic()
                reply = client.get("/health")
                waits.append(time.monotonic() - since if reply.status_code == 200 else 99.0)
                begun.set()
        finally:
            begun.set()

    with httpx.Client(base_url=server.url, timeout=None, trust_env=False) as client:
        thread = threading.Thread(target=watch, args=(client,))
        thread.start()
        try:
            begun.wait()
            yield waits
        finally:
            over.set()
            thread.join()


LARGE: dict[str, tuple[str, Any, int]] = {
    "20,000 prompts": (TEXTS, {"model": "base", "prompt": ["a"] * 20_000, "n": 64}, 400),
    "4,000 prompts": (TEXTS, {"model": "base", "prompt": ["a"] * 4_000, "n": 64}, 400),
    "20,000 prompts of ids": (TEXTS, {"model": "base", "prompt": [[5]] * 20_000}, 400),
    "20,000 inputs": ("/generate", {"input_ids": [[5]] * 20_000}, 400),
    "a 4 MB chat": (CHAT, {"model": "base", "messages": message("a " * 1_999_990)}, 400),
    "a 4 MB prompt": (TEXTS, {"model": "base", "prompt": "a " * 2_000_000}, 400),
    "a 4 MB tool": (
        CHAT,
        {"model": "base", "messages": message("a"), "tools": [{"type": "x" * 4_000_000}]},
        400,
    ),
    "100,000 messages": (CHAT, {"model": "base", "messages": message("") * 100_000}, 400),
    "20,000 messages": (CHAT, {"model": "base", "messages": message("") * 20_000}, 400),
    "1,000,000 lists": (TEXTS, b'{"prompt": [' + b"[]," * 1_000_000 + b"[]]}", 400),
    "300,000 names": (TEXTS, b"{%s}" % b",".join(b'"%d":1' % n for n in range(300_000)), 400),
    "96 kB of brackets": (CHAT, b"[" * 96_000, 400),
    "96 kB of broken calls": (
        CHAT,
        {"model": "base", "messages": message("<tool_call>{" * 11_000)},
        400,
    ),
    "a stop of 1 MB": (TEXTS, {"model": "base", "prompt": "a", "stop": "x" * 1_000_000}, 400),
    "5 MB": (CHAT, b"x" * 5_000_000, 413),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_can_never_fit_is_refused_before_it_costs(name: str, server: Process) -> None:
    path, body, status = LARGE[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def request() -> float:
        with healthy(server) as waits:
            reply = ask(server, path, data)
        assert reply.status_code == status, reply.text[:300]
        assert max(waits) < 120.0  # none of them was never answered
        return len(waits) * 0.004  # what questions for its health cost

    assert least(server, request) <= MOST


def test_half_sent_heads_are_not_waited_for(server: Process) -> None:
    """1,500 connections that begin a request and never end it."""
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    before = cpu(server)
    with ExitStack() as held:
        sockets: list[socket.socket] = []
        for _ in range(1500):
            one = held.enter_context(socket.create_connection(address))
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: ")
            sockets.append(one)
        reply = httpx.get(f"{server.url}/health", timeout=None, trust_env=False)
        assert reply.status_code == 200
        assert cpu(server) - before < 1500 * 0.002
        assert descriptors(server) < 400
        until(lambda: descriptors(server) <= 60)
        assert all(ended(one) for one in sockets)


def descriptors(server: Process) -> int:
    return len(os.listdir(f"/proc/{server.started.pid}/fd"))


def ended(one: socket.socket) -> bool:
    """Whether the other end has closed a connection, perhaps with words."""
    try:
        while one.recv(4096):
            pass
    except ConnectionError:
        return True
    return True


def test_an_address_keeps_the_connections_that_work(server: Process) -> None:
    """A client whose requests are answered is let in though others hold all there are."""
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with ExitStack() as held, httpx.Client(base_url=server.url, trust_env=False) as client:
        body = {"model": "base", "messages": message("hi"), "max_tokens": 2}
        assert client.post(CHAT, json=body).status_code == 200
        for _ in range(600):
            held.enter_context(socket.create_connection(address))
        assert client.post(CHAT, json=body, timeout=None).status_code == 200


# -- gRPC ------------------------------------------------------------------------------------------


def prompts(count: int) -> bytes:
    """A request with empty prompts, two bytes each."""
    return pb.GenerateRequest(policy="base").SerializeToString() + bytes([2 << 3 | 2, 0]) * count


@pytest.mark.parametrize("count", [2_000_000, 20_000])
def test_prompts_are_counted_before_they_are_read(count: int, server: Process) -> None:
    assert least(server, lambda: refused(server, "Policies/Generate", prompts(count))) <= MOST


def refused(server: Process, method: str, data: bytes) -> float:
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(f"/mrlm.v1.{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(data)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # pyright: ignore
    return 0.0


@pytest.mark.parametrize("field", ["sessions", "order", "prompt", "messages"])
def test_requests_for_environments_are_counted_too(field: str, server: Process) -> None:
    many = 300_000
    session = "00" * 16
    if field == "sessions":
        path, data = "Renew", pb.RenewRequest(sessions=[""] * many).SerializeToString()
    else:
        request = pb.Request(session=session, seq=1)
        if field == "order":
            request.step.order.extend(["a"] * many)
        elif field == "prompt":
            request.reset.task.prompt.extend([pb.Message()] * many)
        else:
            request.expert.messages.extend([pb.Message()] * many)
        path, data = "Call", request.SerializeToString()
    assert least(server, lambda: refused(server, f"Environments/{path}", data)) <= MOST


def test_connections_that_say_nothing_are_not_kept(server: Process) -> None:
    """1,500 at the gRPC port: others are let in, and those are closed in time."""
    host, _, port = server.address.rpartition(":")
    with ExitStack() as held:
        for _ in range(1500):
            held.enter_context(socket.create_connection((host, int(port))))
        with grpc.insecure_channel(server.address) as channel:
            stub = service_stub(channel, "Environments")
            assert stub.Info(pb.InfoRequest(), wait_for_ready=True).policies == ["base"]
        until(lambda: descriptors(server) <= 60)


def test_fields_are_counted_as_far_as_needed() -> None:
    assert count_repeated(prompts(5), 2, 100) == 5
    assert count_repeated(prompts(500), 2, 100) == 101
    full = pb.GenerateRequest(policy="x" * 300, prompts=[pb.Prompt(token_ids=range(300))] * 3)
    assert count_repeated(full.SerializeToString(), 2, 100) == 3
    for broken in (b"\xff" * 50, b"\x12", b"\x12\xff\xff\xff\xff\x7f", b"\x0b" * 9, b""):
        assert count_repeated(broken, 2, 100) <= 50
