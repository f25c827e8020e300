"""Who earned what: what tells the algorithms apart."""

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
from mrlm.algorithms.marshal import MARSHAL
from mrlm.algorithms.ppo import PPO
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.algorithms.reinforce_pp import ReinforcePP
from mrlm.algorithms.remax import ReMax
from mrlm.algorithms.rloo import RLOO
from mrlm.algorithms.sft import SFT
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.types import Rollout, SamplingParams, Task, Turn
from mrlm.learn.data.batch import Outputs, merge
from mrlm.learn.data.observations import is_observation
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


@pytest.mark.parametrize(
    "algorithm",
    [REINFORCE(baseline="mean"), REINFORCE(whiten=True), ReinforcePP(), PPO(gae_lambda=1.0)],
    ids=lambda value: type(value).__name__,
)
def test_a_batch_in_which_all_earn_the_same_teaches_exactly_nothing(algorithm: Any) -> None:
    """The mean of 0.1 three times over is a little more than 0.1."""
    groups = [Group([with_context(str(i), [0.1], [True])], str(i)) for i in range(3)]
    for turn in (turn for group in groups for episode in group for turn in episode.turns):
        turn.completion_ids, turn.logprobs, turn.values = [2], [-0.5], [0.0]
    assert sum([0.1] * 3) / 3 != 0.1
    algorithm.credit(groups)
    found = [np.asarray(t.advantages) for g in groups for e in g for t in e.turns]
    assert all(np.all(each == 0.0) for each in found)


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


def test_reinforce_divides_all_turns_of_an_agent_by_one_deviation():
    """First turns earn 0 and 4, second ones 0 and 2: variances 8 and 2, each of one degree of
    freedom; one number for both."""
    groups = [Group([with_context("0", [0.0, 0.0], [True] * 2)], "0")]
    groups.append(Group([with_context("1", [4.0, 2.0], [True] * 2)], "1"))
    REINFORCE(whiten=True, gamma=0.0).credit(groups)
    found = [turn.advantages for group in groups for episode in group for turn in episode.turns]
    assert found == pytest.approx(np.array([-2.0, -1.0, 2.0, 1.0]) / math.sqrt(5.0))


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
    with pytest.raises(ConfigError, match="scale_rewards"):
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


def test_ppo_adapts_its_price_to_the_divergence_of_an_episode():
    """Divergences of 5 and 8.2 in two episodes of two turns, 6.6 on average: a tenth more than the
    target, in two episodes of a horizon of 10."""
    groups = []
    for number, each in enumerate(([1.0, 1.5], [2.0, 2.1])):
        groups.append(Group([with_context(str(number), [0.0, 1.0], [True] * 2)], str(number)))
        for turn, apart in zip(groups[-1].episodes[0].turns, each, strict=True):
            turn.ref_logprobs = [-0.5 - apart] * 2
    algorithm = PPO(kl_coef=0.4, kl_target=6.0, kl_horizon=10.0)
    algorithm.credit(groups)
    assert algorithm.metrics["kl"] == pytest.approx(6.6)
    assert algorithm.metrics["kl_coef"] == 0.4
    assert algorithm.current_kl_coef == pytest.approx(0.4 * (1 + 0.1 * 2 / 10))


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


# -- turns that are context ------------------------------------------------------------------------


def with_context(name: str, paid: list[float], trained: list[bool]) -> Episode:
    """One agent, of whose turns some are trained; each has two tokens."""
    turns = [
        Turn("a", "p", [1] * (1 + at), [2, 3], [-0.5] * 2, reward=reward, step=at, index=at)
        for at, reward in enumerate(paid)
    ]
    for turn, learns in zip(turns, trained, strict=True):
        turn.trained, turn.values = learns, [0.0, 0.0]
    rollouts = {"a": Rollout("a", "p", "t", turns)}
    return Episode(name, Task("t"), rollouts, sum(paid), list(paid), "done")


