"""Worlds around other worlds: one agent in all seats, and what each agent's words were worth."""

import threading
from typing import Any

import pytest

from mrlm.core import registry
from mrlm.core.environment import Environment
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, Role, StepResult, Task
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.environments.relay import RelayEnvironment
from mrlm.environments.wrappers.centralised import CentralisedEnvironment
from mrlm.environments.wrappers.difference import DifferenceEnvironment
from mrlm.environments.wrappers.rescored import RescoredEnvironment


def step(world: Any, **said: str) -> StepResult:
    actions = {agent: Message(text, Role.ASSISTANT, agent=agent) for agent, text in said.items()}
    return run_async(world.step(actions))


def reset(world: Any, task: Task | None = None) -> StepResult:
    return run_async(world.reset(task or world.task(0), 0))


def test_one_agent_sees_what_all_see_and_writes_everybodys_part() -> None:
    world = CentralisedEnvironment({"env_type": "matrix", "game": "climbing"}).spawn()
    (shown,) = reset(world).observations["team"].messages
    assert shown.content == "[row] row: A B C?\n[column] column: A B C?"
    result = step(world, team="[row] B\n[column] C")
    assert result.done and result.rewards["team"].value == 6.0
    assert result.rewards["team"].components["row/legal"] == 1.0


@pytest.mark.parametrize(
    ("separator", "text", "expected"),
    [
        (None, "[b] two [a] one", ("one", "two")),
        (None, "so: [a] one [b] two [a] three", ("one", "two")),
        (None, "[b] two", ("", "two")),
        (None, "no names", ("no names", "")),
        (",", "one, two, three", ("one", "two")),
        (",", "one", ("one", "")),
    ],
)
def test_parts_of_an_answer(separator: str | None, text: str, expected: tuple[str, str]) -> None:
    world = CentralisedEnvironment(MatrixEnvironment("xor", agents=("a", "b")), "me", separator)
    assert tuple(world.parts(text, ("a", "b")).values()) == expected


def brief(completions: list[str], **_: Any) -> list[float]:
    """Minus the number of letters of every completion."""
    return [-float(len(text)) for text in completions]


def test_a_config_names_the_reward_function_that_rescores() -> None:
    world = RescoredEnvironment({"env_type": "matrix"}, f"{__name__}:brief")
    reset(world)
    result = step(world, row="A", column="BB")
    assert {agent: each.value for agent, each in result.rewards.items()} == {
        "row": -1,
        "column": -2,
    }
    for wrong in ("brief", 3, None):
        with pytest.raises(ConfigError, match="reward_fn: expected a function"):
            RescoredEnvironment(MatrixEnvironment(), wrong)  # pyright: ignore


def test_a_seat_that_speaks_alone_needs_no_name() -> None:
    world = CentralisedEnvironment(RelayEnvironment(), agent="solo")
    task = Task("t", info={"a": 3, "b": 4, "c": 5})
    assert reset(world, task).observations["solo"].messages[0].content == "3+4="
    assert world.expert("solo", []) == "7"
    assert step(world, solo="7").observations["solo"].messages[0].content == "7+5="
    assert step(world, solo="[second] 12").rewards["solo"].value == 1.0


def test_its_expert_writes_all_parts() -> None:
    world = CentralisedEnvironment(MatrixEnvironment("climbing"))
    assert world.expert("team", []) is None
    reset(world)
    assert world.expert("team", []) == "[row] A [column] A"
    short = CentralisedEnvironment(MatrixEnvironment("climbing"), separator=" ")
    reset(short)
    assert step(short, team=str(short.expert("team", []))).rewards["team"].value == 11.0


def test_an_agent_is_paid_the_difference_it_made() -> None:
    """At (B, C) the team has 6; had row said A it would have 0, had column said A, -30."""
    world = DifferenceEnvironment(MatrixEnvironment("climbing"), default="A")
    reset(world)
    rewards = step(world, row="B", column="C").rewards
    assert rewards["row"].value == 6.0 - 0.0 and rewards["column"].value == 6.0 + 30.0
    assert rewards["row"].components["team"] == 6.0
    assert rewards["column"].components["without"] == -30.0
    assert rewards["row"].components["payoff"] == 6.0


def test_part_of_the_teams_reward_can_be_paid_besides() -> None:
    world = DifferenceEnvironment(MatrixEnvironment("climbing"), default="A", share=0.5)
    reset(world)
    assert step(world, row="B", column="C").rewards["row"].value == 6.0 + 3.0


def test_those_who_did_not_speak_are_paid_by_the_world() -> None:
    world = DifferenceEnvironment(RelayEnvironment())
    reset(world, Task("t", info={"a": 3, "b": 4, "c": 5}))
    step(world, first="7")
    rewards = step(world, second="12").rewards
    assert rewards["first"].value == 1.0 and rewards["second"].value == 1.0
    assert "without" not in rewards["first"].components


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="multi-agent environment, and 'MatrixEnvironment' has one"
    ):
        DifferenceEnvironment(MatrixEnvironment("bandit"))
    with pytest.raises(ConfigError, match="env_type, the wrapped"):
        CentralisedEnvironment({"game": "xor"})
    with pytest.raises(ConfigError, match=r"environment\.matrix: .*gane"):
        CentralisedEnvironment({"env_type": "matrix", "gane": "xor"})
    with pytest.raises(Exception, match="did you mean 'matrix'"):
        CentralisedEnvironment({"env_type": "matirx"})

    class Locked(MatrixEnvironment):
        def __init__(self) -> None:
            super().__init__("xor")
            self.lock = threading.Lock()

    world = DifferenceEnvironment(Locked())
    world.environment.reset()
    with pytest.raises(ConfigError, match="cannot be copied"):
        step(world, row="A", column="B")


class Slow(Environment):
    """A world that may block, and remembers in which thread it was stepped."""

    agents = ("a", "b")

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult({agent: Observation([Message("go")]) for agent in self.agents})

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.thread = threading.current_thread()
        return StepResult(rewards={agent: Reward(1.0) for agent in self.agents}, done=True)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("name", ["centralised", "rescored"])
def test_a_world_that_may_block_does_so_in_a_thread_of_its_own(name: str) -> None:
    inner = Slow()
    more = {"reward_fn": lambda completions, **_: [1.0] * len(completions)}
    world = registry.load("environments", name)(inner, **(more if name == "rescored" else {}))
    assert isinstance(world, CentralisedEnvironment | RescoredEnvironment)
    reset(world)
    step(world, **dict.fromkeys(world.agents, "hi"))
    assert inner.thread is not threading.main_thread()
    world.close()
    assert inner.closed
