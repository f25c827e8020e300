"""The isolation tiers of this machine: the command that starts the harness, its user, its setup."""

import functools
import marshal
import os
import platform
import pwd
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

from mrlm.sandbox.filters import STANDS_FOR_PID, seccomp
from mrlm.sandbox.types import SandboxUnavailableError

SCRATCH = "/tmp/w"
"""Working folder of a program with file systems of its own."""
FIRST_UNUSED = 64_200
UNUSED = 1_000
"""Range in which unused user ids are searched."""
READABLE = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/urandom", "/dev/null")
BOOT = (
    "import marshal,os,sys;from _frozen_importlib_external import MAGIC_NUMBER as m;"
    "f=os.fdopen(int(sys.argv.pop(1)),'rb');k,n,t=f.read(4),f.read(8),f.read();f.close();"
    "n=int.from_bytes(n,'little');"
    "exec(marshal.loads(t[:n]) if k==m else compile(t[n:],'<harness>','exec'))"
)
"""The program that runs the result of `booted`."""
OURS = Path(__file__).resolve().parents[1]
"""This package, which contains the solutions of generated problems: no program may read it."""


@dataclass(frozen=True, slots=True)
class Tier:
    """An isolation tier.

    Args:
        letter: A (bubblewrap, seccomp, limits), B (Landlock, seccomp, limits) or C (limits).
        name: `bubblewrap`, `landlock` or `bare`.
        namespaces: whether a program has file systems and processes of its own.
        landlock: whether the kernel protects the host's files from it.
        filtered: whether its system calls are filtered.
    """

    letter: str
    name: str
    namespaces: bool = False
    landlock: bool = False
    filtered: bool = True

    def setup(self) -> dict[str, Any]:
        """The setup message of the harness; fails if a requirement of this tier is missing."""
        return {
            "namespaces": self.namespaces,
            "landlock": self.landlock,
            "readable": [*READABLE, *_trees_of(python())],
            "filter": seccomp(self.landlock).hex() if self.filtered else "",
            "stands_for_pid": STANDS_FOR_PID,
        }

    def command(self, source: int, control: int) -> list[str]:
        """Program and arguments that start the harness, whose text and control socket are the
        descriptors `source` and `control`; fails if a requirement of this tier is missing."""
        inside = [python(), "-s", "-S", "-B", "-X", "utf8", "-c", BOOT, str(source), str(control)]
        return [*_bubblewrap(), "--cap-add", "ALL", *inside] if self.namespaces else inside


TIER_A = Tier("A", "bubblewrap", namespaces=True)
TIER_B = Tier("B", "landlock", landlock=True)
TIER_C = Tier("C", "bare", filtered=False)


@functools.cache
def harness() -> bytes:
    """The text of the program that starts and monitors untrusted ones."""
    parts = ("_harness_program.py", "_harness_supervisor.py")
    return b"\n\n".join(Path(__file__).with_name(part).read_bytes() for part in parts)


@functools.cache
def booted() -> bytes:
    """The harness in the format of `BOOT`: compiled, for a Python with the same byte code as this
    one, and as text, for every other."""
    text = harness()
    code = marshal.dumps(compile(text, "<harness>", "exec", dont_inherit=True))
    return MAGIC_NUMBER + len(code).to_bytes(8, "little") + code + text


def environment(folder: str) -> dict[str, str]:
    """All environment variables of a program."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": folder,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",  # otherwise every thread takes 64 MiB of address space
    }


def strangers() -> list[int]:
    """Unused user ids to run programs as root's delegates; none if this process is not root."""
    if os.getuid() != 0:
        return []
    used_ids = {entry.pw_uid for entry in pwd.getpwall()}
    return [uid for uid in range(FIRST_UNUSED, FIRST_UNUSED + UNUSED) if uid not in used_ids]


SETPRIV = shutil.which("setpriv", path=os.defpath)
"""Part of util-linux; changes the user before it executes a command."""


