"""Runs attacks and looks at the host afterwards: a file with a secret, sockets that listen,
processes, descriptors and temporary files. What a case says of itself proves nothing."""

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from tests.safety.cases import MARKER, WON, Answer, Calculation, FileUse, Program, Solution

from mrlm.sandbox import Limits, LocalSandbox

LIMITS = Limits(wall=1.0, memory=512 << 20)
PATIENT = Limits(wall=60.0, memory=512 << 20)
"""For programs that must not reach their deadline."""
SLACK = 20.0
"""Seconds that a run may take beyond its limit on a machine that has much else to do."""
SIDE_BY_SIDE = 4


class Host:
    """What an attack wants: a secret in a file, in the environment, in an open descriptor and in
    this process; a port, and sockets without a file."""

    def __init__(self) -> None:
        self.secret = "secret-" + secrets.token_hex(12)
        self.folder = Path(tempfile.mkdtemp(prefix="mrlm-host-"))
        self.file = self.folder / "canary"
        self.file.write_text(self.secret)
        self.folder.chmod(0o777)
        self.file.chmod(0o666)
        os.environ["ATTACK_SECRET"] = self.secret
        self.descriptor = os.open(self.file, os.O_RDONLY)
        os.set_inheritable(self.descriptor, True)
        self.name = "mrlm-" + secrets.token_hex(6)
        self.port = socket.create_server(("127.0.0.1", 0))
        stream, datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, 2)
        stream.bind("\0" + self.name)
        stream.listen()
        datagrams.bind("\0" + self.name)
        self.listeners = (self.port, stream, datagrams)
        for listener in self.listeners:
            listener.setblocking(False)

    def filled(self, text: str) -> str:
        """A case's text with what only the host knows."""
        for word, value in {
            "HOST_FILE": str(self.file),
            "HOST_FOLDER": str(self.folder),
            "HOST_PORT": str(self.port.getsockname()[1]),
            "HOST_SOCKET": self.name,
            "HOST_PID": str(os.getpid()),
            "WON": WON,
        }.items():
            text = text.replace(word, value)
        return text

    def harmed(self, said: str = "") -> list[str]:
        """What has happened to it, and what of it is in `said`."""
        found = []
        if self.secret in said:
            found.append("the secret was seen")
        if MARKER in said:
            found.append(f"it did what it must not: {said[-300:]!r}")
        for listener in self.listeners:
            try:
                listener.recv(1) if listener.type == 2 else listener.accept()
                found.append("a socket of the host was reached")
            except BlockingIOError:
                pass
        names = sorted(os.listdir(self.folder))
        if names != ["canary"] or self.file.read_text() != self.secret:
            found.append(f"files of the host were changed: {names}")
            self.file.write_text(self.secret)
        status = self.file.stat()
        if status.st_mode & 0o7777 != 0o666 or status.st_mtime < 1 or os.listxattr(self.file):
            found.append("properties of a file of the host were changed")
            for name in os.listxattr(self.file):
                os.removexattr(self.file, name)
            self.file.chmod(0o666)
            os.utime(self.file)
        return found

    def close(self) -> None:
        """Take it away."""
        for listener in self.listeners:
            listener.close()
        os.close(self.descriptor)
        os.environ.pop("ATTACK_SECRET", None)
        subprocess.run(["rm", "-rf", str(self.folder)], check=True)


class Traces:
    """What there was before: processes below this one, its descriptors, temporary files."""

    def __init__(self) -> None:
        self.before = self._now()

    def _now(self) -> tuple[set[int], int, set[str]]:
        own = psutil.Process()
        children = {
            child.pid
            for child in own.children(recursive=True)
            if _status(child) not in (None, psutil.STATUS_ZOMBIE)
        }
        folders = set(os.listdir(tempfile.gettempdir()))
        return children, own.num_fds(), folders

    def left(self, wait: float = 2.0) -> list[str]:
        """What there is now and was not, after a little patience with what is just ending."""
        end = time.monotonic() + wait
        while True:
            children, descriptors, folders = self._now()
            found = [f"process {pid} is left" for pid in children - self.before[0]]
            if descriptors > self.before[1]:
                found.append(f"{descriptors - self.before[1]} descriptors are left")
            found += [f"{name} is left" for name in folders - self.before[2]]
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.02)


def _status(process: psutil.Process) -> str | None:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return None


# -- one case --------------------------------------------------------------------------------------


