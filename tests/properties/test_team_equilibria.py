"""Exact values of greedy joint policies and their exploitability, against policies made by hand and
against what the library samples greedily."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from benchmarks.teams.base import Talk, base_of
from benchmarks.teams.equilibrium import Answers, Asked, GreedyAnswers, Trained, joint_of, judged
from benchmarks.teams.runs import Job, Stop, config_of
from benchmarks.teams.settings import ARMS, MAJORITY

from mrlm import run_experiment


def by(policy: Callable[[str, Talk], str]) -> Answers:
    """A joint policy from a function of the agent and its conversation."""

    def answers(asked: Sequence[Asked]) -> list[str]:
        return [policy(*each) for each in asked]

    return answers


def constant(**answers: str) -> Answers:
    """Agents that always answer the same."""
    return by(lambda agent, talk: answers[agent])


def follow(agent: str, talk: Talk) -> str:
    """The observation that a voter sees."""
    return talk[0][1][0]


def last(talk: Talk) -> str:
    """The last message."""
    return talk[-1][1]


def test_the_equilibria_of_a_matrix_game_are_those_of_its_table() -> None:
    table, low = ((11, -30, 0), (-30, 7, 6), (0, 0, 5)), -30
    for row, column in itertools.product(range(3), repeat=2):
        found = judged("climbing/team", constant(row="ABC"[row], column="ABC"[column]))
        best = max([line[column] for line in table] + list(table[row]))
        assert found.value == pytest.approx((table[row][column] - low) / 41)
        assert found.gain == pytest.approx((best - table[row][column]) / 41)
        alone = judged("climbing/one", constant(one="ABC"[row] + "ABC"[column]))
        assert alone.value == found.value and alone.gain == pytest.approx(1 - found.value)


def test_an_answer_that_is_not_legal_is_worth_the_lowest_reward() -> None:
    found = judged("climbing/team", constant(row="?", column="A"))
    assert (found.value, found.gain) == (0.0, 1.0)


def test_voters_that_agree_are_in_equilibrium_however_poor_their_answer() -> None:
    right = judged("evidence/team", by(follow))
    assert (right.value, right.gain) == (pytest.approx(MAJORITY), 0.0)
    stuck = judged("evidence/team", constant(v1="A", v2="A", v3="A"))
    assert (stuck.value, stuck.gain) == (pytest.approx(0.5), 0.0)
    half = judged(
        "evidence/team", by(lambda agent, talk: follow(agent, talk) if agent == "v1" else "A")
    )
    assert half.value == pytest.approx(0.5), "two constant votes decide"
    assert half.gain == pytest.approx(0.7 - 0.5), "with a second follower: 0.91 in A, 0.49 in B"
    one = judged("vote/one", constant(one="A"))
    team = judged("vote/team", constant(v1="A", v2="A", v3="A"))
    assert team.value == one.value and one.gain == pytest.approx(0.5625 - one.value)
    assert team.gain == 0
    split = judged("vote/team", constant(v1="A", v2="B", v3="C"))
    assert split.value == one.value, "a tie goes to the first answer"
    assert split.gain and split.gain > 0


@pytest.mark.parametrize(
    ("sends", "names", "value", "gain"),
    [
        ("ABC", {"A": "1", "B": "2", "C": "3"}, 1.0, 0.0),
        ("BCA", {"A": "3", "B": "1", "C": "2"}, 1.0, 0.0),
        ("AAC", {"A": "1", "B": "2", "C": "3"}, 2 / 3, 1 / 3),  # the sender may use B
        ("AAC", {"A": "1", "B": "1", "C": "3"}, 2 / 3, 0.0),  # a local optimum
        ("AAA", {"A": "1", "B": "1", "C": "1"}, 1 / 3, 0.0),  # babbling
        ("ABC", {"A": "2", "B": "3", "C": "1"}, 0.0, 1.0),
    ],
)
def test_codes(sends: str, names: dict[str, str], value: float, gain: float) -> None:
    """A receiver cannot deviate in one state only, if it does not see which one it is."""

    def code(agent: str, talk: Talk) -> str:
        seen = last(talk).removesuffix("?").split(":")[0].split()[-1]
        return sends[int(seen) - 1] if agent == "sender" else names[seen]

    found = judged("signals/team", by(code))
    assert (found.value, found.gain) == (pytest.approx(value), pytest.approx(gain, abs=1e-9))


def test_an_agent_can_correct_the_message_before() -> None:
    def off_by_one(agent: str, talk: Talk) -> str:
        total = sum(map(int, last(talk).removesuffix("=").split("+")))
        return str(total + (agent == "first"))

    found = judged("sums/team", by(off_by_one))
    assert (found.value, found.gain) == (0.0, 1.0)
    assert len(joint_of("sums/team").states) == len(joint_of("sums/one").states)


def test_a_deviation_in_a_debate_covers_its_rounds() -> None:
    alone = judged("debate/one", constant(first="0"))
    team = judged("debate/team", constant(first="0", second="0"))
    assert team.value == pytest.approx(alone.value) and alone.gain == pytest.approx(1 - alone.value)
    assert team.gain == pytest.approx((1 - team.value) / 2), "half of the reward is its own"


def test_states_have_the_chances_of_the_evaluation() -> None:
    for name, count in {
        "parts2/team": 9,
        "evidence/team": 16,
        "vote/one": 8,
        "paths/one": 5,
    }.items():
        states = joint_of(name).states
        assert len(states) == count, name
        assert sum(weight for weight, _ in states) == pytest.approx(1)
    assert judged("paths/one", constant(player="U")).gain is None, "not enumerated"


@pytest.mark.parametrize("name", ["climbing/team", "climbing/one"])
def test_greedy_answers_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    base = base_of("climbing", 0, tmp_path / "models", steps=10, reader_steps=0)
    config = config_of(Job(name, 3e-3, 0), base, tmp_path / "run", 2 * 96)
    config.evaluation.greedy = True
    trained = Trained()
    result = run_experiment(config, callbacks=[Stop(2 * 96), trained])
    found = judged(name, GreedyAnswers(trained.run))
    played = [row["eval/reward/mean"] for row in result.history if "eval/reward/mean" in row]
    assert found.value == pytest.approx(played[-1]), ARMS[name]
