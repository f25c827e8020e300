"""The formulas give the numbers of the reference implementations, or those worked out by hand."""

import numpy as np
import pytest
import torch

from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.magrpo import MAGRPO
from mrlm.algorithms.ppo import PPO
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.algorithms.rloo import RLOO
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, SamplingParams, Task, Turn
from mrlm.learn import ops
from oracles import NEW, OLD, REF, b0, outputs


def close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(
        torch.as_tensor(found).detach().numpy(), expected, atol=tolerance, rtol=0
    )


LOSSES = {
    "reinforce, token mean": ({"loss_type": "reinforce", "aggregation": "token_mean"}, 0.283333),
    "reinforce, exact": ({"loss_type": "reinforce"}, 0.85),
    "ppo": ({}, -0.277836),
    "ppo, grpo's mean": ({"loss_type": "grpo"}, 0.085356),
    "ppo, sums": ({"aggregation": "sequence_mean_token_sum"}, -0.833507),
    "dr. grpo": ({"loss_type": "dr_grpo"}, -0.208377),
    "dr. grpo, length given": ({"loss_type": "dr_grpo", "constant_length": 8}, -0.208377 / 2),
    "clip higher": ({"clip_range_high": 0.28}, -0.281403),
    "gspo": ({"loss_type": "gspo", "clip_range": 0.2}, 0.093262),
    "cispo, relative": ({"loss_type": "cispo", "cispo_cap_mode": "relative"}, 0.206293),
    "cispo, absolute": ({"loss_type": "cispo"}, 0.112188),
    "rloo's sequence ratio": ({"loss_type": "sequence"}, 0.222511),
}


@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses(name):
    fields, expected = LOSSES[name]
    close(GRPO(importance="none", **fields).loss(b0(), outputs()).total, expected)


def test_ppo_gradient_keeps_the_pessimistic_side():
    found = outputs()
    GRPO().loss(b0(), found).backward()
    expected = [-0.184195, -0.184195, -0.101088, 0, 0.166667, 0.224976]
    close(found.logprobs.grad, expected)


def test_two_sided_clipping_bounds_what_a_negative_advantage_costs():
    """Ratio exp(2) = 7.389: counted as 4 where `delta` is 4, and the token teaches nothing then."""
    for delta, expected, slope in ((None, 7.389056, 7.389056), (4.0, 4.0, 0.0)):
        logprobs = torch.tensor([-0.1], requires_grad=True)
        ratio = (logprobs - torch.tensor([-2.1])).exp()
        loss = ops.ppo_clip(ratio, torch.tensor([-1.0]), 0.2, delta=delta)
        loss.sum().backward()
        close(loss, [expected])
        close(logprobs.grad, [slope])
    close(GRPO(delta=1.3).loss(b0(), outputs()).total, -0.277836 - 0.049859 / 6)
    close(GRPO(delta=4.0).loss(b0(), outputs()).total, -0.277836)


def test_gspo_gradients_are_shared_by_the_sequence():
    found = outputs()
    GRPO(loss_type="gspo").loss(b0(), found).backward()
    close(found.logprobs.grad, [-0.121914] * 4 + [0.290459] * 2)


def test_gspo_with_the_papers_ranges_clips_both_sequences():
    found = outputs()
    algorithm = GRPO(loss_type="gspo", clip_range=3e-4, clip_range_high=4e-4)
    loss = algorithm.loss(b0(sign=-1.0), found)
    loss.backward()
    close(loss.total, -0.00035)
    close(found.logprobs.grad, [0.0] * 6)


def test_ppo_with_truncated_importance_weights():
    close(GRPO(importance="token").loss(b0(), outputs()).total, -0.063535)
    close(GRPO(importance="none").loss(b0(), outputs()).total, -0.277836)


def test_cut_sampling_switches_the_weights_on():
    cut = SamplingParams(max_new_tokens=4, top_p=0.9)
    close(GRPO().loss(b0(sampling=cut), outputs()).total, -0.063535)


def test_kl_estimators():
    new, ref = torch.tensor(NEW, requires_grad=True), torch.tensor(REF)
    close(ops.kl_estimate(new, ref, "k1"), [0.2, -0.1, -0.2, 0.1, 0.2, -0.2])
    k3 = ops.kl_estimate(new, ref, "k3")
    close(k3, [0.018731, 0.005171, 0.021403, 0.004837, 0.018731, 0.021403])
    means = [ops.kl_estimate(new, ref, kind).mean().item() for kind in ("k1", "k2", "k3")]
    close(means, [0.0, 0.015, 0.015046])
    k3.mean().backward()
    close(new.grad, [0.030212, -0.017528, -0.0369, 0.01586, 0.030212, -0.0369])


def test_kl_in_the_loss_is_corrected_by_the_ratio():
    """Its gradient is `rho (k3 + 1 - exp(-x))` = `rho x` per token, that of the divergence."""
    x = np.array([0.2, -0.1, -0.2, 0.1, 0.2, -0.2])
    k3 = np.array([0.018731, 0.005171, 0.021403, 0.004837, 0.018731, 0.021403])
    rho = np.array([1.105171, 1.105171, 0.606531, 1.221403, 1.0, 1.349859])
    plain, found = outputs(), outputs()
    base = GRPO().loss(b0(), plain)
    loss = GRPO(kl_coef=0.5, kl_bias_correction=True).loss(b0(), found)
    close(loss.total - base.total, 0.5 * (rho * k3).mean())
    close(loss.metrics["kl"], 0.015046)
    base.backward()
    loss.backward()
    close(found.logprobs.grad - plain.logprobs.grad, 0.5 * rho * x / 6)


