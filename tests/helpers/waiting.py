"""Waiting until something holds. There is no deadline: a test that hangs is ended by the one of its
file, whatever else the machine does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object]) -> None:
    """Return once something holds."""
    while not true():
        time.sleep(0.02)
