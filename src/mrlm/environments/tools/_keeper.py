"""Runs a program that ends with the process that wants it: whatever ends that one, the program and
all of its process group are killed. A script (`python _keeper.py PARENT PROGRAM ARGUMENTS...`) that
imports nothing of this library; Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG`."""
GONE = signal.SIGUSR2
"""What the kernel sends when the parent is gone; the program may use all other signals."""


def main(parent: int, words: list[str]) -> int:
    """Run a program in this process group, which is a session of its own."""
    signal.signal(GONE, lambda number, frame: os.killpg(os.getpgrp(), signal.SIGKILL))
    ctypes.CDLL(None, use_errno=True).prctl(DEATH_SIGNAL, GONE, 0, 0, 0)
    if os.getppid() != parent:
        return 1
    return subprocess.Popen(words).wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
