"""Common beginnings of sequences."""

from collections.abc import Sequence
from itertools import compress, count
from operator import ne


def shared_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of the common beginning of two sequences."""
    return next(compress(count(), map(ne, one, other)), min(len(one), len(other)))
