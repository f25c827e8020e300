"""The contract of every file in `algorithms/`."""

import copy
import importlib
import json
import math
import pickle
import random
import re
from typing import Any, get_args

import numpy as np
import pytest
import torch

import mrlm
import mrlm.config
from mrlm.algorithms.grpo import GRPO
from mrlm.algorithms.ppo import PPO
from mrlm.config.flat_words import changed_fields
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.faces import faces
from mrlm.learn import ops
from mrlm.learn.bases.policy_gradient import AGGREGATIONS
from mrlm.learn.credit.explain import explain_others
from mrlm.learn.data.batch import Sample, Totals, merge, pack
from mrlm.learn.data.samples import minibatches, split
from mrlm.record.plan import RecordPlan
from oracles import both
from played import Prefix, by_text, credited, fill, learn, make, moved, play, whole

NAMES = registry.names("algorithms")


@pytest.mark.parametrize("name", NAMES)
def test_every_trainable_turn_gets_a_finite_advantage(name):
    groups, _ = credited(make(name))
    for group in groups:
        for episode in group:
            for turn in (turn for turn in episode.turns if turn.trained):
                assert turn.advantages is not None
                assert np.isfinite(np.asarray(turn.advantages)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_explanation_of_an_advantage_ends_with_it(name):
    algorithm, policy = make(name), Prefix()
    groups = play(algorithm)
    fill(groups, algorithm, policy, moved(policy))
    RecordPlan("all").trace(groups[1:])
    algorithm.credit(groups)
    explain_others(groups, name)
    assert all(turn.why is None for episode in groups[0] for turn in episode.turns)
    turns = [turn for group in groups[1:] for episode in group for turn in episode.turns]
    credited = [turn for turn in turns if turn.advantages is not None]
    assert credited
    for turn in credited:
        last = float(re.findall(r"[+-]?[\d.]+(?:e[+-]\d+)?", turn.why)[-1])
        assert last == pytest.approx(np.mean(turn.advantages), rel=1e-3, abs=1e-6), turn.why


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_finite_and_teaches_something(name):
    algorithm = make(name)
    groups, policy = credited(algorithm)
    loss, gradient, metrics = learn(algorithm, policy, whole(algorithm, groups))
    assert math.isfinite(loss)
    assert torch.isfinite(gradient).all() and gradient.abs().max() > 1e-6
    assert all(math.isfinite(value) for value in {**metrics, **algorithm.metrics}.values())


@pytest.mark.parametrize("name", NAMES)
def test_credit_does_not_depend_on_the_order_of_siblings_or_groups(name):
    if make(name).spec.unit == "pair":
        pytest.skip("a pair is ordered: what was chosen stands first")
    one, _ = credited(make(name))
    algorithm = make(name)
    other, policy = play(algorithm), Prefix()
    fill(other, algorithm, policy, moved(policy))
    other.reverse()
    for group in other:
        group.episodes.reverse()
    algorithm.credit(other)
    expected, found = by_text(one), by_text(other)
    assert expected.keys() == found.keys()
    for key, advantages in expected.items():
        np.testing.assert_allclose(found[key], advantages, atol=1e-6)


def check_cuts(algorithm: Any, max_tokens: int) -> None:
    groups, policy = credited(algorithm)
    samples = algorithm.samples(groups, "p")
    totals = Totals.of(samples)
    together = learn(algorithm, policy, [pack(samples, totals)])
    parts = [pack(part, totals) for part in split(samples, max_tokens)]
    assert len(parts) > 1
    cut = learn(algorithm, policy, parts)
    assert cut[0] == pytest.approx(together[0], abs=1e-5)
    torch.testing.assert_close(cut[1], together[1], atol=1e-5, rtol=1e-4)
    assert cut[2] == pytest.approx(together[2], abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_tokens", [1, 60])
def test_loss_gradient_and_metrics_do_not_depend_on_how_the_batch_is_cut(name, max_tokens):
    check_cuts(make(name), max_tokens)


VARIANTS: list[Any] = [
    *(GRPO(aggregation=a, kl_coef=0.1, entropy_coef=0.1) for a in get_args(ops.Aggregation)),
    *(
        GRPO(loss_type=loss_type, importance=importance, importance_cap=1.2)
        for importance in ("token", "sequence_mask")
        for loss_type in AGGREGATIONS
    ),
    PPO(level="turn", kl_coef=0.1),
]
"""Every aggregation, every surrogate, and a level that no algorithm has by default."""
vary = pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: str(changed_fields(each)))


@vary
def test_no_variant_depends_on_how_the_batch_is_cut(variant):
    check_cuts(copy.deepcopy(variant), 60)


def forked(samples: list[Sample]) -> list[Sample]:
    """The samples that a template which rewrites the past would make of the same turns: one a
    turn."""
    found: list[Sample] = []
    for sample in samples:
        for turn in sample.turns:
            (alone,) = merge([turn], sample.unit, sample.rollout)
            found.append(alone)
    return found


def check_forks(algorithm: Any) -> None:
    groups, policy = credited(algorithm)
    plain = algorithm.samples(groups, "p")
    split_up = forked(plain)
    if algorithm.spec.unit == "turn":
        for unit, sample in enumerate(split_up):
            sample.unit = unit
    expected = learn(algorithm, policy, [pack(plain)])
    together, totals = learn(algorithm, policy, [pack(split_up)]), Totals.of(split_up)
    cut = learn(algorithm, policy, [pack(part, totals) for part in split(split_up, 60)])
    for found in (together, cut):
        assert found[0] == pytest.approx(expected[0], abs=1e-5)
        torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=1e-4)
    parts = list(minibatches(split_up, 3, random.Random(0)))
    homes = [{sample.rollout for sample in part} for part in parts]
    assert sum(map(len, homes)) == len(set.union(*homes))  # no rollout is in two optimiser steps


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_counts_once_however_many_samples_carry_it(name):
    check_forks(make(name))


