"""What running untrusted code looks like from outside: limits, results, and the protocol that every
sandbox keeps. It starts no process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from mrlm.core.errors import ConfigError, MRLMError

Status = Literal[
    "ok", "error", "timeout", "oom", "output_limit", "killed", "refused", "infra_error"
]
"""How a run ended: `ok` (exit code 0), `error` (another exit code), `timeout` (wall or CPU time),
`oom` (memory), `output_limit`, `killed` (a signal, or too much written), `refused` (never started:
the program or its files cannot be run), `infra_error` (the sandbox failed, not the program)."""

MIB = 1 << 20


class SandboxError(MRLMError):
    """The sandbox itself failed. Whoever waits for a verdict has none: it is never a reward."""


class SandboxUnavailableError(ConfigError):
    """Nothing here can isolate a program as asked; the message says what to install (exit code
    2)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use.

    Args:
        wall: seconds from its start until it is killed; a fraction is fine.
        cpu: seconds of CPU time; `None` is `wall`, rounded up to the next whole second.
        memory: bytes of address space of each process, and of resident memory of all together.
        processes: processes and threads at one time.
        file_size: bytes of the largest file it may write.
        open_files: descriptors of each process.
        output: bytes of standard output and standard error together.
        disk: bytes of its scratch space.

    Raises:
        ConfigError: a limit that is not a positive finite number.

    Example:
        >>> Limits(wall=0.5).cpu_seconds
        1
    """

    wall: float = 5.0
    cpu: float | None = None
    memory: int = 1024 * MIB
    processes: int = 32
    file_size: int = 16 * MIB
    open_files: int = 64
    output: int = MIB
    disk: int = 32 * MIB

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value: float | None = getattr(self, name)
            if value is None and name == "cpu":
                continue
            if value is None or value is True or not math.isfinite(value) or value <= 0:
                raise ConfigError(f"limit {name!r} must be a positive number, not {value!r}")

    @property
    def cpu_seconds(self) -> int:
        """CPU time in whole seconds, as the kernel counts it."""
        return math.ceil(self.wall if self.cpu is None else self.cpu)

    def with_wall(self, seconds: float) -> Limits:
        """The same limits with another deadline."""
        return replace(self, wall=seconds)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run used.

    Args:
        wall: seconds from start to end.
        cpu: seconds of CPU time of all its processes.
        memory: bytes of resident memory at its peak.
    """

    wall: float = 0.0
    cpu: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What came of a run.

    Args:
        status: how it ended.
        stdout, stderr: what it wrote, as text; bytes that are no UTF-8 are replaced. It is data:
            control codes are in it as they were written.
        usage: what it used.
        exit_code: of the program, negative for a signal; `None` if it never ended by itself.
        reason: why, for `refused`, `killed` and `infra_error`.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    usage: Usage = field(default_factory=Usage)
    exit_code: int | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end with exit code 0. It says nothing of what it did."""
        return self.status == "ok"

    @property
    def output(self) -> str:
        """Standard output, then standard error."""
        return self.stdout + self.stderr


class Session(Protocol):
    """A program that is kept running and answers one request at a time, as plain JSON."""

    async def ask(self, request: Any, wall: float) -> Any:
        """Send a request and wait for the answer to this very request, for `wall` seconds.

        Raises:
            AnswerError: `answer` raised; the session goes on.
            SessionEnded: it answered nothing in time, something that is no answer, or it is gone.
                The session is closed then.
            SandboxError: the sandbox failed.
        """
        ...

    async def close(self) -> None:
        """Kill everything that runs in it and remove what it wrote."""
        ...


class AnswerError(Exception):
    """The program's `answer` raised; the message is what the program said about it."""


class SessionEnded(Exception):
    """A session has no answer and is closed.

    Args:
        status: how it ended, in the words of `SandboxResult.status`.
        reason: what happened, in a sentence.
    """

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status: Status = status
        self.reason = reason


@runtime_checkable
class Sandbox(Protocol):
    """Runs Python programs that nobody trusts."""

    name: str
    """Which kind this is, in words for logs: `bubblewrap`, `landlock`, `bare`, `docker`,
    `remote`."""

    async def run(
        self,
        program: str,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        """Run a program alone, from a clean start, and leave nothing behind.

        Args:
            program: Python source.
            stdin: what it can read from standard input.
            files: relative path -> content, put into its working folder.
            limits: what it may use; the sandbox's own limits if not given.

        Returns:
            The result. It never raises for what the program does; a failure of the sandbox is tried
            once more and is then `infra_error`.
        """
        ...

    async def session(
        self, program: str, files: Mapping[str, bytes] | None = None, limits: Limits | None = None
    ) -> Session:
        """Start a program that answers requests; `limits.wall` counts for its start.

        The program defines `answer(request)`; what it returns is sent back. Requests and answers
        are plain JSON values. Of CPU time it has `limits.cpu` in all, or ten times `limits.wall`.

        Raises:
            SessionEnded: the program did not start.
            SandboxError: the sandbox failed.
        """
        ...

    def close(self) -> None:
        """Kill whatever still runs."""
        ...
