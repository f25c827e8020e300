"""The pure functions of `learn/ops.py` and the arithmetic of `learn/credit/groups.py`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mrlm.learn import ops
from mrlm.learn.credit import groups


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


def test_dual_clip_bounds_a_runaway_negative_advantage_and_stops_its_gradient():
    logprobs = torch.tensor([-0.1], requires_grad=True)
    advantages = torch.tensor([-1.0])
    ratio = ops.log_ratio(logprobs, torch.tensor([-2.1])).exp()
    loss = ops.dual_clip(ops.ppo_clip(ratio, advantages, 0.2), advantages, 3.0)
    loss.sum().backward()
    assert loss.item() == pytest.approx(3.0)
    assert logprobs.grad is not None and logprobs.grad.item() == 0.0


def test_kl_estimates_are_clamped_where_the_policies_are_far_apart():
    far = ops.kl_estimate(torch.tensor([-100.0]), torch.tensor([0.0]), "k3")
    assert far.item() == 10.0


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


@pytest.mark.parametrize("x", [[0.1, 0.1, 0.1], [0.7], [1 / 3] * 7])
def test_groups_without_variance_get_exactly_zero(x):
    assert groups.centred(np.array(x)).tolist() == [0.0] * len(x)
    assert groups.leave_one_out(np.array(x)).tolist() == [0.0] * len(x)
    assert groups.group_std(np.array(x)) == 0.0


def test_discounts_follow_the_clock_that_is_given():
    assert groups.discounted([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert groups.discounted([1.0, 2.0, 4.0], 0.5, [0, 0, 2]) == [4.0, 3.0, 4.0]


def test_the_overlong_penalty_is_zero_then_linear_then_full():
    lengths = (16384, 18432, 20480, 99999)
    found = [groups.overlong_penalty(length, 20480, 4096) for length in lengths]
    assert found == [0.0, -0.5, -1.0, -1.0]
    assert [groups.overlong_penalty(n, 10, 0) for n in (10, 11)] == [0.0, -1.0]


def test_the_adaptive_kl_coefficient_moves_towards_its_target():
    assert groups.adaptive_kl_coef(0.4, 9.0, 6.0, 256, 1e4) == pytest.approx(0.402048)
    assert groups.adaptive_kl_coef(0.4, 1.0, 6.0, 256, 1e4) < 0.4


def _statistics(rank, world, port, queue):
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    parts = [{"a": np.array([1.0, 2.0]), "b": np.array([5.0, 5.0])}, {"a": np.array([6.0])}]
    moments = ops.global_moments(parts[rank])
    queue.put((rank, {k: (m.count, m.mean, m.variance) for k, m in moments.items()}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_statistics_are_those_of_all_processes_though_some_lack_an_agent():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=_statistics, args=(rank, 2, port, queue), daemon=True)
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    found = dict(queue.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(30)
    assert found[0] == found[1]
    assert found[0]["a"] == pytest.approx((3, 3.0, 7.0))
    assert found[0]["b"] == (2, 5.0, 0.0)
