"""The system call filter of programs, as a seccomp program. It is a deny list: calls that reach
rarely used parts of the kernel, other processes, other hosts or other namespaces."""

import errno
import functools
import os
import struct
import tempfile
from socket import AF_UNIX
from typing import Any

from mrlm.core.content import content
from mrlm.sandbox.types import SandboxUnavailableError

STANDS_FOR_PID = 0x7ABC0DE5
"""Placeholder in a rule for the id of the process, which is known only when it exists."""
CALLS: dict[str, list[str]] = content(__file__)
"""The refused system calls: `always`, and those of a program without namespaces of its own."""
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
"""Flags of `clone` that create a new namespace."""
THREAD = 0x10000
SHARED_UNNAMED, HUGE_PAGES = 0x21, 0x40000
"""Flags of `mmap` for memory that no limit counts: shared anonymous pages stay when all but one of
them are unmapped; huge pages come from a separate pool."""
OWNERS_OF_FDS = (8, 10, 15)
"""Commands of `fcntl` that set whom a descriptor signals: F_SETOWN, F_SETSIG, F_SETOWN_EX."""
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""The allowed requests of `ioctl`: whether a device is a terminal and its size, the bytes
available, blocking mode, close on exec. Others type into terminals, or change read-only files."""
SET_DUMPABLE = 4
CORE = 4
"""RLIMIT_CORE. At 1 no core is written or piped to the host's handler; at 0 it may be piped."""
NEWEST = 442
"""System calls from this number on are missing: the library may not know their names."""


def _library() -> Any:
    """The binding of libseccomp."""
    try:
        import pyseccomp as library
    except (ImportError, RuntimeError, OSError) as error:
        raise SandboxUnavailableError(
            f"seccomp filters cannot be made ({error}): install the system package libseccomp2 "
            "(Debian, Ubuntu: apt-get install libseccomp2; Fedora: dnf install libseccomp)"
        ) from error
    return library


@functools.cache
def seccomp(alone: bool) -> bytes:
    """Build the filter.

    Args:
        alone: also forbid other processes (starting and signalling them) and changes to the
            metadata of the host's files. For programs without namespaces of their own.

    Returns:
        BPF instructions of 8 bytes. `STANDS_FOR_PID` in them has to be replaced.

    Raises:
        SandboxUnavailableError: libseccomp is missing.
    """
    library = _library()
    made: Any = library.SyscallFilter(library.ALLOW)
    refused = library.ERRNO(errno.EPERM)

    def forbid(name: str, *when: Any) -> None:
        try:
            made.add_rule(refused, name, *when)
        except (OSError, ValueError, RuntimeError):  # not on this architecture, or newer than the
            if library.resolve_syscall(library.Arch.NATIVE, name) >= 0:  # library
                raise

    for name in CALLS["always"] + (CALLS["host_files"] + CALLS["processes"] if alone else []):
        forbid(name)
    for flag in NAMESPACES:
        forbid("clone", library.Arg(0, library.MASKED_EQ, flag, flag))
    # a datagram socket could send elsewhere than to its pair; a raw one is one too
    for kind in (0, 2, 3, 4):
        forbid("socketpair", library.Arg(1, library.MASKED_EQ, 0xF, kind))
    forbid("socketpair", library.Arg(0, library.NE, AF_UNIX))
    forbid("sendto", library.Arg(4, library.NE, 0))
    for flags in (SHARED_UNNAMED, HUGE_PAGES):
        forbid("mmap", library.Arg(3, library.MASKED_EQ, flags, flags))
    # limits of other processes: the same user is enough permission
    forbid("prlimit64", library.Arg(0, library.NE, 0))
    forbid("prlimit64", library.Arg(1, library.EQ, CORE), library.Arg(2, library.NE, 0))
    forbid("setrlimit", library.Arg(0, library.EQ, CORE))
    forbid("sched_setaffinity", library.Arg(0, library.NE, 0))
    if alone:
        forbid("clone", library.Arg(0, library.MASKED_EQ, THREAD, 0))
        for name in CALLS["signals"]:
            forbid(name, library.Arg(0, library.NE, STANDS_FOR_PID))
        for command in OWNERS_OF_FDS:
            forbid("fcntl", library.Arg(1, library.MASKED_EQ, 0xFFFFFFFF, command))
        # its open files have to be visible from outside
        forbid("prctl", library.Arg(0, library.EQ, SET_DUMPABLE))
        # opened for reading but truncated: old Landlock versions allow it
        for name, at in (("open", 1), ("openat", 2)):
            empties = library.Arg(at, library.MASKED_EQ, os.O_TRUNC | os.O_ACCMODE, os.O_TRUNC)
            forbid(name, empties)
        made.add_rule(library.ERRNO(errno.ENOSYS), "openat2")  # its flags cannot be inspected here
    made.add_rule(library.ERRNO(errno.ENOSYS), "clone3")  # its flags cannot be inspected here
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        ioctl = library.resolve_syscall(library.Arch.NATIVE, "ioctl")
        return _before_all(ioctl) + file.read()


def _before_all(ioctl: int) -> bytes:
    """Instructions before all others, for rules that the library cannot express: a system call from
    `NEWEST` on fails with ENOSYS, an `ioctl` that is not in `IOCTLS` with EPERM."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06  # BPF_LD, BPF_JEQ, BPF_JGE, BPF_RET
    number, second_argument, fail = 0, 24, 0x00050000  # SECCOMP_RET_ERRNO
    allowed = [(equal, len(IOCTLS) - at, 0, request) for at, request in enumerate(IOCTLS)]
    return b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (load, 0, 0, number),
            (at_least, 0, 1, NEWEST),
            (give, 0, 0, fail | errno.ENOSYS),
            (equal, 0, len(IOCTLS) + 2, ioctl),
            (load, 0, 0, second_argument),
            *allowed,
            (give, 0, 0, fail | errno.EPERM),
        )
    )
