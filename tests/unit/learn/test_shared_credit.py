"""Settings that families of algorithms share: who makes a side, whose rewards count, what an
invalid action costs, rewards in the light of what was reached before, what asking costs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hand_groups import close, found, group
from mrlm import ExperimentConfig
from mrlm.algorithms.at_grpo import ATGRPO
from mrlm.algorithms.dr_mas import DrMAS
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.ippo import IPPO
from mrlm.algorithms.mappo import MAPPO
from mrlm.algorithms.marshal import MARSHAL
from mrlm.algorithms.matpo import MATPO
from mrlm.algorithms.reinforce import REINFORCE
from mrlm.algorithms.rema import ReMA
from mrlm.algorithms.remax import ReMax
from mrlm.algorithms.router_r1 import RouterR1
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.records import episode_of, episode_record
from mrlm.runs import run_to_end

TWO = ({"a": [1.0], "b": [0.2]}, {"a": [0.0], "b": [0.0]})
POOLED = {"a": [[1.470291], [-0.630125]], "b": [[-0.210042], [-0.630125]]}


# -- who is compared with whom ---------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [GRPO, DrMAS, MARSHAL])
def test_all_agents_of_a_task_can_be_one_side(algorithm: type[GRPO]) -> None:
    """What is known as MAS-GRPO: the larger rewards set everybody's scale."""
    siblings = group(*TWO)
    algorithm(key="task", group_size=2).credit([siblings])
    for agent, expected in POOLED.items():
        close(found(siblings, agent), expected, 1e-5)


@pytest.mark.parametrize("algorithm", [GRPO, DrMAS, MARSHAL])
def test_agents_of_one_role_are_one_side(algorithm: type[GRPO]) -> None:
    siblings = group({"p": [5.0], "w1": [1.0], "w2": [3.0]}, {"p": [7.0], "w1": [1.0], "w2": [7.0]})
    roles = {"w1": "worker", "w2": "worker"}
    algorithm(key=roles, scale_rewards="none", group_size=2).credit([siblings])
    close(found(siblings, "p"), [[-1.0], [1.0]])
    close(found(siblings, "w1"), [[-2.0], [-2.0]])
    close(found(siblings, "w2"), [[0.0], [4.0]])


@pytest.mark.parametrize("algorithm", [GRPO, DrMAS, MARSHAL])
def test_a_side_of_one_episode_teaches_nothing(algorithm: type[GRPO]) -> None:
    siblings = group(*TWO)
    siblings.episodes[1].status = "error"
    algorithm(key="task", group_size=2).credit([siblings])
    assert found(siblings, "a") == [[0.0], [None]] and found(siblings, "b") == [[0.0], [None]]


def test_a_side_has_one_scale_over_the_batch() -> None:
    groups = [group(*TWO), group({"a": [3.0], "b": [1.0]}, {"a": [1.0], "b": [1.0]})]
    GRPO(key="task", scale_rewards="batch", group_size=2).credit(groups)
    scale = np.std([1.0, 0.2, 0.0, 0.0, 3.0, 1.0, 1.0, 1.0], ddof=1) + 1e-6
    close(found(groups[0], "a"), [[0.7 / scale], [-0.3 / scale]])
    close(found(groups[1], "b"), [[-0.5 / scale], [-0.5 / scale]])


@pytest.mark.parametrize(
    ("algorithm", "setting"),
    [(MATPO, {"key": "task"}), (ATGRPO, {"key": {"a": "x"}}), (ATGRPO, {"rewards": "team"})],
)
def test_a_setting_that_would_mean_nothing_is_refused(algorithm: Any, setting: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"has fixed comparison groups .* use grpo, dr_mas or marshal"
    ):
        algorithm(**setting)


# -- whose rewards ---------------------------------------------------------------------------------


def uneven() -> Group:
    """The team is paid 2 and 1 whatever the share of each."""
    return group({"a": [0.0], "b": [4.0]}, {"a": [2.0], "b": [0.0]})


@pytest.mark.parametrize("algorithm", [GRPO, DrMAS, MARSHAL, MATPO, ReMA])
def test_the_teams_rewards_make_agents_equal(algorithm: type[GRPO]) -> None:
    siblings = uneven()
    algorithm(rewards="team", scale_rewards="none", group_size=2).credit([siblings])
    for agent in "ab":
        close(found(siblings, agent), [[0.5], [-0.5]])


def test_rema_is_about_the_team_and_grpo_about_each_agent() -> None:
    for algorithm, expected in ((ReMA, 0.5), (GRPO, -1.0)):
        siblings = uneven()
        algorithm(scale_rewards="none", group_size=2).credit([siblings])
        close(found(siblings, "a"), [[expected], [-expected]])


