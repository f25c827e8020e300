"""Who is let in to an environment server, and what bytes of strangers do to it: nothing."""

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from certificates import Authority, Pair
from hosted import Client, Hosted
from mrlm.core.addresses import is_loopback
from mrlm.core.errors import ConfigError
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.protocol.channels import failure_in
from mrlm.serving.protocol.security import check_exposure

SCENE = "served_worlds:Scene"
TOKEN = "open sesame, please"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "authority")


@pytest.fixture(scope="module")
def own(ca: Authority) -> Pair:
    return ca.certify("server")


@pytest.fixture(scope="module")
def guarded(ca: Authority, own: Pair) -> Iterator[Hosted]:
    """A server with a token and TLS, for clients that are certified."""
    with Hosted(
        [SCENE], token=TOKEN, tls_cert=own.cert, tls_key=own.key, client_ca=ca.pair.cert
    ) as hosted:
        yield hosted


@pytest.fixture(scope="module")
def plain() -> Iterator[Hosted]:
    """A server with a token and nothing else."""
    with Hosted([SCENE], token=TOKEN, metrics_port=0) as hosted:
        yield hosted


def credentials(ca: Path | None = None, pair: Pair | None = None) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        None if ca is None else ca.read_bytes(),
        None if pair is None else pair.key.read_bytes(),
        None if pair is None else pair.cert.read_bytes(),
    )


def ways(client: Client) -> dict[str, Callable[[], Any]]:
    """A call of every kind and service."""
    health, stub, metadata = (
        health_pb2_grpc.HealthStub(client.channel),
        client.stub,
        client.metadata,
    )
    opening = pb.Request(open=pb.Open(world=pb.World(environment=SCENE)))
    question = health_pb2.HealthCheckRequest()
    most: dict[str, Any] = {"metadata": metadata, "timeout": 30}
    return {
        "info": lambda: stub.Info(pb.InfoRequest(), **most),
        "call": lambda: stub.Call(opening, **most),
        "stream": lambda: next(stub.Play(iter([opening]), **most)),
        "renew": lambda: stub.Renew(pb.RenewRequest(), **most),
        "health": lambda: health.Check(question, **most),
        "watch": lambda: next(health.Watch(question, **most)),
    }


@contextmanager
def refused(code: grpc.StatusCode) -> Iterator[pytest.ExceptionInfo[grpc.RpcError]]:
    """What is called here ends with a status."""
    with pytest.raises(grpc.RpcError) as caught:
        yield caught
    assert caught.value.code() is code


# -- tokens ----------------------------------------------------------------------------------------


def test_with_the_token_every_call_is_answered(plain: Hosted) -> None:
    with plain.client() as client:
        for ask in ways(client).values():
            ask()


@pytest.mark.parametrize("token", [None, "", "open sesame, pleas", f"{TOKEN} ", "x" * 5000])
def test_without_the_token_no_call_is_answered(plain: Hosted, token: str | None) -> None:
    before = plain.server.info().sessions
    with plain.client(token=token) as client:
        for ask in ways(client).values():
            with refused(grpc.StatusCode.UNAUTHENTICATED) as caught:
                ask()
            assert TOKEN not in str(caught.value)
    assert plain.server.info().sessions == before


def test_a_stranger_does_not_learn_which_methods_there_are(plain: Hosted) -> None:
    with plain.client(token="no") as client:
        ask = client.channel.unary_unary("/mrlm.v1.Nothing/AtAll")
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"", metadata=client.metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


# -- certificates ----------------------------------------------------------------------------------


def test_certified_on_both_sides_calls_are_answered(
    guarded: Hosted, ca: Authority, tmp_path: Path
) -> None:
    mine = ca.certify("client")
    with guarded.client(credentials=credentials(ca.pair.cert, mine)) as client:
        for ask in ways(client).values():
            ask()


@pytest.mark.parametrize("case", ["none", "stranger", "expired", "wrong ca", "no tls"])
def test_others_are_not_let_in(guarded: Hosted, ca: Authority, tmp_path: Path, case: str) -> None:
    other = Authority(tmp_path, "other")
    shown = {
        "none": lambda: credentials(ca.pair.cert),
        "stranger": lambda: credentials(ca.pair.cert, other.certify("stranger")),
        "expired": lambda: credentials(ca.pair.cert, ca.certify("old", days=-1)),
        "wrong ca": lambda: credentials(other.pair.cert, ca.certify("client2")),
        "no tls": lambda: None,
    }[case]()
    with guarded.client(credentials=shown) as client:
        for name in ("info", "stream", "health"):
            with refused(grpc.StatusCode.UNAVAILABLE):
                ways(client)[name]()
    assert guarded.server.info().sessions == len(guarded.server.sessions)


