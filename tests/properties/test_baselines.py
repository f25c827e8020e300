"""A baseline takes out what has nothing to do with an answer: a constant on every reward changes no
gradient, and every turn is compared with turns that as much follows."""

import copy
import math
import random
from typing import Any

import numpy as np
import pytest

from grids import quick
from mrlm.core import registry
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.replayed import Replays
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.credit.baselines import comparisons, exact_mean, pooled_scales
from mrlm.learn.credit.groups import members
from mrlm.learn.ops import Moments
from played import replayed

FAMILY = ("magrpo", "marloo", "maremax")
COMPARED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in FAMILY),
    *((name, {"gamma": 0.9, "returns": "independent"}) for name in FAMILY),
    ("magrpo", {"baseline": "remax_greedy", "group_size": 4}), ("grpo", {}),
    ("grpo", {"rewards": "team", "scale_rewards": "none"}), ("grpo", {"scale_rewards": "batch"}),
    ("dr_mas", {}), ("dr_mas", {"baseline_by": "turn"}), ("dr_mas", {"dedupe_per_episode": True}),
    ("marshal", {}), ("marshal", {"gamma": 0.9, "rewards": "team"}), ("matpo", {}), ("rema", {}),
    ("at_grpo", {}), ("rloo", {}), ("reinforce", {"baseline": "mean", "gamma": 0.9}),
    ("reinforce", {"whiten": True}), ("reinforce_pp", {"gamma": 0.9}),
    ("reinforce_pp", {"baseline": "group", "group_size": 4}), ("remax", {}),
    ("spiral", {"gamma": 0.9}), ("c3", {"gamma": 0.9}),
    ("c3", {"baseline": "mean", "decisions": 2}), ("ccpo", {}), ("sharp", {}), ("m_grpo", {}),
]  # fmt: skip
"""Every algorithm that has a baseline and no critic."""


def episodes(
    name: str,
    kind: str,
    constant: float,
    agents: str = "ab",
    forked: bool = False,
    replays: Replays | None = None,
) -> list[Group]:
    """Three groups of four episodes of up to three turns.

    Args:
        name: of the algorithm, for what it requires.
        kind: `dense`: every turn has a reward. `final`: the last one. `ragged`: episodes and agents
            differ in length, with a reward at the end.
        constant: added to every reward.
        replays: of every episode.
    """
    rng = np.random.default_rng(7)
    groups = []
    for number in range(3):
        made = []
        for place in range(4):
            rollouts, steps = {}, 3 if kind != "ragged" else 1 + (place + number) % 3
            paid = rng.normal(size=(len(agents), steps))
            if kind != "dense":
                paid[:, :-1] = 0.0
            for row, agent in zip(paid, agents, strict=True):
                turns = [
                    Turn(agent, "p", [1, step], [2, 3], [-1.0, -1.0], step=step, index=step)
                    for step in range(steps)
                ]
                for turn, reward in zip(turns, row, strict=True):
                    last = turn is turns[-1]
                    turn.reward = float(reward) + (constant if kind == "dense" or last else 0.0)
                rollouts[agent] = Rollout(agent, "p", f"t{number}", turns)
            path = (place, 0, 0) if forked else (place,)
            made.append(
                Episode.recorded(f"{number}-{place}", Task(f"t{number}"), rollouts, path=path)
            )
        if replays is not None:
            made += replayed(made, replays, random.Random(number))
        groups.append(Group(made, f"t{number}"))
    if "greedy" in name:
        for group in groups:
            group.episodes[-1].greedy = True
            for turn in group.episodes[-1].turns:
                turn.trained = False
    return groups


def advantages(algorithm: Any, groups: list[Group]) -> np.ndarray:
    algorithm.credit(groups)
    return np.concatenate(
        [
            np.zeros(len(turn))
            if turn.advantages is None
            else np.broadcast_to(np.asarray(turn.advantages, float), len(turn))
            for group in groups
            for episode in group
            for turn in episode.turns
        ]
    )