def test_marshal_sums_the_teams_rewards_from_a_turn_to_the_end() -> None:
    siblings = group({"a": [1.0, 2.0], "b": [3.0, 2.0]}, {"a": [0.0, 0.0], "b": [0.0, 0.0]})
    MARSHAL(gamma=0.5, rewards="team", scale_rewards="none").credit([siblings])
    close(found(siblings, "a"), [[3.0 - 1.5, 2.0 - 1.0], [-1.5, -1.0]])
    assert found(siblings, "a") == found(siblings, "b")


# -- invalid actions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({}, [[0.425, 0.525], [-0.475, -0.475]]),
        ({"dedupe_per_episode": True}, [[0.425, 0.525], [-0.475, -0.475]]),
        ({"invalid_penalty": 0.0}, [[0.5, 0.5], [-0.5, -0.5]]),
    ],
)
def test_an_invalid_action_costs_its_own_turn(setting: Any, expected: Any) -> None:
    siblings = group({"a": [1.0, 0.0]}, {"a": [0.0, 0.0]})
    first, second = siblings.episodes[0].turns
    first.components, second.components = {"legal": 0.0}, {"valid": 1.0}
    DrMAS(scale_rewards="none", group_size=2, **setting).credit([siblings])
    close(found(siblings, "a"), expected)


def test_a_turn_knows_what_its_reward_was_made_of(tmp_path: Path) -> None:
    """From the world through the record of an episode."""
    groups: list[Group] = []

    class Watching(DrMAS):
        def credit(self, played: Any) -> None:
            super().credit(played)
            groups.extend(played)

    experiment = {
        "experiment_name": "components",
        "environments": [{"env_type": "matrix", "game": "xor", "rounds": 2}],
        "training": {"algorithm": "dr_mas", "num_iterations": 1, "report_to": "none"},
        "dr_mas": {"group_size": 2},
        "generation": {"max_new_tokens": 1},
        "evaluation": {"episodes": 0},
        "output_dir": str(tmp_path),
    }
    run = build(ExperimentConfig(**experiment), LiveObjects())
    run.algorithm = Watching(group_size=2)
    run_to_end(run)
    turns = [turn for each in groups for e in each for turn in e.turns]
    assert turns and all(set(turn.components) == {"payoff", "legal"} for turn in turns)
    total = sum(turn.components["legal"] for turn in turns)
    counted = [e.metrics[f"{a}/legal"] for each in groups for e in each for a in ("row", "column")]
    assert total == sum(counted)
    again = episode_of(json.loads(json.dumps(episode_record(groups[0].episodes[0]))))
    assert [t.components for t in again.turns] == [
        t.components for t in groups[0].episodes[0].turns
    ]


# -- shaped rewards --------------------------------------------------------------------------------


@pytest.mark.parametrize("shaping", ["quality", "margin"])
def test_a_reward_in_the_light_of_what_was_reached_before(shaping: Any) -> None:
    """The turns before were paid 1 and 0, this one 1: 1.25 either way."""
    played = group({"a": [1.0, 1.0], "b": [0.0, 0.0]})
    REINFORCE(gamma=0.0, shaping=shaping).credit([played])
    close(found(played, "a"), [[1.0, 1.25]])
    close(found(played, "b"), [[0.0, -0.25]])
    assert [turn.reward for turn in played.episodes[0].turns] == [1.0, 1.0, 0.0, 0.0]


def test_quality_and_margin_differ() -> None:
    values = {}
    for shaping in ("quality", "margin"):
        played = group({"a": [1.0, 0.5]})
        REINFORCE(gamma=0.0, shaping=shaping, shaping_coef=1.0).credit([played])
        values[shaping] = found(played, "a")[0][1]
    assert values == pytest.approx({"quality": 1.0, "margin": 0.0})


def test_the_outcome_is_paid_to_what_came_before() -> None:
    played = group({"a": [0.25, 1.0]})
    REINFORCE(gamma=0.0, outcome_coef=0.5).credit([played])
    close(found(played, "a"), [[0.75, 1.0]])


@pytest.mark.parametrize("algorithm", [GRPO, ReMA, MARSHAL])
def test_the_teams_rewards_are_shaped_too(algorithm: type[GRPO]) -> None:
    """Both turns of the second step of the first episode are paid 1 + .25."""
    plays = ({"a": [1.0, 1.0], "b": [0.0, 1.0]}, {"a": [0.0, 0.0], "b": [0.0, 0.0]})
    siblings = group(*plays)
    kept = [(e.reward, list(e.step_rewards), [t.reward for t in e.turns]) for e in siblings]
    algorithm(rewards="team", scale_rewards="none", shaping="margin", group_size=2).credit(
        [siblings]
    )
    plain = group(*plays)
    algorithm(rewards="team", scale_rewards="none", group_size=2).credit([plain])
    assert found(siblings, "a")[0][0] - found(plain, "a")[0][0] == pytest.approx(0.125)
    assert kept == [(e.reward, e.step_rewards, [t.reward for t in e.turns]) for e in siblings]


