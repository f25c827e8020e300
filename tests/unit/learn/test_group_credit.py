"""Who is compared with whom, and who is paid for what: to the numbers of the papers' own code, or
worked out by hand."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from hand_groups import close, found, group
from mrlm import ExperimentConfig
from mrlm.algorithms.a2c import A2C
from mrlm.algorithms.at_grpo import ATGRPO
from mrlm.algorithms.dr_mas import DrMAS
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.maporl import MAPoRL
from mrlm.algorithms.marshal import MARSHAL
from mrlm.algorithms.matpo import MATPO
from mrlm.algorithms.rema import ReMA
from mrlm.algorithms.spiral import SPIRAL
from mrlm.build.policies import LiveObjects
from mrlm.build.run import plan_of
from mrlm.core.errors import ConfigError
from oracles import b0, outputs

# -- Dr. MAS ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [DrMAS, GRPO])
def test_an_agent_is_compared_with_itself(algorithm: type[GRPO]) -> None:
    siblings = group({"a": [1.0], "b": [0.2]}, {"a": [0.0], "b": [0.0]})
    algorithm(group_size=2).credit([siblings])
    close(found(siblings, "a"), [[0.707106], [-0.707106]])
    close(found(siblings, "b"), [[0.707102], [-0.707102]])


def test_dr_mas_counts_a_long_episode_once_where_asked() -> None:
    """One episode of three turns earns 1, one of one turn 0: the mean is 3/4 or 1/2."""

    def play(**settings: Any) -> list[float]:
        siblings = group({"a": [0.0, 0.0, 1.0]}, {"a": [0.0]})
        DrMAS(group_size=2, scale_rewards="none", **settings).credit([siblings])
        return [x for row in found(siblings, "a") for x in row]

    close(play(), [0.25, 0.25, 0.25, -0.75])
    close(play(dedupe_per_episode=True), [0.5, 0.5, 0.5, -0.5])


@pytest.mark.parametrize("settings", [{}, {"key": "task"}, {"dedupe_per_episode": True}])
def test_dr_mas_leaves_equal_and_lonely_groups_at_zero(settings: dict[str, Any]) -> None:
    """Three times 0.1 has the mean 0.1, not a little more."""
    equal = group({"a": [0.7, 0.0]}, {"a": [0.7]}), group({"a": [0.1, 0.0, 0.0]}, {"a": [0.1]})
    for siblings in (*equal, group({"a": [0.7, 0.1]})):
        DrMAS(group_size=2, **settings).credit([siblings])
        assert {x for row in found(siblings, "a") for x in row} == {0.0}


# -- SPIRAL ----------------------------------------------------------------------------------------


def test_spiral_after_every_episode_reads_the_baseline_before_it_moves() -> None:
    spiral = SPIRAL(per_sample_update=True, debias=False)
    plays = [group({"a": [reward]}) for reward in (1.0, -1.0, 1.0)]
    spiral.credit(plays)
    close([found(play, "a")[0][0] for play in plays], [1.0, -1.05, 1.0025])
    assert spiral.baseline("a") == pytest.approx(0.047625, abs=1e-9)


def test_spiral_moves_each_role_once_by_the_mean_of_a_batch() -> None:
    spiral = SPIRAL(decay=0.5, debias=False)
    plays = [group({"a": [reward], "b": [-reward]}) for reward in (1.0, 0.5)]
    spiral.credit(plays)
    close([found(play, "a")[0][0] for play in plays], [1.0, 0.5])
    assert spiral.metrics == pytest.approx({"baseline/a": 0.375, "baseline/b": -0.375})
    spiral.credit(plays)
    close([found(play, "b")[0][0] for play in plays], [-0.625, -0.125])


def test_spiral_is_centred_from_its_first_move_on() -> None:
    spiral = SPIRAL()
    spiral.credit([group({"a": [1.0]}), group({"a": [0.5]})])
    assert spiral.baseline("a") == pytest.approx(0.75)
    later = group({"a": [1.0]})
    spiral.credit([later])
    close(found(later, "a"), [[0.25]])
    assert spiral.baseline("a") == pytest.approx((0.95 * 0.75 + 1.0) / 1.95)


def test_deviation_keeps_the_earlier_of_equal_answers() -> None:
    """More than sixteen, since numpy sorts fewer in their order anyway."""
    algorithm = ATGRPO(filter="deviation", filter_ratio=0.5)
    scores = np.tile([1.0, -1.0, 3.0, -3.0], 16)
    kept = algorithm._kept(scores)
    assert kept.tolist() == [place for place in range(64) if abs(scores[place]) == 1.0]
    assert algorithm._kept(np.zeros(64)).tolist() == list(range(32, 64))


def test_spiral_keeps_worlds_apart_and_its_state_in_checkpoints() -> None:
    spiral, other = SPIRAL(decay=0.5, debias=False), SPIRAL(decay=0.5, debias=False)
    plays = [group({"a": [1.0]}), group({"a": [-1.0]})]
    plays[0].episodes[0].environment, plays[1].episodes[0].environment = "chess", "poker"
    spiral.credit(plays)
    other.load_state_dict(json.loads(json.dumps(spiral.state_dict())))
    assert other.averages == {"chess/a": (0.5, 1), "poker/a": (-0.5, 1)}


def test_spiral_discounts_and_leaves_out_what_teaches_nothing() -> None:
    plays = [group({"a": [0.0, 0.0, 1.0]}), group({"a": [0.0]}), group({"a": [1.0]})]
    plays[2].episodes[0].rollouts["a"].turns[0].finish_reason = "length"
    SPIRAL(gamma=0.5, ignore_no_eos=True, debias=False).credit(plays)
    assert [found(play, "a")[0] for play in plays] == [[0.25, 0.5, 1.0], [None], [None]]
    SPIRAL(gamma=0.5, drop_zeros=False, debias=False).credit(plays)
    assert [found(play, "a")[0] for play in plays[1:]] == [[0.0], [1.0]]
    SPIRAL(gamma=0.5).credit(plays)  # nothing is known yet: against the others of the iteration
    assert [found(play, "a")[0] for play in plays] == [[0.125, 0.25, 0.5], [-1.0], [0.5]]
    alone = SPIRAL(gamma=0.5)
    alone.credit(plays[:1])
    assert found(plays[0], "a")[0] == [None] * 3 and alone.baseline("a") == 1.0
    alone.credit(plays[1:2])
    assert found(plays[1], "a")[0] == [-1.0]


# -- MARSHAL ---------------------------------------------------------------------------------------


def test_marshal_sums_what_follows_and_then_normalises_over_the_role() -> None:
    """Returns of a: 1.5, 0.5 and 0, 0; over the role with mean 0.5 and deviation 0.707107, turn by
    turn with means 0.75 and 0.25 and the deviation 0.790569 from them."""
    siblings = group({"a": [1.0, 0.5], "b": [7.0]}, {"a": [0.0, 0.0], "b": [7.0]})
    MARSHAL(group_size=2).credit([siblings])
    close(found(siblings, "a"), [[0.948682, 0.316227], [-0.948682, -0.316227]])
    MARSHAL(group_size=2, baseline_by="role").credit([siblings])
    close(found(siblings, "a"), [[1.414212, 0.0], [-0.707106, -0.707106]])
    assert found(siblings, "b") == [[0.0], [0.0]]
    returns = [turn.returns for e in siblings for turn in e.rollouts["a"].turns]
    assert returns == [1.5, 0.5, 0.0, 0.0]


def test_marshal_discounts_and_need_not_divide() -> None:
    """A turn that the sibling does not have is compared with the sibling's last one."""
    siblings = group({"a": [0.0, 1.0]}, {"a": [0.0]})
    MARSHAL(group_size=2, gamma=0.5, scale_rewards="none").credit([siblings])
    close(found(siblings, "a")[0] + found(siblings, "a")[1], [0.25, 0.5, -0.25])
    MARSHAL(group_size=2, gamma=0.5, scale_rewards="none", baseline_by="role").credit([siblings])
    close(found(siblings, "a")[0] + found(siblings, "a")[1], [0.0, 0.5, -0.5])


