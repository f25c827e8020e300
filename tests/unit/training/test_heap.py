"""The garbage collector while a run trains."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping

import pytest

from mrlm.training.heap import LONG, still_heap


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    """The tests' own process has frozen objects (`conftest.py`)."""
    gc.unfreeze()
    yield
    gc.freeze()


class Ring:
    """Garbage that only the cyclic collector frees."""

    def __init__(self) -> None:
        self.ring = self


def test_objects_are_passed_over_while_a_long_run_trains() -> None:
    lost = weakref.ref(Ring())
    with still_heap(LONG):
        assert gc.get_freeze_count() and gc.isenabled()
        assert lost() is None, "garbage from before is not kept"
        new = weakref.ref(Ring())
        gc.collect()
        assert new() is None, "new garbage is collected"
    assert not gc.get_freeze_count()


def test_full_collections_wait_for_the_end_of_an_iteration() -> None:
    """They are counted while ever more objects live, and after these are gone."""
    full, before, small = [0], gc.get_threshold(), (20, 2, 2)

    def count(phase: str, info: Mapping[str, int]) -> None:
        full[0] += phase == "stop" and info["generation"] == 2

    gc.set_threshold(*small)
    try:
        with still_heap(LONG) as settle:
            gc.callbacks.append(count)
            settle()
            assert full[0] == 0, "none is due"
            kept = [[number] for number in range(10_000)]
            assert full[0] == 0
            del kept
            settle()
            settle()
            assert full[0] == 1
            assert [[number] for number in range(40_000)]
            assert full[0] > 1, "in an iteration without end garbage is collected meanwhile"
        assert gc.get_threshold() == small
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*before)


def test_an_error_gives_the_objects_back() -> None:
    with pytest.raises(RuntimeError), still_heap(LONG):
        raise RuntimeError
    assert not gc.get_freeze_count()


def test_short_runs_and_programs_that_freeze_objects_are_left_alone() -> None:
    with still_heap(LONG - 1):
        assert not gc.get_freeze_count()
    gc.freeze()
    with still_heap(LONG):
        pass
    assert gc.get_freeze_count(), "not given back: it was not taken"
