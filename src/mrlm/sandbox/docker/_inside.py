"""Process 1 of a container: it starts one program with the functions of the harness, and forwards
its output and its exit.

Its source is passed as text, and it uses only the standard library. Standard input has a line that
lists the following parts, then the harness, the program and its files; for a session, then its
requests. Standard output has frames of a letter, a length and data: `s` started, `o` and `e` output
and errors, `x` the end; the program does not hold it. When standard input closes, the caller is
gone, and everything is stopped.
"""

import contextlib
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import types

LOOK = 0.02
"""Seconds between two checks of the program."""
DRAINED = 1 << 22
"""Most bytes of buffered output that are read after the program has ended."""


def taken(size):
    """Read bytes of standard input."""
    data = b""
    while len(data) < size:
        part = os.read(0, min(size - len(data), 1 << 20))
        if not part:
            os._exit(1)
        data += part
    return data


def sent(kind, data=b""):
    """Write one frame."""
    data = kind + struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(1, data) :]


def held(data):
    """A descriptor of an unnamed file with this content."""
    fd = os.memfd_create("mrlm")
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def kills_for_memory():
    """The number of processes in the container that the kernel killed for its memory limit."""
    for path in ("memory.events", "memory/memory.oom_control"):
        with contextlib.suppress(OSError), open("/sys/fs/cgroup/" + path) as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def begun(harness, head, parts):
    """Start the program; returns its process, its pipes, and that for a failed start."""
    pipes = [os.pipe() for _ in range(3)]
    (out, err, report_fd), (out_in, err_in, said_in) = zip(*pipes, strict=True)
    first = os.dup(0) if head["request"]["session"] else held(parts["stdin"])
    fds = [first, out_in, err_in, held(parts["program"]), held(parts["files"])]
    setup = {"namespaces": False, "landlock": False, "filter": "", "others": 1 << 20}

    def work(*args):
        harness.called("prctl", harness.DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        harness.called("prctl", harness.DUMPABLE, 1, 0, 0, 0)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # out of memory, the kernel kills the program instead of process 1
        harness.program(*args)

    pid = harness.forked(work, setup, head["request"], fds, said_in, out, err, report_fd)
    for fd in (*fds, said_in):
        os.close(fd)
    return pid, {out: b"o", err: b"e"}, report_fd


def ended(pid):
    """Reap the processes that have ended; returns the program's exit code if it is among them."""
    code = None
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if not child:
            return code
        if child == pid:
            code = os.waitstatus_to_exitcode(status)


def watched(pid, pipes, seconds):
    """Forward the output of the program until it ends; returns its exit code."""
    poll, end, code, left = select.poll(), time.monotonic() + seconds, None, DRAINED
    poll.register(0, 0)
    for fd in pipes:
        poll.register(fd, select.POLLIN)
    while True:
        code = ended(pid) if code is None else code
        events = poll.poll(LOOK * 1000 if code is None else 0)
        if code is not None and (not events or left <= 0):
            return code
        for fd, _ in events:
            data = os.read(fd, 1 << 16) if fd else b""
            if data:
                sent(pipes[fd], data)
                left -= len(data) if code is not None else 0
            elif fd:
                poll.unregister(fd)
            else:
                os._exit(1)
        if time.monotonic() > end:
            os._exit(1)


def main():
    """Receive the parts, run the program, report."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one signal that would reach process 1
    line = b""
    while not line.endswith(b"\n"):
        line += taken(1)
    head = json.loads(line)
    parts = {name: taken(size) for name, size in head["sizes"].items()}
    harness = types.ModuleType("harness")
    exec(compile(parts["harness"], "harness", "exec"), harness.__dict__)
    os.makedirs(head["request"]["folder"], 0o700, exist_ok=True)
    os.environ.clear()
    os.environ.update(head["environment"])
    sys.path[:] = [path for path in sys.path if path]
    harness.called("prctl", harness.DUMPABLE, 0, 0, 0, 0)
    kills = kills_for_memory()
    sent(b"s")
    pid, pipes, report_fd = begun(harness, head, parts)
    code = watched(pid, pipes, head["seconds"])
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {
        "code": code,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss * 1024,
        "cause": "oom" if kills_for_memory() > kills else None,
        "failed": "",
    }
    os.set_blocking(report_fd, False)
    with contextlib.suppress(OSError):
        report.update(json.loads(os.read(report_fd, 1 << 16) or b"{}"))
    sent(b"x", json.dumps(report).encode())


if __name__ == "__main__":
    main()
    os._exit(0)