@pytest.mark.parametrize("rewards", ["own", "team"])
def test_marshal_takes_the_penalty_for_length_from_the_last_turn(rewards: Any) -> None:
    """Four tokens reach the limit, three would cost nothing."""
    siblings = group({"a": [1.0, 3.0]}, {"a": [2.0]})
    MARSHAL(
        gamma=0.5, rewards=rewards, scale_rewards="none", overlong_max_length=4, overlong_cache=1
    ).credit([siblings])
    returns = [[turn.returns for turn in e.rollouts["a"].turns] for e in siblings]
    assert returns == [[1.0 + 0.5 * 2.0, 2.0], [2.0]]


# -- MATPO -----------------------------------------------------------------------------------------


def test_matpo_pays_the_workers_what_their_planner_earned() -> None:
    siblings = group({"planner": [1.0], "x": [0.0], "y": [5.0, 5.0]}, {"planner": [0.0]})
    MATPO(group_size=2).credit([siblings])
    played = [[turn.advantages for turn in e.turns] for e in siblings]
    close(played[0], [0.707106] * 4)
    close(played[1], [-0.707106])


def test_matpo_takes_the_planner_it_is_told() -> None:
    plays = {"x": [9.0], "planner": [1.0]}, {"x": [9.0], "planner": [0.0]}, {"x": [9.0]}
    siblings = group(*plays)
    MATPO(group_size=2, planner="planner").credit([siblings])
    close(found(siblings, "x")[:2], [[0.707106], [-0.707106]])
    assert found(siblings, "x")[2] == [None]


