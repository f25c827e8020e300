"""Relative changes of weights by hand, also of those in 16 bits."""

import math

import pytest
import torch
from torch import nn

from mrlm.learn.meter import Mean
from mrlm.learn.weight_change import ENTRIES, TENSORS, WeightChange, relative


def moved(weights: list[nn.Parameter], by: float) -> Mean:
    change = WeightChange(weights)
    with torch.no_grad():
        for weight in weights:
            weight += by
    return change.square()


def test_the_change_of_an_update_by_hand() -> None:
    weights = [nn.Parameter(torch.tensor([[3.0, 0.0]])), nn.Parameter(torch.tensor(4.0))]
    found = relative(moved(weights, 0.5))
    assert found == {"weight_change": pytest.approx(math.sqrt(3 * 0.25 / 25))}


def test_a_sample_of_many_weights_measures_all_of_them() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(64, 96)) for _ in range(3 * TENSORS)]
    before = torch.stack([weight.detach().clone() for weight in weights])
    change = WeightChange(weights)
    assert len(change._before) <= 2 * TENSORS * ENTRIES
    with torch.no_grad():
        for weight in weights:
            weight += 0.01 * torch.randn_like(weight)
    after = torch.stack([weight.detach() for weight in weights])
    whole = float((after - before).norm() / before.norm())
    assert relative(change.square())["weight_change"] == pytest.approx(whole, rel=0.05)


def test_sixteen_bits_round_a_small_change_away() -> None:
    weights = [nn.Parameter(torch.ones(8, dtype=torch.bfloat16))]
    assert relative(moved(weights, 1e-4)) == {"weight_change": 0.0}
    assert relative(moved([nn.Parameter(torch.ones(8))], 1e-4)) == {
        "weight_change": pytest.approx(1e-4, rel=1e-2)
    }


def test_sums_of_ranks_add_up() -> None:
    """Whole weights on two ranks, each of which has all of them."""
    one = moved([nn.Parameter(torch.tensor([3.0, 4.0]))], 1.0)
    weights = [nn.Parameter(torch.tensor([3.0, 4.0]))]
    change = WeightChange(weights, ranks=2)
    with torch.no_grad():
        weights[0] += 1.0
    sums = change.square() + change.square()
    assert relative(sums) == relative(one) == {"weight_change": pytest.approx(math.sqrt(2 / 25))}


def test_weights_of_zero_have_no_relative_change() -> None:
    assert relative(moved([nn.Parameter(torch.zeros(2))], 1.0)) == {}
