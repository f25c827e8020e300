"""Which system calls a program may make, as a seccomp program. Listed is what is forbidden: what
reaches the kernel's rarely used corners, other processes, other hosts or other namespaces."""

from __future__ import annotations

import errno
import functools
import tempfile
from typing import Any

from mrlm.sandbox.types import SandboxUnavailableError

STANDS_FOR_PID = 0x7ABC0DE5
"""Where a rule means the process itself, whose number is known only when it is there."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FORBIDDEN = _names("""
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd mount umount
    umount2 pivot_root chroot unshare setns fsopen fsmount fsconfig fspick move_mount open_tree
    mount_setattr statmount listmount bpf perf_event_open userfaultfd keyctl add_key request_key
    lookup_dcookie fanotify_init io_uring_setup io_uring_enter io_uring_register vmsplice
    kexec_load kexec_file_load init_module finit_module delete_module create_module reboot swapon
    swapoff acct syslog quotactl quotactl_fd nfsservctl vhangup iopl ioperm modify_ldt
    settimeofday clock_settime clock_adjtime adjtimex stime sethostname setdomainname
    open_by_handle_at name_to_handle_at mknod mknodat personality uselib ustat sysfs _sysctl
    memfd_create memfd_secret shmget shmat shmctl msgget semget mq_open mbind set_mempolicy
    migrate_pages move_pages socket connect bind listen accept accept4
""")

OF_HOST_FILES = _names("""
    truncate chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat
    futimesat setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr
    removexattrat inotify_init inotify_init1 inotify_add_watch flock
""")
"""What reaches files of the host that may be read but not written, where no mount hides them:
Landlock knows nothing of owners, times and attributes."""

PROCESSES = _names("fork vfork execve execveat tkill pidfd_open pidfd_send_signal")
SIGNALS = _names("kill tgkill rt_sigqueueinfo rt_tgsigqueueinfo")
NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
"""Flags of `clone` that make a new namespace."""
THREAD = 0x10000
TERMINAL_INPUT, TERMINAL_LINUX = 0x5412, 0x541C


@functools.cache
def seccomp(alone: bool) -> bytes:
    """The filter.

    Args:
        alone: also forbid other processes: to start them, to signal them, and to change what
            belongs to the host's files. For programs without namespaces of their own.

    Returns:
        BPF instructions of 8 bytes. `STANDS_FOR_PID` in them has to be replaced.

    Raises:
        SandboxUnavailableError: libseccomp is missing.
    """
    try:
        import pyseccomp as library
    except (ImportError, RuntimeError, OSError) as error:
        raise SandboxUnavailableError(
            f"seccomp filters cannot be made ({error}): install the system package libseccomp2 "
            "(Debian, Ubuntu: apt-get install libseccomp2; Fedora: dnf install libseccomp)"
        ) from error
    made: Any = library.SyscallFilter(library.ALLOW)
    refused = library.ERRNO(errno.EPERM)

    def forbid(name: str, *when: Any) -> None:
        try:
            made.add_rule(refused, name, *when)
        except (OSError, ValueError, RuntimeError):  # not on this processor, or newer than the
            if library.resolve_syscall(library.Arch.NATIVE, name) >= 0:  # library
                raise

    for name in FORBIDDEN + (OF_HOST_FILES + PROCESSES if alone else ()):
        forbid(name)
    for flag in NAMESPACES:
        forbid("clone", library.Arg(0, library.MASKED_EQ, flag, flag))
    for request in (TERMINAL_INPUT, TERMINAL_LINUX):
        forbid("ioctl", library.Arg(1, library.MASKED_EQ, 0xFFFFFFFF, request))
    # a datagram socket could be sent elsewhere than to its pair
    forbid("socketpair", library.Arg(1, library.MASKED_EQ, 0xF, 2))
    forbid("sendto", library.Arg(4, library.NE, 0))
    if alone:
        forbid("clone", library.Arg(0, library.MASKED_EQ, THREAD, 0))
        for name in SIGNALS:
            forbid(name, library.Arg(0, library.NE, STANDS_FOR_PID))
    made.add_rule(library.ERRNO(errno.ENOSYS), "clone3")  # its flags cannot be read here
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()
