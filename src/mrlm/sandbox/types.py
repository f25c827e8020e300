"""The interface of sandboxes for untrusted code: limits, results, and what every sandbox does."""

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from mrlm.core.errors import ConfigError, MRLMError

Status = Literal[
    "ok", "error", "timeout", "oom", "output_limit", "killed", "refused", "infra_error"
]
"""The end of a run: `ok` (exit code 0), `error` (another exit code), `timeout` (wall or CPU time),
`oom` (memory), `output_limit`, `killed` (a signal, or too much written), `refused` (never started:
the program or its files cannot be run), `infra_error` (the sandbox failed, not the program)."""

MIB = 1 << 20
MOST_PROGRAM = MIB
"""Most bytes of a program."""


class SandboxError(MRLMError):
    """The sandbox itself failed, so there is no verdict; it must never count as a reward."""


class SandboxUnavailableError(ConfigError):
    """The isolation is not available here; the message names what to install (exit code 2)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resource limits of one run.

    Args:
        wall: seconds from its start until it is killed; a fraction is allowed.
        cpu: seconds of CPU time; `None` is `wall`, rounded up to the next whole second.
        memory: bytes of address space of each process, and of resident memory of all together.
        processes: most concurrent processes and threads.
        file_size: bytes of the largest file it may write.
        open_files: descriptors of each process.
        output: bytes of standard output and standard error together.
        disk: bytes of its scratch space.

    Raises:
        ConfigError: a limit that is not a positive finite number.

    Examples:
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

    def with_wall(self, seconds: float) -> "Limits":
        """The same limits with another deadline."""
        return replace(self, wall=seconds)


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a run used: seconds from start to end, seconds of CPU time of all its
    processes, and bytes of resident memory at its peak."""

    wall: float = 0.0
    cpu: float = 0.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The result of a run.

    Args:
        stdout, stderr: its output as text; invalid UTF-8 is replaced. Control codes are kept.
        usage: the resources it used.
        exit_code: exit code of the program, negative for a signal; `None` if it was stopped.
        reason: the cause, for `refused`, `killed` and `infra_error`.
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    usage: Usage = field(default_factory=Usage)
    exit_code: int | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the program ended with exit code 0, which does not mean that it is correct."""
        return self.status == "ok"

    @property
    def output(self) -> str:
        """Standard output, then standard error."""
        return self.stdout + self.stderr


class Session(Protocol):
    """A running program that answers one request at a time, as plain JSON."""

    async def ask(self, request: Any, wall: float) -> Any:
        """Send a request and wait for its answer, for `wall` seconds.

        Raises:
            AnswerError: `answer` raised; the session continues.
            SessionEnded: no answer in time, a malformed answer, or the program is gone. The session
                is closed then.
            SandboxError: the sandbox failed.
        """

    async def close(self) -> None:
        """Kill all of its processes and remove their files."""


class AnswerError(Exception):
    """The program's `answer` raised; the message is the program's own."""


class SessionEnded(Exception):
    """A session has no answer and is closed; `status` as in `SandboxResult`, and the reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status: Status = status
        self.reason = reason


S = TypeVar("S", bound=Session)


def unfit(program: str, stdin: str, files: Mapping[str, bytes]) -> str:
    """The reason why a program cannot be run at all; empty if it can."""
    for name, text in (("program", program), ("standard input", stdin)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return f"the {name} is not valid Unicode: {error.reason} at {error.start}"
    if "\0" in program:
        return "the program has a NUL character in it"
    if len(program) > MOST_PROGRAM:
        return f"the program is longer than {MOST_PROGRAM} characters"
    for path in files:
        parts = PurePosixPath(path).parts
        if not parts or ".." in parts or path.startswith("/") or "\0" in path or len(path) > 200:
            return f"{path!r} is not a path inside the working folder"
    return ""


class Sandbox(ABC, Generic[S]):
    """Runs untrusted Python programs; one that is unfit is refused. Its sessions are closed with
    it."""

    name: str
    """Kind of the sandbox, for logs: `bubblewrap`, `landlock`, `bare`, `docker`, `remote`."""

    def __init__(self, limits: Limits | None) -> None:
        self.limits: Limits = limits or Limits()
        self._sessions: weakref.WeakSet[S] = weakref.WeakSet()

    def __deepcopy__(self, memo: object) -> Self:
        return self  # environments are copied for every episode; the copies share their sandbox

    async def run(
        self,
        program: str,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        """Run a program alone, from a clean start, and remove everything it leaves.

        Args:
            program: Python source.
            files: relative path -> content, written into its working folder.
            limits: its limits; the sandbox's own by default.

        Returns:
            The result. Errors of the program never raise; a failure of the sandbox is retried once
            and is then `infra_error`.
        """
        if refused := unfit(program, stdin, files or {}):
            return SandboxResult("refused", reason=refused)
        return await self._run(program, stdin, files or {}, limits or self.limits)

    async def session(
        self, program: str, files: Mapping[str, bytes] | None = None, limits: Limits | None = None
    ) -> Session:
        """Start a program that answers requests; `limits.wall` is the limit for its start.

        The program defines `answer(request)`; its return value is sent back. Requests and answers
        are plain JSON values. Its CPU time is `limits.cpu` in all, or ten times `limits.wall`.

        Raises:
            SessionEnded: the program did not start.
            SandboxError: the sandbox failed.
        """
        if refused := unfit(program, "", files or {}):
            raise SessionEnded("refused", refused)
        made = await self._session(program, files or {}, limits or self.limits)
        self._sessions.add(made)
        return made

    @abstractmethod
    async def _run(
        self, program: str, stdin: str, files: Mapping[str, bytes], limits: Limits
    ) -> SandboxResult: ...

    @abstractmethod
    async def _session(self, program: str, files: Mapping[str, bytes], limits: Limits) -> S: ...

    @abstractmethod
    def close(self) -> None:
        """Kill all running programs."""
