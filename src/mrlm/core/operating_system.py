"""Functions of the operating system that Linux alone has, and their substitutes elsewhere."""

import ctypes
import os
import signal
import sys
from pathlib import Path

FOLLOWS = "MRLM_FOLLOWS_LAUNCHER"
"""Environment variable set afterwards, so that child processes do not repeat it."""
DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of Linux."""


def is_linux() -> bool:
    """Whether it is Linux: namespaces, Landlock, seccomp, `/proc` and signals at a parent's end."""
    return sys.platform == "linux"


def processors() -> int:
    """Number of processors that this process may use; of the machine where that is not limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_vendor() -> str:
    """The processor's `vendor_id` in `/proc/cpuinfo`; empty where it is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
    return next(values, "")


def end_with_launcher() -> None:
    """Under torchrun: end when it ends for any reason. Its workers have their own sessions and
    survive a killed torchrun: they would wait for each other for half an hour, or keep training in
    a folder that another run is using. Elsewhere than on Linux they do survive it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or FOLLOWS in os.environ:
        return
    if is_linux():
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    os.environ[FOLLOWS] = "1"
