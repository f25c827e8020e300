"""First part of the program inside a sandbox: its control socket, and the isolation of a process.

The texts of the parts (then come `_harness_program.py` and `_harness_supervisor.py`) are passed
as one program by descriptor to a separate Python, so they use only the standard library and nothing
of this package.
"""

import _socket as socket  # the public module takes as long to import as Python takes to start
import array
import ctypes
import json
import os
import resource
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWIPC, NEWPID = 0x20000, 0x8000000, 0x20000000
NOSUID, NODEV, NOEXEC, READONLY = 2, 4, 8, 1
DUMPABLE, DEATH_SIGNAL, DROP_BOUNDING, SECCOMP, NO_NEW_PRIVILEGES, SUBREAPER = 4, 1, 24, 22, 38, 36
MOST_ENTRIES, DEEPEST = 4096, 64
"""Limits of scratch space: number of files and folders, and depth of nesting."""


def called(name, *arguments):
    """Call the C library, and raise its error."""
    result = getattr(LIBC, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, name + ": " + os.strerror(number))
    return result


def receive(control):
    """Receive a message and its descriptors; `(None, [])` when the other side has closed."""
    fds = array.array("i")
    data, extra, _, _ = control.recvmsg(1 << 18, socket.CMSG_LEN(8 * fds.itemsize))
    for level, kind, part in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
    return (json.loads(data) if data else None), list(fds)


def send(control, **message):
    """Send a message."""
    control.send(json.dumps(message).encode())


def tell(report, **found):
    """Write a line of a report; the first one counts."""
    os.write(report, json.dumps(found).encode() + b"\n")


def content(fd):
    """Read and close a file that was passed by descriptor."""
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        data = file.read()
    os.close(fd)
    return data


def fresh_mounts(disk):
    """Mount private scratch space, shared memory and a private view of processes."""
    called("unshare", NEWNS | NEWIPC)
    flags = NOSUID | NODEV
    options = "size=%d,nr_inodes=%d,mode=1777"
    called("mount", b"tmpfs", b"/tmp", b"tmpfs", flags, (options % (disk, MOST_ENTRIES)).encode())
    called("mount", b"tmpfs", b"/dev/shm", b"tmpfs", flags, (options % (disk // 2, 256)).encode())
    called("mount", b"proc", b"/proc", b"proc", flags | NOEXEC | READONLY, None)
    os.mkdir("/tmp/w", 0o700)


def no_capabilities():
    """Drop every capability permanently."""
    for number in range(64):
        if LIBC.prctl(DROP_BOUNDING, number, 0, 0, 0) < 0:
            break
    header = struct.pack("Ii", 0x20080522, 0)
    called("capset", ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def landlock(read, write):
    """Restrict file access to `read` (read and execute) and `write` (everything)."""
    abi = LIBC.syscall(444, None, 0, 1)
    if abi < 1:
        raise OSError(ctypes.get_errno(), "Landlock is not available")
    every = (1 << 13) - 1
    for version, bit in ((2, 13), (3, 14), (5, 15)):
        every |= (abi >= version) << bit
    network, scopes = (3 if abi >= 4 else 0), (3 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = LIBC.syscall(444, struct.pack("QQQ", every, network, scopes), size, 0)
    if rules < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    for paths, granted in ((read, 0b1101), (write, every)):
        for path in paths:
            if not os.path.exists(path):
                continue
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            of_files = 0b111 | (every & 1 << 14) | (every & 1 << 15)
            allowed = granted if os.path.isdir(path) else granted & of_files
            if LIBC.syscall(445, rules, 1, struct.pack("=Qi", allowed, fd), 0) < 0:
                raise OSError(ctypes.get_errno(), "landlock_add_rule " + path)
            os.close(fd)
    if LIBC.syscall(446, rules, 0) < 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(rules)


def filtered(program, stands_for_pid):
    """Load a seccomp program; its placeholder is replaced with the id of this process."""
    own, wanted = struct.pack("=I", os.getpid()), struct.pack("=I", stands_for_pid)
    parts = [program[at : at + 8] for at in range(0, len(program), 8)]
    parts = [part[:4] + own if part[4:] == wanted else part for part in parts]
    code = ctypes.create_string_buffer(b"".join(parts))
    head = struct.pack("HxxxxxxP", len(parts), ctypes.addressof(code))
    called("prctl", SECCOMP, 2, ctypes.c_char_p(head), 0, 0)


def shut_in(setup, request):
    """Apply the irreversible restrictions, in the process that will run the program."""
    limits = request["limits"]
    if setup["namespaces"]:
        no_capabilities()
    for name, most in (
        ("AS", limits["memory"]),
        ("CPU", limits["cpu"]),
        ("NPROC", limits["processes"] + setup["others"]),
        ("FSIZE", limits["file_size"]),
        ("NOFILE", limits["open_files"]),
        ("CORE", 1),  # at 0 the kernel would still pipe a core to the host's handler
        ("STACK", 64 << 20),
        ("MSGQUEUE", 0),
        ("SIGPENDING", 256),
        ("MEMLOCK", 64 << 10),
    ):
        number = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))
    called("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if setup["landlock"]:
        landlock(setup["readable"], [request["folder"], os.devnull])
    called("prctl", DUMPABLE, 1, 0, 0, 0)
    if setup["filter"]:
        filtered(bytes.fromhex(setup["filter"]), setup["stands_for_pid"])