def test_files_that_are_no_certificates_are_refused(own: Pair, ca: Authority) -> None:
    junk = own.cert.with_name("junk.pem")
    junk.write_text("junk")
    for settings, words in [
        ({"tls_cert": own.cert}, "needed together"),
        ({"client_ca": own.cert}, "--client-ca needs"),
        ({"tls_cert": own.cert, "tls_key": ca.pair.key}, "not a certificate and its private key"),
        ({"tls_cert": junk, "tls_key": own.key}, "not a certificate and its private key"),
        ({"tls_cert": "/nowhere.pem", "tls_key": own.key}, "No such file"),
        ({"tls_cert": own.cert, "tls_key": own.key, "client_ca": junk}, "no certificate in PEM"),
    ]:
        with pytest.raises(ConfigError, match=words):
            Hosted([SCENE], **settings).__enter__()


# -- where it listens ------------------------------------------------------------------------------


def test_other_machines_are_let_in_with_tls_and_a_token_only(own: Pair) -> None:
    for token, tls, has in [(None, False, "neither"), ("t", False, "no TLS"), (None, True, "no t")]:
        for host in ("0.0.0.0", "::", "192.168.0.1", "example.org", ""):
            with pytest.raises(ConfigError, match="needs TLS and a token") as caught:
                check_exposure(host, token, tls)
            assert has in str(caught.value)
    check_exposure("0.0.0.0", "t", True)
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert is_loopback(host)
        check_exposure(host, None, False)
    for token in ("", "tökén", "a\nb"):
        with pytest.raises(ConfigError, match="printable ASCII"):
            check_exposure("127.0.0.1", token, False)
    with Hosted([], host="0.0.0.0", token="t", tls_cert=own.cert, tls_key=own.key) as host:
        assert host.server.port > 0


# -- bytes -----------------------------------------------------------------------------------------

METHODS = ("Info", "Describe", "GetTask", "Call", "Renew")


def test_malformed_messages_are_refused(plain: Hosted) -> None:
    rng = random.Random(0)
    with plain.client() as client:
        for number in range(200):
            data = rng.randbytes(rng.randrange(1, 60))
            method = METHODS[number % len(METHODS)]
            ask = client.channel.unary_unary(f"/mrlm.v1.Environments/{method}")
            try:
                ask(data, metadata=client.metadata)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error  # type: ignore[attr-defined]
                assert failure_in(error) is not None
        stream = client.channel.stream_stream("/mrlm.v1.Environments/Play")
        junk = [rng.randbytes(20) for _ in range(20)]
        replies = [
            pb.Reply.FromString(reply) for reply in stream(iter(junk), metadata=client.metadata)
        ]
        assert [reply.failure.kind for reply in replies] == [pb.Failure.BAD] * 20
        client.open(SCENE).reset()


def test_messages_that_are_too_long_are_refused(plain: Hosted) -> None:
    with plain.client() as client:
        session = client.begin(SCENE)
        request = pb.Request(session=session.name, seq=2)
        request.step.actions["a"].content = "x" * (5 << 20)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED) as caught:
            client.call(request)
        assert failure_in(caught.value) is None
        session.step()
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
            list(client.stub.Play(iter([request]), metadata=client.metadata))
        session.step()


def test_strange_bytes_on_the_socket_harm_nobody(plain: Hosted) -> None:
    rng = random.Random(1)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    strange = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(64),
        preface + rng.randbytes(4096),
        preface + b"\xff\xff\xff\x01\x24\x00\x00\x00\x01" + rng.randbytes(10_000),
        rng.randbytes(100_000),
        b"",
    ]
    idle = [socket.create_connection(("127.0.0.1", plain.server.port)) for _ in range(20)]
    for data in strange:
        with socket.create_connection(("127.0.0.1", plain.server.port)) as stranger:
            try:
                stranger.sendall(data)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(65536):
                    pass
            except OSError:
                continue  # it was hung up on
    with plain.client() as client:
        client.open(SCENE).reset()
    for each in idle:
        each.close()
    assert plain.server.pool.restarts == 0
    os.kill(plain.pids[0], 0)