def made(name: str, settings: dict[str, Any]) -> Any:
    return registry.load("algorithms", name)(**settings)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Of advantages: gradients are linear in them."""
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


@pytest.mark.parametrize("constant", quick([1.0, 10.0, 100.0], [10.0]))
@pytest.mark.parametrize("kind", ["dense", "final", "ragged"])
@pytest.mark.parametrize(("name", "settings"), COMPARED, ids=lambda value: str(value))
def test_a_constant_on_every_reward_changes_no_advantage(
    name: str, settings: dict[str, Any], kind: str, constant: float
) -> None:
    """With discounts and episodes of different length a constant is a reward for ending early, so
    that `ragged` is not discounted; and what an algorithm credits that looks at the next reward
    only, is that alone."""
    if name in ("at_grpo", "m_grpo"):
        kind = "dense"
    if kind == "ragged" and hasattr(made(name, settings), "gamma"):
        settings = settings | {"gamma": 1.0}
    algorithm = made(name, settings)
    needs = "greedy" if algorithm.spec.sampling.greedy else name
    forked, asked = algorithm.spec.sampling.tree, algorithm.spec.sampling.replays
    before, after = (
        advantages(made(name, settings), episodes(needs, kind, c, forked=forked, replays=asked))
        for c in (0.0, constant)
    )
    assert np.abs(before).max() > 0.1
    np.testing.assert_allclose(after, before, atol=1e-5)
    assert cosine(after, before) > 0.999999


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("magrpo", {"baseline_by": "episode"}),
        ("marloo", {"baseline_by": "role"}),
        ("magrpo", {"baseline_by": "batch"}),
        ("reinforce", {"baseline": "mean", "baseline_by": "batch"}),
        ("reinforce_pp", {"baseline_by": "batch"}),
        ("marshal", {"baseline_by": "role"}),
        ("remax", {"baseline_by": "episode"}),
        ("magrpo", {"baseline": "remax_greedy", "group_size": 4, "baseline_by": "episode"}),
    ],
)
def test_baselines_that_do_not_look_at_the_turn_turn_the_gradient(
    name: str, settings: dict[str, Any]
) -> None:
    needs = "greedy" if made(name, settings).spec.sampling.greedy else name
    before = advantages(made(name, settings), episodes(needs, "dense", 0.0))
    after = advantages(made(name, settings), episodes(needs, "dense", 100.0))
    assert cosine(after, before) < 0.7


def rows(by: Any, *returns: list[float]) -> list[tuple[list[float], list[float]]]:
    """Of every comparison, what is compared and with what."""
    siblings = []
    for number, row in enumerate(returns):
        turns = [Turn("a", "p", [1], [2], step=step) for step in range(len(row))]
        part = {"a": Rollout("a", "p", "t", turns)}
        siblings.append(Episode.recorded(str(number), Task("t"), part, path=(number,)))
    found = members(Group(siblings, "t"))["a"]
    return [(each.values.tolist(), each.pool.tolist()) for each in comparisons(found, returns, by)]


def test_who_is_compared_with_whom() -> None:
    returns = [6.0, 4.0, 1.0], [3.0, 2.0], [9.0]
    assert rows("turn", *returns) == [
        ([6.0, 3.0, 9.0], [6.0, 3.0, 9.0]),
        ([4.0, 2.0], [4.0, 2.0]),
        ([1.0], [1.0, 2.0, 9.0]),  # no sibling has a third turn: against their last ones
    ]
    every = [6.0, 4.0, 1.0, 3.0, 2.0, 9.0]
    assert rows("role", *returns) == rows("batch", *returns) == [(every, every)]
    ((values, pool),) = rows("episode", *returns)
    assert values == every and pool == pytest.approx([11 / 3, 2.5, 9.0])
    assert next(pool for _, pool in rows("node", *returns)) == [6.0, 3.0, 9.0]
    assert exact_mean(np.array([0.1] * 3)) == 0.1


def test_the_mean_of_the_others_leaves_out_all_turns_of_the_same_episode() -> None:
    siblings = episodes("marloo", "dense", 0.0, agents="a")[:1]
    found = members(siblings[0])["a"]
    returns = [[float(3 * number + place) for place in range(3)] for number in range(4)]
    (pooled,) = comparisons(found, returns, "role")
    expected = [
        x - np.mean([y for other in returns if x not in other for y in other])
        for row in returns
        for x in row
    ]
    np.testing.assert_allclose(pooled.advantages("leave_one_out"), expected)


def test_the_batch_is_compared_over_all_tasks() -> None:
    groups = episodes("magrpo", "dense", 0.0)
    found = advantages(made("magrpo", {"baseline_by": "batch"}), groups)
    values = [turn.returns for group in groups for e in group for turn in e.rollouts["a"].turns]
    first = groups[0].episodes[0].rollouts["a"].turns[0]
    assert first.advantages == pytest.approx(first.returns - np.mean(values))  # type: ignore[operator]
    assert abs(found.sum()) < 1e-9


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("mareinforce", {"baseline_by": "turn"}, "baseline is 'none'"),
        ("magrpo", {"baseline_by": "turn", "joint_mode": "cross"}, "joint_mode='cross' compares"),
        ("reinforce", {"baseline_by": "turn"}, "baseline is 'none'"),
        (
            "magrpo",
            {"baseline_by": "role", "baseline": "remax_greedy"},
            "by 'turn' or by 'episode'",
        ),
        (
            "dr_mas",
            {"baseline_by": "turn", "dedupe_per_episode": True},
            "counts every episode once",
        ),
    ],
)
def test_a_comparison_that_changes_nothing_is_refused(
    name: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        made(name, settings)


def test_states_are_compared_where_there_are_trees_only() -> None:
    algorithm = made("magrpo", {"baseline_by": "node"})
    assert algorithm.spec.sampling.tree
    with pytest.raises(ConfigError, match="were not forked; set baseline_by=turn"):
        algorithm.credit(episodes("magrpo", "dense", 0.0))
    trees = episodes("magrpo", "dense", 0.0, forked=True)
    usual = advantages(made("magrpo", {}), copy.deepcopy(trees))
    np.testing.assert_allclose(advantages(algorithm, trees), usual)


def test_turns_of_an_agent_share_the_scale_of_all_their_deviations() -> None:
    """By hand: squares of 3 x 2 and 1 x 8 over 3 + 1 degrees of freedom; a single turn has none,
    whatever its number says of a variance."""
    moments = {
        "a/0": Moments(4, 5.0, 2.0),
        "a/1": Moments(2, -1.0, 8.0),
        "a/2": Moments(1, 9.0, 100.0),
        "b/0": Moments(1, 3.0, 0.0),
    }
    found = pooled_scales(moments, "turn")
    team = math.sqrt((3 * 2.0 + 1 * 8.0) / 4 + 1e-8)
    assert found == pytest.approx({"a/0": team, "a/1": team, "a/2": team, "b/0": 1e-4})
    assert pooled_scales({"a": Moments(3, 0.0, 4.0)}, "batch") == pytest.approx({"a": 2.0})
