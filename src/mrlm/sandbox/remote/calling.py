"""One HTTP request to a sandbox server, with a deadline: no redirects, no proxies, answers of
bounded size, and the token is sent over TLS or on this machine only."""

import asyncio
import http.client
import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from mrlm.core.addresses import is_loopback
from mrlm.core.errors import ConfigError
from mrlm.core.retries import Passing, retry_after
from mrlm.core.sync_async import in_thread
from mrlm.sandbox.types import SandboxError

SHORTEST_TOKEN = 16
"""Least number of characters in a token."""


class Unanswered(Passing, SandboxError):
    """No answer arrived. The request may have arrived nevertheless."""


def token_in(path: str | os.PathLike[str]) -> str:
    """Read a token from a file. Raises `ConfigError`: it is too short, or others may read it."""
    path = Path(path)
    make = f"python -c 'import secrets; print(secrets.token_hex(32))' > {path}; chmod 600 {path}"
    try:
        token = path.read_text(encoding="ascii").strip()
        open_to = stat.S_IMODE(path.stat().st_mode) & 0o077
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the token file {path} cannot be read: {error}; make one: {make}"
        ) from None
    if len(token) < SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"the token in {path} must be one word of at least {SHORTEST_TOKEN} characters: {make}"
        )
    if open_to:
        raise ConfigError(f"the token file {path} is readable by other users: chmod 600 {path}")
    return token


@dataclass(frozen=True, slots=True)
class SandboxAddress:
    """The address of a sandbox server: what makes a connection to it, and its token."""

    connection: Callable[..., http.client.HTTPConnection]
    token: str = field(repr=False)


def address_of(url: str, token: str, ca_file: str | None = None) -> SandboxAddress:
    """Parse the URL of a server: `https://host:port`, or `http://` to this machine. Certificates in
    `ca_file` are trusted in place of the system's. Raises `ConfigError`: the URL is invalid, or the
    token would be sent unencrypted."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not the URL of a sandbox: {error}") from None
    extra = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in ("http", "https") or not host or extra:
        raise ConfigError(f"{url!r} is not the URL of a sandbox; write https://host:port")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(
            f"{url} would send the token unencrypted: use https://, or forward the port with "
            f"ssh -L and write http://127.0.0.1"
        )
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()):
        raise ConfigError(f"the token must be at least {SHORTEST_TOKEN} ASCII characters")
    if parts.scheme == "http":
        return SandboxAddress(partial(http.client.HTTPConnection, host, port or 80), token)
    try:
        tls = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates {ca_file} cannot be read: {error}") from None
    secure = partial(http.client.HTTPSConnection, host, port or 443, context=tls)
    return SandboxAddress(secure, token)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a server, with its HTTP status, and the seconds that it requests to wait."""

    code: int
    data: bytes
    retry_after: float | None = None


async def answer(
    address: SandboxAddress, path: str, body: bytes | None, seconds: float, most: int
) -> Reply:
    """Send a request once (`body` is posted, unless it is `None`), and await the whole answer of at
    most `most` bytes. Raises `Unanswered`: none arrived in time, or the connection failed."""
    opened: list[socket.socket] = []
    try:
        return await asyncio.wait_for(
            in_thread(lambda: answer_now(address, path, body, seconds, most, opened)), seconds
        )
    except TimeoutError:
        raise _late(seconds) from None
    finally:
        for connection in opened:  # its thread may still wait for it
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def answer_now(
    address: SandboxAddress,
    path: str,
    body: bytes | None,
    seconds: float,
    most: int,
    opened: list[socket.socket] | None = None,
) -> Reply:
    """`answer` for blocking callers, for as long as the server sends data."""
    connection = address.connection(timeout=seconds)
    try:
        connection.connect()
        if opened is not None:
            opened.append(connection.sock)
        headers = {"Authorization": f"Bearer {address.token}", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        with suppress(BrokenPipeError, ConnectionResetError):
            # a server that stopped reading may have sent the reason before
            connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        data = response.read(most + 1)
        if len(data) > most:
            raise Unanswered(f"the answer has more than {most} bytes")
        return Reply(response.status, data, retry_after(response.getheader("Retry-After")))
    except TimeoutError:  # the socket's own, which may come first
        raise _late(seconds) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unanswered(f"{type(error).__name__}: {error}"[:300]) from None
    finally:
        connection.close()


def _late(seconds: float) -> Unanswered:
    return Unanswered(f"no answer within {seconds:g} s")
