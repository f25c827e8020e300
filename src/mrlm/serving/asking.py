"""Asking a server how it is, once, from a command line."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from mrlm.core.errors import ConfigError, MRLMError
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving import mrlm_pb2_grpc, wires
from mrlm.serving.security import bearer

PAUSE = 0.2
"""Seconds between two attempts."""


@dataclass(frozen=True, slots=True)
class Papers:
    """What a client shows, and whom it believes.

    Args:
        token: the server's, where it asks for one.
        tls_ca: PEM file of those who may have certified the server; no TLS where not given.
        tls_cert, tls_key: PEM files of the client's own certificate and private key, where the
            server asks for them.
    """

    token: str | None = None
    tls_ca: str | Path | None = None
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None

    def channel(self, address: str) -> grpc.Channel:
        """A channel to a server.

        Raises:
            ConfigError: a file cannot be read, or one of a pair is missing.
        """
        options = wires.channel_options()
        if self.tls_ca is None and self.tls_cert is None and self.tls_key is None:
            return grpc.insecure_channel(address, options)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key are needed together")
        found = [
            None if path is None else _read(path)
            for path in (self.tls_ca, self.tls_key, self.tls_cert)
        ]
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(*found), options)


def server_info(address: str, wait: float, papers: Papers) -> pb.InfoReply:
    """What a server has and how it is.

    Args:
        address: `HOST:PORT`.
        wait: seconds to keep trying while nobody answers.
        papers: what is shown.

    Raises:
        MRLMError: nobody answers in time, or the server turns us away.
        ConfigError: the address or a file is none.
    """
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"--server {address}: write it as HOST:PORT, such as localhost:50051")
    deadline = time.monotonic() + wait
    with papers.channel(address) as channel:
        stub = mrlm_pb2_grpc.EnvironmentsStub(channel)
        while True:
            left = max(deadline - time.monotonic(), 2.0)
            try:
                return stub.Info(pb.InfoRequest(), timeout=left, metadata=bearer(papers.token))
            except grpc.RpcError as error:
                _judge(address, error, deadline - time.monotonic() > PAUSE, wait)
            time.sleep(PAUSE)


def _judge(address: str, error: grpc.RpcError, again: bool, wait: float) -> None:
    """Raise unless it makes sense to ask again."""
    assert isinstance(error, grpc.Call)
    code, words = error.code(), str(error.details() or "")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        raise MRLMError(
            f"the server at {address} wants another token ({words}); give --token or MRLM_TOKEN"
        ) from error
    if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        raise MRLMError(f"{address} is no server of ours ({code.name}: {words})") from error
    if not again:
        hint = ""
        if "handshake" in words.lower() or "ssl" in words.lower() or "certificate" in words.lower():
            hint = "; check --tls-ca, and --tls-cert and --tls-key if it asks for them"
        elif "closed" in words.lower() or "reset" in words.lower():
            hint = "; if it speaks TLS, give --tls-ca"
        raise MRLMError(
            f"no server answers at {address} within {wait:g} s ({_short(words)}){hint}"
        ) from error


def _short(words: str) -> str:
    return " ".join(words.split())[:200]


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)}: {error.strerror}") from error
