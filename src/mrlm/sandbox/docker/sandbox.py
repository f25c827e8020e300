"""A sandbox of containers: every program runs in a new one without network, capabilities or a
writable system. Its isolation is as strong as the engine and its runtime."""

import asyncio
import json
import os
import secrets
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import in_thread
from mrlm.sandbox.base import FramedSession, check_positive, check_words, tried_twice
from mrlm.sandbox.docker.container import REMOVING, Container, ContainerEngine
from mrlm.sandbox.types import (
    Limits,
    Sandbox,
    SandboxError,
    SandboxResult,
    SandboxUnavailableError,
    SessionEnded,
    Status,
)
from mrlm.sandbox.workers import Exit, result_of

T = TypeVar("T")

NOBODY = "the caller no longer waits for it"

IMAGE = "python:3.12-slim"
STARTING = 60.0
"""Seconds allowed for the start of a container; the program's time begins after it."""
CHECKING = 30.0
"""Seconds allowed for the engine to answer."""
LOOK = 0.1
"""Seconds between two checks for a cancelled caller."""
WORDS = ("image", "docker", "cpus", "runtime", "workers")
"""Its arguments in a config."""


class DockerSandbox(Sandbox["DockerSession"]):
    """A sandbox that runs programs in containers.

    Args:
        image: has a `python3`, 3.10 or newer, and the libraries of the programs. It is never
            pulled.
        limits: default limits of programs.
        docker: the client's name or path. Its environment variables (`DOCKER_HOST`) apply.
        cpus: cores of one program.
        runtime: a runtime other than the default, such as `runsc` (gVisor).
        workers: most concurrent programs; by default, the number of cores. Others wait, and their
            time begins when they start. Sessions are not counted.
    """

    name: str = "docker"

    def __init__(
        self,
        image: str = IMAGE,
        *,
        limits: Limits | None = None,
        docker: str = "docker",
        cpus: float = 1.0,
        runtime: str | None = None,
        workers: int | None = None,
    ) -> None:
        for word, value in (("image", image), ("docker", docker), ("runtime", runtime or "-")):
            if not isinstance(value, str) or not value or (value[0] == "-" and value != "-"):
                raise ConfigError(f"{word} of a docker sandbox must be a name, not {value!r}")
        check_positive("docker", cpus=cpus, workers=workers or 1)
        super().__init__(limits)
        self.engine: ContainerEngine = ContainerEngine(image, docker, cpus, runtime)
        self._turns = threading.Semaphore(int(workers or os.cpu_count() or 1))
        self._stops: weakref.WeakSet[threading.Event] = weakref.WeakSet()
        self._running: set[threading.Event] = set()
        self._closed = threading.Event()

    def check(self) -> None:
        """Check the engine and the image. Raises `SandboxUnavailableError`: one is missing."""
        docker, image = self.engine.docker, self.engine.image
        version = _asked(docker, "version", "--format", "{{.Server.Version}}")
        if version.returncode:
            raise SandboxUnavailableError(
                f"the Docker engine does not answer ({version.stderr.strip()[-300:]}): start it "
                "(sudo systemctl start docker), let this user reach it (sudo usermod -aG docker "
                "$USER, then log in again), or set isolation: auto"
            )
        if _asked(docker, "image", "inspect", image).returncode:
            raise SandboxUnavailableError(
                f"the engine has no image {image}, and images are not pulled automatically: "
                f"docker pull {image}"
            )

    async def _run(
        self, program: str, stdin: str, files: Mapping[str, bytes], limits: Limits
    ) -> SandboxResult:
        begin = partial(self._begun, program, files, limits, stdin.encode())
        return await self.while_wanted(
            lambda stop: tried_twice(lambda: self._once(begin, limits, stop))
        )

    async def _session(
        self, program: str, files: Mapping[str, bytes], limits: Limits
    ) -> "DockerSession":
        limits = replace(limits, cpu=limits.cpu or 10 * limits.wall)
        begin = partial(self._begun, program, files, limits, session=True)
        return await self.while_wanted(lambda stop: DockerSession(self, begin, limits.wall, stop))

    def close(self) -> None:
        self._closed.set()
        for stop in list(self._stops):
            stop.set()
        for session in list(self._sessions):
            session.close_now()
        end = time.monotonic() + REMOVING
        while self._running and time.monotonic() < end:
            time.sleep(0.02)

    async def while_wanted(self, work: Callable[[threading.Event], T]) -> T:
        """Run a job in a thread; its event is set when the caller is cancelled."""
        stop = threading.Event()
        self._stops.add(stop)
        try:
            return await in_thread(lambda: work(stop))
        except asyncio.CancelledError:
            stop.set()
            raise

    def _begun(
        self,
        program: str,
        files: Mapping[str, bytes],
        limits: Limits,
        stdin: bytes = b"",
        session: bool = False,
    ) -> Container:
        if self._closed.is_set():
            raise SandboxError("the sandbox is closed")
        name = f"mrlm-{secrets.token_hex(8)}"
        return Container(self.engine, name, program.encode(), files, limits, stdin, session)

    def _once(
        self, begin: Callable[[], Container], limits: Limits, stop: threading.Event
    ) -> SandboxResult:
        with self._turns, ExitStack() as after:
            self._running.add(stop)
            after.callback(self._running.discard, stop)
            if stop.is_set():
                raise SandboxError(NOBODY)
            container = begin()
            after.callback(container.remove)
            written = {b"o": bytearray(), b"e": bytearray()}
            started = _started(container, stop)
            end = _watched(container, written, started + limits.wall, limits.output, stop)
            wall = time.monotonic() - started
        return result_of(self.name, end, list(written.values()), wall)


