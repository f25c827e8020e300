"""The cyclic garbage collector while a run trains."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 8
"""Iterations from which on a collection at the start costs less than those it saves."""
PATIENCE = 100
"""How many times as many collections of young objects come before a full one within an iteration
as come before one between two."""


@contextmanager
def still_heap(iterations: int) -> Iterator[Callable[[], None]]:
    """A context in which the cost of the garbage collector does not grow with models, libraries and
    the episodes of an iteration.

    At its start garbage is collected, so that none is kept, and the collector passes over all
    objects that exist then. Within an iteration, full collections, which walk through all its
    episodes so far, are `PATIENCE` times as rare: the next one is due after the iteration, when
    these are gone. At the end of the context everything is as before. It changes nothing for a few
    iterations, or in a program that has frozen objects itself.

    Args:
        iterations: those that follow.

    Yields:
        The function to call between two iterations; it makes a full collection if one is due.
    """
    if iterations < LONG or gc.get_freeze_count():
        yield lambda: None
        return
    young, middle, full = gc.get_threshold()

    def settle() -> None:
        if gc.get_count()[2] > full:
            gc.collect()

    gc.collect()
    gc.freeze()
    gc.set_threshold(young, middle, full * PATIENCE)
    try:
        yield settle
    finally:
        gc.set_threshold(young, middle, full)
        gc.unfreeze()
