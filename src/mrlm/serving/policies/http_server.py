"""The HTTP server of policies on a port."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mrlm.core.addresses import host_and_port
from mrlm.core.errors import ConfigError
from mrlm.serving.policies.openai_http import OpenAIHandler


class HttpServer:
    """An HTTP server for policies in a thread of this process, on a free port if `port` is 0. The
    files are in PEM format; with `client_ca`, clients have to present a certificate that it signed.
    Raises `ConfigError`: uvicorn is not installed, or the port is not available."""

    def __init__(
        self,
        handler: OpenAIHandler,
        host: str = "127.0.0.1",
        port: int = 0,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        client_ca: str | Path | None = None,
    ) -> None:
        app = handler.app()
        import uvicorn

        from mrlm.serving.policies.connections import Connections, protocol

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise ConfigError(
                f"port {port} of {host} cannot be opened: {error.strerror}; choose another with "
                "--http-port"
            ) from error
        # asyncio sets this only for sockets that name their protocol; without it the body of an
        # answer waits up to 40 ms for the client's acknowledgement of its head
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        self.url: str = f"http{'s' if cert else ''}://{host_and_port(host, self.port)}"
        settings = uvicorn.Config(
            app,
            http=protocol(Connections(handler.limits)),
            loop="mrlm.serving.policies.connections:Loop",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=10,
            ssl_certfile=cert,
            ssl_keyfile=key,
            ssl_ca_certs=None if client_ca is None else str(client_ca),
            ssl_cert_reqs=ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE,
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True, name="mrlm-http"
        )

    def start(self) -> "HttpServer":
        self._thread.start()
        return self

    async def listen(self, door: socket.socket) -> Callable[[], None]:
        """Listen on another socket, too; the result ends that."""
        while not self._server.started:
            await asyncio.sleep(0.001)
        server, config = self._server, self._server.config
        parts = {"server_state": server.server_state, "app_state": server.lifespan.state}
        loop = server.servers[0].get_loop()
        made = loop.create_server(partial(config.http_protocol_class, config, **parts), sock=door)
        listening = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made, loop))
        return lambda: loop.call_soon_threadsafe(listening.close) and None

    def stop(self) -> None:
        """Wait some seconds for pending answers, then close."""
        self._server.should_exit = True
        self._thread.join(timeout=30)
        self._socket.close()
