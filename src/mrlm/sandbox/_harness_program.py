"""Second part of the program inside a sandbox: the process of an untrusted program.

It is forked from the supervisor, so that Python need not be started again; it holds none of the
supervisor's descriptors, and with namespaces it gets fresh ones, with an `init` as their process 1.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import signal
import struct
import sys
import threading
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mrlm.sandbox._harness_isolation import (
        DEATH_SIGNAL,
        called,
        content,
        fresh_mounts,
        shut_in,
        tell,
    )

FILE = "main.py"
"""File name of the program in its own tracebacks."""


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
