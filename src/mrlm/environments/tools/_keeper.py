"""Runs a program that ends with its parent process: when the parent ends for any reason, the
program and its whole process group are killed. A script (`python _keeper.py PARENT PROGRAM
ARGUMENTS...`) without imports of this library."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG`."""
GONE = signal.SIGUSR2
"""Signal sent by the kernel when the parent ends; the program may use all other signals."""


def main(parent: int, words: list[str]) -> int:
    """Run a program in this process group, which is a session of its own."""
    signal.signal(GONE, lambda number, frame: os.killpg(os.getpgrp(), signal.SIGKILL))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(DEATH_SIGNAL, GONE, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        return 1
    return subprocess.Popen(words).wait()


def _watch(parent: int) -> None:
    """Sends the signal when the parent has ended, where the kernel does not."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), GONE)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