def try_program(sandbox: LocalSandbox, host: Host, case: Program) -> list[str]:
    """What is wrong with what came of a program."""
    ends = case.landlock or case.ends if sandbox.tier.landlock else case.ends
    limits = LIMITS if "timeout" in ends else PATIENT
    begin = time.monotonic()
    try:
        result = sandbox.run_now(host.filled(case.text), case.stdin, dict(case.files), limits)
    except Exception as error:
        return [f"the sandbox raised {error!r}", *host.harmed()]
    wall = time.monotonic() - begin
    found = host.harmed(result.output)
    if result.status not in ends:
        shown = (result.reason or result.output)[-300:]
        found.append(f"it ended with {result.status}, not {'/'.join(ends)}: {shown!r}")
    if sandbox.tier.landlock:  # what it left on the host's disk is removed at that disk's speed
        wall = min(wall, result.usage.wall)
    if wall > limits.wall + SLACK:
        found.append(f"it took {wall:.1f} s")
    if len(result.output.encode()) > 3 * limits.output:
        found.append(f"{len(result.output)} characters came back")
    if case.says_too or not sandbox.tier.landlock:
        found += [f"it did not say {word!r}" for word in case.says if word not in result.output]
    found += [f"it said {word!r}" for word in case.never if word in result.output]
    after = sandbox.run_now("print(1 + 1)", limits=PATIENT)
    if after.stdout != "2\n":
        found.append(f"afterwards nothing runs: {after}")
    return found


def try_solution(host: Host, case: Solution, pays: Callable[[Solution, str], bool]) -> list[str]:
    """What is wrong with how a solution was paid; `pays` takes the case and its text."""
    try:
        paid = pays(case, host.filled(case.text))
    except Exception as error:
        return [f"the grader raised {error!r}", *host.harmed()]
    found = host.harmed()
    if paid is not case.paid:
        found.append("it was paid" if paid else "it was not paid, and is right")
    return found


def try_calculation(
    host: Host, case: Calculation, calculate: Callable[[str], str | None]
) -> list[str]:
    """What is wrong with a value; `calculate` gives `None` for what it refuses."""
    begin = time.monotonic()
    value = calculate(host.filled(case.text))
    found = host.harmed(value or "")
    if value != case.value:
        found.append(f"it gave {value!r}, not {case.value!r}")
    if time.monotonic() - begin > SLACK:
        found.append(f"it took more than {SLACK:.0f} seconds")
    return found


def try_file(
    host: Host, case: FileUse, folder: Path, use: Callable[[str, str, str], str | None]
) -> list[str]:
    """What is wrong with what came of a path; `use` gives `None` for what it refuses."""
    prepare(host, folder, case.before)
    begin = time.monotonic()
    path = case.path.replace("WORKSPACE", folder.name)
    said = use(case.do, host.filled(path), case.content)
    found = host.harmed(said or "")
    if case.ok is not None and (said is not None) is not case.ok:
        found.append(f"it gave {said and said[:100]!r}")
    if said is not None and case.says and said != case.says:
        found.append(f"it gave {said[:100]!r}, not {case.says!r}")
    if time.monotonic() - begin > SLACK:
        found.append(f"it took more than {SLACK:.0f} seconds")
    return found


def prepare(host: Host, folder: Path, what: str) -> None:
    """Put into a workspace what a case finds there."""
    place = {
        "link_to_file": "link",
        "link_to_folder": "folder",
        "hard_link": "hard",
        "device": "zero",
    }
    path = folder / place.get(what, what)
    if not what or os.path.lexists(path):
        return
    targets = {
        "link_to_file": host.file,
        "link_to_folder": host.folder,
        "device": "/dev/zero",
        "loop": "loop",
    }
    if what in targets:
        path.symlink_to(targets[what])
    elif what == "hard_link":
        os.link(host.file, path)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    elif what == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif what == "binary":
        path.write_bytes(b"\xff\xfe\x00\x80")
    else:
        raise ValueError(what)


def try_answer(host: Host, case: Answer, pays: Callable[[str, str], bool]) -> list[str]:
    """What is wrong with how an answer was paid; `pays` takes the gold and the answer."""
    begin = time.monotonic()
    paid = pays(case.gold, host.filled(case.text))
    found = host.harmed()
    if paid is not case.paid:
        found.append("it was paid" if paid else "it was not paid, and is right")
    if time.monotonic() - begin > 3 * SLACK:
        found.append(f"it took more than {3 * SLACK:.0f} seconds")
    return found


# -- many ------------------------------------------------------------------------------------------


def try_all(
    cases: Sequence[Any], attempt: Callable[[Any], list[str]], at_once: int = SIDE_BY_SIDE
) -> dict[str, list[str]]:
    """Name -> what is wrong, of those with which something is. Those that run at one time share a
    host, so that harm to it may be told of more than one."""
    with ThreadPoolExecutor(at_once) as threads:
        done = list(threads.map(attempt, cases))
    return {case.name: found for case, found in zip(cases, done, strict=True) if found}
