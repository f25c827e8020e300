"""HAPPO: what policies that moved first make of the advantages of those that move after them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mrlm import ExperimentConfig
from mrlm.algorithms.happo import HAPPO
from mrlm.algorithms.mappo import MAPPO
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build, plan_of
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.credit.joint_steps import JointStep, joint_steps
from mrlm.learn.data.batch import Outputs, merge, pack
from mrlm.runs import run_to_end
from watched_runs import settings, weights

NEW = {"first": [-2.9, -2.3], "second": [-3.5, -1.1]}
OLD = {"first": [-3.0, -2.0], "second": [-4.0, -1.0]}
ADVANTAGES = [1.0, -0.5]


def steps() -> list[JointStep]:
    """Two joint steps of two agents, who each say one token; the first agent has updated."""
    found = []
    for place, advantage in enumerate(ADVANTAGES):
        turns = []
        for agent in ("first", "second"):
            turn = Turn(agent, agent, [1], [2], [OLD[agent][place]], advantages=advantage)
            turn.old_logprobs, turn.new_logprobs = [OLD[agent][place]], [NEW[agent][place]]
            turns.append(turn)
        found.append(JointStep(turns))
    return found


def loss_of(algorithm: MAPPO, turns: list[Turn]) -> float:
    batch = pack([sample for turn in turns for sample in merge([turn])])
    new = torch.tensor(NEW["second"], requires_grad=True)
    return algorithm.loss(batch, Outputs(new, torch.zeros(2))).item()


def test_the_compound_factor_stands_outside_the_minimum() -> None:
    algorithm, played = HAPPO(factor="exact"), steps()
    last = [step.turns[1] for step in played]
    assert loss_of(MAPPO(), last) == pytest.approx(-0.373791, abs=1e-5)
    factors = [
        factor
        for step in played
        for factor in algorithm.weigh(step, frozenset({"first"}), frozenset({"second"}))
    ]
    np.testing.assert_allclose(factors, [1.105171, 0.740818], atol=1e-5)
    assert loss_of(algorithm, last) == pytest.approx(-0.495522, abs=1e-5)
    assert [step.turns[0].advantages for step in played] == ADVANTAGES


@pytest.mark.parametrize("loss_type", ["ppo", "turn", "gspo", "cispo", "reinforce", "sequence"])
def test_weighing_the_advantage_is_weighing_the_loss(loss_type: str) -> None:
    """Every surrogate is homogeneous in the advantage."""
    algorithm = HAPPO(loss_type=loss_type, dual_clip=3.0)
    turns = [step.turns[1] for step in steps()]
    plain = [loss_of(algorithm, [turn, turns[1]]) for turn in turns]
    turns[0].advantages = 1.7 * float(turns[0].advantages)  # type: ignore[arg-type]
    assert loss_of(algorithm, [turns[0], turns[1]]) != pytest.approx(plain[0])
    zero = replace(turns[1], advantages=0.0)
    one = replace(turns[0], advantages=1.0)
    more = replace(turns[0], advantages=1.7)
    found = loss_of(algorithm, [more, zero]), loss_of(algorithm, [one, zero])
    assert found[0] == pytest.approx(1.7 * found[1], abs=1e-6)


def long_turn(agent: str, moves: list[float], order: int = 0, step: int = 0) -> Turn:
    """A turn whose log-probs moved by these numbers."""
    turn = Turn(agent, agent, [1], list(range(len(moves))), step=step, advantages=1.0, order=order)
    turn.old_logprobs = np.full(len(moves), -2.0)
    turn.new_logprobs = turn.old_logprobs + np.array(moves)
    return turn


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, np.exp(0.2)),
        ({"factor": "exact", "factor_range": None}, np.exp(0.6)),
        ({"factor": "exact", "factor_range": (0.9, 1.5)}, 1.5),
        ({"factor_range": [0.9, 1.1]}, 1.1),
    ],
)
def test_granularities_and_bounds(fields: dict[str, Any], expected: float) -> None:
    step = JointStep([long_turn("a", [0.1, 0.2, 0.3]), long_turn("b", [0.0])])
    found = HAPPO(**fields).weigh(step, frozenset("a"), frozenset("b"))
    assert found == pytest.approx([expected])
    np.testing.assert_allclose(step.turns[1].advantages, [expected])


def test_each_predecessor_is_bounded_for_itself_and_the_product_is_not() -> None:
    step = JointStep([long_turn("a", [5.0]), long_turn("b", [5.0]), long_turn("c", [0.0] * 2)])
    assert HAPPO().weigh(step, frozenset("ab"), frozenset("c")) == pytest.approx([4.0])


def test_stage_by_stage_the_factors_multiply() -> None:
    step = JointStep([long_turn("a", [0.1]), long_turn("b", [0.2]), long_turn("c", [0.0])])
    algorithm = HAPPO()
    algorithm.weigh(step, frozenset("a"), frozenset("bc"))
    algorithm.weigh(step, frozenset("b"), frozenset("c"))
    found = [float(np.mean(turn.advantages)) for turn in step.turns]
    np.testing.assert_allclose(found, np.exp([0.0, 0.1, 0.3]))


def test_what_others_did_in_other_rounds_does_not_count() -> None:
    turns = {
        name: [long_turn(name, [0.1 * (i + 1)], step=i) for i in range(2)] for name in ("a", "b")
    }
    parts = {name: Rollout(name, name, "t", row) for name, row in turns.items()}
    found = joint_steps(Episode("e", Task("t"), parts, 1.0, [0.0, 1.0], "done"))
    factors = [HAPPO().weigh(step, frozenset("a"), frozenset("b")) for step in found]
    np.testing.assert_allclose(factors, np.exp([[0.1], [0.2]]))


def test_frozen_agents_have_no_part_in_it() -> None:
    judge = replace(long_turn("judge", [9.0]), trained=False)
    step = JointStep([judge, long_turn("a", [0.1]), long_turn("b", [0.0])])
    assert HAPPO().weigh(step, frozenset({"a", "judge"}), frozenset("b")) == pytest.approx(
        [np.exp(0.1)]
    )


# -- against MAPPO ---------------------------------------------------------------------------------


def trained(config: ExperimentConfig, still: tuple[str, ...] = ()) -> tuple[Any, list[Any]]:
    run = build(config)
    for learner in run.learners:
        if learner.policy in still:
            learner.settings = replace(learner.settings, learning_rate=0.0)
    return run, run_to_end(run).history


ALIKE = {"importance": "token", "update_epochs": 2}
"""Both compute `old_logprobs` anew, so that the numbers can be the same bit by bit."""


@pytest.mark.slow
@pytest.mark.parametrize("lora", [pytest.param(False, marks=pytest.mark.slow), True])
def test_with_predecessors_that_stand_still_it_is_mappo(lora: bool, tmp_path: Path) -> None:
    """One of the two never moves: nobody's factor is anything but 1, bit by bit."""
    found, factors = [], []
    policies = {name: {"lora": {"r": 4}} if lora else {} for name in ("short", "long")}
    for algorithm in ("mappo", "happo"):
        config = settings(algorithm, 3, policies=policies, output_dir=str(tmp_path / algorithm))
        config = config.merged({algorithm: ALIKE})
        if algorithm == "mappo":
            config = config.merged({"schedule": "sequential"})
        run, history = trained(config, still=("long",))
        found.append(weights(run))
        factors += [row["compound_factor/long"] for row in history if "compound_factor/long" in row]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert factors and all(factor == 1.0 for factor in factors)


