"""First part of the program inside a sandbox: its control socket, the isolation of a process, and
the process of one untrusted program.

The texts of the parts (then comes `_harness_supervisor.py`) are passed as one program by descriptor
to a separate Python, so they use only the standard library and nothing of this package. The process
of a program is forked from the supervisor, so that Python need not be started again; it holds none
of the supervisor's descriptors, and with namespaces it gets fresh ones, with an `init` as their
process 1.
"""

import _sitebuiltins
import _socket as socket  # the public module takes as long to import as Python takes to start
import array
import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import resource
import signal
import struct
import sys
import threading
import types

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWIPC, NEWPID = 0x20000, 0x8000000, 0x20000000
NOSUID, NODEV, NOEXEC, READONLY = 2, 4, 8, 1
DUMPABLE, DEATH_SIGNAL, DROP_BOUNDING, SECCOMP, NO_NEW_PRIVILEGES, SUBREAPER = 4, 1, 24, 22, 38, 36
MOST_ENTRIES, DEEPEST = 4096, 64
"""Limits of scratch space: number of files and folders, and depth of nesting."""
FILE = "main.py"
"""File name of the program in its own tracebacks."""


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


def tell(report, **fields):
    """Write a line of a report; the first one counts."""
    os.write(report, json.dumps(fields).encode() + b"\n")


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
    pid, placeholder = struct.pack("=I", os.getpid()), struct.pack("=I", stands_for_pid)
    parts = [program[at : at + 8] for at in range(0, len(program), 8)]
    parts = [part[:4] + pid if part[4:] == placeholder else part for part in parts]
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


# -- the process of a program ----------------------------------------------------------------------


def unpack(data):
    """Write the files of a request into the working folder."""
    head, _, rest = data.partition(b"\n")
    at = 0
    for path, size in json.loads(head or b"[]"):
        folder = os.path.dirname(path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(rest[at : at + size])
        at += size


def run_text(text, modules):
    """Run a program as Python runs its main file; returns its exit code."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __file__=FILE)
    for name in ("exit", "quit"):  # the module site, which is not loaded, defines them
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    sys.modules["__main__"] = main
    try:
        exec(compile(text, FILE, "exec", dont_inherit=True), main.__dict__)
        modules.append(main)
        return 0
    except SystemExit as stop:
        code = stop.code
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 255
        print(code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__ and error.__traceback__.tb_next  # without this file's frame
        BaseException.with_traceback(error, trace)
        if sys.excepthook is sys.__excepthook__:
            import linecache
            import traceback

            linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
            traceback.print_exception(error)
        else:
            sys.excepthook(type(error), error, trace)
        return 1


def ended(code):
    """Shut down like Python: join threads, run exit handlers, flush the output."""
    stop_threads = threading._shutdown  # pyright: ignore[reportAttributeAccessIssue]
    for last in (stop_threads, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
        try:
            last()
        except BaseException:
            code = code or 120
    os._exit(code)


def started(text, modules):
    """Run a program that is to answer requests; raises its error output if it fails."""
    nowhere, sys.stderr = sys.stderr, io.StringIO()
    errors = sys.stderr
    if run_text(text, modules) or not modules:
        raise RuntimeError(errors.getvalue().strip()[-400:] or "the program ended")
    sys.stderr = nowhere
    if not callable(getattr(modules[0], "answer", None)):
        raise RuntimeError("the program defines no answer(request)")
    return True


def frames(text):
    """Run a program, then answer requests with its `answer` until they end."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    modules = []

    def read(size):
        data = b""
        while len(data) < size:
            part = os.read(source, size - len(data))
            if not part:
                os._exit(0)
            data += part
        return data

    while True:
        message = json.loads(read(struct.unpack("<I", read(4))[0]))
        reply = {"id": message["id"]}
        try:
            if not modules:
                reply["answer"] = started(text, modules)
            else:
                reply["answer"] = modules[0].answer(message["request"])
            data = json.dumps(reply).encode()
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"[:500]
            data = json.dumps({"id": message["id"], "failed": reason}).encode()
        data = struct.pack("<I", len(data)) + data
        while data:
            data = data[os.write(sink, data) :]


def program(setup, request, fds, report):
    """Body of the process that runs an untrusted program."""
    text, files = (content(fd) for fd in fds[3:5])
    os.setsid()
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, report)
    os.closerange(report + 1, 1024)
    folder = request["folder"]
    os.chdir(folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = folder
    try:
        unpack(files)
    except (OSError, ValueError) as error:
        tell(report, refused=f"its files: {error}")
        os._exit(125)
    sys.path.insert(0, folder)
    sys.argv[:] = [FILE]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "random" in sys.modules or b"random" in text:
        importlib.import_module("random").seed(0)
    gc.enable()
    text = text.decode()
    shut_in(setup, request)
    os.close(report)
    if request["session"]:
        frames(text)
    ended(run_text(text, []))


def init(setup, request, fds, report):
    """Body of process 1 of fresh namespaces: starts the program, reaps orphans, and reports how the
    program ended. All processes left end with it."""
    called("prctl", DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    fresh_mounts(request["limits"]["disk"])
    pid = forked(program, setup, request, fds, report)
    for fd in fds:
        os.close(fd)
    while True:
        child, status = os.wait()
        if child == pid:
            code = os.waitstatus_to_exitcode(status)
            tell(report, code=code)
            os._exit(0)


def forked(work, setup, request, fds, report, *not_for_it):
    """Run `work` in a new process; if it cannot start, `report` contains the reason."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for fd in not_for_it:
            os.close(fd)
        work(setup, request, fds, report)
    except BaseException as error:
        with contextlib.suppress(OSError):
            tell(report, failed=repr(error))
    finally:
        os._exit(125)