def as_user(user: int | None) -> tuple[list[str], dict[str, Any]]:
    """The prefix of a command that runs as a user, and further arguments of `Popen`.

    A child that changes its user by itself is created by `fork`, which runs the fork handlers of
    libraries: gRPC starts threads there, which lose their descriptors and may crash the child. So
    `setpriv` does it if it is installed, and the child is created by `vfork`."""
    if user is None:
        return [], {}
    if SETPRIV is None:
        return [], {"user": user, "group": user, "extra_groups": []}
    return [SETPRIV, f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"], {}


@functools.cache
def python() -> str:
    """The Python that programs run in: the current one if every user may read it, else the
    system's. Raises `SandboxUnavailableError`: none is available."""
    if platform.system() != "Linux":
        raise SandboxUnavailableError(
            f"programs cannot be isolated on {platform.system()}: the sandbox needs Linux; use "
            "isolation: docker, or isolation: remote with an executor that runs on Linux"
        )
    current = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (str(current), *(f"{folder}/python3" for folder in ("/usr/bin", "/usr/local/bin"))):
        if os.access(path, os.X_OK) and (os.getuid() != 0 or _readable_by_all(Path(path))):
            return path
    raise SandboxUnavailableError(
        f"no Python is readable by ordinary users ({current} is in a private folder): "
        "apt-get install python3"
    )


def _readable_by_all(path: Path) -> bool:
    real = path.resolve()
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (real, *real.parents))


def _trees_of(interpreter: str) -> list[str]:
    """Folders of a Python outside the system's own."""
    home = str(Path(interpreter).resolve().parent.parent)
    places = {home, str(Path(interpreter).parent.parent)}
    return sorted(folder for folder in places if folder not in ("/", "/usr"))


def confined(command: Sequence[str], readable: Sequence[str]) -> list[str]:
    """A command with files, processes and a network of its own: it reads the system's programs and
    the files and folders `readable`, and writes into an empty `/tmp`. What it uses is not limited.
    Raises `SandboxUnavailableError`: bubblewrap is not installed."""
    trees = [os.path.abspath(path) for path in readable]
    binds = [word for tree in trees for word in ("--ro-bind", tree, tree)]
    here = os.getcwd()
    there = any(os.path.commonpath([here, tree]) in (here, tree) for tree in trees)
    folder = ["--chdir", here] if there else []
    return [*_bubblewrap(binds), "--die-with-parent", *folder, "--", *command]


def _bubblewrap(binds: Sequence[str] = ()) -> Sequence[str]:
    program = shutil.which(
        "bwrap", path="/usr/bin:/bin:/usr/local/bin:" + os.environ.get("PATH", "")
    )
    if program is None:
        raise SandboxUnavailableError("bubblewrap is not installed")
    system: list[str] = ["--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib64", "lib32", "bin", "sbin"):
        path = Path("/", name)
        if path.is_symlink():
            system += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            system += ["--ro-bind", str(path), str(path)]
    for tree in _trees_of(python()):
        system += ["--ro-bind", tree, tree]
    if any(OURS.is_relative_to(tree) for tree in ("/usr", *_trees_of(python()))):
        system += ["--tmpfs", str(OURS)]
    if os.path.exists("/etc/ld.so.cache"):
        system += ["--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    return [
        program, *system,
        "--proc", "/proc", *_devices(), "--tmpfs", "/tmp", *binds, "--remount-ro", "/",
        "--unshare-all", "--unshare-user", "--as-pid-1", "--new-session", "--hostname", "sandbox",
        "--chdir", "/tmp",
    ]  # fmt: skip


def _devices() -> list[str]:
    """The harmless devices: /dev/zero, mapped as shared, would be memory that no limit counts, and
    bubblewrap's own `--dev` would also create terminals, and for them a second user namespace, in
    which the harness could not give a program namespaces of its own."""
    words = ["--tmpfs", "/dev", "--dir", "/dev/shm", "--symlink", "/proc/self/fd", "/dev/fd"]
    for name in ("null", "full", "random", "urandom"):
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        words += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    return [*words, "--remount-ro", "/dev"]
