"""The environment server: its settings, parts, start and shutdown."""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mrlm.core import registry
from mrlm.core.addresses import host_and_port
from mrlm.core.errors import ConfigError, PluginError
from mrlm.core.log import log
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.environments.grpc import NAME, EnvironmentsService
from mrlm.serving.environments.sessions import Sessions
from mrlm.serving.environments.worker_pool import WorkerPool
from mrlm.serving.protocol import channels
from mrlm.serving.protocol.prometheus import Metrics
from mrlm.serving.protocol.security import TokenInterceptor, check_exposure, server_credentials


@dataclass(frozen=True, slots=True)
class ServedEnvironment:
    """An environment that a server offers.

    Args:
        name: its name for clients.
        reference: an environment's name, or `module:Class`; default: `name`.
        arguments: constructor arguments that clients cannot change.
        timeout: seconds a call may take; default: the server's.
        whole: whether the arguments are complete, so that they are checked when the server starts.
    """

    name: str
    reference: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an environment server.

    Args:
        environments: the environments to serve: names, `module:Class`, or `ServedEnvironment`.
        host: address to listen on; one reachable from other machines requires TLS and a token.
        port: port to listen on; 0 takes a free one.
        tls_cert, tls_key: PEM files of its certificate (with the chain) and private key.
        client_ca: PEM file of the authority that signs client certificates, which are then
            required.
        lease: seconds a session lives without a call.
        workers: number of processes that run the environments.
        timeout: seconds an environment may take for one call.
        stall: further seconds after which an unresponsive worker is killed.
        max_message_bytes: size limit of requests and answers.
        metrics_port: port of the Prometheus metrics on 127.0.0.1; 0 takes a free one.
        arguments: whether clients may pass arguments to environments.
        hidden: environment variables that are removed from the workers.
    """

    environments: Sequence[str | ServedEnvironment] = ()
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    client_ca: str | Path | None = None
    max_sessions: int = 4096
    max_calls: int = 1024
    lease: float = 60.0
    workers: int = 2
    timeout: float = 60.0
    stall: float = 10.0
    max_message_bytes: int = channels.MOST_BYTES
    metrics_port: int | None = None
    arguments: bool = True
    hidden: Sequence[str] = ("MRLM_TOKEN",)

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_calls", "lease", "workers", "timeout", "stall"):
            if not getattr(self, name) > 0:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} must be above 0, not {getattr(self, name)!r}")

    @property
    def served(self) -> dict[str, ServedEnvironment]:
        """The environments by name, with the defaults of what they leave out. Raises `ConfigError`:
        a name is unknown, or taken twice."""
        by_name: dict[str, ServedEnvironment] = {}
        for entry in self.environments:
            env = ServedEnvironment(entry) if isinstance(entry, str) else entry
            if env.name in by_name:
                raise ConfigError(f"two environments are called {env.name!r}; name them apart")
            reference = env.reference or env.name
            registered = registry.names("environments")
            if ":" not in reference and reference not in registered:
                raise PluginError(registry.unknown(reference, registered, "environments"))
            timeout = env.timeout or self.timeout
            by_name[env.name] = replace(env, reference=reference, timeout=timeout)
        return by_name


class EnvironmentServer:
    """An environment server in this process, with workers in other processes. `services` add
    further services to the gRPC server before it starts, and offer the `policies` named."""

    def __init__(
        self,
        settings: Settings,
        services: Sequence[Callable[[grpc.aio.Server], None]] = (),
        policies: Sequence[str] = (),
    ) -> None:
        self.settings = settings
        self.epoch: str = secrets.token_hex(8)
        self.port: int = settings.port
        self.metrics_port: int | None = settings.metrics_port
        self.served: dict[str, ServedEnvironment] = settings.served
        self.policies: list[str] = list(policies)
        self._services = list(services)
        check_exposure(settings.host, settings.token, settings.tls_cert is not None)
        self._credentials = server_credentials(
            settings.tls_cert, settings.tls_key, settings.client_ca
        )
        self._metrics = Metrics(settings.metrics_port is not None)
        times = [env.timeout or 0.0 for env in self.served.values()]
        self.pool: WorkerPool = WorkerPool(
            settings.workers if self.served else 0,
            self._hello(),
            lambda ids: self.sessions.lost(ids),
            max(times, default=0.0) + settings.stall,
            settings.hidden,
        )
        self.sessions: Sessions = Sessions(
            self.pool,
            self._metrics,
            self.epoch,
            settings.max_sessions,
            settings.max_calls,
            settings.lease,
        )
        self._health: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue]
        self._server: grpc.aio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return host_and_port(self.settings.host, self.port)

    def info(self) -> pb.InfoReply:
        """The current state of the server: environments, policies and load."""
        return pb.InfoReply(
            version=_version(),
            epoch=self.epoch,
            environments=list(self.served),
            sessions=len(self.sessions),
            max_sessions=self.settings.max_sessions,
            lease_seconds=self.settings.lease,
            max_message_bytes=self.settings.max_message_bytes,
            draining=self.sessions.draining,
            policies=self.policies,
            workers=len(self.pool.workers),
        )

    async def start(self) -> None:
        """Load the environments, then listen. Raises `ConfigError`: an environment cannot be
        loaded, or the address is not available; `MRLMError`: the workers do not start."""
        settings = self.settings
        await self.pool.start()
        try:
            self._listen()
            assert self._server is not None
            await self._server.start()
            if settings.metrics_port is not None:
                self.metrics_port = self._metrics.serve(settings.metrics_port, self._readings)
            for service in (health.OVERALL_HEALTH, NAME):
                await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        except BaseException:
            await self.stop()
            raise
        self._sweeping = asyncio.ensure_future(self.sessions.sweep())

    async def drain(self, grace: float) -> None:
        """Take no new sessions, and wait for the end of the open ones, at most `grace` seconds."""
        self.sessions.draining = True
        await self._health.enter_graceful_shutdown()
        deadline = time.monotonic() + grace
        while len(self.sessions) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Stop at once, whatever is open."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._server is not None:
            await self._server.stop(0.5)
        self._metrics.close()
        await self.pool.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    def _listen(self) -> None:
        settings = self.settings
        token = settings.token
        denied = partial(self._metrics.count, "denied")
        server = grpc.aio.server(
            interceptors=[] if token is None else [TokenInterceptor(token, denied)],
            options=channels.server_options(settings.max_message_bytes),
        )
        EnvironmentsService(self.sessions, self.info).add_to(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for add in self._services:
            add(server)
        try:
            if self._credentials is None:
                self.port = server.add_insecure_port(self.address)
            else:
                self.port = server.add_secure_port(self.address, self._credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {self.address}: another program uses the port, or the address "
                "is not of this machine; give another --port or --host"
            ) from error
        self._server = server

    def _hello(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "path": sys.path,
            "environments": {name: asdict(env) for name, env in self.served.items()},
            "most_bytes": settings.max_message_bytes,
            "arguments": settings.arguments,
            "beat": min(1.0, settings.stall / 4),
        }

    def _readings(self) -> dict[str, float]:
        return {
            "sessions": len(self.sessions),
            "calls_running": self.sessions.calls,
            "workers": sum(worker.ready for worker in self.pool.workers),
            "draining": self.sessions.draining,
            "restarts": self.pool.restarts,
        }


async def serve(
    server: EnvironmentServer, grace: float, started: Callable[[EnvironmentServer], None]
) -> None:
    """Serve until SIGTERM or SIGINT, then drain for `grace` seconds at most; a second signal ends
    the process at once. `started` is called once the server listens."""
    stop_event = asyncio.Event()

    def ask(number: int) -> None:
        if stop_event.is_set():
            os._exit(128 + number)  # the workers notice it and exit too
        stop_event.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number)
    async with server:
        started(server)
        await stop_event.wait()
        text = "shutting down: open sessions (%d) have %g s to finish; a second signal ends it"
        log.info(text, len(server.sessions), grace)
        await server.drain(grace)


def _version() -> str:
    try:
        return version("mrlm")
    except PackageNotFoundError:  # imported from a folder
        return "unknown"
