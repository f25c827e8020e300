"""What a process owes to whoever started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

FOLLOWS = "MRLM_FOLLOWS_LAUNCHER"
"""Set where it was done, so that what this process starts does not do it for its own."""
DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of Linux."""


def end_with_launcher() -> None:
    """Under torchrun: end when it ends, however that is. Its workers have sessions of their own, so
    that a torchrun which is killed leaves them behind: they would wait for each other for half an
    hour, or train on in a folder in which another run has taken over."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or FOLLOWS in os.environ:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    os.environ[FOLLOWS] = "1"
