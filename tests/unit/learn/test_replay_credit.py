"""Credit by replays, and by calls of sub-agents, in numbers computed by hand."""

from typing import Any

import pytest

from mrlm.algorithms.c3 import C3
from mrlm.algorithms.ccpo import CCPO
from mrlm.algorithms.m_grpo import MGRPO, aligned
from mrlm.algorithms.sharp import SHARP
from mrlm.core.episodes import Episode, Group
from mrlm.core.replayed import ReplayKind, ReplayMark, Replays
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.credit.replays import decisions


def episode(
    name: str, steps: list[str], rewards: list[float], trained: Any = True, **fields: Any
) -> Episode:
    """An episode whose joint steps have the agents named by their letters, and its rewards."""
    parts: dict[str, Rollout] = {}
    for number, agents in enumerate(steps):
        for agent in agents:
            rollout = parts.setdefault(agent, Rollout(agent, "p", "t", []))
            index = len(rollout.turns)
            learns = trained if isinstance(trained, bool) else trained == (agent, index)
            turn = Turn(agent, "p", [1, number], [2], step=number, index=index, trained=learns)
            turn.reward = rewards[number]
            rollout.turns.append(turn)
    return Episode(name, Task("t"), parts, sum(rewards), list(rewards), "done", **fields)


def replay(
    of: str,
    kind: ReplayKind,
    agents: str,
    steps: list[str],
    rewards: list[float],
    index: Any = None,
) -> Episode:
    trained = (agents, index) if index is not None else False
    mark = ReplayMark(of, kind, tuple(agents), index)
    return episode(f"{of}~{agents}{rewards}", steps, rewards, trained, replayed=mark)


def found(group: Group) -> dict[str, list[Any]]:
    """Episode and agent -> advantage of every turn."""
    return {
        f"{each.id}/{agent}": [turn.advantages for turn in rollout.turns]
        for each in group
        for agent, rollout in each.rollouts.items()
    }


STEPS = ["ab", "a"]


def answers() -> Group:
    """An episode of two joint steps: the first turn of `a` has two alternatives, its second one,
    and the turn of `b` one."""
    return Group(
        [
            episode("e", STEPS, [0.0, 1.0]),
            replay("e", "alternatives", "a", STEPS, [0.0, 0.0], 0),
            replay("e", "alternatives", "a", STEPS, [0.5, 0.0], 0),
            replay("e", "alternatives", "a", STEPS, [0.0, 0.4], 1),
            replay("e", "alternatives", "b", STEPS, [0.0, 2.0], 0),
        ]
    )


def test_c3_compares_the_answers_to_a_decision() -> None:
    group = answers()
    C3().credit([group])
    assert found(group) == {
        "e/a": [pytest.approx(1 - 0.25), pytest.approx(0.6)],
        "e/b": [pytest.approx(-1.0)],
        "e~a[0.0, 0.0]/a": [pytest.approx(-0.75), None],
        "e~a[0.0, 0.0]/b": [None],
        "e~a[0.5, 0.0]/a": [pytest.approx(0.0), None],
        "e~a[0.5, 0.0]/b": [None],
        "e~a[0.0, 0.4]/a": [None, pytest.approx(-0.6)],
        "e~a[0.0, 0.4]/b": [None],
        "e~b[0.0, 2.0]/a": [None, None],
        "e~b[0.0, 2.0]/b": [pytest.approx(1.0)],
    }


def test_c3_with_a_discount_and_the_mean_of_all() -> None:
    group = answers()
    C3(gamma=0.5, baseline="mean").credit([group])
    made = found(group)
    assert made["e/a"] == [pytest.approx(0.5 - 1 / 3), pytest.approx(0.3)]
    assert made["e~a[0.5, 0.0]/a"] == [pytest.approx(0.5 - 1 / 3), None]
    assert made["e/b"] == [pytest.approx(0.5 - 0.75)]


def test_c3_weighs_the_decisions_that_stand_for_others() -> None:
    group = answers()
    group.episodes = [each for each in group if "~b" not in each.id and "0.4" not in each.id]
    C3(decisions=1).credit([group])
    assert found(group)["e/a"] == [pytest.approx(3 * 0.75), None]  # one of three turns
    assert found(group)["e/b"] == [None]


def test_a_failed_alternative_is_no_answer() -> None:
    group = answers()
    group.episodes[1].status = "error"
    assert [len(each) for each in decisions(group)] == [2, 2, 2]
    C3().credit([group])
    assert found(group)["e/a"][0] == pytest.approx(0.5)
    for each in group.episodes[1:]:
        each.status = "error"
    C3().credit([group])
    assert set(map(str, found(group)["e/a"])) == {"None"}


