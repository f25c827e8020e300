"""A sandbox for other machines, over HTTP: `python -m mrlm.sandbox.remote.server --token-file F`.

The token allows running programs here, so it is always required, and it is sent over TLS or on this
machine only. One request per connection; bodies are JSON of bounded size.
"""

import argparse
import hmac
import http.server
import logging
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mrlm.core.addresses import is_loopback
from mrlm.core.errors import ConfigError, MRLMError
from mrlm.core.operating_system import processors
from mrlm.sandbox.remote import wire
from mrlm.sandbox.remote.calling import SHORTEST_TOKEN, token_in
from mrlm.sandbox.remote.hosted import Hosted, SandboxRefusal

log: logging.Logger = logging.getLogger(__name__)

MAX_BODY = 32 << 20
"""Most bytes of a request."""
MAX_CONNECTIONS = 256
"""Most concurrent connections; others are asked to try again."""
READING = 30.0
"""Seconds in which a whole request has to arrive."""


def check_private(host: str, certificate: str | None) -> None:
    """Refuse to listen to other machines without TLS. Raises `ConfigError`: the address is
    reachable from other machines, and there is no certificate."""
    if not is_loopback(host) and not certificate:
        raise ConfigError(
            f"{host or 'every address'} can be reached from other machines, and the token would be "
            "readable in transit: give --certificate and --key (TLS), or listen on 127.0.0.1 and "
            "forward the port with ssh -L"
        )


class SandboxServer(http.server.ThreadingHTTPServer):
    """The HTTP server of a sandbox, on a free port if `port` is 0. Every request must have the
    token, at most `max_body` bytes, and arrive within `reading` seconds. Raises `ConfigError`:
    other machines could connect without TLS, or the address is not available."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        hosted: Hosted,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: str | None = None,
        key: str | None = None,
        max_body: int = MAX_BODY,
        reading: float = READING,
    ) -> None:
        if not token or len(token) < SHORTEST_TOKEN:
            raise ConfigError(f"a token of at least {SHORTEST_TOKEN} characters is needed")
        check_private(host, certificate)
        self.hosted: Hosted = hosted
        self.max_body: int = max_body
        self.reading: float = reading
        self.expected: bytes = f"Bearer {token}".encode()
        self.tls: ssl.SSLContext | None = _tls(certificate, key) if certificate else None
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._open: dict[socket.socket, float] = {}
        self._here = threading.local()
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host}, port {port}: {error}") from None

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= MAX_CONNECTIONS
            if not full:
                self._open[request] = time.monotonic() + self.reading
        if not full:
            super().process_request(request, client_address)
            return
        if self.tls is None:
            request.settimeout(0.1)
            with suppress(OSError):
                request.sendall(
                    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
                    b"Connection: close\r\n\r\n"
                )
        self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(self.reading)
        self._here.request = request
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        # here rather than where connections are accepted, so that a slow TLS handshake blocks no
        # other client
        with self.tls.wrap_socket(request.dup(), server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):  # the client's connection failed, which is normal
            log.debug("a connection was lost: %s", error)
        else:
            log.error("a request failed", exc_info=error)

    def heard(self) -> None:
        """Mark the request of this thread as received: its answer has no time limit."""
        with self._lock:
            self._open[self._here.request] = float("inf")

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [one for one, end in self._open.items() if now > end]
        for one in late:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _tls(certificate: str, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate {certificate} cannot be used: {error}") from None
    return context


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    server_version = "mrlm"
    sys_version = ""
    server: SandboxServer

    def do_GET(self) -> None:
        self._do({"/health": lambda _: wire.written(self.server.hosted.health())})

    def do_POST(self) -> None:
        hosted = self.server.hosted
        doors = {"/run": hosted.run, "/session/open": hosted.open, "/session/ask": hosted.ask}
        self._do(doors | {"/session/close": hosted.close})

    def _do(self, doors: dict[str, Any]) -> None:
        self.close_connection = True
        try:
            tokens = self.headers.get_all("Authorization") or [""]
            if not hmac.compare_digest(tokens[0].encode("utf-8", "replace"), self.server.expected):
                raise SandboxRefusal(401, "the token is not the server's")
            door = doors.get(self.path)
            if door is None:
                raise SandboxRefusal(404, "the path does not exist")
            data = self._body() if self.command == "POST" else b""
            self.server.heard()
            self._reply(200, door(data))
        except SandboxRefusal as refusal:
            body = wire.written({"error": refusal.reason})
            self._reply(refusal.code, body, refusal.retry_after)
        except wire.WireError as error:
            self._reply(400, wire.written({"error": str(error)}))
        except OSError:
            raise
        except Exception:
            log.exception("a request failed")
            self._reply(500, wire.written({"error": "the server failed; its log says why"}))

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            raise SandboxRefusal(411, "the request has no Content-Length")
        if len(length) > 12 or int(length) > self.server.max_body:
            raise SandboxRefusal(413, f"a request has at most {self.server.max_body} bytes")
        data = self.rfile.read(int(length))
        if len(data) != int(length):
            raise ConnectionError("the request was cut short")
        return data

    def _reply(self, code: int, data: bytes, retry_after: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        if code == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(data)
        if code >= 400:
            self._hear_out()

    def _hear_out(self) -> None:
        """Read on a little: closing the connection before that would discard the answer."""
        self.connection.settimeout(0.5)
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            for _ in range(64):
                if not self.rfile.read1(1 << 16):  # type: ignore[attr-defined]
                    break

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s %s", self.client_address[0], ascii(format % args))


def serve(server: SandboxServer, drain: float = 30.0) -> int:
    """Serve until SIGTERM or SIGINT, then let running requests finish; returns 0 if all of them did
    within `drain` seconds, else 1."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    pause = max(0.05, min(server.hosted.lease / 4, 5.0))
    while not stop.wait(pause):
        server.hosted.sweep()
    done = server.hosted.drain(drain)
    end = time.monotonic() + 5
    while server.busy and time.monotonic() < end:
        time.sleep(0.02)
    server.shutdown()
    server.server_close()
    server.hosted.shut_down()
    return 0 if done else 1