def test_matpo_refuses_a_planner_who_does_not_play() -> None:
    config = ExperimentConfig(
        model={"model_name_or_path": "mrlm/tiny"},
        environments=[{"env_type": "matrix", "game": "climbing"}],
        training={"algorithm": "matpo", "num_iterations": 1},
        matpo={"planner": "boss"},
    )
    with pytest.raises(ConfigError, match=r"matpo.planner='boss' .* \(row, column\)"):
        plan_of(config, LiveObjects())


@pytest.mark.parametrize("algorithm", [DrMAS, MARSHAL, MATPO])
def test_a_scale_over_the_batch_is_refused_where_it_has_no_meaning(algorithm: Any) -> None:
    with pytest.raises(ConfigError, match=f"{algorithm.__name__}; set it to group or none"):
        algorithm(scale_rewards="batch")


# -- ReMA ------------------------------------------------------------------------------------------


def test_rema_does_not_learn_from_unfinished_episodes() -> None:
    siblings = group({"a": [1.0]}, {"a": [0.0]}, {"a": [9.0]})
    siblings.episodes[2].status = "truncated"
    ReMA(scale_rewards="none").credit([siblings])
    assert found(siblings, "a") == [[0.5], [-0.5], [None]]
    ReMA(scale_rewards="none", mask_unfinished=False).credit([siblings])
    close(found(siblings, "a"), [[-7 / 3], [-10 / 3], [17 / 3]])
    ReMA(scale_rewards="batch").credit([siblings])
    assert found(siblings, "a")[2] == [None]


# -- A2C -------------------------------------------------------------------------------------------


def test_a2c_is_the_plain_policy_gradient_on_estimates() -> None:
    found_by = {}
    for estimator, lam in (("gae", 1.0), ("n_step", 0.3)):
        plays = [group({"a": [0.0, 1.0]}), group({"a": [1.0]})]
        for turn in (turn for play in plays for e in play for turn in e.turns):
            turn.values = [0.5, 0.25]
        A2C(level="token", estimator=estimator, gae_lambda=lam, n_steps=9).credit(plays)
        found_by[estimator] = [x for play in plays for row in found(play, "a") for x in row]
    close(np.concatenate(found_by["gae"]), [0.5, 0.75] * 3)
    close(np.concatenate(found_by["n_step"]), [0.5, 0.75] * 3)
    batch = b0()
    batch.values = batch.returns = torch.zeros(6)
    made = outputs()
    made.values = torch.full((6,), 2.0)
    loss = A2C(level="token", importance="none", vf_coef=0.1).loss(batch, made)
    close(loss.total.detach(), 0.283333 + 0.1 * 2.0, 1e-5)


# -- MAPoRL ----------------------------------------------------------------------------------------

