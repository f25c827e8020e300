"""Common beginnings of sequences."""

import pytest

from mrlm.core.prefixes import shared_prefix


@pytest.mark.parametrize(
    "one, other, length",
    [
        ([], [], 0), ([], [1], 0), ([1], [2], 0), ([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3], [1, 2, 3], 3), ([1, 2, 3], [4, 2, 3], 0),
    ],
)  # fmt: skip
def test_length_of_a_common_beginning(one: list[int], other: list[int], length: int) -> None:
    assert shared_prefix(one, other) == shared_prefix(other, one) == length