def test_shaping_reaches_what_is_learned_from_values() -> None:
    for algorithm in (IPPO(rewards="team"), MAPPO()):
        returns = []
        for shaping in ("none", "margin"):
            played = group({"a": [0.5, 1.0], "b": [0.5, 1.0]})
            for turn in played.episodes[0].turns:
                turn.values = 0.0
            algorithm.shaping = shaping  # type: ignore[assignment]
            algorithm.gae_lambda = 0.0
            algorithm.credit([played])
            last = played.episodes[0].rollouts["a"].turns[1]
            returns.append(float(np.asarray(last.returns).flat[-1]))
        assert returns == pytest.approx([1.0, 1.25])


def test_rewards_are_put_back_when_credit_fails() -> None:
    played = group({"a": [1.0, 1.0]})
    with pytest.raises(TrainingError, match="has no values"):
        IPPO(shaping="margin").credit([played])
    assert [turn.reward for turn in played.episodes[0].turns] == [1.0, 1.0]


def test_what_is_compared_with_the_greedy_episode_is_shaped_like_it() -> None:
    played = group({"a": [0.0, 1.0]}, {"a": [0.0, 1.0]})
    played.episodes[1].greedy = True
    ReMax(shaping="margin").credit([played])
    assert [np.asarray(x).max() for x in found(played, "a")[0]] == [0.0, 0.0]


def test_outcomes_do_not_go_with_trees() -> None:
    played = group({"a": [0.25, 1.0]})
    played.episodes[0].path = (0, 0)
    with pytest.raises(TrainingError, match=r"outcome_coef=0\.5 .* set it to 0"):
        REINFORCE(outcome_coef=0.5).credit([played])


# -- what asking costs -----------------------------------------------------------------------------


def routed(*costs: float, reward: float = 1.0) -> Group:
    played = group(*({"a": [reward]} for _ in costs))
    for each, cost in zip(played, costs, strict=True):
        for turn in each.turns:
            turn.components, turn.values, turn.ref_logprobs = {"cost": cost}, 0.0, -1.0
    return played


def earned(router: RouterR1, played: Group) -> list[float]:
    router.credit([played])
    return [float(np.asarray(turn.returns)[-1]) for e in played for turn in e.turns]


def test_among_right_answers_the_cheap_ones_earn_more() -> None:
    router = RouterR1(cost_coef=0.4)
    paid = earned(router, routed(*(float(i * i) for i in range(101))))
    assert [paid[0], paid[50], paid[100]] == pytest.approx([1.0, 0.8, 0.6])
    assert earned(router, routed(0.0, reward=0.0)) == [0.0]
    assert earned(router, routed(0.0, reward=-1.0)) == [-1.0]
    assert earned(RouterR1(cost_coef=0.4), routed(7.0, 7.0)) == pytest.approx([0.8, 0.8])


def test_who_asked_nobody_paid_nothing() -> None:
    played = routed(0.0, 4.0, 9.0)
    for turn in played.episodes[0].turns:
        turn.components = {}
    router = RouterR1(cost_coef=0.4)
    paid = earned(router, played)
    assert router.costs.numbers == [0.0, 2.0, 3.0]
    assert paid == earned(RouterR1(cost_coef=0.4), routed(0.0, 4.0, 9.0))
    assert paid[0] == pytest.approx(1.0)
    assert paid[0] == pytest.approx(1.0)


def test_the_scale_of_costs_is_part_of_a_checkpoint() -> None:
    one, two = (RouterR1(cost_coef=0.5) for _ in range(2))
    one.costs.size = two.costs.size = 6
    one.credit([routed(1.0, 4.0, 9.0, 100.0)])
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert two.costs.numbers == [1.0, 2.0, 3.0, 10.0]
    assert earned(two, routed(16.0, 25.0, 36.0)) == earned(one, routed(16.0, 25.0, 36.0))
    assert one.costs.numbers == [2.0, 3.0, 10.0, 4.0, 5.0, 6.0]


def test_a_cost_that_no_world_reports_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no reward has a component 'cost'"):
        RouterR1(cost_coef=0.5).credit([group({"a": [1.0]})])
