"""Who earned what: what tells the algorithms apart."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from mrlm.algorithms.dpo import DPO
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.magrpo import MAGRPO
from mrlm.algorithms.ppo import PPO
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.algorithms.rloo import RLOO
from mrlm.algorithms.sft import SFT, is_observation
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.types import SamplingParams, Turn
from mrlm.learn.data.batch import Outputs, merge
from played import Prefix, by_text, credited, fill, learn, play, whole


def advantages(algorithm: Any, groups: list[Group] | None = None) -> np.ndarray:
    groups = groups or play(algorithm)
    fill(groups, algorithm, Prefix(), Prefix(1))
    algorithm.credit(groups)
    return np.array([x for row in by_text(groups).values() for x in row])


def test_advantages_of_different_algorithms_differ():
    found = {each: advantages(each(group_size=4)) for each in (REINFORCE, GRPO, RLOO, MAGRPO)} | {
        "dr": advantages(GRPO(scale_rewards="none")),
        "batch": advantages(GRPO(scale_rewards="batch")),
    }
    for (one, first), (other, second) in itertools.combinations(found.items(), 2):
        assert not np.allclose(first, second, atol=1e-3), (one, other)


@pytest.mark.parametrize("make_one", [REINFORCE, MAGRPO, PPO])
def test_a_discount_has_an_effect(make_one):
    assert not np.allclose(advantages(make_one(gamma=1.0)), advantages(make_one(gamma=0.3)))


def test_reinforce_discounts_what_follows_a_turn():
    groups = play(REINFORCE())
    REINFORCE(gamma=0.5).credit(groups)
    first, second = groups[0].episodes[0].rollouts["b"].turns
    assert first.advantages == pytest.approx(first.reward + 0.5 * second.reward)
    assert second.advantages == pytest.approx(second.reward)


@pytest.mark.parametrize("fields", [{"baseline": "mean"}, {"whiten": True}])
def test_reinforce_centres_each_agent_over_the_batch(fields):
    groups = play(REINFORCE())
    REINFORCE(**fields).credit(groups)
    for agent in "ab":
        for place in (0, 1):
            turns = [e.rollouts[agent].turns[place] for g in groups for e in g]
            found = np.array([turn.advantages for turn in turns])
            assert found.mean() == pytest.approx(0.0, abs=1e-9)
        if "whiten" in fields:
            every = [t.advantages for g in groups for e in g for t in e.rollouts[agent].turns]
            spread = np.square(every).sum() / (len(every) - 2)  # two means were taken out
            assert spread == pytest.approx(1.0, abs=1e-6)
    REINFORCE(**fields, baseline_by="batch").credit(groups)
    pooled = np.array([t.advantages for g in groups for e in g for t in e.rollouts["a"].turns])
    assert pooled.mean() == pytest.approx(0.0, abs=1e-9)
    assert abs(pooled[::2].mean()) > 1e-3  # early turns are preferred to late ones


def test_magrpo_gives_the_team_return_from_the_agents_own_step_on():
    groups = play(MAGRPO())
    returns = []
    for episode in groups[0]:
        now, later = episode.step_rewards
        returns.append([now + 0.5 * later, later])
    for by, baseline in (("turn", np.mean(returns, axis=0)), ("episode", [np.mean(returns)] * 2)):
        MAGRPO(gamma=0.5, baseline_by=by).credit(groups)
        for episode, row in zip(groups[0], returns, strict=True):
            for agent in "ab":
                found = [turn.advantages for turn in episode.rollouts[agent].turns]
                assert found == pytest.approx(np.subtract(row, baseline).tolist())


def test_magrpo_independent_uses_each_agents_own_rewards():
    joint, own = play(MAGRPO()), play(MAGRPO())
    MAGRPO().credit(joint)
    MAGRPO(returns="independent").credit(own)
    first = [episode.rollouts["b"].turns[0] for episode in own[0]]
    second = [episode.rollouts["b"].turns[1] for episode in own[0]]
    assert first[0].returns == pytest.approx(first[0].reward + 0.9 * second[0].reward)
    assert joint[0].episodes[0].rollouts["b"].turns[0].returns != pytest.approx(first[0].returns)


def test_magrpo_with_one_agent_and_one_turn_is_dr_grpo_without_its_clip():
    policy, results = Prefix(), []
    for algorithm in (
        MAGRPO(group_size=4),
        GRPO(scale_rewards="none", aggregation="turn_mean_token_sum"),
    ):
        groups = play(algorithm)
        for episode in (episode for group in groups for episode in group):
            rollout = episode.rollouts["a"]
            rollout.turns = rollout.turns[:1]
            episode.rollouts = {"a": rollout}
            episode.reward = rollout.turns[0].reward
            episode.step_rewards = [episode.reward]
        fill(groups, algorithm, policy, policy)
        algorithm.credit(groups)
        results.append(learn(algorithm, policy, whole(algorithm, groups))[1])
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make_one", [GRPO, RLOO])
def test_mean_advantage_of_a_group_is_zero(make_one):
    groups = play(make_one())
    make_one().credit(groups)
    for group, agent in itertools.product(groups, "ab"):
        found = [episode.rollouts[agent].turns[0].advantages for episode in group]
        assert sum(found) == pytest.approx(0.0, abs=1e-6)


def test_rloo_subtracts_the_divergence_before_the_baseline():
    algorithm = RLOO(kl_coef=0.5)
    groups = play(algorithm)
    fill(groups, algorithm, Prefix(), Prefix(1))
    algorithm.credit(groups)
    scores = []
    for episode in groups[0]:
        turns = episode.rollouts["a"].turns
        gap = sum(sum(t.logprobs) - sum(t.ref_logprobs) for t in turns)
        scores.append(sum(t.reward for t in turns) - 0.5 * gap)
    expected = scores[0] - np.mean(scores[1:])
    assert groups[0].episodes[0].rollouts["a"].turns[0].advantages == pytest.approx(expected)


def test_grpo_leaves_truncated_turns_out_but_compares_with_them():
    groups, plain = play(GRPO()), play(GRPO())
    for each in (groups, plain):
        each[0].episodes[0].rollouts["a"].turns[0].finish_reason = "length"
    GRPO(mask_truncated=True).credit(groups)
    GRPO().credit(plain)
    cut, *others = [t for e in groups[0] for t in e.rollouts["a"].turns]
    assert cut.advantages is None
    same = [t.advantages for e in plain[0] for t in e.rollouts["a"].turns]
    assert [t.advantages for t in others] == same[1:]


def test_grpo_penalises_what_is_too_long():
    groups = play(GRPO())
    for episode in groups[0]:
        for turn in episode.turns:
            turn.reward = 1.0
    lengths = [sum(len(t) for t in e.rollouts["a"].turns) for e in groups[0]]
    assert len(set(lengths)) > 1
    GRPO(overlong_max_length=max(lengths), overlong_cache=4).credit(groups)
    found = [episode.rollouts["a"].turns[0].advantages for episode in groups[0]]
    assert found[int(np.argmax(lengths))] == min(found) < 0
    with pytest.raises(ConfigError, match="overlong_cache"):
        GRPO(overlong_max_length=8, overlong_cache=9)


def test_grpo_takes_the_words_of_trl():
    assert GRPO(scale_rewards=True).scale_rewards == "group"
    assert GRPO(scale_rewards=False).scale_rewards == "none"
    with pytest.raises(ValueError, match="scale_rewards"):
        GRPO(scale_rewards="sometimes")


@pytest.mark.parametrize("mode", ["token", "turn"])
def test_ppo_whitens_each_agent_and_explains_variance(mode):
    algorithm = PPO(level=mode)
    groups = play(algorithm)
    fill(groups, algorithm, Prefix(), Prefix(1))
    algorithm.credit(groups)
    for agent in "ab":
        turns = [t for g in groups for e in g for t in e.rollouts[agent].turns]
        cells = [np.asarray(t.advantages)[: 1 if mode == "turn" else None] for t in turns]
        found = np.concatenate(cells)
        assert found.mean() == pytest.approx(0.0, abs=1e-9)
        assert found.std(ddof=1) == pytest.approx(1.0, abs=1e-6)
    assert algorithm.metrics["explained_variance"] < 1.0


def test_ppo_explains_everything_when_values_are_right():
    algorithm = PPO(gae_lambda=1.0)
    groups = play(algorithm)
    for episode in (episode for group in groups for episode in group):
        for rollout in episode.rollouts.values():
            rest = rollout.reward
            for turn in rollout.turns:
                turn.values, turn.logprobs = rest, [-1.0] * len(turn)
                rest -= turn.reward
    algorithm.credit(groups)
    assert algorithm.metrics["explained_variance"] == pytest.approx(1.0)
    assert all(np.allclose(row, 0.0) for row in by_text(groups).values())


def test_ppo_goes_on_from_the_last_value_only_when_asked():
    found = {}
    for bootstrap in (False, True):
        algorithm = PPO(bootstrap_on_truncation=bootstrap, whiten_advantages=False, gae_lambda=1.0)
        groups = play(algorithm)
        groups[0].episodes[0].status = "truncated"
        fill(groups, algorithm, Prefix(), Prefix(1))
        algorithm.credit(groups)
        last = groups[0].episodes[0].rollouts["a"].turns[-1]
        found[bootstrap] = (last.returns[-1], last.reward, last.values[0])
    assert found[False][0] == pytest.approx(found[False][1])
    assert found[True][0] == pytest.approx(found[True][1] + found[True][2])


def test_ppo_pays_for_divergence_and_adapts_its_price():
    settings: Any = {"level": "token", "kl_coef": 0.4, "kl_target": 6.0}
    algorithm = PPO(**settings, whiten_advantages=False)
    groups = play(algorithm)
    fill(groups, algorithm, Prefix(), Prefix(1))
    algorithm.credit(groups)
    turn = groups[0].episodes[0].rollouts["a"].turns[-1]
    paid = turn.reward - 0.4 * (turn.logprobs[-1] - turn.ref_logprobs[-1])
    assert turn.advantages[-1] == pytest.approx(paid - turn.values[-1])
    assert algorithm.metrics["kl_coef"] == 0.4
    assert algorithm.current_kl_coef != 0.4
    again = PPO(**settings)
    again.load_state_dict(algorithm.state_dict())
    assert again.current_kl_coef == algorithm.current_kl_coef
    with pytest.raises(ConfigError, match="kl_coef"):
        PPO(kl_target=6.0)


def test_ppo_says_what_is_missing():
    with pytest.raises(TrainingError, match="values"):
        PPO().credit(play(PPO()))
    algorithm = PPO()
    groups, policy = credited(algorithm)
    (batch,) = whole(algorithm, groups)
    outputs = policy(batch)
    with pytest.raises(TrainingError, match="value head"):
        algorithm.loss(batch, Outputs(outputs.logprobs, outputs.entropy))


def test_turn_level_values_are_trained_at_the_first_token_only():
    algorithm = PPO(level="turn", vf_coef=1.0)
    groups, policy = credited(algorithm)
    (batch,) = whole(algorithm, groups)
    outputs = policy(batch)
    values = outputs.values.detach().requires_grad_(True)
    algorithm.loss(batch, Outputs(outputs.logprobs, outputs.entropy, values)).backward()
    first = torch.cat([torch.tensor([True]), batch.turn[1:] != batch.turn[:-1]])
    assert (values.grad[~first] == 0).all() and (values.grad[first] != 0).any()


def test_tokens_drawn_from_a_cut_distribution_alone_are_reweighted():
    algorithm = GRPO()
    groups, policy = credited(algorithm)
    turns = [turn for group in groups for episode in group for turn in episode.turns]
    for turn in turns:
        turn.old_logprobs = [x - 0.3 for x in turn.logprobs]
    (plain,) = whole(algorithm, groups)
    assert algorithm._importance(plain, policy(plain).logprobs) is None
    turns[0].sampling = SamplingParams(max_new_tokens=8, temperature=0.8, top_p=0.9)
    (cut,) = whole(algorithm, groups)
    found = algorithm._importance(cut, policy(cut).logprobs)
    here = torch.tensor([turn is turns[0] for turn in cut.turns])[cut.turn]
    torch.testing.assert_close(found[here], torch.full((int(here.sum()),), math.exp(-0.3)))
    assert (found[~here] == 1.0).all()


def test_the_entropy_bonus_reaches_the_gradient():
    plain, curious = GRPO(), GRPO(entropy_coef=0.1)
    assert curious.needs_entropy and not plain.needs_entropy
    groups, policy = credited(plain)
    batches = whole(plain, groups)
    assert not torch.allclose(learn(plain, policy, batches)[1], learn(curious, policy, batches)[1])


def test_agent_balanced_gives_a_quiet_agent_the_same_say():
    algorithm = GRPO(aggregation="agent_balanced", loss_type="reinforce")
    groups, policy = credited(algorithm)
    for turn in (t for g in groups for e in g for t in e.turns):
        turn.advantages = 1.0
    (batch,) = whole(algorithm, groups)
    logprobs = policy(batch).logprobs.detach().requires_grad_(True)
    algorithm.loss(batch, Outputs(logprobs, torch.zeros_like(logprobs))).backward()
    for number in range(2):
        assert logprobs.grad[batch.agent == number].sum().item() == pytest.approx(-0.5, abs=1e-5)


# -- supervised and preferences --------------------------------------------------------------------


def words(groups: list[Group], world: bool) -> list[Turn]:
    turns = [turn for group in groups for episode in group for turn in episode.turns]
    return [t for t in turns if is_observation(t) == world and t.advantages is not None]


def test_a_world_model_learns_what_the_agent_read_next():
    groups = play(SFT())
    own = groups[0].episodes[0].rollouts["a"].turns
    SFT(mode="world_model").credit(groups)
    seen = [t for t in groups[0].episodes[0].rollouts["a"].turns if is_observation(t)]
    assert [turn.completion_ids for turn in seen] == [[9, 2], [9, 4]]
    assert seen[0].prompt_ids == [*own[0].prompt_ids, *own[0].completion_ids]
    assert not words(groups, world=False) and words(groups, world=True)
    assert len(merge(groups[0].episodes[0].rollouts["a"].turns)) == 1


def test_combined_weighs_kinds_and_not_their_lengths():
    algorithm = SFT(mode="combined", bc_weight=2.0, world_model_weight=0.5)
    groups = play(algorithm)
    algorithm.credit(groups)
    sums = [sum(t.advantages * len(t) for t in words(groups, world)) for world in (False, True)]
    total = sum(len(t) for world in (False, True) for t in words(groups, world))
    assert np.array(sums) / total == pytest.approx([2.0, 0.5])


def test_cloning_twice_is_cloning_once_and_changes_no_kept_episode():
    groups = play(SFT())
    kept = [copy.deepcopy(episode) for episode in groups[0]]
    originals = list(groups[0].episodes)
    algorithm = SFT(mode="combined")
    algorithm.credit(groups)
    once = by_text(groups)
    algorithm.credit(groups)
    assert by_text(groups) == once
    assert originals == kept


def test_supervised_words_are_scored_at_temperature_one():
    groups = play(SFT())
    SFT().credit(groups)
    assert {turn.sampling.temperature for turn in words(groups, world=False)} == {1.0}


def test_a_prompt_that_does_not_continue_teaches_no_observation():
    groups = play(SFT())
    rollout = groups[0].episodes[0].rollouts["a"]
    rollout.turns[1].prompt_ids = [5, 5]
    SFT(mode="world_model").credit(groups)
    seen = [t for t in groups[0].episodes[0].rollouts["a"].turns if is_observation(t)]
    assert [turn.completion_ids for turn in seen] == [[9, 4]]


def test_the_better_answer_is_chosen_and_the_first_of_equals():
    groups = play(DPO())
    groups[1].episodes[0].reward = groups[1].episodes[1].reward = 0.5
    DPO().credit(groups)
    for group in groups[:2]:
        rewards = [episode.reward for episode in group]
        best = int(np.argmax(rewards))
        signs = [episode.rollouts["a"].turns[0].advantages for episode in group]
        assert signs[best] == 1.0 and signs[1 - best] == -1.0


def test_a_pair_that_lost_a_side_or_says_nothing_is_dropped():
    groups = play(DPO(), num_groups=4)
    groups[0].episodes[1].status = "error"
    for one, other in zip(*(episode.turns for episode in groups[1]), strict=True):
        other.completion_ids = list(one.completion_ids)
    for turn in groups[2].episodes[1].turns:
        turn.prompt_ids = [0, 0, 0]
    algorithm = DPO()
    algorithm.credit(groups)
    for group in groups[:3]:
        assert all(turn.advantages is None for episode in group for turn in episode.turns)
    assert all(t.advantages in (1.0, -1.0) for e in groups[3] for t in e.turns)
    assert algorithm.metrics["frac_dropped_pairs"] == pytest.approx(0.75)
