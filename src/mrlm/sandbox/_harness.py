"""The supervisor program inside a sandbox: it starts every untrusted program in a process of its
own, monitors it and reports how it ended.

Its source is passed by descriptor to a separate Python, so it uses only the standard library and
nothing of this package. One control socket connects it with the caller:

- the first message sets up the isolation (`Setup`);

An untrusted program is forked from this process, so that Python need not be started again; it holds
none of this process's descriptors, and with namespaces it gets fresh ones, with an init of this
program as their process 1.
"""

import _socket as socket  # the public module takes as long to import as Python takes to start
import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import threading
import time
import types

PRELOADED = (
    "collections datetime decimal fractions functools heapq itertools linecache math random re "
    "statistics string tempfile traceback typing"
)
"""The modules that programs import most: a reused worker has them preloaded."""

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWIPC, NEWPID = 0x20000, 0x8000000, 0x20000000
NOSUID, NODEV, NOEXEC, READONLY = 2, 4, 8, 1
DUMPABLE, DEATH_SIGNAL, DROP_BOUNDING, SECCOMP, NO_NEW_PRIVILEGES, SUBREAPER = 4, 1, 24, 22, 38, 36
WATCH = 0.02
"""Seconds between two checks of memory and disk."""
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


# -- control socket --------------------------------------------------------------------------------


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


# -- isolation ---------------------------------------------------------------------------------


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


# -- the program -----------------------------------------------------------------------------------


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
    main.__dict__["__builtins__"] = __builtins__
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
    said = sys.stderr
    if run_text(text, modules) or not modules:
        raise RuntimeError(said.getvalue().strip()[-400:] or "the program ended")
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
            said = f"{type(error).__name__}: {error}"[:500]
            data = json.dumps({"id": message["id"], "failed": said}).encode()
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
        found, status = os.wait()
        if found == pid:
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


# -- monitoring --------------------------------------------------------------------------------


def descendants(pid):
    """All descendants of a process."""
    found, open_ = [], [pid]
    while open_:
        here = open_.pop()
        try:
            for thread in os.listdir(f"/proc/{here}/task"):
                with open(f"/proc/{here}/task/{thread}/children") as file:
                    below = [int(word) for word in file.read().split()]
                found += below
                open_ += below
        except (OSError, ValueError):
            pass
    return found


def used(pids):
    """Total resident memory of processes in bytes, and their CPU time in seconds."""
    memory = ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has ended by now
            with open(f"/proc/{pid}/stat") as file:
                words = file.read().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
            memory += int(words[21])
    return memory * resource.getpagesize(), ticks / os.sysconf("SC_CLK_TCK")


def unlinked(pids, device):
    """Bytes on a device in unlinked files that processes hold open."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended by now
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    file = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(file.st_mode) and (file.st_nlink, file.st_dev) == (0, device):
                        found[file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def overfull(folder, limits, pids):
    """Whether a folder exceeds the limits of bytes, entries or depth. No link is followed; a folder
    that cannot be read counts as over the limit."""
    try:
        size, count = unlinked(pids, os.stat(folder).st_dev), 0
    except FileNotFoundError:  # removed, as unisolated programs may
        return False
    open_ = [(folder, 0)]
    while open_:
        path, depth = open_.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    count += 1
                    found = entry.stat(follow_symlinks=False)
                    size += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        open_.append((entry.path, depth + 1))
                    if size > limits["disk"] or count > MOST_ENTRIES or depth > DEEPEST:
                        return True
        except PermissionError:
            return True
        except OSError:
            pass  # it has ended by now
    return size > limits["disk"]


class ProgramRun:
    """One running program."""

    def __init__(self, setup, request, fds):
        self.setup, self.request = setup, request
        self.peak, self.cpu, self.cause = 0, 0.0, None
        self.results, report = os.pipe()
        not_for_it = [setup["control"], self.results]
        if setup["namespaces"]:
            own = os.open("/proc/self/ns/pid", os.O_RDONLY)
            called("unshare", NEWPID)
            self.pid = forked(init, setup, request, fds, report, own, *not_for_it)
            called("setns", own, NEWPID)
            os.close(own)
        else:
            self.pid = forked(program, setup, request, fds, report, *not_for_it)
        for fd in (*fds, report):
            os.close(fd)

    def processes(self):
        """All processes of this run."""
        if self.setup["namespaces"]:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        return descendants(os.getpid())

    def look(self):
        """Whether it exceeds its limits of memory or disk."""
        limits = self.request["limits"]
        pids = self.processes()
        held, cpu = used(pids)
        self.peak, self.cpu = max(self.peak, held), max(self.cpu, cpu)
        if held > limits["memory"]:
            self.kill("oom")
        elif not self.setup["namespaces"] and overfull(self.request["folder"], limits, pids):
            self.kill("disk")

    def kill(self, cause):
        """Kill it; the first cause counts."""
        self.cause = self.cause or cause
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self):
        """Reap all processes that are left, and return the report."""
        _, status, usage = os.wait4(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        cpu = usage.ru_utime + usage.ru_stime
        while not self.setup["namespaces"]:
            left = descendants(os.getpid())
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while True:
                    found, _, usage = os.wait4(-1, os.WNOHANG)
                    if not found:
                        break
                    cpu += usage.ru_utime + usage.ru_stime
            except ChildProcessError:
                pass
            time.sleep(0.0005)
        said = os.read(self.results, 1 << 16)
        os.close(self.results)
        found = (
            json.loads(said.splitlines()[0])
            if said
            else {}
            if self.setup["namespaces"]
            else {"code": code}
        )
        peak = max(self.peak, usage.ru_maxrss * 1024)
        cpu = max(self.cpu, cpu)  # the status of killed processes does not contain their CPU time
        return {"code": None, "failed": "", **found, "cause": self.cause, "cpu": cpu, "peak": peak}


def serve(control, setup):
    """Run the requested programs, one after the other."""
    while True:
        request, fds = receive(control)
        if request is None:
            return
        if request.get("kill"):
            continue  # a late kill
        try:
            run = ProgramRun(setup, request, fds)
        except OSError as error:
            send(control, failed=repr(error), code=None, cause=None, cpu=0.0, peak=0)
            return
        ready = select.poll()
        process = os.pidfd_open(run.pid)
        ready.register(process, select.POLLIN)
        ready.register(control, select.POLLIN)
        while True:
            events = dict(ready.poll(WATCH * 1000))
            if control.fileno() in events:
                message, _ = receive(control)
                run.kill((message or {}).get("kill", "left"))
                if message is None:
                    run.end()
                    return
            if process in events:
                break
            run.look()
        os.close(process)
        send(control, **run.end())


def main():
    """Send the greeting, receive the setup, serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    setup, _ = receive(control)
    if setup is None:
        return
    setup["control"] = control.fileno()
    called("prctl", DUMPABLE, 0, 0, 0, 0)
    if not setup["namespaces"]:
        called("prctl", SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.path[:] = [path for path in sys.path if path]
    if setup["kept"]:
        for name in PRELOADED.split():
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    send(control, ready=True, python=sys.version.split()[0], processes=len(os.listdir("/proc")))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the caller is gone
        serve(control, setup)


if __name__ == "__main__":
    main()
    os._exit(0)
