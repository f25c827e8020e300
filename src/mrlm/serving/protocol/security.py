"""Access to a server: where it listens, the token, the certificates."""

import hmac
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from mrlm.core.addresses import is_loopback
from mrlm.core.errors import ConfigError

Handler = Awaitable["grpc.RpcMethodHandler[Any, Any]"]
HEADER = "authorization"
"""Metadata key of the token, sent as `Bearer TOKEN`."""


def check_exposure(host: str, token: str | None, tls: bool) -> None:
    """Refuse to listen to other machines without TLS and a token. Raises `ConfigError`: the address
    is reachable from other machines and TLS or the token is missing; or the token is invalid."""
    if token is not None and not (token and token.isascii() and token.isprintable()):
        raise ConfigError("the token must be printable ASCII text, and not empty")
    if is_loopback(host) or (tls and token is not None):
        return
    has = "TLS but no token" if tls else "a token but no TLS" if token else "neither"
    raise ConfigError(
        f"--host {host} lets other machines connect, which needs TLS and a token (it has {has}): "
        "give --tls-cert and --tls-key, and --token or MRLM_TOKEN; or stay on 127.0.0.1"
    )


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a call with a token."""
    return () if token is None else ((HEADER, f"Bearer {token}"),)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls with the token pass, of every service and kind; other calls are rejected, and
    reported to `denied`."""

    def __init__(self, token: str, denied: Callable[[], None]) -> None:
        self._wanted = f"Bearer {token}".encode()
        self._denied = denied
        self._no = grpc.stream_stream_rpc_method_handler(self._deny)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        token = b""
        for key, value in handler_call_details.invocation_metadata or ():
            if key == HEADER:
                token = value if isinstance(value, bytes) else value.encode()
        if hmac.compare_digest(token, self._wanted):
            return await continuation(handler_call_details)
        self._denied()
        return self._no

    async def _deny(self, requests: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")


def server_credentials(
    cert: str | Path | None, key: str | Path | None, client_ca: str | Path | None
) -> grpc.ServerCredentials | None:
    """The certificate of a server and the authority it trusts for clients; `None` without TLS.
    Clients without a certificate of `client_ca` are rejected. Raises `ConfigError`: a file cannot
    be read or holds something else; certificate or key is missing."""
    if cert is None and key is None:
        if client_ca is not None:
            raise ConfigError("--client-ca needs --tls-cert and --tls-key")
        return None
    if cert is None or key is None:
        raise ConfigError("--tls-cert and --tls-key are needed together")
    chain, secret = _read(cert, "--tls-cert"), _read(key, "--tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"--tls-cert {cert} and --tls-key {key} are not a certificate and its private key in "
            f"PEM format ({error})"
        ) from error
    ca = None
    if client_ca is not None:
        ca = _read(client_ca, "--client-ca")
        try:
            context.load_verify_locations(cadata=ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"--client-ca {client_ca}: no certificate in PEM") from error
    return grpc.ssl_server_credentials(
        [(secret, chain)], root_certificates=ca, require_client_auth=ca is not None
    )


def _read(path: str | Path, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from error
