"""A worker is one running harness: it runs programs, whose output is read here, with a deadline and
a bound. Everything in this file blocks; it uses no event loop."""

import array
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from mrlm.sandbox.scratch import remove_tree
from mrlm.sandbox.tiers import SCRATCH, Tier, as_user, booted, environment, strangers
from mrlm.sandbox.types import (
    Limits,
    SandboxError,
    SandboxResult,
    SandboxUnavailableError,
    Status,
    Usage,
)

STARTING = 10.0
"""Seconds allowed for the start of a worker."""
ENDING = 0.3
"""Seconds in which a killed program has to end; otherwise its worker is given up."""
MOST_REQUESTS = 2000
"""Number of programs after which a worker is replaced."""

REASONS = {
    "timeout": "its time limit was exceeded",
    "oom": "its processes used too much memory",
    "output_limit": "it wrote too much",
    "disk": "it filled its scratch space",
}
"""Why a program was killed -> the reason of its result."""

_numbers = itertools.count(1)


def _stranger() -> int | None:
    """A user id for a worker: a different one for each, as long as there are any."""
    free = strangers()
    return free[(os.getpid() * 31 + next(_numbers)) % len(free)] if free else None


def held(data: bytes) -> int:
    """A descriptor of an unnamed file that holds `data`."""
    fd = os.memfd_create("mrlm")
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def packed(files: Mapping[str, bytes]) -> bytes:
    """Pack files into one message: a line that lists them, then their contents."""
    listed = json.dumps([[path, len(data)] for path, data in files.items()])
    return listed.encode() + b"\n" + b"".join(files.values())


@dataclass(slots=True)
class Exit:
    """The end of a program's process: its exit code (negative for a signal, `None` if it was killed
    from outside), why it was killed, its CPU time in seconds, its peak memory in bytes, why it
    could not be started, or why it never can be: its files cannot be written (`refused`)."""

    code: int | None = None
    cause: str | None = None
    cpu: float = 0.0
    peak: int = 0
    failed: str = ""
    refused: str = ""


@dataclass(slots=True)
class RunningProgram:
    """A program that runs in a worker: descriptors of its output, and a folder of the host."""

    output: int
    errors: int
    folder: str | None
    started: float = field(default_factory=time.monotonic)


