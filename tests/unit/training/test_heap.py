"""The garbage collector while a run trains."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from mrlm.training.heap import FIRST, LONG, PATIENCE, WHOLE, still_heap

pytestmark = pytest.mark.system


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
    lost, before = weakref.ref(Ring()), gc.get_threshold()
    with still_heap(LONG):
        assert gc.get_freeze_count() and gc.isenabled()
        assert gc.get_threshold() == (FIRST, before[1], before[2] * PATIENCE)
        assert lost() is None, "garbage from before is not kept"
        new = weakref.ref(Ring())
        gc.collect()
        assert new() is None, "new garbage is collected"
    assert not gc.get_freeze_count() and gc.get_threshold() == before


def test_garbage_of_an_iteration_is_collected_at_its_end() -> None:
    with still_heap(LONG) as tidy:
        lost, kept = weakref.ref(Ring()), Ring()
        tidy(1)
        assert lost() is None
        outlived = weakref.ref(kept)
        del kept
        tidy(2)
        assert outlived() is not None, "it is older than this iteration"
        tidy(WHOLE)
        assert outlived() is None


def test_a_program_without_automatic_collection_is_left_alone() -> None:
    gc.disable()
    try:
        with still_heap(LONG) as tidy:
            lost = weakref.ref(Ring())
            tidy(1)
            assert lost() is not None and not gc.get_freeze_count()
    finally:
        gc.enable()


def test_short_runs_and_programs_that_freeze_objects_are_left_alone() -> None:
    with still_heap(LONG - 1):
        assert not gc.get_freeze_count()
    gc.freeze()
    with still_heap(LONG):
        pass
    assert gc.get_freeze_count(), "not given back: it was not taken"