DEBATE = [[0.2, 0.9, 1.0], [0.8, 0.7, 0.6]]
JUDGED = [[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
SHAPED = {
    ("discounted_sum", "all"): [[0.368345, 0.876923, 1.0], [0.8, 0.723077, 0.6]],
    ("discounted_sum", "individual"): [[0.402878, 0.923077, 1.0], [0.765468, 0.676923, 0.6]],
    ("last", "all"): [[0.8, 0.8, 0.8], [0.8, 0.8, 0.8]],
    ("last", "individual"): [[1.0, 1.0, 1.0], [0.6, 0.6, 0.6]],
    ("current", "all"): [[0.5, 0.8, 0.8], [0.5, 0.8, 0.8]],
    ("current", "individual"): DEBATE,
}


@pytest.mark.parametrize(("mode", "whose"), SHAPED)
def test_maporl_pays_for_the_rounds_that_follow(mode: Any, whose: Any) -> None:
    maporl = MAPoRL(reward_mode=mode, score_of=whose)
    (played,) = group(dict(zip("ab", DEBATE, strict=True)))
    paid = [maporl.turn_rewards(played, rollout) for rollout in played.rollouts.values()]
    close(paid, SHAPED[mode, whose], 1e-6)


def test_maporl_may_leave_later_rounds_out() -> None:
    (played,) = group(dict(zip("ab", DEBATE, strict=True)))
    rollouts = played.rollouts.values()
    assert [MAPoRL(influence_gamma=0.0).turn_rewards(played, each) for each in rollouts] == DEBATE


def test_maporl_counts_only_answers_that_were_given() -> None:
    (played,) = group({"a": [0.2, 0.9], "b": [0.8]})
    paid = [MAPoRL().turn_rewards(played, rollout) for rollout in played.rollouts.values()]
    close(paid[0], [(0.2 + 0.3 * 0.9) / 1.3, 0.9])
    close(paid[1], [(0.8 + 0.3 * 0.9) / 1.3])


@pytest.mark.parametrize(
    ("parity", "expected"),
    [(True, [[0.0, 0.75, 0.0], [0.0, 0.0, -1.0]]), (False, [[0.0, 0.25, 0.0], [2.0, 0.0, -1.0]])],
)
def test_maporl_pays_for_being_persuaded_and_for_persuading(parity: bool, expected: Any) -> None:
    """In the second round a turns right as b was, and b turns wrong after it. As we count, b is
    paid for that a turned right after its first answer, and a pays for that b then turned wrong."""
    maporl = MAPoRL(alpha=(0.5, 1.0, 0.25, 2.0), parity=parity)
    close([[maporl.bonus(JUDGED, agent, t) for t in range(3)] for agent in (0, 1)], expected)


def test_maporl_counts_as_many_rounds_as_any_of_the_others_answered() -> None:
    """The second agent stopped; the third was right twice and then wrong, to which a right answer
    before persuaded it as little as it should. The first was persuaded after round one."""
    scores = [[0.0, 1.0, 1.0], [1.0], [1.0, 1.0, 0.0]]
    maporl = MAPoRL(alpha=(0.5, 1.0, 0.25, 2.0))
    assert [maporl.bonus(scores, 0, t) for t in range(3)] == [0.0, 0.5 - 0.25, 0.0]


def test_maporl_pays_bonuses_beside_the_scores_of_trained_answers() -> None:
    """The means of the rounds are .5, 1 and .5; the answer in the middle is not trained."""
    (played,) = group(dict(zip("ab", JUDGED, strict=True)))
    played.rollouts["b"].turns[1].trained = False
    maporl = MAPoRL(alpha=(0.5, 1.0, 0.25, 2.0))
    paid = maporl.turn_rewards(played, played.rollouts["b"])
    close(paid, [(1.0 + 0.3 * 1.0 + 0.09 * 0.5) / 1.39 + 2.0, -1.0])


def test_maporl_gives_no_bonus_where_others_are_undecided_or_absent() -> None:
    maporl = MAPoRL(alpha=(1.0, 1.0, 1.0, 1.0))
    assert maporl.bonus([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], 0, 1) == 0.0
    assert maporl.bonus([[0.0, 1.0]], 0, 1) == 0.0


def test_maporl_estimates_inside_an_answer_only() -> None:
    """Each answer of two tokens: the value after it is not looked at."""
    plays = [group(dict(zip("ab", DEBATE, strict=True)))]
    for turn in plays[0].episodes[0].turns:
        turn.values = [0.5, 0.25]
    MAPoRL(level="token", kl_coef=0.0, whiten_advantages=False, gae_lambda=1.0).credit(plays)
    (rows,) = found(plays[0], "a")
    for row, paid in zip(rows, SHAPED["discounted_sum", "all"][0], strict=True):
        close(row, [paid - 0.5, paid - 0.25])