def test_old_logprobs_are_computed_anew_where_that_is_asked_for():
    assert (
        "old_logprobs" not in GRPO().spec.columns
        and "old_logprobs" in GRPO(recompute_old=True).spec.columns
    )
    assert "old_logprobs" in GRPO(importance="token").spec.columns
    # without weights, only the ratio changes: it is to the trainer's own log-probs
    close(GRPO(recompute_old=True, importance="none").loss(b0(), outputs()).total, -0.277836)


# -- baselines -------------------------------------------------------------------------------------


def group(rewards, **turn_fields) -> Group:
    episodes = []
    for number, reward in enumerate(rewards):
        turn = Turn("a", "p", [1], [2, 3], [-0.5, -0.5], reward=reward, **turn_fields)
        rollout = Rollout("a", "p", "t", [turn])
        episode = Episode(str(number), Task("t"), {"a": rollout}, reward, [reward], "done")
        episodes.append(episode)
    return Group(episodes, "t")


def advantages(algorithm, *groups) -> list[float]:
    algorithm.credit(groups)
    turns = [turn for each in groups for episode in each for turn in episode.turns]
    return [float(turn.advantages) for turn in turns]


@pytest.mark.parametrize(
    ("algorithm", "rewards", "expected"),
    [
        (GRPO(), [1, 0, 0, 1], [0.866024, -0.866024, -0.866024, 0.866024]),
        (GRPO(scale_rewards=False), [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        (GRPO(), [1, 2, 6], [-0.755929, -0.377964, 1.133893]),
        (GRPO(), [0.3, 0.3, 0.3], [0.0, 0.0, 0.0]),
        (RLOO(), [1, 2, 6], [-3, -1.5, 4.5]),
        (MAGRPO(), [1, 2, 6], [-2, -1, 3]),
        (REINFORCE(), [1, 2, 6], [1, 2, 6]),
    ],
)
def test_group_baselines(algorithm, rewards, expected):
    close(advantages(algorithm, group(rewards)), expected, 1e-6)


def two_turns(agent: str, values: list[list[float]], reward: float, gap: list[int]) -> Rollout:
    """Two turns with tokens of the world between them; paid at the end."""
    turns, prompt = [], [7]
    for row in values:
        turn = Turn(agent, "p", list(prompt), list(range(len(row))), [-0.5] * len(row), values=row)
        turns.append(turn)
        prompt = [*prompt, *turn.completion_ids, *gap]
    turns[-1].reward = reward
    return Rollout(agent, "p", "t", turns)


def ppo_episode(*rollouts: Rollout, status="done") -> Group:
    paid = sum(rollout.reward for rollout in rollouts)
    names = {rollout.agent or "": rollout for rollout in rollouts}
    return Group([Episode("e", Task("t"), names, paid, [paid], status)], "t")


@pytest.mark.parametrize("gap", [[], [9, 9, 9]])
def test_ppo_skips_the_tokens_of_the_world(gap):
    rollout = two_turns("a", [[0.5], [0.4, 0.2]], 1.0, gap)
    PPO(level="token", whiten_advantages=False).credit([ppo_episode(rollout)])
    close(np.concatenate([turn.advantages for turn in rollout.turns]), [0.432, 0.56, 0.8])
    close(np.concatenate([turn.returns for turn in rollout.turns]), [0.932, 0.96, 1.0])


def test_turn_level_ppo_reads_one_value_per_turn():
    values = [[0.5, 9.0], [0.4, 9.0, 9.0], [0.2]]
    rollout = two_turns("a", values, 1.0, [9])
    algorithm = PPO(whiten_advantages=False)
    algorithm.credit([ppo_episode(rollout)])
    for turn, expected in zip(rollout.turns, [0.432, 0.56, 0.8], strict=True):
        close(turn.advantages, [expected] * len(turn))


def test_interleaved_agents_are_two_independent_rows():
    rows = {"a": [[0.5], [0.4, 0.2]], "b": [[0.1, 0.3], [0.6]]}
    together = [two_turns(name, row, 1.0, [9]) for name, row in rows.items()]
    alone = [two_turns(name, row, 1.0, []) for name, row in rows.items()]
    PPO().credit([ppo_episode(*together)])
    for rollout in alone:
        PPO().credit([ppo_episode(rollout)])
    for one, other in zip(together, alone, strict=True):
        for turn, same in zip(one.turns, other.turns, strict=True):
            close(turn.advantages, same.advantages)


# -- on-policy, surrogates coincide ----------------------------------------------------------------


@pytest.mark.parametrize("loss_type", ["ppo", "cispo", "gspo", "reinforce"])
def test_on_policy_gradients_coincide(loss_type):
    found = outputs(OLD)
    algorithm = GRPO(loss_type=loss_type, aggregation="sequence_mean_token_mean")
    algorithm.loss(b0(), found).backward()
    close(found.logprobs.grad, [-0.125] * 4 + [0.25] * 2)