def _words(argv: Sequence[str] | None) -> argparse.Namespace:
    words = argparse.ArgumentParser("python -m mrlm.sandbox.remote.server", description=__doc__)
    words.add_argument("--token-file", required=True, help="a file with the token, mode 600")
    words.add_argument("--host", default="127.0.0.1")
    words.add_argument("--port", type=int, default=0, help="0: any that is free; it is printed")
    words.add_argument("--certificate", help="PEM file, for TLS")
    words.add_argument("--key", help="PEM file of the certificate's key")
    words.add_argument("--isolation", default="auto", help="as in a config")
    words.add_argument("--max-runs", type=int, help="programs at one time; else one per core")
    words.add_argument("--max-sessions", type=int, default=64)
    words.add_argument("--max-wall", type=float, default=600.0, help="seconds of one run")
    words.add_argument("--max-body", type=int, default=MAX_BODY, help="bytes of one request")
    words.add_argument("--lease", type=float, default=900.0, help="seconds of an idle session")
    words.add_argument("--drain", type=float, default=30.0, help="seconds to finish after SIGTERM")
    return words.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Start the server; returns the exit code. The first printed line has the address."""
    from mrlm.sandbox.opening import open_sandbox

    words = _words(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        token = token_in(words.token_file)
        check_private(words.host, words.certificate)
        sandbox = open_sandbox(words.isolation)
        hosted = Hosted(
            sandbox, words.max_runs or processors(), words.max_sessions, words.lease, words.max_wall
        )
        server = SandboxServer(
            hosted, token, words.host, words.port, words.certificate, words.key, words.max_body
        )
    except MRLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"listening on {words.host}:{server.port} ({sandbox.name})", flush=True)
    return serve(server, words.drain)


if __name__ == "__main__":
    sys.exit(main())
