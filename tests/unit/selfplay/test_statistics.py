"""Intervals and pass@k against numbers that can be checked by hand."""

import json
import math
from itertools import combinations

import numpy as np
import pytest

from mrlm.core.statistics import (
    mean_interval,
    pass_at_k,
    share_interval,
    summarize,
    t_point,
    wilson_interval,
)


def test_pass_at_k_is_the_share_of_draws_that_hold_a_pass() -> None:
    for total in range(1, 7):
        for passed in range(total + 1):
            plays = [1] * passed + [0] * (total - passed)
            for k in range(1, total + 1):
                draws = list(combinations(plays, k))
                share = sum(any(draw) for draw in draws) / len(draws)
                assert pass_at_k(passed, total, k) == pytest.approx(share)
    with pytest.raises(ValueError, match="k=3"):
        pass_at_k(1, 2, 3)


def test_wilson_interval() -> None:
    share, low, high = wilson_interval(8, 10)
    assert (share, low, high) == pytest.approx((0.8, 0.490162, 0.943318), abs=1e-5)
    assert wilson_interval(0, 10)[1] == 0.0 and wilson_interval(10, 10)[2] == 1.0
    assert math.isnan(wilson_interval(0, 0)[0])


def test_points_of_student_s_t_are_those_of_the_tables() -> None:
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 30: 2.042, 1000: 1.962}
    for freedom, point in table.items():
        assert t_point(freedom) == pytest.approx(point, abs=6e-4)


@pytest.mark.parametrize("size", [3, 8, 40])
def test_the_interval_of_a_mean_holds_it_95_times_in_100(size: int) -> None:
    rng, held, trials = np.random.default_rng(size), 0, 2000
    for _ in range(trials):
        _, low, high = mean_interval(list(rng.normal(2.0, 3.0, size)))
        held += low <= 2.0 <= high
    assert held / trials == pytest.approx(0.95, abs=0.015)


def test_the_interval_of_a_share_holds_it_even_for_few_tasks() -> None:
    rng, held, trials = np.random.default_rng(0), 0, 2000
    for _ in range(trials):
        _, low, high = share_interval([float(passed) for passed in rng.random(12) < 0.8])
        held += low <= 0.8 <= high
    assert held / trials > 0.92


def test_few_tasks_that_all_passed_prove_little() -> None:
    share, low, high = share_interval([1.0] * 8)
    assert (share, high) == (1.0, 1.0) and low == pytest.approx(0.6756, abs=1e-4)
    assert share_interval([0.5, 1.0, 1.0])[2] == 1.0
    mean, low, high = mean_interval([2.0])
    assert mean == 2.0 and math.isnan(low) and math.isnan(high)


def test_a_summary_counts_over_tasks_not_plays() -> None:
    rows = summarize([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], []], k=2, success=1.0)
    assert rows["reward avg@2"]["value"] == pytest.approx(0.5)
    assert rows["pass@1"]["value"] == pytest.approx(0.5)
    assert rows["pass@2"]["value"] == pytest.approx(2 / 3)
    alone = summarize([[1.0], [0.0]], k=1, success=1.0)
    assert set(alone) == {"reward avg@1", "pass@1"}


def test_what_is_not_known_is_null_and_the_count_is_told() -> None:
    rows = summarize([[1.0], [0.0, 1.0]], k=2, success=1.0)
    assert rows["pass@2"]["tasks"] == 1 and rows["pass@1"]["tasks"] == 2
    nothing = summarize([[], []], k=1, success=1.0)
    assert json.loads(json.dumps(nothing, allow_nan=False))["pass@1"]["value"] is None
