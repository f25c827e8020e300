"""The exact gradients that the credit of algorithms is measured against, and what they say."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.credit import curves_report, report
from benchmarks.credit.__main__ import main
from benchmarks.credit.curves import COURSES, RULES, Curve, expected, learn, on_grid
from benchmarks.credit.exact import Solved
from benchmarks.credit.games import GAMES
from benchmarks.credit.measure import Entry, measure, numbers_of
from benchmarks.credit.play import Player
from benchmarks.credit.table import ENTRIES, LEFT_OUT

from mrlm.core import registry
from mrlm.core.replayed import Replays


@pytest.mark.parametrize("name", GAMES)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    game = GAMES[name]
    solved = Solved.random(game, 4)
    for place, where in solved.places.items():
        for act in range(len(solved.logits[place])):
            ends = []
            for change in (1e-5, -1e-5):
                logits = {key: x.copy() for key, x in solved.logits.items()}
                logits[place][act] += change
                moved = Solved(game, logits)
                ends.append(sum(p * moved.value(state)[place[0]] for p, state in game.starts))
            slope = (ends[0] - ends[1]) / 2e-5
            assert solved.gradient[where.start + act] == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["chain", "sparse4", "duel"])
def test_played_episodes_return_what_the_values_say(name: str) -> None:
    solved = Solved.random(GAMES[name], 1)
    episodes = [e for g in Player(solved, 2).play("chain", 400, 4).groups for e in g]
    for agent in GAMES[name].actions:
        returns = np.array([episode.rollouts[agent].reward for episode in episodes])
        expected = sum(p * solved.value(state)[agent] for p, state in GAMES[name].starts)
        assert abs(returns.mean() - expected) < 4 * returns.std() / math.sqrt(len(returns))


@pytest.mark.parametrize("plan", ["tree", "pruned_tree"])
def test_every_answer_of_a_tree_is_trained_once(plan: Any) -> None:
    played = Player(Solved.random(GAMES["dense4"], 1), 2).play(plan, 2, 4)
    trained = [turn for group in played.groups for e in group for turn in e.turns if turn.trained]
    assert len(trained) == len({id(turn) for turn in trained}) == len(played.turns)
    states = 1 + 4 + 8 + 16 if plan == "tree" else 4  # four answers to the first, then two
    assert played.evaluations == 2 * (4 + 2 * (states - 1))  # groups
    assert len(trained) == 2 * played.evaluations  # agents


@pytest.mark.parametrize("kind", ["alternatives", "silence", "coalitions"])
def test_replays_change_one_decision(kind: Any) -> None:
    """Of four turns of two agents: what was before the change, and at the same time, is as it was;
    only an alternative is trained."""
    played = Player(Solved.random(GAMES["dense4"], 1), 2).play(Replays(kind, 3), 2, 2)
    trained = [turn for group in played.groups for e in group for turn in e.turns if turn.trained]
    assert len(trained) == len({id(turn) for turn in trained}) == len(played.turns)
    for group in played.groups:
        originals = {episode.id: episode for episode in group.valid}
        assert (
            len(group.replays) == 2 * 3 * {"alternatives": 8, "silence": 2, "coalitions": 3}[kind]
        )
        for episode in group.replays:
            mark = episode.replayed
            assert mark is not None
            first = mark.index or 0
            kept = {(t.agent, t.step): t.completion_ids for t in originals[mark.of].turns}
            for turn in episode.turns:
                changed = turn.agent in mark.agents and turn.step >= first
                if turn.step < first or (turn.step == first and not changed):
                    assert turn.completion_ids == kept[turn.agent, turn.step]
                if changed and kind != "alternatives":
                    assert turn.completion_ids == [0]
                assert turn.trained == (kind == "alternatives" and changed and turn.step == first)


def test_the_length_of_a_mean_is_not_that_of_its_noise() -> None:
    """Without a signal the squared length of a mean is the variance over the number: without that
    being taken away, pure noise would have a cosine and a ratio."""
    rng = np.random.default_rng(0)
    true = np.array([3.0, 4.0])
    noise = rng.normal(size=(4000, 2))
    numbers, errors = numbers_of(true + noise, true)
    assert abs(numbers[0] - 1) < 0.01 and abs(numbers[1] - 1) < 0.02
    assert abs(numbers[2] - 25 / 2) < errors[2] * 2 + 0.5
    assert abs(numbers_of(noise, true)[0][2]) < 0.01


UNBIASED: tuple[Entry, ...] = (
    Entry("reinforce"),
    Entry("reinforce", {"baseline": "mean"}),
    Entry("rloo", {"group_size": 4}),
    Entry("remax"),
    Entry("mareinforce", {"gamma": 1.0}),
    Entry("magrpo", {"group_size": 4, "gamma": 1.0}),
    Entry("marloo", {"group_size": 4, "gamma": 1.0}),
    Entry("marshal", {"group_size": 4, "scale_rewards": "none"}),
    Entry("c3", {"alternatives": 1}),
    Entry("ccpo", {"group_size": 4, "scale_rewards": "none"}),
    Entry("m_grpo", {"group_size": 4, "scale_rewards": "none"}),
    Entry("spiral"),
    Entry("a2c"),
    Entry("mappo", {"whiten_advantages": False, "gae_lambda": 1.0}),
    Entry("ppo", {"whiten_advantages": False, "gae_lambda": 1.0}, critic="noisy"),
)


LONG = ("climbing", "chain", "dense4")


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "batches"),
    [("chain", 40), *(pytest.param(game, 100, marks=pytest.mark.slow) for game in LONG)],
)
def test_credit_without_scales_points_where_the_gradient_does(name: str, batches: int) -> None:
    for each in measure(GAMES[name], UNBIASED, batches=batches, seeds=(0,)):
        assert not each.reason, each
        assert abs(1 - each.cosine) < 2 * each.cosine_error + 0.01, each


@pytest.mark.system
def test_what_is_known_to_point_elsewhere_does() -> None:
    """Division by a group's own deviation, and answers of a tree that count by their number."""
    entries = [Entry("grpo", {"group_size": 4}), Entry("at_grpo", {"group_size": 4})]
    (grpo, _) = measure(GAMES["climbing"], entries, batches=200, seeds=(0,))
    (_, at_grpo) = measure(GAMES["dense4"], entries, batches=40, seeds=(0,))
    assert report.biased(grpo) and grpo.cosine > 0.8
    assert report.biased(at_grpo)


