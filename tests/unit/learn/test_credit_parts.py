"""The parts that credit is made of, each by hand: who is comparable, returns, joint steps, shaped
rewards, running moments, trees, and episodes as a user brings them."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mrlm.core.chat import Chat
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.types import Message, MessageType, Rollout, SamplingParams, Task, Turn
from mrlm.learn.bases.spec import SamplingPlan
from mrlm.learn.credit import groups as walking
from mrlm.learn.credit.baselines import Comparison, comparisons, deviation, resolved
from mrlm.learn.credit.groups import members
from mrlm.learn.credit.joint_steps import joint_steps, joint_texts
from mrlm.learn.credit.returns import by_state, forked, node_returns
from mrlm.learn.credit.reward_shaping import shaped
from mrlm.learn.credit.running_stats import RunningStats, Window
from mrlm.learn.credit.user_rollouts import (
    COMPUTED,
    RolloutReader,
    as_planned,
    booked,
    check_usable,
    grouped,
    opening_of,
)
from mrlm.learn.ops import Moments


def turn(agent: str, step: int, reward: float = 0.0, said: Sequence[int] = (2,)) -> Turn:
    return Turn(agent, "p", [1, step], list(said), reward=reward, step=step, index=step)


def part(agent: str, *turns: Turn) -> Rollout:
    return Rollout(agent, "p", "t", list(turns))


def episode(
    name: str, parts: dict[str, list[Turn]], steps: list[float] | None = None, **more: Any
) -> Episode:
    """Agents' turns, with the team's rewards where they are given."""
    rollouts = {agent: part(agent, *turns) for agent, turns in parts.items()}
    if steps is None:
        return Episode.recorded(name, Task("t"), rollouts, **more)
    return Episode(name, Task("t"), rollouts, sum(steps), steps, **{"status": "done", **more})


def column_of(found: dict[str, list[Any]]) -> dict[str, list[str]]:
    return {agent: [each.id for each, _ in rollouts] for agent, rollouts in found.items()}


# -- who is compared with whom ---------------------------------------------------------------------


def test_only_what_has_finite_rewards_and_something_to_train_is_comparable() -> None:
    good = episode("good", {"a": [turn("a", 0)], "b": [turn("b", 0)]})
    failed = episode("failed", {"a": [turn("a", 0)]})
    failed.status = "error"
    team = episode("team", {"a": [turn("a", 0)]})
    team.reward = math.nan
    own = episode("own", {"a": [turn("a", 0)], "b": [turn("b", 0)]})
    own.rollouts["a"].turns[0].reward = math.inf
    silent = episode("silent", {"a": [turn("a", 0, said=())], "b": [turn("b", 0)]})
    context = episode("context", {"a": [turn("a", 0)]})
    context.rollouts["a"].turns[0].trained = False
    group = Group([good, failed, team, own, silent, context], "t")
    assert column_of(members(group)) == {"a": ["good"], "b": ["good", "own", "silent"]}
    again = Group([episode("more", {"a": [turn("a", 0)]})], "t")
    found = walking.all_members([group, again])
    assert column_of(found) == {"a": ["good", "more"], "b": ["good", "own", "silent"]}
    assert walking.sides(found, "agent") == found
    (everybody,) = walking.sides(found, "task").values()
    assert [each.id for each, _ in everybody] == ["good", "more", "good", "own", "silent"]
    assert walking.sides(found, {"a": "x"}).keys() == {"x", "b"}
    assert walking.several(found["a"]) and not walking.several(found["a"][:1] * 2)
    assert not walking.several([])


def test_credit_is_forgotten_and_given() -> None:
    rows = [turn("a", 0), turn("a", 1, said=()), turn("a", 2), turn("a", 3)]
    rows[2].trained = False
    group = Group([episode("e", {"a": rows})])
    walking.assign(group.episodes[0].rollouts["a"], np.float64(0.5))  # type: ignore[arg-type]
    assert [each.advantages for each in rows] == [0.5, None, None, 0.5]
    assert walking.trained_turns(group.episodes[0].rollouts["a"]) == [rows[0], rows[3]]
    rows[1].advantages = rows[2].advantages = 1.0  # not trained
    rows[0].returns = 2.0
    assert walking.credited_turns([group]) == {"a": [rows[0], rows[3]]}
    assert walking.credited_turns([group], "turn") == {"a/0": [rows[0]], "a/3": [rows[3]]}
    walking.clear([group])
    assert all(each.advantages is None and each.returns is None for each in rows)
    assert walking.credited_turns([group]) == {}


def test_what_the_team_is_paid_until_an_agent_speaks_again() -> None:
    rows = [turn("a", 0), turn("a", 2), turn("a", 3)]
    made = episode("e", {"a": rows}, [1.0, 10.0, 100.0, 1000.0, 10000.0])
    assert walking.team_rewards(made, made.rollouts["a"]) == [11.0, 100.0, 11000.0]
    rows[1].trained = False
    assert walking.team_rewards(made, made.rollouts["a"]) == [111.0, 11000.0]
    alone = episode("e", {"a": [turn("a", 0)]})
    alone.reward, alone.step_rewards = 3.0, []
    assert walking.team_rewards(alone, alone.rollouts["a"]) == [3.0]


@pytest.mark.parametrize(
    ("rewards", "gamma", "times", "expected"),
    [
        ([], 0.5, None, []),
        ([3.0], 0.5, None, [3.0]),
        ([1.0, 2.0, 4.0], 0.5, None, [3.0, 4.0, 4.0]),
        ([1.0, 2.0, 4.0], 1.0, None, [7.0, 6.0, 4.0]),
        ([1.0, 2.0, 4.0], 0.0, None, [1.0, 2.0, 4.0]),
        ([1.0, 2.0, 4.0], 0.5, [0, 3, 4], [1.5, 4.0, 4.0]),
        ([1.0, 2.0], 0.5, [2, 2], [3.0, 2.0]),
        ([1.0, 2.0, 4.0], 0.5, [0, 0, 2], [4.0, 3.0, 4.0]),
    ],
)
def test_returns_to_go(rewards: Any, gamma: float, times: Any, expected: list[float]) -> None:
    assert walking.discounted(rewards, gamma, times) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("x", "centred", "others", "std"),
    [
        ([], [], [], 0.0),
        ([5.0], [0.0], [0.0], 0.0),
        ([0.1, 0.1, 0.1], [0.0] * 3, [0.0] * 3, 0.0),
        ([1 / 3] * 7, [0.0] * 7, [0.0] * 7, 0.0),
        ([1.0, 3.0], [-1.0, 1.0], [-2.0, 2.0], math.sqrt(2)),
        ([1.0, 2.0, 6.0], [-2.0, -1.0, 3.0], [-3.0, -1.5, 4.5], math.sqrt(7)),
    ],
)
def test_rewards_against_their_mean(x: Any, centred: Any, others: Any, std: float) -> None:
    row = np.array(x)
    assert walking.centred(row).tolist() == pytest.approx(centred, abs=0.0)
    assert walking.leave_one_out(row).tolist() == pytest.approx(others, abs=0.0)
    assert walking.group_std(row) == pytest.approx(std, abs=0.0)
    scaled = [value / (std + 1e-6) for value in centred]
    assert walking.standardised(row).tolist() == pytest.approx(scaled, rel=1e-12)


@pytest.mark.parametrize(
    ("length", "cache", "penalty"),
    [
        *((15, 4, 0.0), (16, 4, 0.0), (17, 4, -0.25), (20, 4, -1.0), (30, 4, -1.0)),
        *((20, 0, 0.0), (21, 0, -1.0)),
    ],
)
def test_what_is_too_long_costs_more_and_more(length: int, cache: int, penalty: float) -> None:
    assert walking.overlong_penalty(length, 20, cache) == penalty


@pytest.mark.parametrize(
    ("kl", "factor"), [(4.0, 1.04), (9.0, 1.04), (2.2, 1.02), (2.0, 1.0), (1.9, 0.99), (0.0, 0.96)]
)
def test_the_price_of_divergence_follows_it(kl: float, factor: float) -> None:
    found = walking.adaptive_kl_coef(0.5, kl, target=2.0, num=20, horizon=100)
    assert found == pytest.approx(0.5 * factor)


def test_columns_are_read_or_named() -> None:
    made = turn("a", 0, said=(2, 3))
    with pytest.raises(TrainingError, match=r"agent 'a' \(policy 'p'\) has no values"):
        walking.column(made, "values")
    with pytest.raises(TrainingError, match="has no values"):
        walking.state_value(made)
    made.values = 0.5
    assert walking.column(made, "values").tolist() == [0.5, 0.5]
    assert walking.state_value(made) == 0.5
    made.values = np.array([0.25, 0.75])
    assert walking.state_value(made) == 0.25
    made.logprobs, made.ref_logprobs = [-1.0, -2.0], [-3.0, -1.0]
    assert walking.sampled_kl(made).tolist() == [2.0, -1.0]
    made.old_logprobs = [-1.5, -1.0]
    assert walking.sampled_kl(made).tolist() == [1.5, 0.0]


# -- baselines -------------------------------------------------------------------------------------


def compared(values: list[float], owners: list[int], flat: bool = False) -> Comparison:
    row, whose = np.array(values), np.array(owners)
    return Comparison([turn("a", 0) for _ in values], row, whose, row, whose, flat)


def test_advantages_against_every_baseline() -> None:
    found = compared([1.0, 2.0, 6.0], [0, 0, 1])
    assert found.advantages("none").tolist() == [1.0, 2.0, 6.0]
    assert found.advantages("mean").tolist() == [-2.0, -1.0, 3.0]
    assert found.advantages("leave_one_out").tolist() == [-5.0, -4.0, 4.5]
    assert found.advantages("group_max").tolist() == [-5.0, -4.0, 0.0]
    found.advantages("none")[0] = 9.0
    assert found.values[0] == 1.0
    flat = compared([1.0, 2.0], [0, 0], flat=True)
    assert flat.advantages("mean").tolist() == [0.0, 0.0]
    assert flat.advantages("none").tolist() == [1.0, 2.0]


def test_one_deviation_for_all_comparisons() -> None:
    first, second = compared([1.0, 3.0], [0, 1]), compared([0.0, 3.0, 6.0], [0, 1, 2])
    assert deviation([first, second]) == pytest.approx(math.sqrt((2 + 18) / 3))
    lonely = compared([5.0], [0], flat=True)
    assert deviation([first, lonely]) == pytest.approx(math.sqrt(2))
    same = compared([1.0, 3.0], [0, 1], flat=True)
    assert deviation([same, lonely]) == 0.0 and deviation([lonely]) == deviation([]) == 0.0
    assert deviation([same, second]) == pytest.approx(math.sqrt(20 / 3))


@pytest.mark.parametrize(
    ("by", "pools", "flats"),
    [
        ("turn", [[1.0, 1.0], [3.0, 3.0]], [True, True]),
        ("role", [[1.0, 3.0, 1.0, 3.0]], [True]),
        ("episode", [[2.0, 2.0]], [True]),
        ("batch", [[1.0, 3.0, 1.0, 3.0]], [False]),
    ],
)
def test_episodes_that_return_the_same_turn_by_turn(by: Any, pools: Any, flats: list[bool]) -> None:
    siblings = [episode(str(i), {"a": [turn("a", 0), turn("a", 1)]}) for i in range(2)]
    found = comparisons(members(Group(siblings))["a"], [[1.0, 3.0]] * 2, by)
    assert [each.pool.tolist() for each in found] == pools
    assert [each.flat for each in found] == flats
    assert comparisons([], [], by) == []


def test_turns_are_compared_by_their_number_among_all_of_the_agents() -> None:
    """The second episode's first turn is context: its other turn is the second one all the same.
    What no other episode has is compared with what these returned last."""
    one = episode("0", {"a": [turn("a", 0), turn("a", 1)]})
    other = episode("1", {"a": [turn("a", 0), turn("a", 1), turn("a", 2)]})
    other.rollouts["a"].turns[0].trained = False
    found = comparisons(members(Group([one, other]))["a"], [[1.0, 2.0], [5.0, 9.0]], "turn")
    assert [each.pool.tolist() for each in found] == [[1.0, 9.0], [2.0, 5.0], [9.0, 2.0]]
    assert [each.pool_owners.tolist() for each in found] == [[0, 1], [0, 1], [1, 0]]
    assert [each.owners.tolist() for each in found] == [[0], [0, 1], [1]]
    assert [each.values.tolist() for each in found] == [[1.0], [2.0, 5.0], [9.0]]


def test_an_answer_counts_once_however_many_go_on_from_it() -> None:
    """Two answers; from the first, two more."""
    paths = [(0, 0), (0, 1), (1,)]
    made = [
        episode(str(path), {"a": [turn("a", step) for step in range(len(path))]}, path=path)
        for path in paths
    ]
    returns = [[4.0, 1.0], [4.0, 7.0], [2.0]]
    first, second = comparisons(members(Group(made))["a"], returns, "node")
    assert first.values.tolist() == [4.0, 4.0, 2.0] and first.pool.tolist() == [4.0, 2.0]
    assert first.advantages("mean").tolist() == [1.0, 1.0, -1.0]
    assert second.values.tolist() == second.pool.tolist() == [1.0, 7.0]
    assert not first.flat and not second.flat


def test_what_is_meant_where_nothing_is_set() -> None:
    assert [resolved(None, forked) for forked in (False, True)] == ["turn", "node"]
    assert [resolved("role", forked) for forked in (False, True)] == ["role", "role"]
    assert resolved("node", True) == "node"
    with pytest.raises(ConfigError, match="were not forked"):
        resolved("node", False)


# -- joint steps -----------------------------------------------------------------------------------


def test_joint_steps_and_their_rewards() -> None:
    rows = {"b": [turn("b", 1), turn("b", 1)], "a": [turn("a", 1), turn("a", 4)]}
    rows["b"][0].index, rows["b"][1].index = 1, 0
    made = episode("e", rows, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    first, second = joint_steps(made, 0.5)
    assert first.turns == [rows["a"][0], rows["b"][1], rows["b"][0]]
    assert (first.reward, first.discount) == (2.0 + 0.5 * 4.0 + 0.25 * 8.0, 0.125)
    assert (second.reward, second.discount) == (16.0 + 0.5 * 32.0, 0.25)
    assert [step.reward for step in joint_steps(made)] == [14.0, 48.0]
    rows["b"][0].trained, rows["b"][1].completion_ids = False, []
    assert first.trained == [rows["a"][0]]
    late = episode("e", {"a": [turn("a", 0)]})
    late.reward, late.step_rewards = 3.0, []
    assert [(s.reward, s.discount) for s in joint_steps(late, 0.5)] == [(3.0, 0.5)]
    late.rollouts["a"].turns.append(turn("a", 2))  # beyond what was paid
    late.step_rewards = [3.0]
    assert [(s.reward, s.discount) for s in joint_steps(late, 0.5)] == [(3.0, 0.25), (0.0, 0.5)]


def letters(turn: Turn, ids: Sequence[int]) -> str:
    return "".join(map(str, ids))


def test_states_of_the_world_stand_where_they_were_noted() -> None:
    rows = [Turn("a", "p", [1], [2], step=0), Turn("a", "p", [1, 2], [3], step=2)]
    made = episode("e", {"a": rows}, [0.0, 0.0, 0.0])
    made.states = ["dawn", "noon", "dusk"]
    texts = [text for _, text in joint_texts(made, letters)]
    assert texts == ["state: dawn\na reads: 1\n", "a says: 2\nstate: dusk\n"]
    made.states = ["dawn", ""]
    assert [text for _, text in joint_texts(made, letters)][1] == "a says: 2\n"


# -- shaped rewards --------------------------------------------------------------------------------


def shapes() -> Episode:
    """Two agents at once, then one after the other; the team's steps are paid differently."""
    rows = {
        "a": [turn("a", 0, 0.2), turn("a", 1, 0.5), turn("a", 3, 1.0)],
        "b": [turn("b", 0, 0.6), turn("b", 2, 0.3)],
    }
    return episode("e", rows, [1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize(
    ("shaping", "outcome", "changes"),
    [
        ("margin", 0.0, [0.0, 0.5 * (0.5 - 0.4), 0.5 * (1.0 - 0.4), 0.0, 0.5 * (0.3 - 1.3 / 3)]),
        (
            "quality",
            0.0,
            [
                0.0,
                0.5 * (0.4 * 0.5 - 0.6 * 0.5),
                0.5 * (0.4 * 1.0 - 0.6 * 0.0),
                0.0,
                0.5 * (1.3 / 3 * 0.3 - (1 - 1.3 / 3) * 0.7),
            ],
        ),
        ("none", 0.5, [0.5, 0.5, 0.0, 0.5, 0.5]),
        ("margin", 0.5, [0.5, 0.05 + 0.5, 0.3, 0.5, 0.5 * (0.3 - 1.3 / 3) + 0.5]),
    ],
)
def test_rewards_in_another_light(shaping: Any, outcome: float, changes: list[float]) -> None:
    made = shapes()
    before = [each.reward for each in made.turns]
    with shaped([Group([made])], shaping, 0.5, outcome):
        found = [each.reward - old for each, old in zip(made.turns, before, strict=True)]
        assert found == pytest.approx(changes)
        mean = [(changes[0] + changes[3]) / 2, changes[1], changes[4], changes[2], 0.0]
        paid = [1.0, 2.0, 3.0, 4.0, 5.0]
        assert made.step_rewards == pytest.approx([x + y for x, y in zip(paid, mean, strict=True)])
        assert made.reward == pytest.approx(15.0 + sum(mean))
    assert [each.reward for each in made.turns] == before
    assert (made.reward, made.step_rewards) == (15.0, [1.0, 2.0, 3.0, 4.0, 5.0])


def test_nothing_is_touched_where_nothing_is_shaped() -> None:
    made = shapes()
    paid = made.step_rewards
    with shaped([Group([made])], "none", 0.5, 0.0):
        assert made.step_rewards is paid
    with shaped([Group([made])], "margin", 0.5, 0.0):
        made.step_rewards = []
    assert made.step_rewards is paid
    made.step_rewards, made.reward = [], 2.0
    with shaped([Group([made])], "none", 0.5, 1.0):
        assert made.step_rewards == [] and made.reward == pytest.approx(2.0 + 3.0)
    with shaped([Group([episode("e", {}, [])])], "margin", 0.5, 0.5):
        pass
    trees = [episode(str(i), {"a": [turn("a", 0)]}, path=(0, i)) for i in range(2)]
    with (
        pytest.raises(TrainingError, match="outcome_coef"),
        shaped([Group(trees)], "none", 0.5, 0.1),
    ):
        pass
    with shaped([Group(trees)], "margin", 0.5, 0.0):
        pass


# -- running numbers -------------------------------------------------------------------------------


def test_a_window_keeps_the_latest() -> None:
    window = Window(4)
    assert window.place(3.0) == 0.5
    window.add([7])
    assert window.place(3.0) == window.place(9.0) == 0.5  # no range
    window.add([3, 1, 2])
    assert window.numbers == [7.0, 1.0, 2.0, 3.0]
    window.add([5])
    assert window.numbers == [1.0, 2.0, 3.0, 5.0]
    low, high = np.percentile([1, 2, 3, 5], (5, 95))
    assert window.place(2.5) == pytest.approx((2.5 - low) / (high - low))
    assert (window.place(low), window.place(0.0)) == (0.0, 0.0)
    assert (window.place(high), window.place(9.0)) == (1.0, 1.0)


def test_running_moments_are_those_of_all_numbers() -> None:
    seen, every, rng = RunningStats(), [], np.random.default_rng(0)
    seen.add(Moments(0, 5.0, 7.0))
    assert (seen.count, seen.mean, seen.std) == (0, 0.0, 0.0)
    for size in (1, 3, 0, 5):
        x = rng.normal(2.0, 3.0, size)
        every += x.tolist()
        variance = float(x.var(ddof=1)) if size > 1 else 0.0
        seen.add(Moments(size, float(x.mean()) if size else 0.0, variance))
        assert (seen.count, seen.mean) == (len(every), pytest.approx(np.mean(every)))
        expected = np.std(every, ddof=1) if len(every) > 1 else 0.0
        assert seen.std == pytest.approx(expected)


# -- trees -----------------------------------------------------------------------------------------


def test_an_answer_returns_what_its_continuations_return_on_average() -> None:
    paths = [(0, 0), (0, 1), (1,)]
    rewards = [[1.0, 2.0], [1.0, 6.0], [5.0]]
    found = node_returns(paths, rewards, 0.5)
    assert found == {(0,): 1.0 + 0.5 * 4.0, (0, 0): 2.0, (0, 1): 6.0, (1,): 5.0}
    assert by_state(list(found)) == {(): [(0,), (1,)], (0,): [(0, 0), (0, 1)]}
    assert not forked([episode("e", {}, [], path=(3,)), episode("e", {}, [])])
    assert forked([episode("e", {}, []), episode("e", {}, [], path=(0, 0))])


# -- episodes as a user brings them ----------------------------------------------------------------


def two(steps: list[float] | None = None) -> Episode:
    rows = {"a": [turn("a", 0, 9.0), turn("a", 2, 9.0)], "b": [turn("b", 1, 9.0)]}
    return episode("e", rows, steps)


@pytest.mark.parametrize(
    ("reward", "team", "own", "missing"),
    [
        (2.0, 2.0, [0.0, 2.0, 2.0], set()),
        ({"a": 1.0, "b": 4.0}, 2.5, [0.0, 1.0, 4.0], set()),
        ({"a": 1.0, "b": None}, 1.0, [0.0, 1.0, 0.0], {"b"}),
        ({"a": 1.0}, 1.0, [0.0, 1.0, 0.0], set()),
        (None, 0.0, [0.0, 0.0, 0.0], {"a", "b"}),
        ({"a": None}, 0.0, [0.0, 0.0, 0.0], {"a", "b"}),
    ],
)
def test_a_reward_that_is_given_replaces_those_of_turns(
    reward: Any, team: float, own: list[float], missing: set[str]
) -> None:
    for steps in (None, [1.0, 2.0, 3.0, 4.0, 5.0]):
        made = booked(two(steps), reward)
        assert made.reward == team and made.step_rewards == [0.0] * (4 if steps else 2) + [team]
        assert [each.reward for each in made.turns] == own
        assert made.missing == missing and made.status == "done" and made.error is None


def test_a_reward_that_is_not_finite_makes_an_episode_fail() -> None:
    made = booked(two(), {"a": math.nan, "b": 1.0})
    assert made.failed and made.error == "its reward is not finite (a: nan)"
    assert made.reward == 0.0 and [each.reward for each in made.turns] == [0.0] * 3
    with pytest.raises(ConfigError, match="names agent 'c'"):
        booked(two(), {"c": 1.0})


def test_rewards_must_fit_and_be_usable(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="2 rollouts but 1 rewards"):
        RolloutReader("p", None, None).groups([Rollout(), Rollout()], [1.0])  # type: ignore[arg-type]
    good, bad, unknown = booked(two(), 1.0), booked(two(), math.inf), booked(two(), None)
    failed = two()
    failed.status = "error"  # by itself, and not by its reward
    with caplog.at_level(logging.WARNING, logger="mrlm"):
        check_usable([good, unknown], [1.0, None])
        check_usable([bad], None)
        check_usable([], [])
        check_usable([failed, good], [0.0, 1.0])
        assert not caplog.records
        check_usable([good, bad, bad], [1.0, math.inf, math.inf])
    (said,) = caplog.records
    assert (
        said.getMessage() == "reward 1 is inf; 2 of 3 rollouts without a finite reward are skipped"
    )
    for rows, given, says in (
        ([unknown], [None], "all of them are None"),
        ([unknown, bad], [None, math.inf], "reward 1 is inf"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_usable(rows, given)


def test_what_plays_must_share_to_be_compared() -> None:
    def written(*messages: Message, **more: Any) -> Rollout:
        return Rollout(**more).add_messages(*messages)

    ask, more = Message("2+3?"), Message("4+4?")
    said, other = (Message(text, MessageType.MODEL) for text in ("5", "6"))
    assert opening_of(written(ask, said, more)) == opening_of(written(ask, other))
    assert opening_of(written(ask, said)) != opening_of(written(more, said))
    assert opening_of(written(ask, more, said)) == (("user", "2+3?"), ("user", "4+4?"))
    assert opening_of(written(ask, said, task_id="t7")) == "t7"
    assert opening_of(two()) == "t"
    both = opening_of({"a": written(ask, said), "b": written(more, said)})
    assert both == (("a", (("user", "2+3?"),)), ("b", (("user", "4+4?"),)))
    assert opening_of(written()) == ()


def test_groups_as_algorithms_want_them(caplog: pytest.LogCaptureFixture) -> None:
    def alone(name: str, **more: Any) -> Group:
        return grouped([episode(name, {"a": [turn("a", 0)]}, **more)])

    first, second = alone("0"), alone("1", path=(4, 2))
    assert (first.episodes[0].path, second.episodes[0].path) == ((0,), (4, 2))
    assert first.task_id == "t" and grouped([]).task_id == ""
    plain = SamplingPlan()
    assert as_planned([first], plain, "x") == [first]
    siblings = SamplingPlan(siblings=True)
    with pytest.raises(ConfigError, match="there is only one"):
        as_planned([first], siblings, "x")
    (together,) = as_planned([first, alone("2")], siblings, "x")
    assert [each.path for each in together] == [(0,), (1,)]
    kept = [first, together]
    assert as_planned(kept, siblings, "x") == kept
    tree = SamplingPlan(tree=True)
    assert as_planned([first], tree, "x") == [first]
    later = grouped([episode("3", {"a": [turn("a", 0), turn("a", 1)]})])
    with pytest.raises(ConfigError, match="different states"):
        as_planned([later], tree, "x")
    later.episodes[0].path = (0, 0)
    assert as_planned([later], tree, "x") == [later]


def test_what_was_generated_at_temperature_0_is_what_others_are_compared_with() -> None:
    plan = SamplingPlan(greedy=True)
    cold = SamplingParams(temperature=0.0)
    rows = [episode(str(i), {"a": [turn("a", 0), turn("a", 1)]}) for i in range(3)]
    for each in rows[0].turns:
        each.sampling = cold
    rows[1].rollouts["a"].turns[0].sampling = cold  # half of it
    rows[2].rollouts["a"].turns = []
    (found,) = as_planned([Group(rows, "t")], plan, "x")
    assert [each.greedy for each in found] == [True, False, False]
    with pytest.raises(ConfigError, match="temperature 0, but 't' has none"):
        as_planned([Group(rows[1:], "t")], plan, "x")
    with pytest.raises(ConfigError, match="all rollouts of 't' were generated"):
        as_planned([Group(rows[:1], "t")], plan, "x")
    rows[1].greedy = True  # as it was recorded
    (found,) = as_planned([Group(rows[1:], "t")], plan, "x")
    assert [each.greedy for each in found] == [True, False]


def spoken(*texts: str, **more: Any) -> Rollout:
    made = Rollout(**more).add_messages(Message("Say."))
    for text in texts:
        made.add_messages(Message(text, MessageType.MODEL), Message("More."))
    return made


def test_rollouts_by_hand_and_recorded_ones_are_read_alike(tokenizer: Any) -> None:
    reader = RolloutReader("mine", Chat(tokenizer), None)
    written = spoken("yes", "no", agent="a")
    turns = reader.turns(written)
    said = [tokenizer.decode(each.completion_ids) for each in turns]
    assert said[0].startswith("yes") and said[1].startswith("no")
    assert [(t.agent, t.policy, t.step, t.trained) for t in turns] == [
        ("a", "mine", 0, True),
        ("a", "mine", 1, True),
    ]
    recorded = turn("a", 7)
    for name in COMPUTED:
        setattr(recorded, name, 1.0)
    mixed = spoken(agent="a")
    mixed.turns = [recorded]
    mixed.add_messages(
        Message("yes", MessageType.MODEL, turn=recorded), Message("Again."),
        Message("no", MessageType.MODEL),
    )  # fmt: skip
    found = reader.turns(mixed)
    assert found[0] is recorded and [each.step for each in found] == [0, 1]
    assert all(getattr(recorded, name) is None for name in COMPUTED)
    assert (recorded.policy, len(found)) == ("mine", 2)
    only = spoken("yes", agent="a")
    only.turns = [turn("a", 4)]  # messages are a view of the turns
    assert [each.step for each in reader.turns(only)] == [4]
    seen = spoken(agent="a")
    seen.turns = [turn("a", 4)]
    seen.add_messages(Message("yes", MessageType.MODEL, turn=seen.turns[0]), Message("More."))
    assert [each.step for each in reader.turns(seen)] == [4]
    own = RolloutReader("mine", Chat(tokenizer), frozenset({"b"}))
    assert [each.trained for each in own.turns(mixed)] == [False]  # b wrote nothing by hand


def test_groups_of_a_users_plays(tokenizer: Any) -> None:
    reader = RolloutReader("mine", Chat(tokenizer), frozenset({"a"}))
    one, other = spoken("yes", agent="a"), {"a": spoken("no"), "b": spoken("ok")}
    recorded = two()
    recorded.rollouts["a"].turns[1].trained = False
    recorded.rollouts["a"].turns[0].advantages = 1.0
    given = Group([two()], "g")
    (first, second, third, fourth), sources = reader.groups([one, other, recorded, given])
    assert [len(group) for group in (first, second, third, fourth)] == [1] * 4
    assert list(first.episodes[0].rollouts) == ["a"] and fourth.task_id == "t"
    assert (first.episodes[0].id, second.episodes[0].id) == ("0", "1")
    parts = second.episodes[0].rollouts
    assert [(name, r.agent, r.policy, len(r.turns)) for name, r in parts.items()] == [
        ("a", "a", "mine", 1),
        ("b", "b", "mine", 0),
    ]
    copied = [(t.agent, t.policy, t.trained, t.advantages) for t in third.episodes[0].turns]
    assert copied == [("a", "mine", True, None), ("a", "p", False, None), ("b", "p", False, None)]
    assert recorded.rollouts["a"].turns[0].advantages == 1.0
    assert [rollout is source for (rollout, _), source in zip(
        sources,
        [one, *other.values(), *recorded.rollouts.values(), *given.episodes[0].rollouts.values()],
        strict=True,
    )] == [True] * 7  # fmt: skip
    assert third.episodes[0].step_rewards is not recorded.step_rewards
    with pytest.raises(ConfigError, match=r"rollouts\[0\] is a group"):
        reader.groups([given], [1.0])
    by_key, _ = reader.groups([one, spoken("no", agent="a")], [1.0, 3.0], lambda play: 7)
    assert [each.reward for each in by_key[0]] == [1.0, 3.0]
    assert by_key[0].episodes[0].task.id == "7" and [e.path for e in by_key[0]] == [(0,), (1,)]
    called = {"a": part("agent", turn("agent", 0)), "b": part("agent", turn("agent", 0))}
    ((group,), _) = reader.groups([called])
    told = [(each.agent, each.policy, each.trained) for each in group.episodes[0].turns]
    assert told == [("a", "mine", True), ("b", "mine", False)]
    silent, _ = reader.groups([Rollout().add_messages(Message("Say."))])
    assert list(silent[0].episodes[0].rollouts) == ["agent"]