def silent(kind: ReplayKind = "silence") -> Group:
    """Two episodes; without `a` the first has lost .8 and the second nothing, without `b` both
    have lost a tenth."""
    made = [episode("x", ["a", "b"], [0.0, 1.0]), episode("y", ["a", "b"], [0.0, 0.2])]
    worth = {"x": {"a": 0.2, "b": 0.9, "ab": 0.0}, "y": {"a": 0.2, "b": 0.1, "ab": 0.0}}
    for name, each in worth.items():
        for agents, reward in each.items():
            if kind == "coalitions" or len(agents) == 1:
                made.append(replay(name, kind, agents, ["a", "b"], [0.0, reward]))
    return Group(made)


def test_ccpo_credits_what_an_agent_added() -> None:
    group = silent()
    CCPO(scale_rewards="none", group_size=2).credit([group])
    made = found(group)
    assert made["x/a"] == [pytest.approx(0.4)] and made["y/a"] == [pytest.approx(-0.4)]
    assert [*made["x/b"], *made["y/b"]] == [pytest.approx(0.0)] * 2
    CCPO(scale_rewards="none", group_size=2, team_coef=1, credit_coef=0.2).credit([group])
    assert found(group)["x/a"] == [pytest.approx((1 + 0.16 - 0.2) / 2)]
    assert found(group)["x/b"] == [pytest.approx(0.4)]


def test_ccpo_takes_the_mean_of_several_replays_and_leaves_out_what_is_unknown() -> None:
    group = silent()
    group.episodes.append(replay("x", "silence", "a", ["a", "b"], [0.0, 0.6]))
    CCPO(scale_rewards="none", group_size=2, silent=2).credit([group])
    assert found(group)["x/a"] == [pytest.approx((1 - 0.4) / 2)]
    group.episodes[2].status = group.episodes[-1].status = "error"  # those of x without a
    CCPO(scale_rewards="none", group_size=2).credit([group])
    assert found(group)["x/a"] == [None] and found(group)["y/a"] == [0.0]


def test_sharp_adds_shapley_values_to_the_reward_of_the_team() -> None:
    """x: a = ((1 - .2) + (.9 - 0)) / 2 = .85, b = .15; y: a = (0 + .1) / 2 = .05, b = .15."""
    group = silent("coalitions")
    SHARP(scale_rewards="none", group_size=2).credit([group])
    made = found(group)
    assert made["x/a"] == [pytest.approx((1.85 - 0.25) / 2)]
    assert made["x/b"] == [pytest.approx((1.15 - 0.35) / 2)]
    SHARP(scale_rewards="none", group_size=2, team_coef=0).credit([group])
    assert found(group)["x/b"] == [pytest.approx(0.0)]


def test_sharp_by_marginal_gains_is_ccpo_with_a_reward_for_tools() -> None:
    group = silent()
    group.episodes[0].rollouts["b"].turns[0].components = {"tool": 3.0}
    sharp = SHARP(
        scale_rewards="none", group_size=2, team_coef=0, credit_by="marginal", tool="tool",
        tool_coef=0.1,
    )  # fmt: skip
    assert sharp.spec.sampling.replays == Replays("silence")
    sharp.credit([group])
    assert found(group)["x/a"] == [pytest.approx(0.4)]
    assert found(group)["x/b"] == [pytest.approx(0.15)]


def test_m_grpo_compares_calls_and_aligns_them() -> None:
    """The planner `a` calls `b` once in the first episode, and three times in the second."""
    one = episode("x", ["a", "b"], [0.0, 1.0])
    two = episode("y", ["a", "b", "b", "b"], [0.0, 0.0, 0.5, 0.1])
    group = Group([one, two])
    one.rollouts["a"].turns[0].reward, two.rollouts["a"].turns[0].reward = 1.0, 0.6
    MGRPO(scale_rewards="none", group_size=2).credit([group])
    made = found(group)
    assert made["x/a"] == [pytest.approx(0.2)] and made["y/a"] == [pytest.approx(-0.2)]
    scores = [1.0, 0.3, 0.55, 0.35]  # the first three times
    mean = (3 * scores[0] + sum(scores[1:])) / 6
    assert made["x/b"] == [pytest.approx(3 * (1.0 - mean))]
    assert made["y/b"] == [pytest.approx(score - mean) for score in scores[1:]]
    MGRPO(scale_rewards="none", group_size=2, calls=1).credit([group])
    kept = [value for value in found(group)["y/b"] if value is not None]
    assert len(kept) == 1 and found(group)["x/b"] == [pytest.approx(-kept[0])]


def test_calls_are_used_as_equally_as_possible() -> None:
    assert sorted(aligned(3, 7, "e")) == [2, 2, 3] and sum(aligned(9, 4, "e")) == 4
    assert aligned(3, 7, "e") == aligned(3, 7, "e")
    assert len({tuple(aligned(3, 1, str(seed))) for seed in range(20)}) == 3
