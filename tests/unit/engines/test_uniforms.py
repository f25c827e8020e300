"""The random numbers of requests are those of numpy's generator, however many there are."""

import numpy as np
import pytest

from mrlm.core.types import SamplingParams
from mrlm.engines.shared.sampling import uniforms_of
from mrlm.play.engine import Request

AWKWARD = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]


@pytest.mark.parametrize("width", [1, 3, 4, 5, 129])
@pytest.mark.parametrize("count", [1, 32, 96])
def test_every_request_has_the_numbers_of_its_own_generator(count: int, width: int) -> None:
    rng = np.random.default_rng(count * 1000 + width)
    drawn = rng.integers(0, 2**64, max(0, count - len(AWKWARD)), dtype=np.uint64).tolist()
    seeds = [*AWKWARD, *drawn][:count]
    found = uniforms_of([Request("policy", [1], SamplingParams(), seed) for seed in seeds], width)
    assert found.dtype == np.float64
    for row, seed in zip(found, seeds, strict=True):
        own = np.random.Generator(np.random.Philox(seed)).random(width)
        np.testing.assert_array_equal(row, own)
