"""The cyclic garbage collector while a run trains."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 8
"""Iterations from which on a collection at the start costs less than those it saves."""
FIRST = 10_000
"""Objects after which the youngest are examined (by default 700): those of a few hundred turns, of
which most are still in use before."""


@contextmanager
def still_heap(iterations: int) -> Iterator[None]:
    """A context in which the garbage collector passes over objects that exist at its start: models,
    libraries and data, which episodes would otherwise make it walk through in every few steps, and
    looks at new ones less often.

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
    first, *later = gc.get_threshold()
    gc.set_threshold(first and max(first, FIRST), *later)  # 0: the program collects by itself
    try:
        yield
    finally:
        gc.set_threshold(first, *later)
        gc.unfreeze()
