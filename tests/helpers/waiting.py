"""Waiting until something holds."""

import time
from collections.abc import Callable

HANGS = 600.0
"""Seconds after which a test hangs; no machine is so busy that it decides."""


def until(true: Callable[[], object]) -> None:
    """Return once something holds. Raises `TimeoutError`: it never does."""
    end = time.monotonic() + HANGS
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("it never came true")
        time.sleep(0.02)
