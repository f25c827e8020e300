"""Termination of a process together with its launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

FOLLOWS = "MRLM_FOLLOWS_LAUNCHER"
"""Environment variable set afterwards, so that child processes do not repeat it."""
DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of Linux."""


def end_with_launcher() -> None:
    """Under torchrun: end when it ends for any reason. Its workers have their own sessions and
    survive a killed torchrun: they would wait for each other for half an hour, or keep training in
    a folder that another run is using."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or FOLLOWS in os.environ:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    os.environ[FOLLOWS] = "1"
