"""The worker processes of a server: started, monitored, called and restarted."""

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mrlm.core.errors import ConfigError, MRLMError
from mrlm.core.log import log
from mrlm.core.sync_async import BackgroundJobs
from mrlm.serving.environments.ipc import NOBODY, End, Frame, Frames, Op

STARTING = 120.0
"""Seconds a worker may take to load its environments."""
LONGEST_PAUSE = 10.0
"""Seconds between two starts of a worker that does not come up."""


class LostError(Exception):
    """The worker of a call is gone, or none is available."""


@dataclass(eq=False, repr=False)
class WorkerProcess:
    """One worker process. `hello` is its first message: the environments, and where modules are
    found; `ended` is called once, when it is gone; `hidden` environment variables are removed."""

    hello: Mapping[str, Any]
    ended: Callable[["WorkerProcess"], None]
    hidden: Iterable[str] = ()

    def __post_init__(self) -> None:
        self.sessions: set[bytes] = set()
        self.ready: bool = False
        self.retired: bool = False
        self.heard: float = time.monotonic()
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._numbers = itertools.count(1)
        self._frames = Frames(self._answered, self._lost)
        self._gone = False
        mine, theirs = socket.socketpair()
        self._socket: socket.socket = mine
        hidden = set(self.hidden)
        environment = {name: text for name, text in os.environ.items() if name not in hidden}
        with theirs:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-m", "mrlm.serving.environments.worker", str(theirs.fileno())],
                stdin=subprocess.PIPE,  # closed when this process ends, however it ends
                stdout=2,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=environment,
            )

    @property
    def waiting(self) -> float:
        """Seconds since its last message while a call is pending; else 0."""
        return time.monotonic() - self.heard if self._pending else 0.0

    async def start(self) -> None:
        """Wait until its environments are loaded. Raises `ConfigError` (of one), `LostError`."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._frames, sock=self._socket)
        try:
            body = json.dumps(self.hello).encode()
            end, reply = await asyncio.wait_for(self.ask(Op.HELLO, NOBODY, body), STARTING)
        except TimeoutError as error:
            self.kill()
            raise LostError(f"a worker did not start within {STARTING:g} s") from error
        if end != End.DONE:
            self.kill()
            raise ConfigError(reply.decode())
        self.ready = True

    async def ask(self, op: Op, session: bytes, body: bytes) -> tuple[End, bytes]:
        """Execute an operation and return its outcome. Raises `LostError`: it ended first."""
        if self._gone:
            raise LostError("the worker is gone")
        if not self._pending:
            self.heard = time.monotonic()
        number = next(self._numbers)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        self._frames.send(number, op, session, body)
        try:
            frame = await future
        finally:
            self._pending.pop(number, None)
        return End(frame.kind), frame.body

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self._frames.close()

    async def stop(self, seconds: float = 2.0) -> None:
        """Let it close its environments, then end it."""
        self._frames.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.process.kill()
        await asyncio.to_thread(self.process.wait)

    def _answered(self, frame: Frame) -> None:
        self.heard = time.monotonic()
        future = self._pending.get(frame.number)
        if future is not None and not future.done():
            future.set_result(frame)

    def _lost(self) -> None:
        self._gone, self.ready = True, False
        for future in self._pending.values():
            if not future.done():
                future.set_exception(LostError("the worker ended"))
        self.ended(self)


@dataclass(eq=False, repr=False)
class WorkerPool:
    """A fixed number of workers, restarted as needed. `lost` is called with the sessions of one
    that ended; one that is silent for `patience` seconds of a pending call is taken to hang.
    `hello` and `hidden` are those of `WorkerProcess`."""

    count: int
    hello: Mapping[str, Any]
    lost: Callable[[set[bytes]], None]
    patience: float
    hidden: Iterable[str] = ()

    def __post_init__(self) -> None:
        self.restarts: int = 0
        self._about = (self.hello, self._ended, self.hidden)
        self.workers: list[WorkerProcess] = []
        self._retired: list[WorkerProcess] = []
        self._jobs = BackgroundJobs()
        self._closing = False

    async def start(self) -> None:
        """Start all workers. Raises `ConfigError`: an environment is unknown; else `MRLMError`."""
        self.workers = [WorkerProcess(*self._about) for _ in range(self.count)]
        try:
            await asyncio.gather(*(worker.start() for worker in self.workers))
        except LostError as error:
            await self.stop()
            raise MRLMError(f"the workers do not start ({error}); see above") from error
        except BaseException:
            await self.stop()
            raise
        self._jobs.start(self._watch())

    async def stop(self) -> None:
        self._closing = True
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        workers = [*self.workers, *self._retired]
        self.workers, self._retired = [], []
        await asyncio.gather(*(worker.stop() for worker in workers))

    def pick(self) -> WorkerProcess:
        """The worker with the fewest sessions. Raises `LostError`: none is ready."""
        ready = [worker for worker in self.workers if worker.ready]
        if not ready:
            raise LostError("no worker is ready")
        return min(ready, key=lambda worker: len(worker.sessions))

    def release(self, worker: WorkerProcess, session: bytes) -> None:
        """Remove an ended session; a retired worker ends with its last one."""
        worker.sessions.discard(session)
        if worker.retired and not worker.sessions:
            worker.kill()

    def retire(self, worker: WorkerProcess) -> None:
        """Give a worker with a hanging environment no new sessions, and start another one."""
        if worker.retired or self._closing:
            return
        worker.retired = True
        self.workers.remove(worker)
        self._retired.append(worker)
        log.warning(
            "worker %d has an environment that hangs; another is started", worker.process.pid
        )
        self._jobs.start(self._replace())
        if not worker.sessions:
            worker.kill()
        elif len(self._retired) > self.count:
            self._retired[0].kill()

    def _ended(self, worker: WorkerProcess) -> None:
        """Handle the end of a worker: its sessions are lost, and another is started."""
        if self._closing:
            return
        if worker in self._retired:
            self._retired.remove(worker)
        self._jobs.start(self._reap(worker))
        if worker in self.workers:
            log.warning(
                "worker %d is gone with %d sessions; it is started again",
                worker.process.pid,
                len(worker.sessions),
            )
            self.workers.remove(worker)
            self._jobs.start(self._replace())
        sessions, worker.sessions = worker.sessions, set()
        self.lost(sessions)

    async def _reap(self, worker: WorkerProcess) -> None:
        with suppress(ProcessLookupError):
            worker.process.kill()
        await asyncio.to_thread(worker.process.wait)
        if worker.process.stdin is not None:
            worker.process.stdin.close()

    async def _replace(self) -> None:
        """Start another worker, with growing pauses between failures."""
        self.restarts += 1
        pause = 0.1
        while not self._closing:
            worker = WorkerProcess(*self._about)
            try:
                await worker.start()
            except (LostError, ConfigError) as error:
                log.error("a worker cannot be started again: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            except BaseException:
                worker.kill()
                worker.process.wait()
                raise
            self.workers.append(worker)
            return

    async def _watch(self) -> None:
        """Kill workers whose event loop hangs."""
        pause = min(self.patience / 4, 1.0)
        while True:
            before = time.monotonic()
            await asyncio.sleep(pause)
            if time.monotonic() - before > 2 * pause + 1:
                continue  # this process was suspended too
            for worker in [*self.workers, *self._retired]:
                if worker.waiting > self.patience:
                    log.error("worker %d does not answer; it is killed", worker.process.pid)
                    worker.kill()