def test_a_rule_learns_within_its_evaluations() -> None:
    """Every rule of the curves asks for as many joint steps, up to a group; true credit climbs, and
    a run follows from its seed."""
    course = replace(COURSES["dense4"], updates=6)
    for rule in RULES:
        curve = learn(course, rule, 2.0, 0)
        assert curve.steps[0] == 0 and 384 <= curve.steps[-1] < 384 + 64
        assert curve.returns[0] == pytest.approx(expected(Solved.random(GAMES["dense4"], 0)))
        assert curve.final > curve.returns[0] + 0.1, rule
    assert learn(course, RULES[-1], 2.0, 0) == curve
    flat = Curve("g", "e", 1.0, 0, [0, 100, 400], [0.0, 1.0, 1.0])
    assert flat.area == pytest.approx(0.875)
    assert on_grid([flat, replace(flat, steps=[0, 50, 300])], 3)[0].tolist() == [0, 100, 200, 300]


def test_the_program_writes_curves_and_keeps_those_of_other_rules(
    tmp_path: Path, capsys: Any
) -> None:
    words = ["--curves", "--quick", "--jobs", "1", "--output", str(tmp_path), "--games", "crowd8"]
    for rule in ("c3", "magrpo"):
        assert main([*words, "--algorithms", rule]) == 0
    said = capsys.readouterr().out
    assert said.rindex("| magrpo") < said.rindex("| c3 ") and "2 seeds" in said
    found = curves_report.load(tmp_path / "curves.json")
    assert {(each.entry.split(" ")[0], each.tuning) for each in found} == {
        (name, tuning) for name in ("c3", "magrpo") for tuning in (False, True)
    }
    figure = (tmp_path / "curves.svg").read_text()
    assert figure.startswith("<svg") and figure.count("<polyline") == 3
    assert main(["--curves", "--games", "duel"]) == 2


def test_every_algorithm_is_measured_or_said_to_be_left_out() -> None:
    measured = {entry.algorithm for entry in ENTRIES}
    assert measured | set(LEFT_OUT) == set(registry.names("algorithms"))
    assert not measured & set(LEFT_OUT)


def test_the_program_writes_tables_and_a_figure(tmp_path: Path, capsys: Any) -> None:
    games = ["--games", "xor", "duel", "--algorithms", "magrpo", "spiral"]
    assert main([*games, "--quick", "--jobs", "1", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "| spiral |" in said and "| | xor | duel |" in said
    found = report.load(tmp_path / "credit.json")
    assert found == report.load(tmp_path / "credit.json") and len(found) == 12
    reasons = {(each.entry, each.game): each.reason for each in found}
    assert "the team's reward, which never changes" in reasons["magrpo", "duel"]
    assert json.loads((tmp_path / "credit.json").read_text())[0]["game"] == "xor"
    figure = (tmp_path / "credit.svg").read_text()
    assert figure.startswith("<svg") and "spiral" in figure
    assert main(["--games", "chess"]) == 2
