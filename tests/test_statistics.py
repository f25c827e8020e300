"""Intervals and pass@k against numbers that can be checked by hand."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from mrlm.statistics import mean_interval, pass_at_k, summarize, wilson_interval


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


def test_the_bootstrap_covers_the_mean_and_narrows_with_more_tasks() -> None:
    few, many = [0.0, 1.0] * 10, [0.0, 1.0] * 1000
    mean, low, high = mean_interval(few)
    assert mean == 0.5 and low < 0.5 < high
    assert mean_interval(few) == mean_interval(few)
    _, tight_low, tight_high = mean_interval(many)
    assert tight_high - tight_low < (high - low) / 5
    assert mean_interval([2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_a_summary_counts_over_tasks_not_plays() -> None:
    rows = summarize([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], []], k=2, success=1.0)
    assert rows["reward avg@2"]["value"] == pytest.approx(0.5)
    assert rows["pass@1"]["value"] == pytest.approx(0.5)
    assert rows["pass@2"]["value"] == pytest.approx(2 / 3)
    alone = summarize([[1.0], [0.0]], k=1, success=1.0)
    assert set(alone) == {"reward avg@1", "pass@1"}
