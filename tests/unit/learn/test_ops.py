"""The pure functions of `learn/ops.py` and the arithmetic of `learn/credit/groups.py`."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrlm.learn import ops
from oracles import both


def test_logprobs_and_entropy_are_those_of_the_softmax():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 4
    targets = torch.tensor([0, 6, 3, 3, 1])
    log_softmax = logits.log_softmax(-1)
    expected = log_softmax[torch.arange(5), targets]
    torch.testing.assert_close(ops.token_logprobs(logits, targets), expected)
    full = -(log_softmax.exp() * log_softmax).sum(-1)
    torch.testing.assert_close(ops.entropy(logits), full)
    torch.testing.assert_close(ops.entropy(torch.zeros(1, 8)), torch.tensor([math.log(8)]))


def test_logprobs_and_entropy_are_float32_and_finite_for_half_and_huge_logits():
    logits = torch.tensor([[300.0, -300.0, 0.0]], dtype=torch.float16)
    value, spread = ops.token_logprobs(logits, torch.tensor([1])), ops.entropy(logits)
    assert value.dtype == spread.dtype == torch.float32
    assert value.item() == pytest.approx(-600.0)
    assert spread.item() == pytest.approx(0.0, abs=1e-6)


def test_segments_sum_and_average_and_an_empty_one_is_zero():
    x, index = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 2, 0, 2])
    assert ops.segment_sum(x, index, 3).tolist() == [4.0, 0.0, 12.0]
    assert ops.segment_mean(x, index, 3).tolist() == [2.0, 0.0, 6.0]


def test_a_ratio_stays_finite_however_far_the_policy_has_moved():
    far = ops.log_ratio(torch.tensor([-1e4, 0.0]), torch.tensor([0.0, -1e4]))
    assert far.tolist() == [-20.0, 20.0]


@pytest.mark.parametrize("kind", ["k1+", "k3+"])
def test_straight_through_kl_has_the_value_of_one_and_the_gradient_of_k2(kind):
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    ref = torch.tensor([-1.3, -1.5])
    value = ops.kl_estimate(logprobs, ref, kind)
    value.sum().backward()
    torch.testing.assert_close(value, ops.kl_estimate(logprobs, ref, kind[:2]))
    torch.testing.assert_close(logprobs.grad, (logprobs - ref).detach())


def test_sequence_weights_without_sequences_are_refused():
    with pytest.raises(ValueError, match="sequence"):
        ops.mismatch_weights(torch.zeros(2), torch.zeros(2), "sequence")


# -- GAE -------------------------------------------------------------------------------------------


def naive_gae(rewards, values, gammas, lam, last):
    found, following, value = [0.0] * len(rewards), 0.0, last
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gammas[t] * value - values[t]
        following = found[t] = delta + gammas[t] * lam * following
        value = values[t]
    return found


number = st.floats(-3, 3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.tuples(number, number, st.floats(0, 1)), max_size=5), number),
        min_size=1,
        max_size=4,
    ),
    st.floats(0, 1),
)
def test_gae_over_ragged_rows_is_gae_over_each_row(rows, lam):
    cells = [cell for row, _ in rows for cell in row]
    rewards, values, gammas = np.array(cells, dtype=float).reshape(-1, 3).T
    last = np.array([value for _, value in rows])
    found = ops.gae(rewards, values, [len(row) for row, _ in rows], gammas, lam, last)
    expected = []
    for row, value in rows:
        if row:
            expected += naive_gae(*zip(*row, strict=True), lam, value)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_gae_of_nothing_is_nothing():
    assert ops.gae(np.zeros(0), np.zeros(0), [0, 0]).shape == (0,)


# -- statistics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [[], [3.0], [0.1, 0.1, 0.1]])
def test_whitening_what_does_not_vary_gives_zeros(x):
    assert ops.whiten(np.array(x)).tolist() == [0.0] * len(x)


def test_whitening_ignores_what_is_masked():
    x, mask = np.array([1.0, 99.0, 2.0, 6.0]), np.array([1, 0, 1, 1])
    found = ops.whiten(x, mask)
    assert found[1] == 0.0
    np.testing.assert_allclose(found[[0, 2, 3]], ops.whiten(np.array([1.0, 2.0, 6.0])))


# -- ratios by hand --------------------------------------------------------------------------------


RATIOS = torch.tensor([0.25, 0.75, 1.0, 1.5, 3.0])


@pytest.mark.parametrize(
    ("advantage", "settings", "losses", "removed"),
    [
        (2.0, (0.25, 0.5), [-0.5, -1.5, -2.0, -3.0, -3.0], [0, 0, 0, 0, 1]),
        (2.0, (0.25,), [-0.5, -1.5, -2.0, -2.5, -2.5], [0, 0, 0, 1, 1]),
        (-2.0, (0.25, 0.5), [1.5, 1.5, 2.0, 3.0, 6.0], [1, 0, 0, 0, 0]),
        (-2.0, (0.25, 0.5, 2.5), [1.5, 1.5, 2.0, 3.0, 5.0], [1, 0, 0, 0, 0]),
        (2.0, (0.25, 0.5, 2.5), [-0.5, -1.5, -2.0, -3.0, -3.0], [0, 0, 0, 0, 1]),
        (0.0, (0.25, 0.5), [0.0] * 5, [0] * 5),
    ],
)
def test_the_clipped_surrogate_by_hand(advantage, settings, losses, removed):
    """At the edges of the range nothing is clipped yet."""
    ratio = RATIOS.clone().requires_grad_()
    advantages = torch.full((5,), advantage)
    found = ops.ppo_clip(ratio, advantages, *settings)
    assert found.tolist() == losses
    assert ops.clipped(RATIOS, advantages, *settings[:2]).tolist() == removed
    if len(settings) < 3:
        found.sum().backward()
        assert [slope == 0 for slope in ratio.grad.tolist()] == [
            bool(each) or advantage == 0 for each in removed
        ]


def test_the_bounds_of_a_weight_are_inside():
    same = torch.zeros(1)
    for kind in ("icepop", "sequence_mask", "geometric_mask"):
        for bounds in ({"cap": 1.0, "floor": 0.5}, {"cap": 2.0, "floor": 1.0}):
            found = ops.mismatch_weights(
                same, same, kind, **bounds, index=torch.tensor([0]), size=1
            )
            assert found.tolist() == [1.0]
    assert ops.mismatch_weights(torch.tensor([1.0]), same).tolist() == [2.0], "tokens, up to 2"
    assert ops.mismatch_weights(torch.tensor([-0.7]), same, "icepop").tolist() == [0.0]
    assert ops.mismatch_weights(torch.tensor([-0.6]), same, "icepop").item() > 0.5


# -- divergences by hand ---------------------------------------------------------------------------


def test_k3_is_held_at_10_and_stays_finite():
    policy = torch.tensor([0.0, -2.0, -30.0, 500.0])
    found = ops.kl_estimate(policy, torch.zeros(4), "k3").tolist()
    assert found == pytest.approx([0.0, math.exp(2) - 3, 10.0, 10.0])
    held = ops.kl_estimate(torch.tensor([500.0], requires_grad=True), torch.zeros(1), "k3")
    assert math.isfinite(held.item())


def test_divergences_of_whole_distributions_by_hand():
    p, q = torch.tensor([[1.0, 3.0], [1.0, 1.0]]), torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    first = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    second = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(2.0)
    found = ops.full_kl(p.log().double(), q.log().double())
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([first, second], abs=1e-6)
    moved = ops.approx_kl(torch.tensor([0.0, 1.0, -1.0]))
    assert moved.tolist() == pytest.approx([0.0, math.e - 2, 1 / math.e], abs=1e-6)


def test_the_error_of_values_by_hand():
    values, returns = torch.tensor([1.0, 3.0, 0.0]), torch.tensor([2.0, 1.0, 4.0])
    old = torch.tensor([1.0, 1.0, 3.0])
    assert ops.value_loss(values, returns, old).tolist() == [0.5, 2.0, 8.0]
    # within 0.5 of the old ones they would be 1, 1.5 and 2.5; the larger error counts
    assert ops.value_loss(values, returns, old, 0.5).tolist() == [0.5, 2.0, 8.0]
    far = torch.tensor([6.0, 1.0, 0.0])
    assert ops.value_loss(values, far, old, 0.5).tolist() == [12.5, 2.0, 3.125]


# -- advantages by hand ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, [0.625, 2.75, 4.0, 3.5]),
        (2, [2.0, 4.75, 4.0, 3.5]),
        (3, [3.0, 4.75, 4.0, 3.5]),
        (9, [3.0, 4.75, 4.0, 3.5]),
    ],
)
def test_sums_of_n_steps_by_hand(steps, expected):
    """A row of three whose value afterwards is 8, an empty one, and one of one."""
    rewards, values = np.array([1.0, 2.0, 4.0, 3.0]), np.array([0.5, 0.25, 2.0, 1.0])
    gamma, last = np.array([0.5, 0.5, 0.25, 0.75]), np.array([8.0, 5.0, 2.0])
    found = ops.n_step(rewards, values, [3, 0, 1], gamma, steps, last)
    np.testing.assert_allclose(found, expected)


def test_gae_as_it_comes_discounts_nothing_and_ends_with_nothing():
    found = ops.gae(np.array([0.0, 1.0]), np.array([0.5, 0.25]), [2])
    np.testing.assert_allclose(found, [-0.25 + 0.95 * 0.75, 0.75])


# -- statistics of two processes -------------------------------------------------------------------


PARTS = [
    {"a": np.array([1.0, 2.0]), "b": np.array([5.0, 5.0]), "none": np.array([])},
    {"a": np.array([6.0]), "c": np.array([3.0])},
]


def test_moments_over_two_processes_by_hand(monkeypatch):
    found = both(monkeypatch, lambda rank: ops.global_moments(PARTS[rank]))
    assert (
        found[0]
        == found[1]
        == {
            "a": ops.Moments(3, 3.0, 7.0),
            "b": ops.Moments(2, 5.0, 0.0),
            "c": ops.Moments(1, 3.0, 0.0),
        }
    )
    assert found[0]["a"].std == math.sqrt(7.0)
    white = both(monkeypatch, lambda rank: ops.whiten(PARTS[rank]["a"]))
    np.testing.assert_allclose(np.concatenate(white), np.array([-2, -1, 3]) / math.sqrt(7 + 1e-8))


def test_moments_of_short_floats_and_of_whole_numbers_are_those_of_long_ones():
    short = np.array([2.0**24, 1.0, 1.0], dtype=np.float32)
    found = ops.global_moments({"short": short, "whole": np.array([1, 2, 6])})
    assert found["short"].mean == (2**24 + 2) / 3
    assert found["whole"] == ops.Moments(3, 3.0, 7.0)


def test_sums_over_two_processes_by_hand(monkeypatch):
    tables = [{"x": [1, 2.5], "y": [4]}, {"x": [10, -1]}]
    found = both(monkeypatch, lambda rank: ops.global_sum(tables[rank]))
    assert found == [{"x": [11.0, 1.5], "y": [4.0]}] * 2


def test_what_every_process_holds_is_not_added_up(monkeypatch):
    assert ops.global_gather("x") == ["x"] and ops.global_rank() == 0
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    assert ops.global_rank() == 3
    with ops.complete():
        assert ops.global_gather("x") == ["x"] and ops.global_rank() == 0
        with ops.complete():
            assert ops.global_rank() == 0
        assert ops.global_rank() == 0
    assert ops.global_rank() == 3


def test_whitening_by_hand():
    x = np.array([1.0, 2.0, 6.0])
    wanted = np.array([-2.0, -1.0, 3.0])
    np.testing.assert_allclose(ops.whiten(x), wanted / math.sqrt(7 + 1e-8))
    given_ = ops.Moments(9, 1.0, 4.0)
    np.testing.assert_allclose(ops.whiten(x, moments=given_), [0.0, 0.5, 2.5])
    np.testing.assert_allclose(ops.whiten(x, np.array([0, 1, 1]), given_), [0.0, 0.5, 2.5])
    np.testing.assert_allclose(ops.whiten(x, np.array([1, 0, 1]), given_), [0.0, 0.0, 2.5])
    assert ops.whiten(x, moments=ops.Moments(3, 3.0, 0.0)).tolist() == [0.0] * 3
    # a variance as small as what is added to it counts
    tiny = ops.whiten(np.array([0.0, 2e-4]))
    np.testing.assert_allclose(tiny, [-1e-4 / math.sqrt(3e-8), 1e-4 / math.sqrt(3e-8)])
    assert ops.whiten(np.array([0.0, 2.0])).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
