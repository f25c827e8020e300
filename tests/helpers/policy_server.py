"""Servers of policies for tests: `mrlm serve` in a process of its own, or its doors in this one;
and a world that pays at once."""

import asyncio
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forking import Launcher, Started
from mrlm.core.environment import Environment
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.serving.environments.server import EnvironmentServer, Settings
from mrlm.serving.policies.admission import AdmissionLimits
from mrlm.serving.policies.grpc import Policies
from mrlm.serving.policies.http_server import HttpServer
from mrlm.serving.policies.hub import PolicyHub
from mrlm.serving.policies.openai_http import OpenAIHandler

LINE = re.compile(r"serving on (\S+): .*?(?:OpenAI protocol at (\S+)/v1)?$", re.MULTILINE)


@dataclass
class Process:
    """Where a server is, and its process."""

    address: str
    url: str
    started: Started

    def kill(self) -> None:
        """At once, as a lost machine would end."""
        self.started.send(signal.SIGKILL)
        self.started.wait()


@contextmanager
def policy_process(
    launcher: Launcher, folder: Path, *words: str, port: int = 0, http_port: int = 0, **env: str
) -> Iterator[Process]:
    """A server as long as the block lasts, or until it is killed."""
    command = ["mrlm", "serve", "--port", str(port), "--http-port", str(http_port), *words]
    started = launcher.start(command, folder, **env)
    while not (found := LINE.search(started.out.read_text())):
        assert started.runs, started.err.read_text()
        time.sleep(0.05)
    process = Process(found[1], found[2], started)
    try:
        yield process
    finally:
        if started.runs:
            started.send(signal.SIGTERM)
            assert started.wait() == 0, started.err.read_text()


class Letters(Environment):
    """One seat, one turn: it is paid for letters."""

    agents = ("speaker",)
    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.count = (seed or 0) % 4
        return StepResult({"speaker": Observation([Message(f"{self.count} letters?")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        paid = Reward(0.1 * sum(map(str.isalpha, actions["speaker"].content)))
        return StepResult({}, {"speaker": paid}, done=True)


class Doors:
    """Both doors of a desk, open in this process."""

    def __init__(
        self,
        desk: PolicyHub,
        token: str | None = None,
        max_body: int = 4 << 20,
        services: int = 4 << 20,
    ) -> None:
        self.desk = desk
        self.http = HttpServer(OpenAIHandler(desk, token, AdmissionLimits(body=max_body))).start()
        self.url = self.http.url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        settings = Settings(token=token, max_message_bytes=services)
        self._server = EnvironmentServer(settings, [Policies(desk).add_to], list(desk.served))
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result()
        self.address = self._server.address

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self.http.stop()
        self.desk.close()