@vary
def test_no_variant_counts_samples(variant):
    check_forks(copy.deepcopy(variant))


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name):
    algorithm = make(name)
    groups, policy = credited(algorithm)
    batch = whole(algorithm, groups)[0]
    wide = copy.deepcopy(batch)
    for field, filler in (("input_ids", 5), ("attention_mask", 0), ("position_ids", 0)):
        grid = getattr(wide.grid, field)
        padding = grid.new_full((grid.shape[0], 3), filler)
        setattr(wide.grid, field, torch.cat([padding, grid, padding], dim=1))
    wide.grid.keep = wide.grid.keep + 3
    plain, padded = learn(algorithm, policy, [batch]), learn(algorithm, policy, [wide])
    assert padded[0] == pytest.approx(plain[0], abs=1e-6)
    torch.testing.assert_close(padded[1], plain[1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_shipped_and_its_state_restored(name):
    algorithm = make(name)
    credited(algorithm)
    shipped = pickle.loads(pickle.dumps(algorithm))
    state = json.loads(json.dumps(algorithm.state_dict()))
    fresh = make(name)
    fresh.load_state_dict(state)
    expected = by_text(credited(algorithm, seed=1)[0])
    for other in (shipped, fresh):
        found = by_text(credited(other, seed=1)[0])
        assert all(np.allclose(found[key], row, atol=1e-6) for key, row in expected.items())


APART: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("grpo", {"scale_rewards": "batch"}),
    ("ippo", {"whiten_advantages": True, "kl_coef": 0.1, "kl_target": 3.0}),
    ("reinforce", {"baseline": "mean"}),
    ("reinforce", {"whiten": True}),
    ("router_r1", {"cost_coef": 0.3}),
    ("sft", {"mode": "combined"}),
    ("spiral", {"debias": False}),
    ("vdn", {"mode": "vdac"}),
]


@pytest.mark.parametrize(("name", "settings"), APART, ids=str)
def test_credit_does_not_depend_on_how_many_processes_hold_the_batch(name, settings, monkeypatch):
    """Each of two holds two groups of the four, twice: state is the same everywhere, too."""
    made = [registry.load("algorithms", name)(**settings) for _ in range(3)]
    played: list[list[Any]] = []
    for seed in (0, 1):
        groups = play(made[0], seed, num_groups=4)
        for turn in (turn for group in groups for episode in group for turn in episode.turns):
            turn.components = {"cost": float(len(turn))}
        fill(groups, made[0], Prefix(), moved(Prefix()))
        played.append(groups)
    parts = [[copy.deepcopy(groups[2 * rank :][:2]) for groups in played] for rank in range(2)]
    for groups in played:
        made[2].credit(groups)

    def credit(rank: int) -> None:
        for groups in parts[rank]:
            made[rank].credit(groups)

    both(monkeypatch, credit)
    for place, groups in enumerate(played):
        expected = by_text(groups)
        found = by_text(parts[0][place] + parts[1][place])
        assert found.keys() == expected.keys()
        for key, row in expected.items():
            np.testing.assert_allclose(found[key], row, atol=1e-9)
    for one in made[:2]:
        assert one.metrics == pytest.approx(made[2].metrics)
        assert flat(one.state_dict()) == pytest.approx(flat(made[2].state_dict()))


def flat(state: Any, name: str = "") -> dict[str, Any]:
    """The numbers of a state by their places."""
    if not isinstance(state, dict | list):
        return {name: state}
    entries = state.items() if isinstance(state, dict) else enumerate(state)
    return {k: v for key, value in entries for k, v in flat(value, f"{name}/{key}").items()}


def other_numbers(state: Any) -> Any:
    """A state in which every number is another one."""
    if isinstance(state, dict):
        return {key: other_numbers(value) for key, value in state.items()}
    if isinstance(state, list):
        return [other_numbers(value) for value in state]
    return state + 1 if isinstance(state, int | float) else state


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_state_is_all_of_it(name):
    """Also what the state of an algorithm consists of that it refines."""
    algorithm = make(name)
    credited(algorithm)
    state = other_numbers(json.loads(json.dumps(algorithm.state_dict())))
    fresh = make(name)
    fresh.load_state_dict(json.loads(json.dumps(state)))
    assert json.loads(json.dumps(fresh.state_dict())) == state


@pytest.mark.parametrize("packed", [True, False])
def test_a_batch_is_cut_into_at_least_as_many_parts_as_are_asked_for(packed):
    groups, _ = credited(make("grpo"))
    samples = make("grpo").samples(groups, "p")
    units = len({sample.unit for sample in samples})
    for parts in (1, 2, 5, units, units + 3):
        found = split(samples, 10**9, parts, packed)
        assert min(parts, units) <= len(found) <= max(1, 2 * parts - 1)
        assert sorted(id(each) for part in found for each in part) == sorted(map(id, samples))


@pytest.mark.parametrize("name", NAMES)
def test_failed_episodes_leave_no_trace(name):
    algorithm = make(name)
    if algorithm.spec.unit == "pair":
        pytest.skip("a pair that lost a side is dropped; see test_a_pair_that_lost_a_side")
    clean, _ = credited(make(name))
    groups = play(algorithm)
    lost = copy.deepcopy(groups[0].episodes[0])
    lost.status, lost.error, lost.reward, lost.step_rewards = "error", "crashed", 1e6, [1e6]
    for turn in lost.turns:
        turn.reward, turn.advantages = 1e6, 3.0
    for group in groups:
        group.episodes.insert(1, copy.deepcopy(lost))
    policy = Prefix()
    fill(groups, algorithm, policy, moved(policy))
    algorithm.credit(groups)
    for group in groups:
        assert all(turn.advantages is None for turn in group.episodes[1].turns)
        del group.episodes[1]
    expected, found = by_text(clean), by_text(groups)
    for key, row in expected.items():
        np.testing.assert_allclose(found[key], row, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_an_iteration_in_which_all_failed_trains_nothing(name):
    """Also where statistics of the batch are taken."""
    cls = registry.load("algorithms", name)
    whitened: dict[str, Any] = {}
    if "whiten_advantages" in cls.__pydantic_fields__:
        whitened = {"whiten_advantages": True, "group_size": max(2, make(name).group_size)}
    for algorithm in (make(name), cls(**whitened)):
        groups = play(algorithm)
        for episode in (episode for group in groups for episode in group):
            episode.status, episode.error = "error", "crashed"
        algorithm.credit(groups)
        algorithm.credit([])
        assert all(math.isfinite(value) for value in algorithm.metrics.values())
        for turn in (turn for group in groups for episode in group for turn in episode.turns):
            assert turn.advantages is None


@pytest.mark.parametrize("name", NAMES)
def test_unknown_settings_are_refused(name):
    with pytest.raises(Exception, match="clip_rangee"):
        registry.load("algorithms", name)(clip_rangee=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_a_trainer_and_a_config_stand_beside_it(name):
    module = importlib.import_module(f"mrlm.algorithms.{name}")
    own = {face.name: face for face in faces().values() if face.algorithm == name}
    for face in own.values():
        made = getattr(module, face.name)
        assert made is getattr(mrlm, face.name)
        if face.kind == "trainer":
            assert made.algorithm == name and (made.args_class is None) is (not face.defaults)
        if face.kind == "config":
            assert made is getattr(mrlm.config, face.name) and issubclass(made, module.PLUGIN)
            assert made(update_epochs=3).update_epochs == 3
            assert {key: getattr(made(), key) for key in face.defaults} == face.defaults
    kinds = [face.kind for face in own.values() if not face.defaults]
    assert sorted(kinds) == ["algorithm", "config", "trainer"]


BASELINES = [
    name for name in NAMES if make(name).spec.sampling.siblings and make(name).spec.unit != "pair"
]
"""Algorithms that compare with the siblings' mean, or something like it."""


@pytest.mark.parametrize("name", BASELINES)
def test_a_group_of_one_is_refused_early_and_worth_nothing_late(name):
    with pytest.raises((ValueError, ConfigError), match="group_size"):
        registry.load("algorithms", name)(group_size=1)
    algorithm = make(name)
    groups = play(algorithm)
    for episode in groups[0].valid[1:]:
        episode.status = "error"
    fill(groups, algorithm, Prefix(), Prefix(1))
    algorithm.credit(groups)
    (alone,) = groups[0].valid
    assert all(np.all(np.asarray(turn.advantages) == 0.0) for turn in alone.turns)
    assert algorithm.metrics["frac_small_groups"] == pytest.approx(1 / 3)
    assert algorithm.metrics["frac_zero_variance"] == 0.0


@pytest.mark.parametrize("name", BASELINES)
def test_siblings_that_earn_the_same_teach_exactly_nothing(name):
    algorithm = make(name)
    groups = play(algorithm)
    for episode in groups[0]:
        episode.reward, episode.step_rewards = 0.3, [0.1, 0.2]
        for turn in episode.turns:
            turn.reward = 0.1
    fill(groups, algorithm, Prefix(), Prefix(1))
    algorithm.credit(groups)
    for episode in groups[0]:
        trained = [turn for turn in episode.turns if turn.trained]
        assert all(np.all(np.asarray(turn.advantages) == 0.0) for turn in trained)
    assert algorithm.metrics["frac_zero_variance"] == pytest.approx(1 / 3)
