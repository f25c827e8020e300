"""The cyclic garbage collector while a run trains."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 8
"""Iterations from which on a collection at the start costs less than those it saves."""
FIRST = 50_000
"""New objects after which the collector runs within an iteration, rather than the interpreter's
700: the episodes in progress are most of them, and none of those is garbage yet."""
PATIENCE = 100
"""How many times as many collections as usual come before one that walks through everything that
outlived the others: within an iteration, all its episodes so far."""
WHOLE = 16
"""Every so many iterations, objects are examined too that outlived their own iteration."""


@contextmanager
def still_heap(iterations: int) -> Iterator[Callable[[int], object]]:
    """A context in which the garbage collector passes over objects that exist at its start: models,
    libraries and data, which episodes would otherwise make it walk through in every few steps. It
    gives a function to be called with the number of every iteration, at its end, when the episodes
    are garbage: the collector then runs, instead of dozens of times while they are played.

    At its start garbage is collected, so that none is kept; at its end all objects are examined
    again. It changes nothing for a few iterations, or in a program that controls the collector
    itself (it has frozen objects, or there is no automatic collection).

    Args:
        iterations: those that follow.
    """
    before = gc.get_threshold()
    automatic = gc.isenabled() and before[0] > 0
    if iterations < LONG or gc.get_freeze_count() or not automatic:
        yield lambda step: None
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(before[0], FIRST), before[1], before[2] * PATIENCE)
    try:
        yield lambda step: gc.collect(1 if step % WHOLE else 2)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
