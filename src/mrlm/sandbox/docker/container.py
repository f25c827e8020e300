"""The host side of one container: its command, its frames, and its removal. It blocks."""

import json
import os
import select
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from mrlm.sandbox.tiers import harness
from mrlm.sandbox.types import MIB, Limits, SandboxError
from mrlm.sandbox.workers import packed

INSIDE = Path(__file__).with_name("_inside.py")
FOLDER = "/tmp/w"
"""Working folder of programs, in the container's own scratch space."""
OVERHEAD = 64 * MIB
"""Memory of process 1."""
SPARE = 2
"""Processes besides the program's."""
REMOVING = 30.0
"""Seconds allowed for removing a container."""
ENDING = 5.0
"""Seconds allowed for a container to end after its report."""
MOST_FRAME = 1 << 20
OUTLIVED = 30.0
"""Seconds after which a container ends by itself, even without a request to."""
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": FOLDER, "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1",
}  # fmt: skip
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
"""Variables with addresses and passwords that a Docker client may add to every container."""


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """The settings of containers: an image with a `python3`, the client, the cores of a container,
    and a runtime other than the default, such as `runsc`."""

    image: str
    docker: str = "docker"
    cpus: float = 1.0
    runtime: str | None = None

    def command(self, name: str, limits: Limits) -> list[str]:
        """The command that starts a container; it is independent of the program."""
        memory = str(limits.memory + limits.disk + OVERHEAD)
        scratch = f"rw,nosuid,nodev,size={limits.disk},nr_inodes=4096,mode=1777"
        environment = ENVIRONMENT | {word: "" for p in PROXIES for word in (p, p.lower())}
        return [
            self.docker, "run", "--rm", "--interactive", "--name", name, "--pull", "never",
            *(() if self.runtime is None else ("--runtime", self.runtime)),
            "--network", "none", "--ipc", "private", "--hostname", "sandbox",
            "--read-only", "--tmpfs", f"/tmp:{scratch}", "--shm-size", str(limits.disk // 2),
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534",
            "--pids-limit", str(limits.processes + SPARE),
            "--memory", memory, "--memory-swap", memory, "--cpus", f"{self.cpus:g}",
            "--ulimit", "core=0", "--ulimit", f"nofile={max(limits.open_files, 64)}",
            "--log-driver", "none", "--workdir", "/tmp",
            *(word for pair in environment.items() for word in ("--env", "=".join(pair))),
            "--entrypoint", "python3", self.image,
            "-s", "-B", "-X", "utf8", "-c", INSIDE.read_text(encoding="utf-8"),
        ]  # fmt: skip


class Container:
    """A container that is being started, with its program, which answers requests in a `session`.
    Raises `SandboxError`: the client cannot be started."""

    def __init__(
        self,
        engine: ContainerEngine,
        name: str,
        program: bytes,
        files: Mapping[str, bytes],
        limits: Limits,
        stdin: bytes = b"",
        session: bool = False,
    ) -> None:
        self.engine: ContainerEngine = engine
        self.name: str = name
        self._ended = self._reported = self._gone = False
        self._read = bytearray()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open until removal
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                engine.command(name, limits),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._said.close()
            raise SandboxError(f"docker cannot be started: {error}") from None
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._in, False)
        parts = {"program": program, "files": packed(files), "stdin": stdin}
        parts = {"harness": harness(), **parts}
        self._unsent = memoryview(_head(parts, limits, session) + b"".join(parts.values()))

    def send(self, data: bytes) -> None:
        """Send data while frames are read."""
        self._unsent = memoryview(bytes(self._unsent) + data)

    def frame(self, until: float) -> tuple[bytes, bytes] | None:
        """Read the next frame, a letter and its data; `None` if none arrives until `until`
        (`time.monotonic()`). Raises `SandboxError`: the container ended, or sent invalid data. A
        program cannot end its container without a report: signals do not reach process 1, and the
        kernel kills the program first when memory runs out."""
        while (next_frame := self._taken()) is None:
            if self._ended:
                try:
                    code = self.process.wait(REMOVING)
                except subprocess.TimeoutExpired:
                    raise SandboxError("the docker client did not exit") from None
                message = os.pread(self._said.fileno(), 2000, 0).decode("utf-8", "replace").strip()
                raise SandboxError(
                    f"the container ended with exit code {code} and no report: {message}"
                )
            left = until - time.monotonic()
            if left <= 0:
                return None
            poll = select.poll()
            poll.register(self._out, select.POLLIN)
            if self._unsent:
                poll.register(self._in, select.POLLOUT)
            for fd, _ in poll.poll(left * 1000 + 1):
                if fd == self._in:
                    self._send()
                else:
                    data = os.read(self._out, 1 << 16)
                    self._read += data
                    self._ended = not data
        return next_frame

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._in, self._unsent[: 1 << 16]) :]
        except BlockingIOError:
            return
        except OSError:  # it is ending; its last frames follow
            self._unsent = memoryview(b"")

    def _taken(self) -> tuple[bytes, bytes] | None:
        if len(self._read) < 5:
            return None
        kind, size = bytes(self._read[:1]), struct.unpack_from("<I", self._read, 1)[0]
        if size > MOST_FRAME or kind not in (b"s", b"o", b"e", b"x"):
            raise SandboxError("the container sent an invalid frame")
        if len(self._read) < 5 + size:
            return None
        data = bytes(self._read[5 : 5 + size])
        del self._read[: 5 + size]
        self._reported = self._reported or kind == b"x"
        return kind, data

    def remove(self) -> None:
        """Kill everything in it; may be called again. Raises `SandboxError`: it is still there."""
        if self._gone:
            return
        self._gone = True
        try:
            # after its report it ends and removes itself
            self.process.wait(ENDING if self._reported else 0)
        except subprocess.TimeoutExpired:
            self._removed()
        finally:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self._said.close()

    def _removed(self) -> None:
        words = [self.engine.docker, "rm", "--force", self.name]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=REMOVING
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxError(
                f"a container was not removed ({' '.join(words)}): {error}"
            ) from None
        message = done.stderr.decode("utf-8", "replace").strip()
        gone = "No such container" in message or "already in progress" in message
        if done.returncode and not gone:
            raise SandboxError(f"a container was not removed ({' '.join(words)}): {message[-500:]}")


def _head(parts: Mapping[str, bytes], limits: Limits, session: bool) -> bytes:
    head = {
        "sizes": {name: len(data) for name, data in parts.items()},
        "seconds": 1e9 if session else limits.wall + OUTLIVED,
        "environment": ENVIRONMENT,
        "request": {
            "session": session,
            "folder": FOLDER,
            "limits": asdict(limits) | {"cpu": limits.cpu_seconds},
        },
    }
    return json.dumps(head).encode() + b"\n"
