"""Calls to a server: the event loop of all channels, addresses, credentials, and refusals."""

import asyncio
import atexit
import os
import random
import re
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc

from mrlm.core.addresses import host_and_port, is_loopback
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.protocol import channels
from mrlm.serving.protocol.channels import failure_in
from mrlm.serving.protocol.security import bearer

T = TypeVar("T")

OPTIONS: list[tuple[str, int]] = [
    *channels.channel_options(64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]
"""Options of every channel. Retries are decided in this package rather than by gRPC."""
TOKEN = "MRLM_TOKEN"
"""The environment variable that holds the token if no other is named."""
LEAVING = 2.0
"""Seconds allowed for closing calls when the process ends."""


class SessionLost(EpisodeError):
    """The server does not know the session (any more); its episode is lost."""


class Unreachable(EpisodeError):
    """No answer arrived before the deadline."""


# -- the loop --------------------------------------------------------------------------------------


_homes: dict[int, tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}
"""Process -> its loop, and the thread that runs it; a fork needs its own."""
_lock = threading.Lock()


def home() -> asyncio.AbstractEventLoop:
    """The event loop of this process in which all calls are made: environments are called from
    several loops and threads, and a channel belongs to one loop."""
    with _lock:
        if os.getpid() not in _homes:
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(_heard)
            name = "mrlm-remote-environments"
            thread = threading.Thread(target=loop.run_forever, daemon=True, name=name)
            thread.start()
            _homes[os.getpid()] = loop, thread
        return _homes[os.getpid()][0]


def start(job: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on that loop without waiting for it."""
    return asyncio.run_coroutine_threadsafe(job, home())


async def there(job: Coroutine[Any, Any, T]) -> T:
    """Await the result of a coroutine on that loop, from another loop."""
    return await asyncio.wrap_future(start(job))


def waited(job: Coroutine[Any, Any, T]) -> T:
    """Block until a coroutine on that loop returns, for synchronous code."""
    return start(job).result()


def _heard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Drop the errors of gRPC's wake-ups: all loops but one find nothing to read."""
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


@atexit.register
def _leave() -> None:
    """Finish the jobs already started (such as closing sessions), then stop the loop."""
    if os.getpid() not in _homes:
        return
    loop, thread = _homes[os.getpid()]

    async def settled() -> None:
        current = asyncio.current_task()
        rest = {task for task in asyncio.all_tasks() if task is not current}
        if rest:
            await asyncio.wait(rest, timeout=LEAVING / 4)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    ended = asyncio.run_coroutine_threadsafe(settled(), loop)
    ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    thread.join(LEAVING)


class Pauses:
    """Exponential backoff with jitter; the random numbers of a run are not touched."""

    _drawn = random.Random()

    def __init__(self, first: float = 0.05, most: float = 3.0) -> None:
        self.next: float = first
        self._most = most

    def take(self) -> float:
        pause = self.next * self._drawn.uniform(0.5, 1.5)
        self.next = min(2 * self.next, self._most)
        return pause


# -- addresses and access --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a server; `tls` is `None` if it does not say whether (`https://`)."""

    host: str
    port: int
    tls: bool | None = None

    @property
    def target(self) -> str:
        return host_and_port(self.host, self.port)

    @property
    def is_here(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return self.target


def address_of(text: str) -> ServerAddress:
    """Parse a server's address: `host:port`, `[::1]:port`, or its URL; else a `ConfigError`."""
    schemed = text if "://" in text else f"//{text}"
    try:
        parts = urlsplit(schemed)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    odd = parts.path.strip("/") or parts.query or parts.username or re.search(r"\s", text)
    if not host or not port or odd or parts.scheme not in ("", "http", "https"):
        raise ConfigError(
            f"{text!r} is not the address of a server; write host:port, such as localhost:50051 or "
            "[::1]:50051"
        )
    return ServerAddress(host, port, {"": None, "http": False, "https": True}[parts.scheme])


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials of a client and the certificates it trusts.

    Args:
        token: the token that the servers require.
        tls_ca: file of the certificates to trust; turns encryption on.
        tls_cert, tls_key: files of the client's own certificate, for servers that require one.

    Raises:
        ConfigError: a file is missing, or only one of certificate and key is given.
    """

    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key go together: a certificate and its key")
        for name in ("tls_ca", "tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"{name}: file {path} does not exist")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise ConfigError("the token of a server must be printable ASCII")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return bearer(self.token)

    def channel(self, address: ServerAddress) -> grpc.aio.Channel:
        """A channel of the running loop. Raises `ConfigError`: the token would be unencrypted."""
        files = self.tls_ca or self.tls_cert
        if files and address.tls is False:
            raise ConfigError(f"http://{address} is not encrypted, but tls_ca or tls_cert is set")
        if not (files or address.tls):
            if self.token is not None and not address.is_here:
                raise ConfigError(
                    f"the token would be sent unencrypted to {address}: set tls_ca (engine.ca for "
                    f"an engine), or write https://{address} (grpcs:// for an engine) if its "
                    "certificate is one that this system trusts"
                )
            return grpc.aio.insecure_channel(address.target, options=OPTIONS)
        ca, key, cert = (
            Path(path).read_bytes() if path else None
            for path in (self.tls_ca, self.tls_key, self.tls_cert)
        )
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
        return grpc.aio.secure_channel(address.target, credentials, options=OPTIONS)


def access_of(
    token: str | None = None,
    token_env: str | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
) -> Access:
    """Access with a token, or with the environment variable that holds it (default: `MRLM_TOKEN`,
    if it is set). Raises `ConfigError`: the variable is not set, or a file is missing."""
    if token_env is not None:
        if token is not None:
            raise ConfigError("give token or token_env, not both")
        token = os.environ.get(token_env, "").strip()
        if not token:
            raise ConfigError(
                f"token_env: the environment variable {token_env} is not set; put the server's "
                "token into it"
            )
    elif token is None:
        token = os.environ.get(TOKEN, "").strip() or None
    return Access(token, tls_ca, tls_cert, tls_key)


# -- what a refusal means --------------------------------------------------------------------------

Code = grpc.StatusCode
DENIED = {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}
CERTIFICATE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|peer name|hostname verification|handshake failed|WRONG_VERSION",
    re.IGNORECASE,
)


class Broken(Exception):
    """A failed call; `code` and `details` are gRPC's."""

    def __init__(
        self, code: grpc.StatusCode, details: str, failure: pb.Failure | None = None
    ) -> None:
        super().__init__(details)
        self.code: grpc.StatusCode = code
        self.details: str = details
        self.failure: pb.Failure | None = failure

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> "Broken":
        """The failure that gRPC raised, with the server's own `Failure` if it sent one."""
        failure = failure_in(error)
        details = failure.message if failure is not None else error.details()
        return cls(error.code(), details or "", failure)

    @property
    def retry_after(self) -> float:
        """Seconds to wait before the next try, as requested by the server."""
        return 0.0 if self.failure is None else max(self.failure.retry_after, 0.0)

    @property
    def too_large(self) -> bool:
        """Whether a message exceeded the size limit of the server or of this side."""
        return self.code is Code.RESOURCE_EXHAUSTED and "larger than max" in self.details

    @property
    def busy(self) -> bool:
        """Whether the server is out of capacity for now."""
        return self.code is Code.RESOURCE_EXHAUSTED and not self.too_large

    def final(self, address: ServerAddress) -> str | None:
        """Why this server will never answer, and the fix; `None` if another try may succeed."""
        if self.code in DENIED:
            return (
                f"the environment server {address} refuses the token ({self.details}); give the "
                "one it was started with, by token_env: the name of an environment variable"
            )
        if self.code is Code.UNIMPLEMENTED:
            return (
                f"{address} is not an environment server that this version can use "
                f"({self.details}); start one there with `mrlm serve`"
            )
        if self.code is Code.UNAVAILABLE and CERTIFICATE.search(self.details):
            return (
                f"the certificate of the environment server {address} is not trusted "
                f"({short(self.details)}); name the one that signed it by tls_ca, and the server "
                "by the name in its certificate"
            )
        return None

    def __str__(self) -> str:
        return f"{self.code.name.lower().replace('_', ' ')}: {short(self.details)}"


def short(text: str) -> str:
    """gRPC's message in one line; for an unreachable server, its cause only."""
    text = " ".join(text.split())
    if text.startswith("failed to connect to all addresses"):
        text = text.rpartition(": ")[2].lower()
    return text if len(text) <= 200 else text[:197] + "..."