SECOND_AND_FOURTH = [False, True, False, True, False]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (PPO(gae_lambda=1.0, gamma=0.5, whiten_advantages=False), [1 + 2 + 0.5 * 7, 3 + 4]),
        (ReinforcePP(gamma=0.5), [1 + 2 + 0.5 * 7, 3 + 4]),
        (REINFORCE(gamma=0.5), [1 + 2 / 2 + 3 / 4 + 4 / 8, 3 + 4 / 2]),
        (MARSHAL(gamma=0.5), [1 + 2 / 2 + 3 / 4 + 4 / 8, 3 + 4 / 2]),
        (MAGRPO(gamma=0.5, returns="independent"), [1 + 2 / 2 + 3 / 4 + 4 / 8, 3 + 4 / 2]),
        (ReMax(), [1 + 2 + 3 + 4, 3 + 4]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_context_earns_belongs_to_the_turns_before_it(
    algorithm: Any, expected: list[float]
) -> None:
    """But for what was earned before anything was trained."""
    group = Group([with_context("0", [5.0, 1.0, 2.0, 3.0, 4.0], SECOND_AND_FOURTH)], "t")
    if isinstance(algorithm, ReMax):
        group.episodes.append(with_context("1", [0.5], [False]))
        group.episodes[1].greedy = True
    algorithm.credit([group])
    turns = group.episodes[0].turns
    found = [np.broadcast_to(np.asarray(t.returns, float), 2).tolist() for t in turns if t.trained]
    assert found == [pytest.approx([value] * 2) for value in expected]
    assert all(t.returns is None and t.advantages is None for t in turns if not t.trained)


# -- supervised and preferences --------------------------------------------------------------------


def words(groups: list[Group], world: bool) -> list[Turn]:
    turns = [turn for group in groups for episode in group for turn in episode.turns]
    return [t for t in turns if is_observation(t) == world and t.advantages is not None]


def test_a_world_model_learns_what_the_agent_read_next():
    groups = play(SFT())
    own = groups[0].episodes[0].rollouts["a"].turns
    for turn in own:
        turn.version = 5 + turn.index
    SFT(mode="world_model").credit(groups)
    seen = [t for t in groups[0].episodes[0].rollouts["a"].turns if is_observation(t)]
    assert [turn.completion_ids for turn in seen] == [[9, 2], [9, 4]]
    assert [(t.agent, t.step, t.index, t.version) for t in seen] == [("a", 0, 0, 5), ("a", 1, 1, 6)]
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


def test_combined_weighs_each_policy_by_its_own_words():
    """p says 2 tokens and reads 3 afterwards; q says 4 and reads nothing."""
    one, other = (
        with_context(name, [0.0] * (1 + at), [True] * (1 + at)) for at, name in enumerate("pq")
    )
    one.rollouts["a"].tail_ids = [7, 8, 9]
    for turn in other.turns:
        turn.policy, turn.prompt_ids = "q", [5 + turn.index]
    groups = [Group([one], "0"), Group([other], "1")]
    SFT(mode="combined", bc_weight=2.0, world_model_weight=0.5).credit(groups)
    own, seen = groups[0].episodes[0].turns
    assert (own.advantages, seen.advantages) == (2.0 * 5 / 2, 0.5 * 5 / 3)
    assert [turn.advantages for turn in groups[1].episodes[0].turns] == [2.0, 2.0]


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


@pytest.mark.parametrize("mode", ["behavioral_cloning", "combined"])
def test_supervised_words_are_scored_as_the_model_has_them(mode):
    """However they were drawn: at temperature 1, and from a distribution that was not cut."""
    groups = play(SFT())
    drawn = SamplingParams(9, temperature=0.3, top_p=0.7, top_k=5, min_p=0.2, stop=("x",))
    for turn in (turn for group in groups for episode in group for turn in episode.turns):
        turn.sampling, turn.advantages, turn.returns = drawn, 7.0, 7.0
    failed, frozen = groups[0].episodes[1], groups[1].episodes[0].rollouts["a"].turns[0]
    failed.status, frozen.trained = "error", False
    SFT(mode=mode).credit(groups)
    turns = [turn for group in groups for episode in group for turn in episode.turns]
    lost = [*groups[0].episodes[1].turns, groups[1].episodes[0].rollouts["a"].turns[0]]
    assert all(turn.advantages is None for turn in lost)
    plain = SamplingParams(9, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, stop=("x",))
    assert all(turn.sampling == plain and turn.returns is None for turn in turns)
    assert any(map(is_observation, turns)) is (mode == "combined")


def test_a_prompt_that_does_not_continue_teaches_no_observation():
    groups = play(SFT())
    rollout = groups[0].episodes[0].rollouts["a"]
    rollout.turns[1].prompt_ids = [5, 5]
    SFT(mode="world_model").credit(groups)
    seen = [t for t in groups[0].episodes[0].rollouts["a"].turns if is_observation(t)]
    assert [turn.completion_ids for turn in seen] == [[9, 4]]


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
