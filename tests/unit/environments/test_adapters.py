"""What the worlds of other libraries do without any library: what they may hand over, how answers
are read and observations written, whose chance it is. (With the libraries: `make test-extras`.)"""

import importlib.util
import random
from typing import Any

import numpy as np
import pytest

from mrlm.core import registry
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.types import Message
from mrlm.environments.connectors.libraries import Chance, finite, said
from mrlm.environments.connectors.reasoning_gym import is_literal, is_mathematics, stated
from mrlm.environments.connectors.spaces import Actions, legal_in, shown
from mrlm.environments.shared.child_process import ChildProcess, TooLate, answering

NEEDS: dict[str, dict[str, Any]] = {
    "reasoning_gym": {"dataset": "chain_sum"},
    "textarena": {"id": "TicTacToe-v0"},
    "pettingzoo": {"id": "tictactoe_v3"},
    "gymnasium": {"id": "FrozenLake-v1"},
    "verifiers": {"taskset": "mine"},
    "openenv": {"url": "http://127.0.0.1:9"},
}


@pytest.mark.parametrize("name", NEEDS)
def test_the_error_without_the_library_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf'pip install "mrlm\[{name}\]"'):
        registry.load("environments", name)(**NEEDS[name])


# -- what a library may evaluate -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["[1, 2]", "[[0, 1], [1, 0]]", "'ab'", "1 2 3", "_ Q _", "(", "QAB"]
)
def test_plain_values_and_what_is_no_python_may_be_evaluated(text: str) -> None:
    assert is_literal(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "entry", "[open('x')]", "[x for x in y]", "f'{open}'", "9**9**9",
        "().__class__", "lambda: 1", "1 if a else 2", "'a' * 10", "[" * 3_000, "1" * 3_000,
    ],
)  # fmt: skip
def test_nothing_else_may_be_evaluated(text: str) -> None:
    assert not is_literal(text)


@pytest.mark.parametrize(
    "text",
    [
        "(6*4) + 3 - 3", "3*x**2/2 + C", "-exp(-x)*sin(x)**2", "x**(1/2) + log(x)", "2.5*X^3",
        "sqrt(2)",
    ],
)  # fmt: skip
def test_mathematics_may_be_computed(text: str) -> None:
    assert is_mathematics(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "x.y", "open(x)", "eval(x)", "exec", "9**9**9", "((9**99)**99)**99",
        "9**(9*9*9*9)", "9**x**9**99", "2**1000", "99999!", "x" * 500, "(" * 190, "lambda x: x",
        "x[0]", "x; y", "x\n+y", "a_b", "sin(x)(y)(z)[0]",
    ],
)  # fmt: skip
def test_nothing_else_may_be_computed(text: str) -> None:
    assert not is_mathematics(text)


# -- answers ---------------------------------------------------------------------------------------


def discrete(count: int, start: int = 0) -> Any:
    return type("Discrete", (), {"n": count, "start": start})()


def test_an_action_is_its_word_or_its_number() -> None:
    actions = Actions(discrete(3), ["left", "stay", "right"], "here")
    for text in ("left", " LEFT. ", "I go left", "0", "right or so\nAction: left", "move: 0"):
        assert actions.named(text) == 0, text
    for text in ("", "left right", "up", "3", "-1 2", "left\nAction: up"):
        assert actions.named(text) is None, text
    assert actions.named("right", [0, 1]) is None and actions.named("stay", [0, 1]) == 1
    assert actions.listed([0, 2]) == "left, right" and actions.word(2) == "right"
    shifted = Actions(discrete(3, 5), None, "here")
    assert shifted.named("6") == 6 and shifted.named("2") is None and shifted.word(7) == "7"
    assert {shifted.drawn(random.Random(i)) for i in range(30)} == {5, 6, 7}
    assert {shifted.drawn(random.Random(i), [1]) for i in range(9)} == {6}
    assert Actions(discrete(4000), None, "here").listed() == "a number from 0 to 3999"


@pytest.mark.parametrize("names", [["a"], ["a", "a", "b"], ["a", "b", "c d"], ["a", "b", ""]])
def test_names_have_to_fit(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="3 different words"):
        Actions(discrete(3), names, "here")
    with pytest.raises(ConfigError, match="Box"):
        Actions(type("Box", (), {"__repr__": lambda self: "Box(3)"})(), None, "here")


def test_tags_hold_the_answer() -> None:
    assert stated("so <answer> 5 </answer>", True) == "5"
    assert stated("<answer>4</answer> no: <answer>5</answer>", True) == "5"
    for text in ("5", "<answer>5", "5</answer>", "</answer>5<answer>"):
        assert stated(text, True) is None
    assert stated(" 5\n", False) == "5"


def test_what_was_said_is_made_harmless() -> None:
    assert said(None) == "" and said(Message("a\x00\ud800b")) == "a??b"
    assert len(said(Message("x" * 50_000))) == 20_000
    assert said(Message("7" * 9_000 + " 12")) == "7" * 100 + " 12"


# -- observations ----------------------------------------------------------------------------------


def test_observations_are_text() -> None:
    assert shown(3) == "3" and shown("a") == "a" and shown(np.float32(0.5)) == "0.5"
    assert shown(np.eye(2, dtype=int)) == "1 0\n0 1"
    assert shown(np.array([True, False])) == "1 0"
    assert shown((1, {"a": 2})) == "1, 2"
    assert shown({"board": [1, 2], "left": 3, "action_mask": [1]}) == "board: 1, 2\nleft: 3"
    planes = np.zeros((2, 2, 2), dtype=int)
    planes[0, 0, 0] = planes[1, 1, 1] = 1
    assert shown(planes) == "X .\n. O"


def test_legal_actions_are_found_where_they_are_told() -> None:
    mask = np.array([0, 1, 1], dtype=np.int8)
    assert legal_in({"action_mask": mask}, None) == [1, 2] == legal_in({}, {"action_mask": mask})
    assert legal_in({}, 3) is None and legal_in(None, None) is None


def test_a_number_is_finite_or_the_episode_fails() -> None:
    assert finite(True, "x") == 1.0 and finite(np.float64(2), "x") == 2.0
    for value in (float("nan"), float("inf"), None, "x", [1]):
        with pytest.raises(EpisodeError, match="x returned"):
            finite(value, "x")


# -- chance and processes --------------------------------------------------------------------------


def test_global_generators_are_an_episodes_own_while_it_holds_them() -> None:
    random.seed(1)
    np.random.seed(1)
    outside = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]

    def drawn(chance: Chance) -> tuple[float, float]:
        with chance.held():
            return random.random(), float(np.random.rand())

    one, two = Chance("a"), Chance("a")
    first = drawn(one)
    assert drawn(Chance("b")) != first == drawn(two)
    assert drawn(one) == drawn(two) != first
    now = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    assert now == outside


def serve() -> None:
    """What the child of the next test does."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        while request["said"] == "hang":
            pass
        print("this is no answer")
        return {"twice": 2 * request["said"]}

    answering(answer)


def test_a_child_is_killed_when_it_hangs_and_started_again() -> None:
    child = ChildProcess("test_adapters", "the child")
    try:
        assert child.ask({"said": 4}, 20.0) == {"twice": 8}
        before = child.pid
        with pytest.raises(TooLate, match=r"longer than 0\.2 s"):
            child.ask({"said": "hang"}, 0.2)
        assert child.pid is None
        with pytest.raises(EpisodeError, match="TypeError"):
            child.ask({"said": None}, 20.0)
        assert child.ask({"said": "a"}, 20.0) == {"twice": "aa"} and child.pid != before
    finally:
        child.close()
    assert child.pid is None