class DockerSession(FramedSession):
    """A program that answers requests, in a container of its own."""

    def __init__(
        self,
        sandbox: DockerSandbox,
        begin: Callable[[], Container],
        wall: float,
        stop: threading.Event,
    ) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._container: Container = begin()
        try:
            _started(self._container, stop)
            self._begin(wall, stop)
        except BaseException:
            self._container.remove()
            raise

    async def ask(self, request: Any, wall: float) -> Any:
        return await self._sandbox.while_wanted(lambda stop: self._asked(request, wall, stop))

    def _exchange(self, data: bytes, wall: float, stop: threading.Event) -> None:
        end = time.monotonic() + wall
        self._container.send(data)
        while self._missing() > 0:
            kind, part = _next(self._container, end, stop) or (b"", b"")
            if kind == b"o":
                self._read += part
            elif kind == b"x":
                report = _report(part)
                if report.refused:
                    raise SessionEnded("refused", report.refused)
                status = "oom" if report.cause == "oom" else "killed"
                raise SessionEnded(status, "its process ended")
            if time.monotonic() >= end:
                raise SessionEnded("timeout", f"no answer within {wall:g} s")

    def _end(self, cause: Status) -> None:
        self._open = False
        self._container.remove()

    def close_now(self) -> None:
        with self._lock:
            self._end("killed")


def _next(container: Container, end: float, stop: threading.Event) -> tuple[bytes, bytes] | None:
    """The next frame, if one arrives soon; fails if the container ended or the caller left."""
    if stop.is_set():
        raise SandboxError(NOBODY)
    return container.frame(min(end, time.monotonic() + LOOK))


def _started(container: Container, stop: threading.Event) -> float:
    end = time.monotonic() + STARTING
    while time.monotonic() < end:
        frame = _next(container, end, stop)
        if frame is not None and frame[0] == b"s":
            return time.monotonic()
    raise SandboxError(f"the container did not start within {STARTING:g} s")


def _watched(
    container: Container,
    written: dict[bytes, bytearray],
    end: float,
    most: int,
    stop: threading.Event,
) -> Exit:
    while True:
        kind, data = _next(container, end, stop) or (b"", b"")
        if kind == b"x":
            return _report(data)
        if kind in written:
            written[kind] += data[: max(0, most - sum(map(len, written.values())))]
            if sum(map(len, written.values())) >= most:
                return Exit(cause="output_limit")
        if time.monotonic() >= end:
            return Exit(cause="timeout")


def _report(data: bytes) -> Exit:
    try:
        return Exit(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise SandboxError(f"the container's report is damaged: {error}") from None


def _asked(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECKING
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailableError(
            f"the Docker client {words[0]} cannot be used ({error}): install Docker "
            "(https://docs.docker.com/engine/install), or set isolation: auto"
        ) from None


def from_words(words: Mapping[str, Any], limits: Limits | None = None) -> DockerSandbox:
    """Open the sandbox of a config, whose arguments are `WORDS`, and check its engine. Raises
    `ConfigError`: an unknown argument; `SandboxUnavailableError`: engine or image is missing."""
    check_words("docker", words, WORDS)
    sandbox = DockerSandbox(limits=limits, **words)
    sandbox.check()
    return sandbox
