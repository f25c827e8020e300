"""The cyclic garbage collector while a run trains."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 8
"""Iterations from which on a collection at the start costs less than those it saves."""


@contextmanager
def still_heap(iterations: int) -> Iterator[None]:
    """A context in which the garbage collector passes over objects that exist at its start: models,
    libraries and data, which episodes would otherwise make it walk through in every few steps.

    At its start garbage is collected, so that none is kept; at its end all objects are examined
    again. It changes nothing for a few iterations, or in a program that has frozen objects itself.

    Args:
        iterations: those that follow.
    """
    if iterations < LONG or gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
