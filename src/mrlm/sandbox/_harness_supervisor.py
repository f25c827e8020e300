"""Last part of the program inside a sandbox, its supervisor: it starts every untrusted program in a
process of its own, monitors it and reports how it ended.

One control socket connects it with the caller. The first message sets up the isolation; every
further one starts a program or kills it.
"""

import _socket as socket  # the public module takes as long to import as Python takes to start
import contextlib
import gc
import importlib
import io
import json
import os
import resource
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mrlm.sandbox._harness_program import (
        DEEPEST,
        DUMPABLE,
        MOST_ENTRIES,
        NEWPID,
        SUBREAPER,
        called,
        forked,
        init,
        program,
        receive,
        send,
    )

PRELOADED = (
    "collections datetime decimal fractions functools heapq itertools linecache math random re "
    "statistics string tempfile traceback typing"
)
"""The modules that programs import most: a reused worker has them preloaded."""

WATCH = 0.02
"""Seconds between two checks of memory and disk."""


def descendants(pid):
    """All descendants of a process."""
    pids, open_ = [], [pid]
    while open_:
        here = open_.pop()
        try:
            for thread in os.listdir(f"/proc/{here}/task"):
                with open(f"/proc/{here}/task/{thread}/children") as file:
                    below = [int(word) for word in file.read().split()]
                pids += below
                open_ += below
        except (OSError, ValueError):
            pass
    return pids


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
    sizes = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended by now
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    file = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(file.st_mode) and (file.st_nlink, file.st_dev) == (0, device):
                        sizes[file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


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
                    status = entry.stat(follow_symlinks=False)
                    size += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
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
            namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
            called("unshare", NEWPID)
            self.pid = forked(init, setup, request, fds, report, namespace, *not_for_it)
            called("setns", namespace, NEWPID)
            os.close(namespace)
        else:
            self.pid = forked(program, setup, request, fds, report, *not_for_it)
        for fd in (*fds, report):
            os.close(fd)

    def processes(self):
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
                    result, _, usage = os.wait4(-1, os.WNOHANG)
                    if not result:
                        break
                    cpu += usage.ru_utime + usage.ru_stime
            except ChildProcessError:
                pass
            time.sleep(0.0005)
        data = os.read(self.results, 1 << 16)
        os.close(self.results)
        result = {} if self.setup["namespaces"] else {"code": code}
        if data:
            result = json.loads(data.splitlines()[0])
        peak = max(self.peak, usage.ru_maxrss * 1024)
        cpu = max(self.cpu, cpu)  # the status of killed processes does not contain their CPU time
        return {"code": None, "failed": "", **result, "cause": self.cause, "cpu": cpu, "peak": peak}


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