class SandboxWorker:
    """One harness; `kept` if more than one program will run in it. Raises
    `SandboxUnavailableError`: a requirement of the tier is missing; `SandboxError`: it does not
    start; the message has its output."""

    def __init__(self, tier: Tier, kept: bool = True) -> None:
        self.tier = tier
        self.requests: int = 0
        self.user: int | None = _stranger()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control: socket.socket = mine
        with os.fdopen(os.memfd_create("mrlm-said"), "rb") as output:
            try:
                with theirs:
                    self.process: subprocess.Popen[Any] = self._started(theirs.fileno(), output)
            except (OSError, subprocess.SubprocessError) as error:
                self.control.close()
                raise SandboxError(f"{tier.name}: it cannot be started: {error}") from error
            except SandboxUnavailableError:
                self.control.close()
                raise
            try:
                self._tell(tier.setup() | {"others": self._others(), "kept": kept})
                if self._hear(STARTING) is None:
                    raise SandboxError(f"it did not start within {STARTING:.0f} s")
            except (OSError, SandboxError) as error:
                self.close()
                words = os.pread(output.fileno(), 2000, 0).decode("utf-8", "replace").strip()
                raise SandboxError(f"{tier.name}: {words or error}") from error

    def _started(self, control: int, output: IO[bytes]) -> subprocess.Popen[Any]:
        becoming, settings = as_user(self.user)
        with os.fdopen(held(booted()), "rb") as source:
            return subprocess.Popen(
                [*becoming, *self.tier.command(source.fileno(), control)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(source.fileno(), control),
                cwd="/",
                env=environment(SCRATCH),
                start_new_session=True,
                **settings,
            )

    def _others(self) -> int:
        """Processes that count towards a program's limit besides its own."""
        if self.tier.namespaces or self.user is not None:
            return 3
        uid, count = os.getuid(), 0
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
        return count + 3

    def _tell(self, message: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.control.sendmsg([json.dumps(message).encode()], rights)

    def _hear(self, wait: float) -> dict[str, Any] | None:
        """The next message; `None` if none arrives in time. Fails if the worker is gone."""
        if not select.select([self.control], [], [], max(wait, 0.0))[0]:
            return None
        try:
            data = self.control.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            raise SandboxError(f"{self.tier.name}: the worker is gone")
        return json.loads(data)

    @property
    def spent(self) -> bool:
        return self.requests >= MOST_REQUESTS or self.process.poll() is not None

    def begin(
        self,
        program: bytes,
        files: Mapping[str, bytes],
        limits: Limits,
        stdin: int,
        stdout: int | None = None,
    ) -> RunningProgram:
        """Start a program. `stdin` is the descriptor of its input, `stdout` that of answers, for a
        session; its output is then discarded. Raises `SandboxError`: the worker is gone."""
        self.requests += 1
        folder = None if self.tier.namespaces else self._folder()
        inputs = [held(program), held(packed(files))]
        (output, its_output), (errors, its_errors) = os.pipe(), os.pipe()
        for fd in (output, errors):  # the program may read from them too, before this process does
            os.set_blocking(fd, False)
        request = {
            "session": stdout is not None,
            "folder": folder or SCRATCH,
            "limits": asdict(limits) | {"cpu": limits.cpu_seconds},
        }
        running = RunningProgram(output, errors, folder)
        try:
            outward = its_output if stdout is None else stdout
            self._tell(request, (stdin, outward, its_errors, *inputs))
        except OSError as error:
            self.release(running)
            raise SandboxError(f"{self.tier.name}: the worker is gone: {error}") from error
        finally:
            for fd in (*inputs, its_output, its_errors):
                os.close(fd)
        return running

    def _folder(self) -> str:
        folder = tempfile.mkdtemp(prefix="mrlm-run-")
        if self.user is not None:
            os.chown(folder, self.user, self.user)
        return folder

    def kill(self, cause: str) -> None:
        """Kill the running program, without waiting for its end."""
        with suppress(OSError):
            self._tell({"kill": cause})

    def exited(self, wait: float) -> Exit | None:
        """The end of the program; `None` if it still runs after `wait` seconds."""
        report = self._hear(wait)
        return None if report is None else Exit(**report)

    def end(self, cause: str) -> Exit:
        """Kill the program and wait for its end. If that takes long, as with much memory on a busy
        machine, the worker is closed; the verdict is unaffected."""
        self.kill(cause)
        outcome = self.exited(ENDING)
        if outcome is None:
            self.close()
            return Exit(cause=cause)
        return outcome

    def release(self, running: RunningProgram) -> None:
        """Remove the files and descriptors of a program; fails if its folder cannot be removed."""
        os.close(running.output)
        os.close(running.errors)
        if running.folder is not None:
            try:
                remove_tree(running.folder)
            except OSError as error:
                raise SandboxError(f"{running.folder} cannot be removed: {error}") from error

    def close(self) -> None:
        self.control.close()
        try:
            self.process.wait(0.2 if self.tier.namespaces else 1.0)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
            self.process.wait()


def run(
    worker: SandboxWorker, program: bytes, stdin: bytes, files: Mapping[str, bytes], limits: Limits
) -> SandboxResult:
    """Run a program until it ends. Raises `SandboxError`: the worker is of no more use."""
    source = held(stdin)
    try:
        running = worker.begin(program, files, limits, source)
    finally:
        os.close(source)
    written: dict[int, bytearray] = {running.output: bytearray(), running.errors: bytearray()}
    try:
        end = _watched(worker, running, written, limits)
        for fd in written:  # the writers have ended: the remaining data is complete
            _drained(fd, written, limits.output)
        if sum(map(len, written.values())) >= limits.output:
            end.cause = "output_limit"
        wall = time.monotonic() - running.started
    finally:
        worker.release(running)
    return result_of(worker.tier.name, end, list(written.values()), wall)


def _watched(
    worker: SandboxWorker, running: RunningProgram, written: dict[int, bytearray], limits: Limits
) -> Exit:
    deadline = running.started + limits.wall
    poll = select.poll()
    for fd in (worker.control.fileno(), *written):
        poll.register(fd, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return worker.end("timeout")
        for fd, _ in poll.poll(left * 1000 + 1):
            if fd == worker.control.fileno():
                outcome = worker.exited(0)
                if outcome is not None:
                    return outcome
            elif not _drained(fd, written, limits.output, once=True):
                poll.unregister(fd)
        if sum(map(len, written.values())) >= limits.output:
            return worker.end("output_limit")


def _drained(fd: int, written: dict[int, bytearray], most: int, once: bool = False) -> bool:
    """Read the available data; whether more may come."""
    while True:
        room = most - sum(map(len, written.values()))
        try:
            data = os.read(fd, min(room, 1 << 16)) if room > 0 else b""
        except BlockingIOError:
            return True
        if not data:
            return False
        written[fd] += data
        if once:
            return True


def result_of(name: str, end: Exit, written: Sequence[bytearray], wall: float) -> SandboxResult:
    """The result of a run that took `wall` seconds, from its end and its output. Raises
    `SandboxError`: the program was not started."""
    if end.failed:
        raise SandboxError(f"{name}: a program could not be started: {end.failed}")
    if end.refused:
        return SandboxResult("refused", reason=end.refused)
    out, err = (bytes(data).decode("utf-8", "replace") for data in written)
    usage = Usage(wall, end.cpu, end.peak)
    status: Status = "killed"
    code = end.code
    if end.cause is not None or code is None:
        code = None
        reason = REASONS.get(end.cause or "", "it was killed")
        if end.cause in ("timeout", "oom", "output_limit"):
            status = end.cause  # type: ignore[assignment]
    elif code == -signal.SIGXCPU:
        status, reason = "timeout", "its CPU time limit was exceeded"
    elif code < 0:
        reason = f"signal {-code}"
    else:
        reason = ""
        status = "ok" if code == 0 else "oom" if "MemoryError" in err[-300:] else "error"
    return SandboxResult(status, out, err, usage, code, reason)