def test_predecessors_that_move_make_a_difference(tmp_path: Path) -> None:
    runs = {}
    for algorithm in ("mappo", "happo"):
        config = settings(algorithm, 2, output_dir=str(tmp_path / algorithm))
        runs[algorithm] = trained(config.merged({algorithm: ALIKE}))
    one, other = (weights(run) for run, _ in runs.values())
    assert any(not torch.equal(one[name], other[name]) for name in one)
    history = runs["happo"][1]
    factors = [[k for k in row if k.startswith("compound_factor/")] for row in history]
    assert all(len(names) == 1 for names in factors)
    assert all(row[name] != 1.0 for row, (name,) in zip(history, factors, strict=True))


def test_the_new_log_probs_are_those_of_the_weights_that_were_trained(tmp_path: Path) -> None:
    """`rescore` writes one column and leaves the others as they were."""
    run = build(settings("happo", output_dir=str(tmp_path / "run")))
    groups = run_async(run.source.take(2))
    learner = run.learners[0]
    run_async(learner.annotate(groups, {"old_logprobs"}))
    turns = [t for g in groups for e in g for t in e.turns if t.policy == learner.policy]
    before = [np.array(turn.old_logprobs) for turn in turns]
    run_async(learner.rescore(groups))
    for turn, old in zip(turns, before, strict=True):
        np.testing.assert_array_equal(turn.new_logprobs, old)
    with torch.no_grad():
        for weight in learner.parameters():
            weight.mul_(1.1)
    run_async(learner.rescore(groups))
    for turn, old in zip(turns, before, strict=True):
        np.testing.assert_array_equal(turn.old_logprobs, old)
        assert turn.values is None and not np.allclose(turn.new_logprobs, old)
    others = [t for g in groups for e in g for t in e.turns if t.policy != learner.policy]
    assert all(turn.new_logprobs is None for turn in others)


# -- who can be trained ----------------------------------------------------------------------------


def shared(tmp_path: Path, **own: Any) -> ExperimentConfig:
    config = settings("happo", output_dir=str(tmp_path / "run"))
    return ExperimentConfig(**{**config.given(), "policies": {"both": {}}, "happo": own})


def test_agents_with_one_policy_are_refused_or_updated_as_one(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"short, long share the policy 'both'.*on_shared"
    ) as said:
        plan_of(shared(tmp_path), LiveObjects())
    assert "\n" not in str(said.value)
    run, history = trained(shared(tmp_path, on_shared="simultaneous", **ALIKE))
    mappo = settings("mappo", output_dir=str(tmp_path / "mappo")).given()
    other, _ = trained(ExperimentConfig(**{**mappo, "policies": {"both": {}}, "mappo": ALIKE}))
    assert torch.equal(weights(run)["both"], weights(other)["both"])
    assert not any(key.startswith("compound_factor") for row in history for key in row)


def test_another_order_is_refused(tmp_path: Path) -> None:
    config = settings("happo", schedule="alternating", output_dir=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"happo supports only sequential.*mappo"):
        plan_of(config, LiveObjects())


def test_bounds_that_are_none_are_refused() -> None:
    for bounds in ((2.0, 0.5), (0.0, 2.0)):
        with pytest.raises(ConfigError, match="factor_range"):
            HAPPO(factor_range=bounds)
